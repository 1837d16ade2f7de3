//! Redis' side of the slow log: writes entries into the ring, hands them over, and counts what was
//! lost.
//!
//! A hand-over takes the state of the ring as a snapshot, so one call brings all entries that came
//! since the last; while a call is under way nothing is handed over. The ring keeps entries until
//! newer ones need the room, so that a restarted orbit, whose log is empty, gets those again. Lost
//! are the entries that the log should hold and that had left the ring by then; how many it holds,
//! the orbit says at the end of each hand-over.

use std::ops::Range;
use std::time::{Duration, Instant};

use orbit::{
    Area, CallOptions, Entry as Function, Future, Kind, Limits, Orbit, Outcome, Pending, Restart, Stats, WhenFull,
};

use crate::log::{Handover, Log};
use crate::options::{Mode, Options};
use crate::record::Draft;
use crate::ring::Ring;
use crate::task;

/// The slow log as Redis holds it.
pub struct Keeper {
    pub options: Options,
    ring: Ring,
    draft: Draft,
    place: Place,
    reset_before: u64,
    /// Ids below this have been handed over; `None`: what the ring holds must be handed over again.
    handed: Option<u64>,
    pub counts: Counts,
}

/// What happened so far.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Slow commands that Redis' own log had dropped before they were seen.
    pub missed: u64,
    /// Entries the log should hold and does not.
    pub lost: u64,
    /// Hand-overs made.
    pub handovers: u64,
    /// Hand-overs whose call failed.
    pub failed: u64,
    /// Time that hand-overs took in Redis' thread, nanoseconds.
    pub handover_ns: u64,
    /// Longest of them, nanoseconds.
    pub handover_max_ns: u64,
}

enum Place {
    /// The log, and the ring's memory.
    Inside(Log, #[expect(dead_code, reason = "held for the ring, which has its address")] Box<[u64]>),
    Orbit(Remote),
}

/// The orbit.
struct Remote {
    orbit: Orbit,
    area: Area,
    /// The hand-over under way.
    call: Option<Underway>,
    /// Ids below this are counted as lost already, as far as they are.
    counted: u64,
    last_failure: Option<String>,
}

/// A hand-over under way.
struct Underway {
    future: Future,
    /// The ids that a whole log holds after it.
    whole: Range<u64>,
}

/// How the last hand-over stands.
enum Call {
    /// There is none, or it has ended well.
    None,
    Underway,
    /// It has failed just now.
    Failed,
}

impl Keeper {
    /// Makes the ring and, in mode orbit, the area and the orbit.
    pub fn new(options: Options) -> orbit::Result<Keeper> {
        let capacity = options.ring;
        let (base, place) = match options.mode {
            Mode::Orbit => {
                let area = Area::builder("slowlog").size(capacity).limit(2 * capacity + (64 << 10)).build()?;
                let base = area.alloc_zeroed(capacity, 4096)?.as_ptr();
                let orbit = Orbit::builder("redis-slowlog")
                    .entry(task::note)
                    .init(task::begin)
                    .limits(Limits::new().memory(options.memory))
                    .deadline(options.deadline)
                    .pending(Pending::Keep)
                    .when_full(WhenFull::Fail)
                    // A whole ring may be new while a hand-over of half of it is under way.
                    .log((2 * capacity).clamp(1 << 20, 1 << 30))
                    .restart(Restart::OnFailure {
                        first_pause: Duration::from_millis(1),
                        longest_pause: Duration::from_secs(1),
                        give_up: 0,
                    })
                    .may_alter(false)
                    .build()?;
                (base, Place::Orbit(Remote { orbit, area, call: None, counted: 0, last_failure: None }))
            }
            Mode::Inside | Mode::Off => {
                let mut memory = vec![0u64; capacity / 8].into_boxed_slice();
                (memory.as_mut_ptr().cast(), Place::Inside(Log::default(), memory))
            }
        };
        // SAFETY: the memory is aligned, as large, used by nothing else, and lives in the same
        // struct.
        let ring = unsafe { Ring::new(base, capacity) };
        let (draft, counts) = (Draft::default(), Counts::default());
        Ok(Keeper { options, ring, draft, place, reset_before: 0, handed: Some(0), counts })
    }

    /// Makes a first call, which costs the most: the orbit gets its replica of the ring.
    pub fn warm_up(&mut self) {
        let handover = self.handover();
        if let Place::Orbit(remote) = &mut self.place {
            // A failure shows in the first hand-over.
            remote.call =
                remote.call(&handover, [0; 2], CallOptions::new()).ok().map(|future| Underway { future, whole: 0..0 });
        }
    }

    /// Begins an entry; its arguments follow, then [`Keeper::end`].
    pub fn begin(&mut self, time: i64, micros: i64, address: &[u8], name: &[u8]) -> &mut Draft {
        self.draft.begin(time, micros, address, name);
        &mut self.draft
    }

    /// Puts the entry begun last into the ring.
    pub fn end(&mut self) {
        self.draft.set_id(self.ring.next());
        self.ring.push(self.draft.bytes());
    }

    /// The same, for a command whose time was not known when its entry was begun.
    pub fn end_after(&mut self, micros: i64) {
        self.draft.set_micros(micros);
        self.end();
    }

    /// Entries seen so far.
    pub fn seen(&self) -> u64 {
        self.ring.next()
    }

    /// The id from which on a whole log has all entries.
    fn wanted_from(&self) -> u64 {
        self.reset_before.max(self.ring.next().saturating_sub(self.options.max_len))
    }

    fn handover(&self) -> Handover {
        Handover { span: self.ring.span(), reset_before: self.reset_before, max_len: self.options.max_len }
    }

    /// Hands over what is new, if anything is and no call is under way. Never blocks on the orbit.
    pub fn hand_over(&mut self) {
        if let Place::Orbit(remote) = &mut self.place {
            match remote.state(&mut self.counts) {
                Call::None => {}
                Call::Underway => return,
                Call::Failed => self.handed = None,
            }
        }
        if self.handed == Some(self.ring.next()) {
            return;
        }
        let begun = Instant::now();
        let (handover, whole) = (self.handover(), self.wanted_from()..self.ring.next());
        match &mut self.place {
            Place::Inside(log, _) => {
                // SAFETY: the span is the ring's, and nothing is pushed meanwhile.
                unsafe { log.take_in(&handover) };
            }
            Place::Orbit(remote) => {
                match remote.call(&handover, [0; 2], CallOptions::new()) {
                    Ok(future) => remote.call = Some(Underway { future, whole }),
                    // Down, or a queue full of queries: the entries wait in the ring.
                    Err(_) => return,
                }
            }
        }
        self.handed = Some(self.ring.next());
        let took = begun.elapsed().as_nanos() as u64;
        self.counts.handovers += 1;
        self.counts.handover_ns += took;
        self.counts.handover_max_ns = self.counts.handover_max_ns.max(took);
    }

    /// Forgets all entries; the orbit hears of it with the next call.
    pub fn reset(&mut self) {
        self.reset_before = self.ring.next();
        let handover = self.handover();
        if let Place::Inside(log, _) = &mut self.place {
            // SAFETY: the span is the ring's, and nothing is pushed meanwhile.
            unsafe { log.take_in(&handover) };
        }
    }

    /// The log, having taken in everything, where the task runs inside.
    pub fn inside(&mut self) -> Option<&Log> {
        if matches!(self.place, Place::Inside(..)) {
            self.hand_over();
        }
        match &self.place {
            Place::Inside(log, _) => Some(log),
            Place::Orbit(_) => None,
        }
    }

    /// Calls this function of the orbit with the state of the ring and these words; `deadline`: the
    /// orbit's own if none.
    pub fn ask(&mut self, function: Function, words: [u64; 2], deadline: Option<Duration>) -> orbit::Result<Future> {
        let handover = self.handover();
        let Place::Orbit(remote) = &mut self.place else {
            return Err(orbit::Error::new(Kind::Invalid, "the slow log runs inside Redis: there is no orbit to ask"));
        };
        let options = CallOptions::new().function(function);
        remote.call(&handover, words, deadline.map_or(options, |deadline| options.deadline(deadline)))
    }

    /// Notes how a query or fault ended.
    pub fn note_outcome(&mut self, outcome: &Outcome) {
        if outcome.is_failure() {
            self.handed = None;
        }
        if let Place::Orbit(remote) = &mut self.place {
            remote.note_outcome(outcome);
        }
    }

    /// What the orbit has done, how it last failed, and how its area is tracked; `None` where there
    /// is no orbit.
    pub fn orbit(&self) -> Option<(Stats, Option<&str>, String)> {
        match &self.place {
            Place::Inside(..) => None,
            Place::Orbit(remote) => {
                Some((remote.orbit.stats(), remote.last_failure.as_deref(), remote.area.engine().to_string()))
            }
        }
    }

    /// Ends the orbit. Blocks until its process is gone.
    pub fn close(self) {
        if let Place::Orbit(remote) = &self.place {
            // The only error is that this process is a fork of the one that has the orbit.
            let _ = remote.orbit.destroy();
        }
    }
}

impl Remote {
    /// How the hand-over stands. Of one that has ended it counts what the log lacks.
    fn state(&mut self, counts: &mut Counts) -> Call {
        let Some(Underway { future, whole }) = &self.call else { return Call::None };
        let Some(outcome) = future.poll() else { return Call::Underway };
        let state = match outcome.returned() {
            // Ids are counted from the old end, for a crash loses the oldest: an entry that is
            // missing is missed once.
            Some(held) => {
                let from = whole.end.saturating_sub(held.max(0) as u64).clamp(whole.start, whole.end);
                counts.lost += from.saturating_sub(whole.start.max(self.counted));
                self.counted = self.counted.max(from);
                Call::None
            }
            None => {
                counts.failed += 1;
                self.note_outcome(&outcome);
                Call::Failed
            }
        };
        self.call = None;
        state
    }

    fn note_outcome(&mut self, outcome: &Outcome) {
        if outcome.is_failure() {
            self.last_failure = Some(outcome.to_string());
        }
    }

    fn call(&self, handover: &Handover, words: [u64; 2], options: CallOptions) -> orbit::Result<Future> {
        self.orbit.call_async_with(&[&self.area], &task::arguments(handover, words), &options)
    }
}
