//! Every interleaving of the steps by which main and an orbit hand over calls: nobody sleeps for
//! ever over a call that is there, and a call whose cancellation main has promised never runs.
//!
//! All the steps modelled are sequentially consistent accesses or futex calls of the kernel, which
//! are atomic against each other; so every execution is some interleaving of them, and the search
//! below visits them all. Each model stands beside the lines it models, and the test fails when
//! those lines change.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// A protocol: threads that take one step at a time from a common state.
trait Model: Clone + Eq + Hash + Debug {
    /// Takes the next step of a thread; false if the thread cannot move now (asleep) or has ended.
    fn step(&mut self, thread: usize) -> bool;
    /// Must hold in every state.
    fn check(&self) {}
    /// Must hold where no thread can move any more.
    fn check_end(&self);
}

/// Visits every reachable state; returns how many there are.
fn explore<M: Model>(start: M, threads: usize) -> usize {
    let mut seen = HashSet::new();
    let mut frontier = vec![start];
    while let Some(state) = frontier.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        state.check();
        let mut moved = false;
        for thread in 0..threads {
            let mut next = state.clone();
            if next.step(thread) {
                moved = true;
                frontier.push(next);
            }
        }
        if !moved {
            state.check_end();
        }
    }
    seen.len()
}

/// The lines stand in this file, in this order.
fn in_order(source: &str, lines: &[&str]) {
    let mut from = 0;
    for line in lines {
        let at = source[from..].find(line).unwrap_or_else(|| panic!("the model's line has changed: {line}"));
        from += at + line.len();
    }
}

const CALLS_OF_MAIN: &str = include_str!("../src/calls.rs");
const TAKE_BACK: &str = include_str!("../src/queue/take_back.rs");
const TASK: &str = include_str!("../src/task.rs");

/// Main submits `CALLS` calls; the orbit takes them and sleeps in between. `skip_check` leaves out
/// the orbit's second check, to show that the search finds what goes wrong then.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Submit {
    submitted: u32,
    asleep: bool,
    /// Main's place: 0 store submitted, 1 read asleep, 2 wake.
    main: u8,
    left: u32,
    /// The orbit's place: 0 check for a call, 1 store asleep, 2 second check, 3 in the kernel's
    /// queue, 4 woken.
    orbit: u8,
    done: u32,
    skip_check: bool,
}

const CALLS: u32 = 3;

impl Model for Submit {
    fn step(&mut self, thread: usize) -> bool {
        if thread == 0 {
            match self.main {
                0 if self.left > 0 => {
                    self.submitted += 1;
                    self.main = 1;
                }
                1 if self.asleep => self.main = 2,
                1 => (self.main, self.left) = (0, self.left - 1),
                2 => {
                    if self.orbit == 3 {
                        self.orbit = 4;
                    }
                    (self.main, self.left) = (0, self.left - 1);
                }
                _ => return false,
            }
            return true;
        }
        match self.orbit {
            0 if self.submitted != self.done => self.done += 1,
            0 => self.orbit = 1,
            1 => {
                self.asleep = true;
                self.orbit = 2;
            }
            // The kernel compares the word again when it queues the sleeper.
            2 => self.orbit = if self.submitted == self.done || self.skip_check { 3 } else { 4 },
            4 => {
                if self.submitted != self.done {
                    self.asleep = false;
                }
                self.orbit = if self.submitted == self.done { 1 } else { 0 };
            }
            _ => return false,
        }
        true
    }

    fn check_end(&self) {
        assert_eq!(self.done, CALLS, "the orbit sleeps over a call: {self:?}");
    }
}

#[test]
fn an_orbit_never_sleeps_over_a_call() {
    in_order(
        CALLS_OF_MAIN,
        &[
            "self.down.submitted.store(submitted, Ordering::SeqCst);",
            "&& process.up.asleep.load(Ordering::SeqCst) != 0",
            "futex::wake(&self.down.submitted, 1);",
        ],
    );
    in_order(
        TASK,
        &[
            "let submitted = self.shared.down.submitted.load(Ordering::SeqCst);",
            "while !self.is_there(self.done) {",
            "self.shared.up.asleep.store(1, Ordering::SeqCst);",
            "let seen = self.shared.down.submitted.load(Ordering::SeqCst);",
            "if !self.is_there(self.done) {",
            "futex::wait(&self.shared.down.submitted, seen, None);",
            "self.shared.up.asleep.store(0, Ordering::Relaxed);",
        ],
    );
    let start = Submit { submitted: 0, asleep: false, main: 0, left: CALLS, orbit: 0, done: 0, skip_check: false };
    let states = explore(start.clone(), 2);
    println!("{states} states");
    let broken = std::panic::catch_unwind(|| explore(Submit { skip_check: true, ..start }, 2));
    assert!(broken.is_err(), "the search finds the fault when the second check is left out");
}

/// Main cancels a call while the orbit comes to it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Cancel {
    state: Slot,
    begun: bool,
    /// 0 store ASKED, 1 read begun, 2 store CANCELLED, 3 promised, 4 put back, 5 not promised.
    main: u8,
    /// 0 store begun, 1 read state, 2 ran, 3 skipped.
    orbit: u8,
    wrong: Wrong,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Slot {
    Ready,
    Asked,
    Cancelled,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Wrong {
    Nothing,
    /// Main reads first and stores then.
    LooksFirst,
    /// Main stores CANCELLED without asking first.
    AsksNot,
}

impl Model for Cancel {
    fn step(&mut self, thread: usize) -> bool {
        if thread == 0 {
            match (self.main, self.wrong) {
                (0, Wrong::LooksFirst) => self.main = if self.begun { 5 } else { 2 },
                (0, Wrong::AsksNot) => (self.state, self.main) = (Slot::Cancelled, 1),
                (0, Wrong::Nothing) => (self.state, self.main) = (Slot::Asked, 1),
                (1, _) => self.main = if self.begun { 4 } else { 2 },
                (2, _) => (self.state, self.main) = (Slot::Cancelled, 3),
                (4, _) => (self.state, self.main) = (Slot::Ready, 5),
                _ => return false,
            }
            return true;
        }
        match self.orbit {
            0 => {
                self.begun = true;
                self.orbit = 1;
            }
            1 => match self.state {
                Slot::Ready => self.orbit = 2,
                Slot::Asked => return false,
                Slot::Cancelled => self.orbit = 3,
            },
            _ => return false,
        }
        true
    }

    fn check(&self) {
        assert!(!(self.main == 3 && self.orbit == 2), "a call ran whose cancellation was promised: {self:?}");
        assert!(!(self.main == 5 && self.orbit == 3), "a call was skipped whose cancellation was refused: {self:?}");
    }

    fn check_end(&self) {
        assert!(self.orbit >= 2, "the call ran or was skipped");
    }
}

#[test]
fn a_call_whose_cancellation_is_promised_never_runs_and_one_whose_is_refused_does() {
    in_order(
        CALLS_OF_MAIN,
        &[
            "slot.state.store(ASKED, Ordering::SeqCst);",
            "up.begun.load(Ordering::SeqCst)",
            "slot.state.store(READY, Ordering::SeqCst);",
            "slot.state.store(CANCELLED, Ordering::SeqCst);",
            "waiting.cancelled = true;",
        ],
    );
    in_order(
        TASK,
        &[
            "self.shared.up.begun.store(call.wrapping_add(1), Ordering::SeqCst);",
            "if is_cancelled(slot) {",
            "self.run(",
            "fn is_cancelled(slot: &Slot) -> bool {",
            "match slot.state.load(Ordering::SeqCst) {",
            "ASKED => ",
        ],
    );
    let start = Cancel { state: Slot::Ready, begun: false, main: 0, orbit: 0, wrong: Wrong::Nothing };
    explore(start.clone(), 2);
    for wrong in [Wrong::LooksFirst, Wrong::AsksNot] {
        let broken = std::panic::catch_unwind(|| explore(Cancel { wrong, ..start.clone() }, 2));
        assert!(broken.is_err(), "the search finds the fault: {wrong:?}");
    }
}

/// Main takes a call back that waits, alone, while the orbit comes to it, and hands over another in
/// its place.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct TakeBack {
    submitted: bool,
    begun: bool,
    asleep: bool,
    /// What lies in the slot: 1 the first call, 2 the one in its place, 0 neither as a whole.
    slot: u8,
    /// 0 lower submitted, 1 read asleep, 2 wake, 3 read begun, 4 begin to write the slot, 5
    /// end that, 6 raise submitted, 7 read asleep, 8 wake, 9 ended.
    main: u8,
    taken: bool,
    /// 0 check for a call, 1 store begun, 2 second check, 3 take begun back, 4 read the slot, 5
    /// ran; 6 store asleep, 7 read submitted, 8 check again, 9 in the kernel's queue, 10 woken.
    orbit: u8,
    seen: bool,
    /// What the orbit ran.
    ran: u8,
    /// The orbit does not check a second time: wrong.
    skip_check: bool,
}

impl Model for TakeBack {
    fn step(&mut self, thread: usize) -> bool {
        if thread == 0 {
            match self.main {
                0 => (self.submitted, self.main) = (false, 1),
                1 | 7 => self.main += if self.asleep { 1 } else { 2 },
                2 | 8 => {
                    if self.orbit == 9 {
                        self.orbit = 10;
                    }
                    self.main += 1;
                }
                3 => (self.taken, self.main) = if self.begun { (false, 6) } else { (true, 4) },
                4 => (self.slot, self.main) = (0, 5),
                5 => (self.slot, self.main) = (2, 6),
                6 => (self.submitted, self.main) = (true, 7),
                _ => return false,
            }
            return true;
        }
        match self.orbit {
            0 => self.orbit = if self.submitted { 1 } else { 6 },
            1 => (self.begun, self.orbit) = (true, 2),
            2 => self.orbit = if self.submitted || self.skip_check { 4 } else { 3 },
            3 => (self.begun, self.orbit) = (false, 0),
            4 => (self.ran, self.orbit) = (self.slot, 5),
            6 => (self.asleep, self.orbit) = (true, 7),
            7 => (self.seen, self.orbit) = (self.submitted, 8),
            8 if self.submitted => self.orbit = 10,
            // The kernel compares the word again when it queues the sleeper.
            8 => self.orbit = if self.submitted == self.seen { 9 } else { 10 },
            10 => {
                if self.submitted {
                    self.asleep = false;
                }
                self.orbit = if self.submitted { 1 } else { 6 };
            }
            _ => return false,
        }
        true
    }

    fn check_end(&self) {
        assert_eq!((self.main, self.orbit), (9, 5), "the orbit sleeps over a call: {self:?}");
        assert_eq!(self.ran, if self.taken { 2 } else { 1 }, "the orbit ran what main had taken back: {self:?}");
    }
}

#[test]
fn a_call_taken_back_never_runs_and_the_one_in_its_place_does() {
    in_order(
        CALLS_OF_MAIN,
        &[
            "fn hand_over(&self, core: &mut Core, submitted: u32) {",
            "self.down.submitted.store(submitted, Ordering::SeqCst);",
        ],
    );
    in_order(
        TAKE_BACK,
        &[
            "up.begun.load(Ordering::SeqCst)",
            "self.hand_over(core, completed.wrapping_add(first as u32));",
            "let begun = begun();",
            "if begun <= first {",
            "self.hand_over(core, submitted);",
        ],
    );
    in_order(
        TASK,
        &[
            "self.wait_for_call();",
            "self.shared.up.begun.store(call.wrapping_add(1), Ordering::SeqCst);",
            "if !self.is_there(call) {",
            "self.shared.up.begun.store(call, Ordering::SeqCst);",
            "return;",
            "slot.",
        ],
    );
    let start = TakeBack {
        submitted: true,
        begun: false,
        asleep: false,
        slot: 1,
        main: 0,
        taken: false,
        orbit: 0,
        seen: false,
        ran: 0,
        skip_check: false,
    };
    println!("{} states", explore(start.clone(), 2));
    let broken = std::panic::catch_unwind(|| explore(TakeBack { skip_check: true, ..start }, 2));
    assert!(broken.is_err(), "the search finds the fault when the orbit does not check a second time");
}

/// Two threads of main wait for a call that the orbit ends.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Wait {
    completed: bool,
    waiters: u8,
    /// Of each waiter: 0 count oneself, 1 check, 2 asleep, 3 leave, 4 gone.
    waiter: [u8; 2],
    /// 0 store completed, 1 read waiters, 2 wake, 3 ended.
    orbit: u8,
    /// The orbit reads the waiters before it stores: wrong.
    swapped: bool,
}

impl Model for Wait {
    fn step(&mut self, thread: usize) -> bool {
        if thread < 2 {
            match self.waiter[thread] {
                0 => {
                    self.waiters += 1;
                    self.waiter[thread] = 1;
                }
                1 => self.waiter[thread] = if self.completed { 3 } else { 2 },
                3 => {
                    self.waiters -= 1;
                    self.waiter[thread] = 4;
                }
                _ => return false,
            }
            return true;
        }
        match (self.orbit, self.swapped) {
            (0, false) | (1, true) => {
                self.completed = true;
                self.orbit = if self.swapped { 3 } else { 1 };
            }
            (1, false) => self.orbit = if self.waiters > 0 { 2 } else { 3 },
            (0, true) => self.orbit = if self.waiters > 0 { 2 } else { 1 },
            (2, _) => {
                for waiter in &mut self.waiter {
                    if *waiter == 2 {
                        *waiter = 3;
                    }
                }
                self.orbit = if self.swapped { 1 } else { 3 };
            }
            _ => return false,
        }
        true
    }

    fn check_end(&self) {
        assert_eq!(self.waiter, [4, 4], "a waiter sleeps over the end: {self:?}");
    }
}

#[test]
fn a_waiter_never_sleeps_over_the_end_of_its_call() {
    in_order(
        CALLS_OF_MAIN,
        &[
            "self.down.waiters.fetch_add(1, Ordering::SeqCst);",
            "if up.completed.load(Ordering::SeqCst) == seen {",
            "futex::wait(&up.completed, seen, Some(at_most));",
            "self.down.waiters.fetch_sub(1, Ordering::SeqCst);",
        ],
    );
    in_order(
        TASK,
        &[
            "self.shared.up.completed.store(self.done, Ordering::SeqCst);",
            "if self.shared.down.waiters.load(Ordering::SeqCst) != 0 {",
            "futex::wake(&self.shared.up.completed, i32::MAX);",
        ],
    );
    let start = Wait { completed: false, waiters: 0, waiter: [0, 0], orbit: 0, swapped: false };
    explore(start.clone(), 3);
    let broken = std::panic::catch_unwind(|| explore(Wait { swapped: true, ..start }, 3));
    assert!(broken.is_err(), "the search finds the fault when the orbit reads first");
}
