//! Sleepers that no thread will wake: rechecked for a while, because healthy programs show the same
//! state briefly.

use super::thread::{State, ThreadState};
use super::{FutexKind, FutexWait, Key, Wait, Watched};
use crate::{Error, Family, Maps};
use orbit_linux::procfs::ids;
use std::time::Duration;

impl Watched {
    /// Threads of this process that sleep at the same lock as this wait (of one of its own, or of
    /// another that shares the lock), sorted by id, with their [`progress`](Watched::progress). As
    /// long as each of them is there unchanged, nobody was woken there. Costs about 5 us for each
    /// thread of the process, and of a lock that is shared the reading of the process' map.
    pub fn queue(&mut self, wait: &FutexWait) -> Vec<(i32, (u64, u64))> {
        self.keep_up();
        let calls = self.futex_calls(None);
        let shared = matches!(wait.key, Key::Shared { .. });
        let maps = shared.then(|| Maps::of(self.pid()).unwrap_or_default());
        let near = wait.span();
        let mut here = Vec::new();
        for (tid, call) in calls {
            if self.key(&call, maps.as_ref()).near(&wait.key, near) {
                here.extend(self.progress(tid).map(|progress| (tid, progress)));
            }
        }
        here
    }

    /// Threads other than this one that are kept from running (by the machine, a stop, a tracer),
    /// with CPU time and switches.
    fn blocked_behind(&mut self, but: i32) -> Vec<(i32, u64, u64)> {
        let all = self.scan();
        let held = |t: &ThreadState| !matches!(t.state, State::Sleeping | State::Ended) && t.tid != but;
        all.iter().filter(|t| held(t)).map(|t| (t.tid, t.cpu_ns, t.switches)).collect()
    }
}

impl FutexWait {
    /// How far from its word, in bytes, others sleep at the same lock: the writers and readers of
    /// one sleep at two words, side by side.
    pub fn span(&self) -> u64 {
        if matches!(self.kind, FutexKind::RwLock { .. }) { 4 } else { 0 }
    }
}

/// The other processes that have this memory mapped; nothing if a relative may not be inspected,
/// which may have it by `fork`.
fn sharers(pid: i32, key: &Key) -> Option<Vec<Watched>> {
    let &Key::Shared { dev, ino, .. } = key else {
        return Some(Vec::new());
    };
    let (mut out, mut hidden) = (Vec::new(), Vec::new());
    let all = ids("/proc");
    for &other in all.iter().filter(|&&other| other != pid) {
        match Maps::of(other) {
            Ok(maps) if maps.iter().any(|m| m.shared && (m.dev, m.ino) == (dev, ino)) => {
                out.extend(Watched::of_few(other));
            }
            Ok(_) | Err(Error::Gone { .. }) => {}
            Err(_) => hidden.push(other),
        }
    }
    let family = (!hidden.is_empty()).then(|| Family::of(all));
    let related = family.is_some_and(|family| hidden.iter().any(|&p| family.related(p, pid)));
    (!related).then_some(out)
}

/// Rechecks until the answer no longer changes or the time is over: `true` if the thread slept
/// for something lost (see [`FutexWait::lost`]) all the while and did not run once, no other thread
/// of its process was kept from running all the while (such a one may be just about to wake it),
/// and no sleeper at the same lock was woken: a lock that many want is free for most of the time
/// where woken threads lack a CPU. Of a lock that is free and that processes share, all
/// processes that share it are inspected; where a relative may not be, the answer is `false`.
/// Blocks for `span`, and of a shared lock for reading the map of each process first.
pub fn stays_lost(watched: &mut Watched, tid: i32, span: Duration) -> bool {
    const RECHECKS: u32 = 8;
    let Some(first) = watched.progress(tid) else {
        return false;
    };
    let Wait::Futex(wait) = watched.wait_of(tid) else {
        return false;
    };
    if !wait.lost() {
        return false;
    }
    // Whoever has ended with the lock wakes nobody, whatever others do.
    let others = if wait.free { sharers(watched.pid(), &wait.key) } else { Some(Vec::new()) };
    let Some(mut others) = others else {
        return false;
    };
    let mut queues = |watched: &mut Watched| -> Vec<_> {
        std::iter::once(watched).chain(&mut others).map(|w| (w.queue(&wait), w.blocked_behind(tid))).collect()
    };
    let before = queues(watched);
    for recheck in 0..=RECHECKS {
        if recheck > 0 {
            std::thread::sleep(span / RECHECKS);
        }
        let lost = matches!(watched.wait_of(tid), Wait::Futex(f) if f.lost() && !f.call.timed);
        if !lost || watched.progress(tid) != Some(first) {
            return false;
        }
    }
    let after = queues(watched);
    before.iter().zip(&after).all(|((queue, blocked_behind), (queued, still_blocked_behind))| {
        queue.iter().all(|waiter| queued.contains(waiter))
            && !blocked_behind.iter().any(|t| still_blocked_behind.contains(t))
    })
}
