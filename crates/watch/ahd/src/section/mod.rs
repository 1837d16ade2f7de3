//! Sections that a program marks in its source (RMK, section 5): entered, left by an exit, nested,
//! overlapping, in many threads.
//!
//! Owns: [`Marked`], the sections of one process, which takes the cells that a scan read. Promises:
//! pure; what belongs to threads that ended is forgotten. The clock is read by the sensor, not by
//! the program: what executions took is as good as [`Executions`] can know. Whether an execution
//! hangs is the rule's to say ([`crate::judge`]).

mod executions;
mod window;

pub use executions::Executions;
pub use window::Windows;

use crate::facts::Cell;
use orbit_section::layout::EXITS;
use std::collections::{BTreeMap, BTreeSet};

/// Executions of each exit that the check value goes by (RMK, section 5.1).
pub const WINDOW: usize = 50;

/// A section that a thread is in.
#[derive(Clone, Copy, Debug)]
pub struct Inside {
    /// CPU time of the thread when it was first seen inside, ns.
    pub from: u64,
    /// CPU time in the scan before and in the last one, ns.
    pub runs: (u64, u64),
    /// When it was first seen inside, s.
    pub began: f64,
    /// When it was last seen to have run, s.
    pub ran_at: f64,
}

/// One thread in one section.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    seq: u32,
    exits: [u32; EXITS],
    /// Nothing while it is outside.
    pub inside: Option<Inside>,
}

impl Place {
    /// Later entries are further in, the one that is known to be the last before all; of those
    /// whose entry was not seen, the one that is entered more often.
    fn rank(&self, section: usize, is_last: bool) -> Option<(bool, f64, u32, usize)> {
        self.inside.map(|inside| (is_last, inside.began, self.seq, section))
    }
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Marked {
    names: Vec<String>,
    executions: Vec<Executions>,
    /// By thread and section.
    places: BTreeMap<(i32, usize), Place>,
    /// Of a thread the section that it entered last, if it is inside.
    last: BTreeSet<(i32, usize)>,
}

impl Marked {
    /// Takes what a scan read. `names` are all, or none where none is new; `last` are the sections
    /// that threads entered last, of those that they are in.
    pub fn saw(&mut self, now: f64, names: &[String], cells: &[Cell], last: &[(i32, usize)]) {
        if !names.is_empty() {
            self.names = names.to_vec();
        }
        while self.executions.len() < self.names.len() {
            self.executions.push(Executions::new(WINDOW, now));
        }
        for &(tid, section, seq, exits, run, ran) in cells {
            let Some(executions) = self.executions.get_mut(section) else { continue };
            let place = self.places.entry((tid, section)).or_insert(Place { seq, exits, inside: None });
            place.follow(now, seq, exits, (run, ran), executions);
            self.last.remove(&(tid, section));
        }
        self.last.extend(last);
    }

    /// Forgets a thread that ended.
    pub fn gone(&mut self, tid: i32) {
        self.places.retain(|(of, _), _| *of != tid);
        self.last.retain(|(of, _)| *of != tid);
    }

    /// Name and executions of a section.
    pub fn section(&self, section: usize) -> Option<(&str, &Executions)> {
        Some((self.names.get(section)?, self.executions.get(section)?))
    }

    /// Threads inside sections: thread, section, place.
    pub fn inside(&self) -> impl Iterator<Item = (i32, usize, Inside)> {
        self.places.iter().filter_map(|((tid, section), place)| Some((*tid, *section, place.inside?)))
    }

    /// The sections that a thread entered after this one and has not left.
    pub fn within(&self, tid: i32, section: usize) -> impl Iterator<Item = (usize, Inside)> {
        let of = self.places.get(&(tid, section)).and_then(|place| self.rank(tid, section, place));
        let all = self.places.range((tid, 0)..=(tid, usize::MAX));
        let is_later = move |place: &Place, section| place.inside.is_some() && self.rank(tid, section, place) > of;
        let later = all.filter(move |((_, section), place)| is_later(place, *section));
        later.filter_map(|((_, section), place)| Some((*section, place.inside?)))
    }

    fn rank(&self, tid: i32, section: usize, place: &Place) -> Option<(bool, f64, u32, usize)> {
        place.rank(section, self.last.contains(&(tid, section)))
    }

    /// Name of the section that a thread entered last and has not left.
    pub fn innermost(&self, tid: i32) -> Option<&str> {
        let all = self.places.range((tid, 0)..=(tid, usize::MAX)).filter(|(_, place)| place.inside.is_some());
        let last = all.max_by(|a, b| {
            let rank = |((_, section), place): &(&(i32, usize), &Place)| self.rank(tid, *section, place);
            rank(a).partial_cmp(&rank(b)).unwrap_or(std::cmp::Ordering::Equal)
        })?;
        self.names.get(last.0.1).map(String::as_str)
    }
}

impl Place {
    fn follow(&mut self, now: f64, seq: u32, exits: [u32; EXITS], (run, ran): (u64, u64), executions: &mut Executions) {
        // An exit is counted before the section is left: with none left, that one is seen in the
        // next scan.
        if seq / 2 != self.seq / 2 {
            let times = std::array::from_fn(|e| exits[e].wrapping_sub(self.exits[e]));
            let seen = self.inside.map_or(0, |inside| run.saturating_sub(ran).saturating_sub(inside.from));
            executions.left(&times, seen, ran, now);
            self.exits = exits;
        }
        if seq != self.seq {
            self.inside = None;
        }
        self.seq = seq;
        if seq & 1 == 0 {
            self.inside = None;
            return;
        }
        let inside = self.inside.get_or_insert(Inside { from: run, runs: (run, run), began: now, ran_at: now });
        inside.runs = (inside.runs.1, run);
        if ran > 0 {
            inside.ran_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn executions_go_to_their_exits_and_nesting_is_by_entry() {
        let mut marked = Marked::default();
        let names = ["outer".to_owned(), "inner".to_owned()];
        let exits = |n| std::array::from_fn(|e| if e == 3 { n } else { 0 });
        marked.saw(0.0, &names, &[(7, 0, 0, exits(0), 0, 0)], &[]);
        marked.saw(0.1, &[], &[(7, 0, 10, exits(5), 50 * MS, 50 * MS)], &[]);
        assert_eq!(marked.section(0).and_then(|(_, x)| x.usual()), Some(10 * MS), "five executions shared 50 ms");
        marked.saw(0.2, &[], &[(7, 0, 11, exits(5), 60 * MS, 10 * MS)], &[]);
        marked.saw(0.3, &[], &[(7, 0, 11, exits(5), 200 * MS, 140 * MS), (7, 1, 1, exits(0), 200 * MS, 140 * MS)], &[]);
        assert_eq!(marked.innermost(7), Some("inner"));
        assert_eq!(marked.within(7, 0).map(|(section, _)| section).collect::<Vec<_>>(), [1]);
        assert_eq!(marked.within(7, 1).count(), 0);
        let outer = marked.inside().find(|(_, section, _)| *section == 0).expect("inside").2;
        assert_eq!((outer.from, outer.runs), (60 * MS, (60 * MS, 200 * MS)));
        marked.saw(0.4, &[], &[(7, 0, 12, exits(6), 210 * MS, 10 * MS)], &[]);
        assert_eq!(marked.section(0).and_then(|(_, x)| x.usual()), Some(150 * MS), "the long one counts as one");
        marked.gone(7);
        assert_eq!(marked.inside().count(), 0);
    }

    #[test]
    fn the_section_that_was_entered_last_is_the_innermost_however_often_it_is_entered() {
        let names = ["outer".to_owned(), "inner".to_owned()];
        let cells = [(7, 0, 101, [0; EXITS], 0, 0), (7, 1, 3, [0; EXITS], 0, 0)];
        for (last, innermost, within) in [(&[][..], "outer", 0), (&[(7, 1)], "inner", 1)] {
            let mut marked = Marked::default();
            marked.saw(0.1, &names, &cells, last);
            assert_eq!((marked.innermost(7), marked.within(7, 0).count()), (Some(innermost), within));
            marked.saw(0.2, &[], &[(7, 1, 4, [0; EXITS], 0, 0)], &[]);
            assert_eq!(marked.innermost(7), Some("outer"), "the inner one was left");
        }
    }
}
