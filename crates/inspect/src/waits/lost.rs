//! Sleepers that nobody will wake: looked at again and again for a while, for in healthy programs they look so for a moment.

use super::thread::{State, ThreadState};
use super::{FutexKind, FutexWait, Wait, Watched};
use std::time::Duration;

impl Watched {
    /// Threads that sleep at the same lock as this one, it too, sorted by id, with their [`progress`](Watched::progress). As long as each of them
    /// is there unchanged, nobody was woken there. Costs about 5 us for each thread of the process.
    pub fn queue(&mut self, wait: &FutexWait) -> Vec<(i32, (u64, u64))> {
        self.keep_up();
        let calls = self.futex_calls(None);
        let near = near(wait);
        let here = calls.into_iter().filter(|(_, call)| call.addr.abs_diff(wait.call.addr) <= near);
        here.filter_map(|(tid, _)| Some((tid, self.progress(tid)?))).collect()
    }
}

/// How far from its word others sleep at the same lock: the writers and readers of one sleep at two words, side by side.
fn near(wait: &FutexWait) -> u64 {
    if matches!(wait.kind, FutexKind::RwLock { .. }) { 4 } else { 0 }
}

/// Looks again until the answer no longer changes or the time is over: `true` if the thread slept for something lost
/// (see [`FutexWait::lost`]) all the while and did not run once, no other thread of its process was kept from running all the while (such
/// a one may be just about to wake it), and nobody who slept at the same lock was woken: a lock that many want is free for
/// most of the time where those who are woken lack a CPU. Blocks for `span`.
pub fn stays_lost(watched: &mut Watched, tid: i32, span: Duration) -> bool {
    const LOOKS: u32 = 8;
    let Some(first) = watched.progress(tid) else {
        return false;
    };
    let held_up = |watched: &mut Watched| -> Vec<(i32, u64, u64)> {
        let all = watched.scan();
        let held = |t: &ThreadState| !matches!(t.state, State::Sleeping | State::Ended) && t.tid != tid;
        all.iter().filter(|t| held(t)).map(|t| (t.tid, t.cpu_ns, t.switches)).collect()
    };
    let Wait::Futex(wait) = watched.wait_of(tid) else {
        return false;
    };
    let queue = watched.queue(&wait);
    let before = held_up(watched);
    for look in 0..=LOOKS {
        if look > 0 {
            std::thread::sleep(span / LOOKS);
        }
        let lost = matches!(watched.wait_of(tid), Wait::Futex(f) if f.lost() && !f.call.timed);
        if !lost || watched.progress(tid) != Some(first) {
            return false;
        }
    }
    let after = held_up(watched);
    let queued = watched.queue(&wait);
    !before.iter().any(|t| after.contains(t)) && queue.iter().all(|waiter| queued.contains(waiter))
}
