//! What the kernel holds for the whole program beside memory and files: signal actions, timers,
//! limits, and the like.
//!
//! Most of it is asked for and put back by calls in the program, in one batch each
//! ([`graft::Batch`]).

use crate::error::Error;
use crate::outside::{Outside, Timer};
use crate::restore::Restored;
use graft::{Batch, Call, Stopped};
use orbit_linux::ptrace::state::pending;
use orbit_linux::rlimit;
use std::collections::BTreeSet;

/// Signals whose action can be set: all but `SIGKILL` and `SIGSTOP`.
const SIGNALS: [u64; 62] = {
    let mut all = [0; 62];
    let (mut signal, mut at) = (1, 0);
    while signal <= 64 {
        if signal != libc::SIGKILL as u64 && signal != libc::SIGSTOP as u64 {
            all[at] = signal;
            at += 1;
        }
        signal += 1;
    }
    all
};

/// Places in the batch's room, in bytes.
const ACTIONS: usize = 0;
const ITIMERS: usize = 4096;
const WORDS: usize = 4224;
const STACK: usize = 4352;
const TIMERS: usize = 8192;
const ITIMER_BYTES: usize = 32;
/// Signals that wait, of which this many are taken or queued at a time.
const MOST_PENDING: usize = 64;
const SIGINFO_BYTES: usize = 128;

/// `PR_TIMER_CREATE_RESTORE_IDS`, Linux 6.15: timers get the number that is asked for.
const TIMER_IDS: u64 = 77;
/// Settings of a process that a call answers: number of the call, its arguments, and the calls that
/// set it (the value is the second argument of `prctl`, the first of others).
const SETTINGS: [(&str, i64, u64, Option<u64>); 6] = [
    ("dumpable", libc::SYS_prctl, libc::PR_GET_DUMPABLE as u64, Some(libc::PR_SET_DUMPABLE as u64)),
    ("the kept capabilities", libc::SYS_prctl, libc::PR_GET_KEEPCAPS as u64, Some(libc::PR_SET_KEEPCAPS as u64)),
    ("the timer slack", libc::SYS_prctl, libc::PR_GET_TIMERSLACK as u64, Some(libc::PR_SET_TIMERSLACK as u64)),
    ("huge pages", libc::SYS_prctl, libc::PR_GET_THP_DISABLE as u64, Some(libc::PR_SET_THP_DISABLE as u64)),
    ("the personality", libc::SYS_personality, 0xffff_ffff, None),
    ("the process group", libc::SYS_getpgid, 0, None),
];
/// Settings that are written to memory.
const POINTED: [(u64, u64); 2] = [
    (libc::PR_GET_PDEATHSIG as u64, libc::PR_SET_PDEATHSIG as u64),
    (libc::PR_GET_CHILD_SUBREAPER as u64, libc::PR_SET_CHILD_SUBREAPER as u64),
];

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Objects {
    actions: Vec<[u64; 4]>,
    itimers: [[u64; 4]; 3],
    /// Its timers have the times that the calls have returned.
    outside: Outside,
    settings: [i64; SETTINGS.len()],
    pointed: [u32; POINTED.len()],
    session: i64,
    /// The stack for signals of the thread that makes the calls.
    pub stack: (i32, [u64; 3]),
    pub pending: Vec<[u64; 16]>,
}

fn words<const N: usize>(batch: &Batch, at: usize) -> [u64; N] {
    std::array::from_fn(|nth| batch.get(at + nth * 8))
}

impl Objects {
    /// What the kernel calls at a signal: an address, or 0 (default) or 1 (ignored).
    pub fn handler(&self, signal: i32) -> Option<u64> {
        let nth = SIGNALS.iter().position(|number| *number == signal as u64)?;
        self.actions.get(nth).map(|action| action[0])
    }

    /// Reads it; `outside` was read since the program stopped.
    pub fn capture(stopped: &mut Stopped<'_>, batch: &mut Batch, mut outside: Outside) -> Result<Objects, Error> {
        let pid = stopped.pid();
        let mut calls: Vec<Call> = Vec::with_capacity(96);
        for (nth, signal) in SIGNALS.iter().enumerate() {
            let at = ACTIONS + nth * 32;
            batch.put(at, &[0; 4]);
            calls.push((libc::SYS_rt_sigaction, [*signal, 0, batch.room(at), 8, 0, 0]));
        }
        for nth in 0..3 {
            let at = ITIMERS + nth * ITIMER_BYTES;
            batch.put(at, &[0; 4]);
            calls.push((libc::SYS_getitimer, [nth as u64, batch.room(at), 0, 0, 0, 0]));
        }
        for (nth, (get, _)) in POINTED.iter().enumerate() {
            batch.put(WORDS + nth * 8, &[0]);
            calls.push((libc::SYS_prctl, [*get, batch.room(WORDS + nth * 8), 0, 0, 0, 0]));
        }
        calls.push((libc::SYS_sigaltstack, [0, batch.room(STACK), 0, 0, 0, 0]));
        for (nth, timer) in outside.timers.iter().enumerate() {
            let at = TIMERS + nth * 32;
            batch.put(at, &[0; 4]);
            calls.push((libc::SYS_timer_gettime, [timer.id, batch.room(at), 0, 0, 0, 0]));
        }
        let from = calls.len();
        calls.extend(SETTINGS.iter().map(|(_, number, first, _)| (*number, [*first, 0, 0, 0, 0, 0])));
        calls.push((libc::SYS_getsid, [0; 6]));
        calls.push((libc::SYS_gettid, [0; 6]));
        let results = batch.run(stopped, &calls)?;
        let shared = pending(stopped.tids().first().copied().unwrap_or(pid), true);
        for (nth, timer) in outside.timers.iter_mut().enumerate() {
            timer.time = words(batch, TIMERS + nth * 32);
        }
        Ok(Objects {
            actions: (0..SIGNALS.len()).map(|nth| words(batch, ACTIONS + nth * 32)).collect(),
            itimers: std::array::from_fn(|nth| words(batch, ITIMERS + nth * ITIMER_BYTES)),
            outside,
            settings: std::array::from_fn(|nth| results[from + nth]),
            pointed: std::array::from_fn(|nth| batch.get(WORDS + nth * 8) as u32),
            session: results[from + SETTINGS.len()],
            stack: (stopped.caller()?, words(batch, STACK)),
            pending: shared.unwrap_or_default(),
        })
    }

    /// Puts it back; what cannot be is said.
    pub fn restore(
        &self,
        stopped: &mut Stopped<'_>,
        batch: &mut Batch,
        now: Outside,
        done: &mut Restored,
    ) -> Result<(), Error> {
        let now = Objects::capture(stopped, batch, now)?;
        self.signals(&now, stopped, batch, done)?;
        self.clocks(&now, stopped, batch, done)?;
        self.settle(&now, stopped, batch, done)?;
        let pid = stopped.pid();
        for (number, (was, is)) in self.outside.limits.iter().zip(&now.outside.limits).enumerate() {
            if was != is
                && let Err(error) = rlimit::set_number(pid, number, *was)
            {
                done.left.push(format!("limit {number} of its resources was {} of {}: {error}", was.0, was.1));
            }
        }
        for child in now.outside.children.difference(&self.outside.children) {
            done.left.push(format!("child {child} was made since: it runs beside the one that is made again"));
        }
        for child in self.outside.children.difference(&now.outside.children) {
            done.left.push(format!("child {child} has ended since, and was waited for"));
        }
        if self.outside.root != now.outside.root {
            done.left.push(format!("its root was {} and is {}", self.outside.root, now.outside.root));
        }
        if self.session != now.session {
            done.left.push(format!("it is in session {} now, was in {}", now.session, self.session));
        }
        if self.outside.rights != now.outside.rights {
            done.left
                .push("its user, groups, capabilities, filters or namespaces were changed since, and stay so".into());
        }
        Ok(())
    }

    fn signals(
        &self,
        now: &Objects,
        stopped: &mut Stopped<'_>,
        batch: &mut Batch,
        done: &mut Restored,
    ) -> Result<(), Error> {
        let differ = SIGNALS.iter().zip(self.actions.iter().zip(&now.actions)).filter(|(_, (was, is))| was != is);
        let mut calls = Vec::new();
        for (nth, (signal, (was, _))) in differ.enumerate() {
            batch.put(nth * 32, was);
            calls.push((libc::SYS_rt_sigaction, [*signal, batch.room(nth * 32), 0, 8, 0, 0]));
        }
        done.objects += calls.len();
        batch.run(stopped, &calls)?;
        if self.pending == now.pending {
            return Ok(());
        }
        let own = stopped.call(libc::SYS_getpid, [0; 6])?;
        let change = queue_change(&self.pending, &now.pending, own);
        for part in change.taken.chunks(MOST_PENDING) {
            let calls = part.iter().enumerate().map(|(nth, signal)| {
                let at = nth * SIGINFO_BYTES;
                batch.put(at, &[1 << (signal - 1), 0, 0]);
                (libc::SYS_rt_sigtimedwait, [batch.room(at), 0, batch.room(at + 8), 8, 0, 0])
            });
            let calls: Vec<Call> = calls.collect();
            batch.run(stopped, &calls)?;
        }
        for part in change.queued.chunks(MOST_PENDING) {
            let calls = part.iter().enumerate().map(|(nth, info)| {
                let at = nth * SIGINFO_BYTES;
                batch.put(at, info);
                (libc::SYS_rt_sigqueueinfo, [own, info[0] & 0xffff_ffff, batch.room(at), 0, 0, 0])
            });
            let calls: Vec<Call> = calls.collect();
            done.objects += calls.len();
            if batch.run(stopped, &calls)?.iter().any(|result| *result < 0) {
                done.left.push("a signal that waited to be delivered is lost".into());
            }
        }
        Ok(())
    }

    fn clocks(
        &self,
        now: &Objects,
        stopped: &mut Stopped<'_>,
        batch: &mut Batch,
        done: &mut Restored,
    ) -> Result<(), Error> {
        let mut calls: Vec<Call> = Vec::new();
        for (nth, was) in self.itimers.iter().enumerate().filter(|(nth, was)| **was != now.itimers[*nth]) {
            batch.put(ITIMERS + nth * ITIMER_BYTES, was);
            calls.push((libc::SYS_setitimer, [nth as u64, batch.room(ITIMERS + nth * ITIMER_BYTES), 0, 0, 0, 0]));
        }
        let is_same = |a: &Timer, b: &Timer| Timer { time: b.time, ..*a } == *b;
        for timer in now.outside.timers.iter().filter(|is| !self.outside.timers.iter().any(|was| is_same(was, is))) {
            calls.push((libc::SYS_timer_delete, [timer.id, 0, 0, 0, 0, 0]));
        }
        done.objects += calls.len();
        batch.run(stopped, &calls)?;
        let missing: Vec<&Timer> =
            self.outside.timers.iter().filter(|was| !now.outside.timers.iter().any(|is| is_same(was, is))).collect();
        if !missing.is_empty() {
            let mut calls: Vec<Call> = vec![(libc::SYS_prctl, [TIMER_IDS, 1, 0, 0, 0, 0])];
            for (nth, timer) in missing.iter().enumerate() {
                // struct sigevent: value, signal and kind, thread; then the number.
                let at = nth * 80;
                batch.put(at, &[timer.value, timer.signal | timer.notify << 32, timer.thread, 0, 0, 0, 0, 0, timer.id]);
                calls.push((libc::SYS_timer_create, [timer.clock, batch.room(at), batch.room(at + 64), 0, 0, 0]));
            }
            calls.push((libc::SYS_prctl, [TIMER_IDS, 0, 0, 0, 0, 0]));
            let results = batch.run(stopped, &calls)?;
            for (timer, result) in missing.iter().zip(&results[1..]) {
                if results[0] < 0 || *result < 0 {
                    done.left
                        .push(format!("POSIX timer {} was deleted since; making it again needs Linux 6.15", timer.id));
                }
            }
        }
        let mut calls: Vec<Call> = Vec::new();
        for (nth, timer) in self.outside.timers.iter().enumerate() {
            batch.put(TIMERS + nth * 32, &timer.time);
            calls.push((libc::SYS_timer_settime, [timer.id, 0, batch.room(TIMERS + nth * 32), 0, 0, 0]));
        }
        done.objects += calls.len();
        batch.run(stopped, &calls)?;
        Ok(())
    }

    /// Settings that have one value.
    fn settle(
        &self,
        now: &Objects,
        stopped: &mut Stopped<'_>,
        batch: &mut Batch,
        done: &mut Restored,
    ) -> Result<(), Error> {
        let (mut calls, mut names) = (Vec::new(), Vec::new());
        for (nth, (name, number, _, set)) in SETTINGS.iter().enumerate() {
            let value = self.settings[nth];
            if value == now.settings[nth] || value < 0 {
                continue;
            }
            names.push(*name);
            calls.push(match (*number, set) {
                (libc::SYS_getpgid, _) => (libc::SYS_setpgid, [0, value as u64, 0, 0, 0, 0]),
                (number, Some(set)) => (number, [*set, value as u64, 0, 0, 0, 0]),
                (number, None) => (number, [value as u64, 0, 0, 0, 0, 0]),
            });
        }
        for (nth, (_, set)) in POINTED.iter().enumerate() {
            if self.pointed[nth] != now.pointed[nth] {
                names.push("a setting of prctl");
                calls.push((libc::SYS_prctl, [*set, u64::from(self.pointed[nth]), 0, 0, 0, 0]));
            }
        }
        if self.outside.umask != now.outside.umask {
            names.push("the mask of new files");
            calls.push((libc::SYS_umask, [self.outside.umask, 0, 0, 0, 0, 0]));
        }
        if self.outside.folder != now.outside.folder {
            names.push("the working directory");
            // As the program sees it, if it has a root of its own.
            let inside =
                if self.outside.root == "/" { None } else { self.outside.folder.strip_prefix(&self.outside.root) };
            let inside = inside.map(|path| if path.is_empty() { "/" } else { path });
            let mut path = inside.unwrap_or(&self.outside.folder).as_bytes().to_vec();
            path.resize((path.len() + 1).next_multiple_of(8), 0);
            let words: Vec<u64> =
                path.chunks_exact(8).map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap_or_default())).collect();
            batch.put(0, &words);
            calls.push((libc::SYS_chdir, [batch.room(0), 0, 0, 0, 0, 0]));
        }
        done.objects += calls.len();
        for (name, result) in names.iter().zip(batch.run(stopped, &calls)?) {
            if result < 0 && *name != "the mask of new files" {
                done.left.push(format!("{name} is not as it was"));
            }
        }
        Ok(())
    }
}

/// How a queue of waiting signals is made what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueChange {
    /// Signals of which the oldest is taken out.
    pub taken: Vec<u32>,
    /// What is queued then, in order.
    pub queued: Vec<[u64; 16]>,
}

/// From `now` to `then`. What others have sent since stays, behind what waited before. Of a signal
/// whose queue differs all are taken out and queued again: the kernel takes the oldest only.
pub(crate) fn queue_change(then: &[[u64; 16]], now: &[[u64; 16]], own: u64) -> QueueChange {
    let signal = |info: &[u64; 16]| (info[0] as u32).clamp(1, 64);
    let mut change = QueueChange { taken: Vec::new(), queued: Vec::new() };
    let signals: BTreeSet<u32> = then.iter().chain(now).map(signal).collect();
    for number in signals {
        let of = |list: &[[u64; 16]]| -> Vec<[u64; 16]> {
            list.iter().filter(|info| signal(info) == number).copied().collect()
        };
        let (was, is) = (of(then), of(now));
        let mut wanted = was.clone();
        let mut before = was;
        for info in &is {
            match before.iter().position(|known| known == info) {
                Some(at) => drop(before.swap_remove(at)),
                None if !is_of_itself(info, own) => wanted.push(*info),
                None => {}
            }
        }
        if wanted != is {
            change.taken.extend(is.iter().map(|_| number));
            change.queued.extend(wanted);
        }
    }
    change
}

/// Whether a signal was sent by the program itself, or by a timer of its own: then it will be
/// again.
fn is_of_itself(info: &[u64; 16], own: u64) -> bool {
    // signal, errno; code; then the sender's number.
    let code = info[1] as u32 as i32;
    match code {
        libc::SI_TIMER => true,
        libc::SI_USER | libc::SI_TKILL | libc::SI_QUEUE => info[2] & 0xffff_ffff == own,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_becomes_what_it_was_and_keeps_what_others_sent() {
        let info = |signal: u64, pid: u64| {
            let mut info = [0; 16];
            (info[0], info[1], info[2]) = (signal, u64::from(libc::SI_USER as u32), pid);
            info
        };
        let (own, other, last) = (info(40, 5), info(40, 6), info(41, 5));
        let none = QueueChange { taken: vec![], queued: vec![] };
        assert_eq!(queue_change(&[own, own, last], &[own, own, last], 5), none);
        let change = queue_change(&[own, own], &[own, own, own, other, last], 5);
        assert_eq!(change, QueueChange { taken: vec![40, 40, 40, 40, 41], queued: vec![own, own, other] });
        assert_eq!(queue_change(&[own], &[], 5), QueueChange { taken: vec![], queued: vec![own] });
        assert_eq!(queue_change(&[], &[other], 5), none, "it has come since, and waits still");
    }

    #[test]
    fn a_signal_of_another_process_is_not_its_own() {
        let info = |code: i32, pid: u64| {
            let mut info = [0; 16];
            (info[0], info[1], info[2]) = (10, u64::from(code as u32), pid);
            info
        };
        assert!(is_of_itself(&info(libc::SI_USER, 5), 5) && !is_of_itself(&info(libc::SI_USER, 6), 5));
        assert!(is_of_itself(&info(libc::SI_TIMER, 0), 5) && !is_of_itself(&info(libc::SI_KERNEL, 5), 5));
    }
}
