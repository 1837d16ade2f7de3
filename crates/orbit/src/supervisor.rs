//! The supervisor: one thread of main, asleep until an orbit ends, a deadline passes, a start is due, or a future that
//! somebody watches may have ended. It also makes up for spares that were taken.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use orbit_linux::signals::Blocked;
use orbit_linux::{eventfd, poll};

use crate::clock::now_ns;
use crate::core::Inner;
use crate::error::{Error, Result};
use crate::life::Next;
use crate::runtime::Runtime;

/// Starts the thread. It ends when the runtime is dropped or shut down.
pub(crate) fn start(runtime: &Arc<Runtime>) -> Result<JoinHandle<()>> {
    let weak = Arc::downgrade(runtime);
    // Signals are the program's: the supervisor takes none.
    let blocked = Blocked::all();
    let (begins, begun) = std::sync::mpsc::sync_channel(1);
    let started = std::thread::Builder::new().name("orbit-super".to_owned()).stack_size(256 * 1024).spawn(move || {
        // Fails only if the starter has gone, and it waits.
        let _ = begins.send(());
        supervise(&weak)
    });
    drop(blocked);
    let thread = started.map_err(|e| Error::system("starting the supervisor's thread", e))?;
    // A thread that begins needs memory, and ends the program if it gets none: the program may lower its limits right after the set-up.
    let _ = begun.recv();
    Ok(thread)
}

fn supervise(weak: &Weak<Runtime>) {
    // When orbits are to be started again, by number.
    let mut starts: HashMap<u64, Instant> = HashMap::new();
    loop {
        let Some(runtime) = weak.upgrade().filter(|runtime| !runtime.is_closed()) else { return };
        let more_spares = runtime.restock();
        // In this order, so that a process that is on its way from one list to the other is seen somewhere.
        let spare_fds = runtime.spare_fds();
        let becoming = runtime.is_becoming();
        let orbits = runtime.orbits();
        let all_buried = runtime.reap_buried();
        runtime.populate_now();
        for orbit in &orbits {
            if orbit.unpopulated.swap(false, Ordering::Relaxed) {
                orbit.down.populate();
            }
        }
        starts.retain(|number, _| orbits.iter().any(|o| o.number == *number));
        let mut wait = wait_for(&orbits, &starts);
        if more_spares {
            wait = Some(Duration::ZERO);
        } else if becoming {
            wait = Some(wait.map_or(BECOMING, |w| w.min(BECOMING)));
        } else if !all_buried {
            wait = Some(wait.map_or(BURY_EVERY, |w| w.min(BURY_EVERY)));
        }
        runtime.next_wake.store(wait.map_or(u64::MAX, |w| now_ns() + w.as_nanos() as u64), Ordering::Relaxed);
        // A deadline set between the look above and this store is seen by a second look.
        let deadlines_now = earliest_deadline(&orbits);
        let wait = wait.into_iter().chain(deadlines_now).min();
        let mut fds = vec![readable(runtime.door.as_raw_fd())];
        for orbit in &orbits {
            fds.extend(descriptors(orbit).map(readable));
        }
        fds.extend(spare_fds.into_iter().map(readable));
        // Asleep it holds on to nothing: an orbit ends with its last handle.
        let sleeping: Vec<Weak<Inner>> = orbits.iter().map(Arc::downgrade).collect();
        drop(orbits);
        drop(runtime);
        if poll::poll(&mut fds, wait).is_err() {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        let Some(runtime) = weak.upgrade() else { return };
        if is_blind(&runtime, &sleeping, &fds) {
            std::thread::sleep(BLIND);
        }
        eventfd::drain(runtime.door.as_fd());
        let now = Instant::now();
        for (at, orbit) in sleeping.iter().enumerate() {
            let Some(orbit) = orbit.upgrade() else { continue };
            let (has_ended, has_news) = (fds[1 + 2 * at].revents != 0, fds[2 + 2 * at].revents != 0);
            let is_due = !has_ended && starts.get(&orbit.number).is_some_and(|when| *when <= now);
            if is_due {
                starts.remove(&orbit.number);
            }
            // Whatever goes wrong with this orbit ends it; all others are looked after as before.
            let next = catch_unwind(AssertUnwindSafe(|| look_after(&orbit, has_news, has_ended, is_due)));
            match next {
                Ok(Next::StartAt(when)) => {
                    starts.insert(orbit.number, when);
                }
                Ok(Next::Nothing) => {}
                Err(_) => {
                    let _ = catch_unwind(AssertUnwindSafe(|| orbit.destroy()));
                }
            }
        }
    }
}

/// Does what one orbit needs now; says what it needs later.
fn look_after(orbit: &Inner, has_news: bool, has_ended: bool, is_due: bool) -> Next {
    if has_news {
        eventfd::drain(orbit.event.as_fd());
        orbit.reap();
    }
    if orbit.next_deadline.load(Ordering::Relaxed) <= now_ns() {
        orbit.check_calls();
    }
    if has_ended {
        return match orbit.after_the_end() {
            // Most starts are due at once: no need to go round first.
            Next::StartAt(when) if when <= Instant::now() => orbit.start_again(),
            next => next,
        };
    }
    if is_due { orbit.start_again() } else { Next::Nothing }
}

/// What tells of an orbit: that its process has ended, and that a call has.
fn descriptors(orbit: &Inner) -> [RawFd; 2] {
    let pidfd = orbit.lock().process.as_ref().map_or(-1, |p| p.pidfd.as_raw_fd());
    [pidfd, orbit.event.as_raw_fd()]
}

/// Whether the program has closed a descriptor that is not its own: it tells nothing from now on, but does so at once. Those of
/// orbits and spares that have gone since the list was made are closed as they should be.
fn is_blind(runtime: &Runtime, sleeping: &[Weak<Inner>], fds: &[libc::pollfd]) -> bool {
    let is_closed = |fd: &&libc::pollfd| fd.revents & libc::POLLNVAL != 0;
    if !fds.iter().any(|fd| is_closed(&fd)) {
        return false;
    }
    // Only this thread adds to these, so that no number is another one's meanwhile.
    let mut own = runtime.spare_fds();
    own.push(runtime.door.as_raw_fd());
    own.extend(sleeping.iter().filter_map(Weak::upgrade).flat_map(|orbit| descriptors(&orbit)));
    fds.iter().filter(is_closed).any(|fd| own.contains(&fd.fd))
}

/// How soon to look again while a spare becomes an orbit.
const BECOMING: Duration = Duration::from_millis(1);
/// How soon to look again where a descriptor that should tell when is gone.
const BLIND: Duration = Duration::from_millis(50);
/// How often copiers that have not ended are looked at.
const BURY_EVERY: Duration = Duration::from_millis(5);

/// Longest that the supervisor may sleep.
fn wait_for(orbits: &[Arc<Inner>], starts: &HashMap<u64, Instant>) -> Option<Duration> {
    let start = starts.values().min().map(|at| at.saturating_duration_since(Instant::now()));
    start.into_iter().chain(earliest_deadline(orbits)).min()
}

fn earliest_deadline(orbits: &[Arc<Inner>]) -> Option<Duration> {
    let earliest = orbits.iter().map(|o| o.next_deadline.load(Ordering::Relaxed)).min().filter(|at| *at != u64::MAX)?;
    Some(Duration::from_nanos(earliest.saturating_sub(now_ns())))
}

fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
