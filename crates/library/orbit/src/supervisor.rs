//! The supervisor: one thread of main, asleep until an orbit ends, a deadline passes, a start is
//! due, or a future that somebody watches may have ended. It also makes up for spares that were
//! taken, and copies memory that a forked child of main's has. Once a second it sees whether the
//! program has closed descriptors that it sleeps on.

use std::collections::HashMap;
use std::os::fd::RawFd;
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
use crate::limits::{LEAST_LEFT, check_again_after};
use crate::refills::Refills;
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
    // A thread that begins needs memory, and ends the program if it gets none: the program may
    // lower its limits right after the set-up.
    let _ = begun.recv();
    Ok(thread)
}

fn supervise(weak: &Weak<Runtime>) {
    // When orbits are to be started again, by number.
    let mut starts: HashMap<u64, Instant> = HashMap::new();
    // When to see whether their tasks sleep for ever, by number.
    let mut next_checks: HashMap<u64, Instant> = HashMap::new();
    let mut refills = Refills::default();
    loop {
        let Some(runtime) = weak.upgrade().filter(|runtime| !runtime.is_closed()) else { return };
        let more_spares = runtime.restock();
        // In this order, so that a process that is on its way from one list to the other is seen
        // somewhere.
        let spare_fds = runtime.spare_fds();
        let becoming = runtime.is_becoming();
        let orbits = runtime.orbits();
        let all_buried = runtime.reap_buried();
        runtime.populate_now();
        let refill_wait = refills.step();
        for orbit in &orbits {
            if orbit.unpopulated.swap(false, Ordering::Relaxed) {
                orbit.down.populate();
            }
        }
        starts.retain(|number, _| orbits.iter().any(|o| o.number == *number));
        next_checks.retain(|number, _| orbits.iter().any(|o| o.number == *number));
        for orbit in &orbits {
            let now = Instant::now();
            if next_checks.get(&orbit.number).is_none_or(|at| *at <= now) {
                next_checks.insert(
                    orbit.number,
                    now + orbit.check_asleep().unwrap_or(DESCRIPTOR_CHECK_INTERVAL).min(DESCRIPTOR_CHECK_INTERVAL),
                );
            }
        }
        let room_wait = check_room(&runtime, &orbits);
        let (name_fds, names_until) = runtime.give_notices();
        let mut wait = wait_for(&orbits, &starts, &next_checks).into_iter().chain(room_wait).chain(refill_wait).min();
        if more_spares {
            wait = Some(Duration::ZERO);
        } else if becoming {
            wait = Some(wait.map_or(SPARE_CHECK_INTERVAL, |w| w.min(SPARE_CHECK_INTERVAL)));
        } else if !all_buried {
            wait = Some(wait.map_or(COPIER_CHECK_INTERVAL, |w| w.min(COPIER_CHECK_INTERVAL)));
        }
        runtime.next_wake.store(wait.map_or(u64::MAX, |w| now_ns() + w.as_nanos() as u64), Ordering::Relaxed);
        // A deadline set between the check above and this store is seen by a second check.
        let deadlines_now = earliest_deadline(&orbits);
        let names_now = names_until.map(|until| until.saturating_duration_since(Instant::now()));
        let wait = wait.into_iter().chain(deadlines_now).chain(names_now).min();
        let (door, _) = runtime.door();
        let mut fds = vec![readable(door.number().unwrap_or(-1))];
        let mut is_lost = false;
        for orbit in &orbits {
            let both = descriptors(orbit);
            is_lost |= both.contains(&-1) && orbit.end_if_lost();
            fds.extend(both.map(readable));
        }
        fds.extend(spare_fds.into_iter().chain(name_fds).map(readable));
        // The program may close any of them, and open other files under their numbers, while this
        // thread sleeps.
        let at_most = if is_lost { Duration::ZERO } else { DESCRIPTOR_CHECK_INTERVAL };
        let wait = Some(wait.map_or(at_most, |wait| wait.min(at_most)));
        // Asleep it holds on to nothing: an orbit ends with its last handle.
        let sleeping: Vec<Weak<Inner>> = orbits.iter().map(Arc::downgrade).collect();
        drop(orbits);
        drop(runtime);
        if poll::poll(&mut fds, wait).is_err() {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        if weak.strong_count() == 0 {
            return;
        }
        let _ = door.fd().map(eventfd::drain);
        let now = Instant::now();
        for (at, orbit) in sleeping.iter().enumerate() {
            let Some(orbit) = orbit.upgrade() else { continue };
            // A handle that the program has closed stands in the list as -1.
            let (handle, news) = (fds[1 + 2 * at], fds[2 + 2 * at]);
            let has_lost_handle = handle.fd < 0 && orbit.end_if_lost();
            let (has_ended, has_news) = (handle.revents != 0 || has_lost_handle, news.revents != 0);
            let is_due = !has_ended && starts.get(&orbit.number).is_some_and(|when| *when <= now);
            if is_due {
                starts.remove(&orbit.number);
            }
            // Whatever goes wrong with this orbit ends it; all others are managed as before.
            let next = catch_unwind(AssertUnwindSafe(|| manage(&orbit, has_news, has_ended, is_due)));
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

/// Ends the orbit that holds the most memory where that around main comes to an end. Says how soon
/// to check again.
fn check_room(runtime: &Runtime, orbits: &[Arc<Inner>]) -> Option<Duration> {
    let left = runtime.room.left()?;
    let working: Vec<_> = orbits.iter().filter_map(|orbit| Some((orbit.memory_in_use()?, orbit))).collect();
    let (most, orbit) = working.iter().max_by_key(|(bytes, _)| *bytes)?;
    // One that holds little is not what fills the group.
    if left < LEAST_LEFT && *most > 2 * LEAST_LEFT {
        orbit.end_for_memory();
    }
    Some(check_again_after(left))
}

/// Does what one orbit needs now; says what it needs later.
fn manage(orbit: &Inner, has_news: bool, has_ended: bool, is_due: bool) -> Next {
    if has_news {
        let _ = orbit.event.fd().map(eventfd::drain);
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

/// The descriptors that become readable when an orbit's process, and when a call, has ended.
fn descriptors(orbit: &Inner) -> [RawFd; 2] {
    let pidfd = orbit.lock().life.process().and_then(|p| p.pidfd.number());
    [pidfd, orbit.event.number()].map(|number| number.unwrap_or(-1))
}

/// How soon to check again while a spare becomes an orbit.
const SPARE_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// How often to see whether its descriptors are its own yet.
const DESCRIPTOR_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often copiers that have not ended are checked.
const COPIER_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Longest that the supervisor may sleep.
fn wait_for(
    orbits: &[Arc<Inner>],
    starts: &HashMap<u64, Instant>,
    next_checks: &HashMap<u64, Instant>,
) -> Option<Duration> {
    let start =
        starts.values().chain(next_checks.values()).min().map(|at| at.saturating_duration_since(Instant::now()));
    start.into_iter().chain(earliest_deadline(orbits)).min()
}

fn earliest_deadline(orbits: &[Arc<Inner>]) -> Option<Duration> {
    let earliest = orbits.iter().map(|o| o.next_deadline.load(Ordering::Relaxed)).min().filter(|at| *at != u64::MAX)?;
    Some(Duration::from_nanos(earliest.saturating_sub(now_ns())))
}

fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
