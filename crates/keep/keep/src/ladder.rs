//! What to do about a crash: the ladder of recovery, as a pure judge.
//!
//! For each crash position the rungs are tried in order: the newest checkpoint, the one before it,
//! the oldest (the newest may be infected: taken after the corruption, before the crash), then the
//! oldest in a changed environment (allocations padded and zeroed, frees delayed: a heap bug that
//! comes each time may do no harm then), then the input that kills is dropped, then the program is
//! left to die. Going back forgets the newer checkpoints, so each attempt sees what is left. A
//! position is the last input that the program had read, in log mode, else the address of the
//! crash. Attempts are counted by position, so that an innocent request is not dropped for the
//! crash of another.
//!
//! Where only a drop has helped at an instruction, the drop comes before the older checkpoints at
//! the next crash there: each of them would be a replay in vain. So it is with a hang. Where only
//! the changed environment has helped, that comes first. If there is another crash there soon
//! after, the memory is ruined, and the older checkpoints come first again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Crash positions that are remembered.
const POSITIONS: usize = 64;

/// See [`Ladder::delay`].
const BACK_OFF: Duration = Duration::from_millis(5);

/// One way of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// Back to the newest checkpoint, and replay.
    Newest,
    /// Back to an older checkpoint, and replay.
    Older,
    /// Back to a checkpoint, and replay with allocations padded and zeroed, and frees delayed.
    Environment,
    /// Back to a checkpoint before the last input, and replay without it: its client sees the end
    /// of the connection.
    Drop,
    /// The program dies of its signal.
    GiveUp,
}

/// What the judge needs to know of a crash.
#[derive(Clone, Debug)]
pub struct Facts {
    /// When it happened.
    pub at: Instant,
    /// Address of the instruction; 0 for a hang, which may be anywhere in a loop.
    pub ip: u64,
    /// No crash: the program hangs. Each attempt in vain takes as long as it takes to find that.
    pub is_hang: bool,
    /// Position in the log of the last input before it, in log mode.
    pub last_input: Option<u64>,
    /// Half the time for all attempts is over: an input that may be dropped is, before there is
    /// no time left for it.
    pub is_late: bool,
    /// Whether that input may be dropped: nothing has gone out since.
    pub may_drop: bool,
    /// Whether a replay has read that input and come further: only that shows what goes out by
    /// calls that are in no log.
    pub is_shown: bool,
    /// For each checkpoint, newest first: the position of the log where its replay starts (0
    /// without a log).
    pub checkpoints: Vec<u64>,
    /// When the newest of them was taken; without one, or where no more are taken, now.
    pub newest: Instant,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Roll back to the checkpoint of this index (0: newest), and replay.
    Replay(usize),
    /// Roll back to the checkpoint of this index, and replay in a changed environment.
    Environment(usize),
    /// Roll back to the checkpoint of this index, and replay without the input at this position.
    Drop(usize, u64),
    /// Let the program die; the text says why.
    GiveUp(&'static str),
}

impl Step {
    /// The rung that the step is on.
    pub fn rung(self) -> Rung {
        match self {
            Step::Replay(0) => Rung::Newest,
            Step::Replay(_) => Rung::Older,
            Step::Environment(_) => Rung::Environment,
            Step::Drop(..) => Rung::Drop,
            Step::GiveUp(_) => Rung::GiveUp,
        }
    }
}

/// Bounds of recovery.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Rungs that may be used. In the order of [`Rung`] the ladder may put a rung first that has
    /// helped before; in any other order they are tried as they stand here.
    pub rungs: Vec<Rung>,
    /// Crashes within `window`, or without a checkpoint in between, after which the program is
    /// given up.
    pub crashes: usize,
    /// See `crashes`.
    pub window: Duration,
    /// A crash without a log at an address that has crashed before counts as another one after this
    /// time.
    pub forget: Duration,
    /// A drop or a changed environment has helped if there is no other crash at that instruction
    /// for this time after the replay.
    pub proof: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        let rungs = vec![Rung::Newest, Rung::Older, Rung::Environment, Rung::Drop];
        let minute = Duration::from_secs(60);
        let window = Duration::from_secs(10);
        Bounds { rungs, crashes: 600, window, forget: minute, proof: Duration::from_millis(25) }
    }
}

/// Where a crash is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Input(u64),
    Address(u64),
}

#[derive(Debug)]
struct Seen {
    position: Position,
    attempts: Vec<Attempt>,
    /// Index in `attempts`.
    next: usize,
    last: Instant,
    /// Going back alone has not helped.
    is_deterministic: bool,
    /// There was a replay to show that the input may be dropped.
    was_to_show: bool,
}

/// What is tried at one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Newest,
    /// The newest one from before the last input was read: later ones are inside the hang.
    BeforeInput,
    Before,
    Oldest,
    /// From the newest checkpoint on.
    EnvironmentAtOnce,
    /// From the oldest one on: more is allocated anew since.
    Environment,
    Drop,
}

impl Attempt {
    fn rung(self) -> Rung {
        match self {
            Newest | BeforeInput => Rung::Newest,
            Before | Oldest => Rung::Older,
            EnvironmentAtOnce | Environment => Rung::Environment,
            Drop => Rung::Drop,
        }
    }
}

use Attempt::{Before, BeforeInput, Drop, Environment, EnvironmentAtOnce, Newest, Oldest};
const OLDER_FIRST: &[Attempt] = &[Newest, Before, Oldest, Environment, Drop];
const DROP_FIRST: &[Attempt] = &[Newest, Drop, Before, Oldest, Environment];
const HANG: &[Attempt] = &[BeforeInput, Drop, Before, Oldest, Environment];
const ENVIRONMENT_FIRST: &[Attempt] = &[EnvironmentAtOnce, Before, Oldest, Environment, Drop];

/// The judge, with what it remembers of earlier crashes.
#[derive(Debug)]
pub struct Ladder {
    bounds: Bounds,
    seen: VecDeque<Seen>,
    recent: VecDeque<Instant>,
    /// Instructions at which the environment was changed or an input dropped: which was tried last,
    /// and when.
    remedies: VecDeque<(u64, Rung, Instant)>,
    /// Positions up to now at which going back was enough, and those at which it was not.
    causes: (u64, u64),
}

impl Ladder {
    /// A judge that has seen no crash.
    pub fn new(bounds: Bounds) -> Ladder {
        Ladder { bounds, seen: VecDeque::new(), recent: VecDeque::new(), remedies: VecDeque::new(), causes: (0, 0) }
    }

    /// A replay with a remedy has come to its end: the remedy shows its worth from here on.
    pub fn replayed(&mut self, at: Instant) {
        if let Some((.., tried)) = self.remedies.back_mut() {
            *tried = at.max(*tried);
        }
    }

    /// Without a log, after a step: the program does until about `at` what it did since the
    /// checkpoint. Only from there on does a remedy show its worth, and is the position forgotten.
    pub fn done_again(&mut self, step: Step, at: Instant) {
        if matches!(step, Step::Environment(_)) {
            self.replayed(at);
        }
        if let Some(seen) = self.seen.back_mut() {
            seen.last = at.max(seen.last);
        }
    }

    /// How long a program that crashes often waits before its next recovery: it shall not take a
    /// CPU until it is given up.
    pub fn delay(&self, at: Instant) -> Option<Duration> {
        let recent = self.recent.iter().filter(|t| at.duration_since(**t) <= self.bounds.window).count();
        (recent > self.bounds.crashes / 2).then_some(BACK_OFF)
    }

    /// Decides about a crash and counts it.
    pub fn judge(&mut self, facts: &Facts) -> Step {
        // On a slow machine so many do not fit in the window: without a checkpoint in between they
        // count all the same.
        let is_past = |t: Instant| facts.at.duration_since(t) > self.bounds.window && t < facts.newest;
        while self.recent.front().is_some_and(|t| is_past(*t)) {
            self.recent.pop_front();
        }
        self.recent.push_back(facts.at);
        if self.recent.len() > self.bounds.crashes {
            return Step::GiveUp("it crashes too often");
        }
        if facts.checkpoints.is_empty() {
            return Step::GiveUp("there is no checkpoint yet");
        }
        let position = facts.last_input.map_or(Position::Address(facts.ip), Position::Input);
        let has = |rung| self.bounds.rungs.contains(&rung);
        // The newest checkpoint that was taken before the input was read.
        let drop = facts
            .last_input
            .filter(|_| has(Rung::Drop) && facts.may_drop)
            .and_then(|input| facts.checkpoints.iter().position(|start| *start <= input).map(|i| Step::Drop(i, input)));
        let step = self.step_at(position, facts, drop);
        if matches!(step, Step::Environment(_) | Step::Drop(..) | Step::GiveUp(_))
            && let Some(seen) = self.seen.iter_mut().find(|seen| seen.position == position)
            && !std::mem::replace(&mut seen.is_deterministic, true)
        {
            self.causes = (self.causes.0.saturating_sub(1), self.causes.1 + 1);
        }
        step
    }

    /// Crash positions at which going back to a checkpoint was enough, and those at which it was
    /// not.
    pub fn causes(&self) -> (u64, u64) {
        self.causes
    }

    /// The next attempt at this position.
    fn step_at(&mut self, position: Position, facts: &Facts, drop: Option<Step>) -> Step {
        let has = |rung| self.bounds.rungs.contains(&rung);
        let (newest, older, environment) = (has(Rung::Newest), has(Rung::Older), has(Rung::Environment));
        let oldest = facts.checkpoints.len() - 1;
        let attempts = match self.remedy(facts) {
            Some(Rung::Drop) => DROP_FIRST,
            Some(Rung::Environment) => {
                // The same bug once more; at an address it would count as the same crash.
                self.seen.retain(|s| s.position != position || matches!(position, Position::Input(_)));
                ENVIRONMENT_FIRST
            }
            _ if facts.is_hang => HANG,
            _ => OLDER_FIRST,
        };
        let rungs = &self.bounds.rungs;
        let mut attempts = attempts.to_vec();
        if !rungs.is_sorted() {
            attempts.sort_by_key(|attempt| rungs.iter().position(|rung| *rung == attempt.rung()));
        }
        let seen = self.seen(position, facts.at, attempts);
        // Where a rung does not apply the next one is tried at once.
        while let Some(&attempt) = seen.attempts.get(seen.next) {
            seen.next += 1;
            if facts.is_late && drop.is_some() && attempt != Drop {
                continue;
            }
            match attempt {
                Attempt::Newest if newest => return Step::Replay(0),
                Attempt::BeforeInput if newest => {
                    return Step::Replay(if let Some(Step::Drop(index, _)) = drop { index } else { 0 });
                }
                Attempt::Before if older && oldest >= 1 => return Step::Replay(1),
                Attempt::Oldest if older && oldest >= 1 => return Step::Replay(oldest),
                Attempt::EnvironmentAtOnce if environment => {
                    self.tried(facts, Rung::Environment);
                    return Step::Environment(0);
                }
                Attempt::Environment if environment => {
                    self.tried(facts, Rung::Environment);
                    return Step::Environment(oldest);
                }
                Attempt::Drop if facts.is_shown => {
                    if let Some(step) = drop {
                        self.tried(facts, Rung::Drop);
                        return step;
                    }
                }
                Attempt::Drop if !seen.was_to_show => {
                    if let Some(Step::Drop(index, _)) = drop {
                        (seen.was_to_show, seen.next) = (true, seen.next - 1);
                        return Step::Replay(index);
                    }
                }
                _ => {}
            }
        }
        self.remedies.retain(|(ip, ..)| *ip != facts.ip);
        Step::GiveUp("all other rungs of the ladder were tried at this position")
    }

    /// What has helped at this instruction, beside older checkpoints.
    fn remedy(&self, facts: &Facts) -> Option<Rung> {
        let (_, rung, at) = self.remedies.iter().find(|(ip, ..)| *ip == facts.ip)?;
        (facts.at.duration_since(*at) > self.bounds.proof).then_some(*rung)
    }

    /// A replay in a changed environment has gone another way: that is not counted as a help.
    pub fn environment_was_in_vain(&mut self) {
        self.remedies.retain(|(_, rung, _)| *rung != Rung::Environment);
    }

    fn tried(&mut self, facts: &Facts, rung: Rung) {
        self.remedies.retain(|(ip, ..)| *ip != facts.ip);
        if self.remedies.len() == POSITIONS {
            self.remedies.pop_front();
        }
        self.remedies.push_back((facts.ip, rung, facts.at));
    }

    /// What is remembered of the position, the last one of `seen` from here on; `attempts`: what is
    /// tried if it is a new one.
    fn seen(&mut self, position: Position, at: Instant, attempts: Vec<Attempt>) -> &mut Seen {
        let forget = self.bounds.forget;
        self.seen.retain(|s| matches!(s.position, Position::Input(_)) || at.duration_since(s.last) <= forget);
        let index = self.seen.iter().position(|s| s.position == position);
        let seen = index.and_then(|index| self.seen.remove(index)).unwrap_or_else(|| {
            if self.seen.len() == POSITIONS {
                self.seen.pop_front();
            }
            self.causes.0 += 1;
            Seen { position, attempts, next: 0, last: at, is_deterministic: false, was_to_show: false }
        });
        self.seen.push_back(Seen { last: at, ..seen });
        let last = self.seen.len() - 1;
        &mut self.seen[last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(at: Instant, input: Option<u64>, checkpoints: &[u64]) -> Facts {
        Facts {
            at,
            ip: 0x1000,
            is_hang: false,
            is_late: false,
            last_input: input,
            may_drop: true,
            is_shown: true,
            checkpoints: checkpoints.to_vec(),
            newest: at,
        }
    }

    #[test]
    fn older_checkpoints_come_before_a_drop() {
        let mut ladder = Ladder::new(Bounds::default());
        let mut judge = |checkpoints: &[u64]| ladder.judge(&facts(Instant::now(), Some(500), checkpoints));
        assert_eq!(judge(&[400, 300, 200, 100]), Step::Replay(0));
        assert_eq!(judge(&[400, 300, 200, 100]), Step::Replay(1));
        assert_eq!(judge(&[300, 200, 100]), Step::Replay(2));
        assert_eq!(judge(&[100]), Step::Environment(0));
        assert_eq!(judge(&[100]), Step::Drop(0, 500));
        assert_eq!(judge(&[100]).rung(), Rung::GiveUp);
    }

    #[test]
    fn late_an_input_is_dropped_at_once() {
        let mut ladder = Ladder::new(Bounds::default());
        let now = Instant::now();
        assert_eq!(ladder.judge(&facts(now, Some(500), &[400, 300])), Step::Replay(0));
        let late = |input| Facts { is_late: true, ..facts(now, input, &[400, 300]) };
        assert_eq!(ladder.judge(&late(Some(500))), Step::Drop(0, 500));
        assert_eq!(ladder.judge(&late(Some(500))).rung(), Rung::GiveUp);
        assert_eq!(ladder.judge(&late(None)), Step::Replay(0), "there is nothing to drop");
    }

    #[test]
    fn rungs_in_another_order_are_tried_in_it() {
        let rungs = vec![Rung::Drop, Rung::Newest];
        let mut ladder = Ladder::new(Bounds { rungs, ..Bounds::default() });
        let mut judge = || ladder.judge(&facts(Instant::now(), Some(500), &[400, 300]));
        assert_eq!(judge(), Step::Drop(0, 500));
        assert_eq!(judge(), Step::Replay(0));
        assert_eq!(judge().rung(), Rung::GiveUp);
    }

    #[test]
    fn an_input_read_before_the_newest_checkpoint_is_dropped_from_an_older_one() {
        let bounds = Bounds { rungs: vec![Rung::Drop], ..Bounds::default() };
        let now = Instant::now();
        assert_eq!(Ladder::new(bounds.clone()).judge(&facts(now, Some(350), &[400, 300])), Step::Drop(1, 350));
        assert_eq!(Ladder::new(bounds).judge(&facts(now, Some(50), &[400, 300])).rung(), Rung::GiveUp);
    }

    #[test]
    fn an_input_that_something_went_out_after_is_not_dropped() {
        let mut ladder = Ladder::new(Bounds { rungs: vec![Rung::Drop], ..Bounds::default() });
        let facts = Facts { may_drop: false, ..facts(Instant::now(), Some(350), &[400, 300]) };
        assert_eq!(ladder.judge(&facts).rung(), Rung::GiveUp);
    }

    #[test]
    fn an_input_is_dropped_only_after_a_replay_that_has_read_it() {
        let unshown = || Facts { is_shown: false, ..facts(Instant::now(), Some(350), &[400, 300]) };
        let bounds = Bounds { rungs: vec![Rung::Drop], ..Bounds::default() };
        let mut ladder = Ladder::new(bounds.clone());
        assert_eq!(ladder.judge(&unshown()), Step::Replay(1), "it is to show what goes out");
        assert_eq!(ladder.judge(&facts(Instant::now(), Some(350), &[400, 300])), Step::Drop(1, 350));
        let mut ladder = Ladder::new(bounds);
        assert_eq!(ladder.judge(&unshown()), Step::Replay(1));
        assert_eq!(ladder.judge(&unshown()).rung(), Rung::GiveUp, "it has not come so far");
    }

    #[test]
    fn an_input_that_hangs_again_is_dropped_before_older_checkpoints_are_tried() {
        let mut ladder = Ladder::new(Bounds::default());
        let hang =
            |checkpoints: &[u64]| Facts { ip: 0, is_hang: true, ..facts(Instant::now(), Some(500), checkpoints) };
        // The newest is inside the hang.
        assert_eq!(ladder.judge(&hang(&[540, 400, 300])), Step::Replay(1));
        assert_eq!(ladder.judge(&hang(&[400, 300])), Step::Drop(0, 500));
        assert_eq!(ladder.judge(&hang(&[400, 300])), Step::Replay(1));
    }

    #[test]
    fn another_position_begins_at_the_bottom() {
        let mut ladder = Ladder::new(Bounds::default());
        let now = Instant::now();
        assert_eq!(ladder.judge(&facts(now, Some(1), &[0])), Step::Replay(0));
        assert_eq!(ladder.judge(&facts(now, Some(2), &[0])), Step::Replay(0));
        assert_eq!(ladder.judge(&facts(now, Some(1), &[0])), Step::Environment(0));
        assert_eq!(ladder.judge(&facts(now, Some(1), &[0])), Step::Drop(0, 1));
    }

    #[test]
    fn without_a_log_the_address_counts_and_is_forgotten() {
        let mut ladder = Ladder::new(Bounds::default());
        let now = Instant::now();
        assert_eq!(ladder.judge(&facts(now, None, &[0, 0])), Step::Replay(0));
        assert_eq!(ladder.judge(&facts(now, None, &[0, 0])), Step::Replay(1));
        assert_eq!(ladder.judge(&facts(now, None, &[0])), Step::Environment(0));
        assert_eq!(ladder.judge(&facts(now, None, &[0])).rung(), Rung::GiveUp);
        let later = now + Duration::from_secs(61);
        assert_eq!(ladder.judge(&facts(later, None, &[0, 0])), Step::Replay(0));
    }

    #[test]
    fn crashes_without_end_are_given_up() {
        let bounds = Bounds { crashes: 10, ..Bounds::default() };
        let mut ladder = Ladder::new(bounds);
        let now = Instant::now();
        let steps: Vec<_> = (0..11).map(|i| ladder.judge(&facts(now, Some(i), &[0]))).collect();
        assert!(steps[..10].iter().all(|s| *s == Step::Replay(0)));
        assert_eq!(steps[10], Step::GiveUp("it crashes too often"));
        assert_eq!(ladder.delay(now), Some(BACK_OFF));
        assert_eq!(ladder.delay(now + Duration::from_secs(20)), None);
        let later = now + Duration::from_secs(120);
        assert_eq!(ladder.judge(&facts(later, Some(99), &[0])), Step::Replay(0));
    }

    #[test]
    fn where_a_drop_has_helped_it_comes_before_older_checkpoints() {
        let mut ladder = Ladder::new(Bounds::default());
        let now = Instant::now();
        for _ in 0..3 {
            assert!(matches!(ladder.judge(&facts(now, Some(500), &[400, 300])), Step::Replay(_)));
        }
        assert_eq!(ladder.judge(&facts(now, Some(500), &[400, 300])), Step::Environment(1));
        assert_eq!(ladder.judge(&facts(now, Some(500), &[400, 300])).rung(), Rung::Drop);
        let later = now + Duration::from_secs(1);
        assert_eq!(ladder.judge(&facts(later, Some(600), &[400, 300])), Step::Replay(0));
        assert_eq!(ladder.judge(&facts(later, Some(600), &[400, 300])), Step::Drop(0, 600));
        // Another crash there at once: it was not the input.
        assert_eq!(ladder.judge(&facts(later, Some(700), &[400, 300])), Step::Replay(0));
        assert_eq!(ladder.judge(&facts(later, Some(700), &[400, 300])), Step::Replay(1));
    }

    #[test]
    fn transient_and_deterministic_crashes_are_counted_apart() {
        let mut ladder = Ladder::new(Bounds::default());
        let now = Instant::now();
        ladder.judge(&facts(now, Some(1), &[0]));
        assert_eq!(ladder.causes(), (1, 0));
        for _ in 0..3 {
            ladder.judge(&facts(now, Some(2), &[0]));
        }
        assert_eq!(ladder.causes(), (1, 1));
    }

    #[test]
    fn where_a_changed_environment_has_helped_it_comes_first() {
        for input in [Some(500), None] {
            let mut ladder = Ladder::new(Bounds::default());
            let now = Instant::now();
            let mut judge = |at: Instant| ladder.judge(&facts(at, input, &[400, 300]));
            assert!((0..3).all(|_| matches!(judge(now), Step::Replay(_))));
            assert_eq!(judge(now), Step::Environment(1));
            let later = now + Duration::from_secs(1);
            let mut judge = |input| ladder.judge(&facts(later, input, &[400, 300]));
            let next = input.map(|input| input + 100);
            assert_eq!(judge(next), Step::Environment(0), "the same bug once more");
            assert!(matches!(judge(next), Step::Replay(1)), "it does not help this time");
        }
    }

    #[test]
    fn without_a_log_a_crash_that_is_done_again_is_given_up() {
        // Older than what is forgotten, too.
        for age in [Duration::from_millis(200), Duration::from_secs(100)] {
            let mut ladder = Ladder::new(Bounds::default());
            let mut at = Instant::now();
            let mut steps = Vec::new();
            while steps.last().is_none_or(|step: &Step| step.rung() != Rung::GiveUp) && steps.len() < 10 {
                let step = ladder.judge(&facts(at, None, &[0, 0]));
                ladder.done_again(step, at + 2 * age);
                at += age;
                steps.push(step);
            }
            let rungs: Vec<_> = steps.iter().map(|step| step.rung()).collect();
            let expected = [Rung::Newest, Rung::Older, Rung::Older, Rung::Environment, Rung::GiveUp];
            assert_eq!(rungs, expected, "each {age:?}");
        }
    }

    #[test]
    fn nothing_to_go_back_to() {
        let step = Ladder::new(Bounds::default()).judge(&facts(Instant::now(), Some(1), &[]));
        assert_eq!(step, Step::GiveUp("there is no checkpoint yet"));
    }
}
