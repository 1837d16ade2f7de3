//! One watched process: its threads' counters, read through descriptors that are kept open.

use super::marks::Marks;
use super::runtime::{Locks, RESTS, Rests};
use super::{Turns, backs, wait};
use crate::facts::{Record, Sight, SocketUse, Unsure, WaitFacts};
use crate::history::waits_for_lock;
use orbit_inspect::waits::unreaped;
use orbit_linux::process::same_memory;
use orbit_linux::status::Status;
use orbit_linux::thread::{self, Call, Sched};
use orbit_linux::{clock, pidfd, procfs};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Scans between two listings of threads, where their number has not changed.
const LIST_EVERY: u32 = 8;
/// A thread that has slept for so long is asked what it waits for, s; again after the second, s,
/// and after the third where no watched thread has run since.
const ASK_AFTER: f64 = 0.15;
const ASK_EVERY: f64 = 1.0;
const ASK_SELDOM: f64 = 10.0;
/// Threads asked anew when a ring is possible.
const ASKED_ANEW: usize = 64;
/// A thread at a lock is asked in so many scans one after the other.
const REPEATS: u32 = 3;
/// Who holds what is read once all threads of a process have slept for so long, s.
const ALL_SLEEP: f64 = 0.5;
/// Processes of more threads than this are not asked for their children.
const ASKED_FOR_CHILDREN: usize = 64;
/// Descriptors kept open for counters, of all processes together.
const KEPT: usize = 4096;
static ALL_KEPT: AtomicUsize = AtomicUsize::new(0);

/// See the module's head.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// For copies of its descriptors; `None` where they are not available.
    pub(super) handle: Option<OwnedFd>,
    threads: BTreeMap<i32, Thread>,
    /// CPU time of all its threads, ns, where that and its end are known: while it stays none of
    /// them runs, begins or ends.
    cpu: Option<u64>,
    count: u64,
    unlisted: u32,
    /// Its program's file, as handed over; nothing before.
    exe: Option<String>,
    reported: Option<(i32, u64, Vec<Unsure>)>,
    /// Descriptors of connections that it opened itself, at the last reading.
    pub(super) asked: BTreeSet<i32>,
    /// Its connections by own and peer's port: which side opened each.
    pub(super) uses: BTreeMap<(u16, u16), SocketUse>,
    /// Descriptors that had input at the last reading.
    pub(super) ready: Option<Vec<i32>>,
    /// What its descriptors say.
    pub(super) unsure: Vec<Unsure>,
    start_of_code: u64,
    /// When its children were read last, s, and whether one was not asked for then.
    unreaped: (f64, bool),
    marks: Marks,
    locks: Locks,
    /// What its threads wait for may not be seen.
    pub(super) is_hidden: bool,
}

#[derive(Debug)]
struct Thread {
    schedstat: Kept,
    sched: Sched,
    /// CPU time since the scan before, ns.
    ran: u64,
    /// Its id in its own namespace of processes.
    inner: i32,
    sight: Sight,
    call: Option<Call>,
    /// It ran and was not read closer yet.
    pending: bool,
    since: f64,
    asked: f64,
    asks: u32,
    /// When the other side of the connection that it reads was read last.
    backed: f64,
    wait: Option<WaitFacts>,
}

/// A counter's file: kept open while there is room.
#[derive(Debug, Default)]
struct Kept(Option<File>);

impl Kept {
    fn sched(&mut self, pid: i32, tid: i32) -> io::Result<Sched> {
        let mut buf = [0u8; 96];
        let n = match &self.0 {
            Some(file) => file.read_at(&mut buf, 0)?,
            None => {
                let file = File::open(format!("/proc/{pid}/task/{tid}/schedstat"))?;
                let n = file.read_at(&mut buf, 0)?;
                if ALL_KEPT.fetch_add(1, Ordering::Relaxed) < KEPT {
                    self.0 = Some(file);
                } else {
                    ALL_KEPT.fetch_sub(1, Ordering::Relaxed);
                }
                n
            }
        };
        thread::sched(&buf[..n]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.0.is_some() {
            ALL_KEPT.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Process {
    pub(super) fn open(pid: i32) -> io::Result<Process> {
        std::fs::metadata(format!("/proc/{pid}/task"))?;
        Ok(Process {
            pid,
            handle: pidfd::open(pid).ok(),
            threads: BTreeMap::new(),
            cpu: None,
            count: 0,
            unlisted: 0,
            exe: None,
            reported: None,
            asked: BTreeSet::new(),
            uses: BTreeMap::new(),
            ready: None,
            unsure: Vec::new(),
            start_of_code: 0,
            unreaped: (f64::MIN, false),
            marks: Marks::default(),
            locks: Locks::default(),
            is_hidden: false,
        })
    }

    /// Hands over what seldom changes, if it has.
    pub(super) fn changes(&mut self, t: f64, others: &[i32], out: &mut dyn FnMut(Record)) {
        let pid = self.pid;
        let status = Status::of(pid).unwrap_or_default();
        if status.state().is_none() {
            return;
        }
        let mut unsure = self.unsure.clone();
        // A process that shares memory is a child or a sibling: others are no kin, or are asked in
        // their turn.
        let shares = |other: &i32| same_memory(pid, *other).unwrap_or(false);
        if others.iter().any(shares) {
            unsure.push(Unsure::SharedMemory);
        }
        if has_timer(pid) {
            unsure.push(Unsure::Timer);
        }
        let now = (status.parent().unwrap_or(0), status.caught_signals().unwrap_or(0), unsure);
        // Another one after an exec; after a change of credentials it may not be read any more.
        let link = std::fs::read_link(format!("/proc/{pid}/exe")).map(|link| link.to_string_lossy().into_owned());
        let exe = link.ok().or_else(|| self.exe.clone()).unwrap_or_default();
        let is_known = self.exe.as_ref() == Some(&exe);
        if is_known && self.reported.as_ref() == Some(&now) {
            return;
        }
        let (pp, cgt, unsure) = now.clone();
        if is_known {
            out(Record::Changed { p: pid, cgt, pp, unsure });
        } else {
            let mut cmd = procfs::text(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
            cmd.truncate(cmd.char_indices().map(|(i, _)| i).take_while(|i| *i <= 160).last().unwrap_or(0));
            out(Record::Process { t, p: pid, pp, exe: exe.clone(), cmd, cgt, unsure });
            (self.exe, self.locks) = (Some(exe), Locks::default());
        }
        self.reported = Some(now);
    }

    /// Reads its threads; `false` once it has ended.
    pub(super) fn scan(&mut self, t: f64, from: (i32, i32), turns: &mut Turns, out: &mut dyn FnMut(Record)) -> bool {
        if self.handle.as_ref().is_some_and(|handle| pidfd::has_ended(handle.as_fd())) {
            let tids: Vec<i32> = self.threads.keys().copied().collect();
            tids.into_iter().for_each(|tid| self.gone(tid, t, out));
            return false;
        }
        if self.exe.is_none() {
            self.changes(t, &[], out);
        }
        let (pid, mut gone) = (self.pid, Vec::new());
        let cpu = clock::cpu_ns_of(pid).filter(|_| self.handle.is_some());
        let rests = cpu.is_some() && cpu == self.cpu;
        self.cpu = cpu;
        if !rests {
            turns.stirred = t;
            if !self.list(t, out) {
                return false;
            }
        }
        let first = if from.0 == pid { from.1 } else { i32::MIN };
        let tids: Vec<i32> = self.threads.range(first..).chain(self.threads.range(..first)).map(|(t, _)| *t).collect();
        for tid in tids {
            let Some(thread) = self.threads.get_mut(&tid) else { continue };
            if rests && thread.sight.st == 'S' && !thread.pending {
                thread.ran = 0;
                thread.ask(pid, tid, t, turns.stirred, out);
                continue;
            }
            let sched = match thread.schedstat.sched(pid, tid) {
                Ok(sched) => sched,
                Err(e) => {
                    // Where it cannot be read for another reason (no descriptor is left) nothing is
                    // known to have changed.
                    if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) {
                        gone.push(tid);
                    }
                    continue;
                }
            };
            let ran = sched.run != thread.sched.run || sched.slices != thread.sched.slices;
            let was_awake = thread.sight.st != 'S';
            thread.ran = if thread.sight.sl == 0 { 0 } else { sched.run.saturating_sub(thread.sched.run) };
            thread.sched = sched;
            if ran || was_awake || thread.pending {
                turns.stirred = t;
                if turns.left == 0 {
                    turns.passed_over.get_or_insert((pid, tid));
                    if !thread.pending {
                        thread.pending = true;
                        out(Record::Thread(thread.unread(t)));
                    }
                    continue;
                }
                turns.left -= 1;
                let is_first = tid == pid;
                let is_seen = thread.read(pid, tid, t, is_first.then_some(&mut self.start_of_code), out);
                self.is_hidden |= !is_seen;
            }
            thread.ask(pid, tid, t, turns.stirred, out);
        }
        if gone.is_empty() {
            return true;
        }
        for tid in gone {
            self.gone(tid, t, out);
        }
        // As many may have been made: until they are read they are known to be there.
        self.count = 0;
        let there = self.list(t, out);
        for thread in self.threads.values_mut().filter(|thread| thread.sight.sl == 0 && !thread.pending) {
            thread.pending = true;
            out(Record::Thread(thread.unread(t)));
        }
        there
    }

    fn gone(&mut self, tid: i32, t: f64, out: &mut dyn FnMut(Record)) {
        self.threads.remove(&tid);
        self.marks.gone(tid);
        out(Record::Gone { t, p: self.pid, i: tid });
    }

    /// Reads the sections that it marks.
    pub(super) fn read_marks(&mut self, t: f64, scan: u64, out: &mut dyn FnMut(Record)) {
        let threads = &self.threads;
        let by_inner = |id: i32| threads.iter().find(|(_, thread)| thread.inner == id);
        let of = |id: i32| {
            let own = threads.get_key_value(&id).filter(|(_, thread)| thread.inner == id);
            own.or_else(|| by_inner(id)).map(|(tid, thread)| (*tid, thread.sched.run, thread.ran))
        };
        let (n, c, l) = self.marks.read(self.pid, scan, of);
        if !(n.is_empty() && c.is_empty()) {
            out(Record::Marks { t, p: self.pid, n, c, l });
        }
    }

    /// Reads the locks that its runtime keeps by itself.
    pub(super) fn read_runtime(&mut self, t: f64, out: &mut dyn FnMut(Record)) {
        if !self.locks.is_due(t) {
            return;
        }
        let rests = |(tid, thread): (&i32, &Thread)| -> Option<Rests> {
            let sight = &thread.sight;
            let is_at_word = sight.st == 'S' && sight.nr == libc::SYS_futex && !thread.pending;
            let word = (sight.a3 == 0).then_some(sight.a0);
            (is_at_word && t - thread.since >= RESTS).then_some((*tid, thread.since, word))
        };
        let resting: Vec<Rests> = self.threads.iter().filter_map(rests).collect();
        if let Some(record) = self.locks.read(self.pid, t, &resting) {
            out(record);
        }
    }

    /// Reads which of its children have exited and were not asked for, if it catches SIGCHLD, once
    /// each time that all its threads came to rest.
    pub(super) fn read_unreaped(&mut self, t: f64, out: &mut dyn FnMut(Record)) {
        const SIGCHLD: u64 = 1 << (libc::SIGCHLD - 1);
        let catches = self.reported.as_ref().is_some_and(|(_, caught, _)| caught & SIGCHLD != 0);
        if !catches || self.threads.len() > ASKED_FOR_CHILDREN {
            return;
        }
        let rests = |thread: &Thread| thread.sight.st == 'S' && !thread.pending && t - thread.since >= ALL_SLEEP;
        let last = self.threads.values().map(|thread| thread.since).fold(f64::MIN, f64::max);
        if self.unreaped.0 >= last || !self.threads.values().all(rests) {
            return;
        }
        let children = unreaped(self.pid);
        let are_known_to_be_none = children.is_empty() && !self.unreaped.1;
        self.unreaped = (t, !children.is_empty());
        if !are_known_to_be_none {
            out(Record::Unreaped { t, p: self.pid, c: children });
        }
    }

    /// Reads what the other sides of its connections do, at which threads wait for an answer, at
    /// most so many.
    pub(super) fn read_backs(&mut self, t: f64, left: &mut usize, out: &mut dyn FnMut(Record)) {
        for thread in self.threads.values_mut() {
            let is_due =
                thread.sight.st == 'S' && !thread.pending && t - thread.since.max(thread.backed) >= backs::ASK_AFTER;
            let Some(fd) = backs::awaited(&thread.sight).filter(|fd| is_due && self.asked.contains(fd)) else {
                continue;
            };
            if *left == 0 {
                return;
            }
            *left -= 1;
            thread.backed = t;
            let (s, q) = backs::read(self.pid, fd);
            out(Record::Back { t, p: self.pid, fd, s, q });
        }
    }

    /// Thread, CPU time, and that since the scan before, ns.
    pub(super) fn counters(&self) -> impl Iterator<Item = (i32, u64, u64)> {
        self.threads.iter().map(|(tid, thread)| (*tid, thread.sched.run, thread.ran))
    }

    /// Whether a thread of it has run since the scan, or was not asleep then.
    pub(super) fn has_run_since_scan(&mut self) -> bool {
        let pid = self.pid;
        self.threads.iter_mut().any(|(tid, thread)| {
            let same = |now: Sched| (now.run, now.slices) == (thread.sched.run, thread.sched.slices);
            thread.sight.st != 'S' || !thread.schedstat.sched(pid, *tid).is_ok_and(same)
        })
    }

    /// Lists the threads where their number changed.
    fn list(&mut self, t: f64, out: &mut dyn FnMut(Record)) -> bool {
        let pid = self.pid;
        let path = format!("/proc/{pid}/task");
        let count = std::fs::metadata(&path).map_or(0, |m| m.nlink());
        self.unlisted += 1;
        if count != 0 && count == self.count && self.unlisted < LIST_EVERY {
            return true;
        }
        (self.count, self.unlisted) = (count, 0);
        let names = match std::fs::read_dir(&path) {
            Ok(names) => names.flatten(),
            Err(e) => {
                // They are not known, so that it counts as having run.
                self.cpu = None;
                return !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
            }
        };
        let mut tids: Vec<i32> = names.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
        tids.sort_unstable();
        let gone: Vec<i32> = self.threads.keys().copied().filter(|tid| tids.binary_search(tid).is_err()).collect();
        for tid in gone {
            self.gone(tid, t, out);
        }
        for &tid in &tids {
            self.threads.entry(tid).or_insert_with(|| Thread {
                schedstat: Kept::default(),
                sched: Sched::default(),
                ran: 0,
                inner: tid,
                sight: Sight { p: pid, i: tid, st: '?', nr: -1, ..Sight::default() },
                call: None,
                pending: false,
                since: t,
                asked: f64::MIN,
                asks: 0,
                backed: f64::MIN,
                wait: None,
            });
        }
        !tids.is_empty()
    }

    /// Whether all its threads sleep, one of them for what others hold, and that was not read since
    /// the last of them came to rest.
    pub(super) fn asks_for_ends(&self, t: f64, read: f64) -> bool {
        let all = self.threads.values();
        let mut last = f64::MIN;
        let mut by_ends = false;
        for thread in all {
            if thread.sight.st != 'S' || t - thread.since < ALL_SLEEP {
                return false;
            }
            last = last.max(thread.since);
            by_ends |= thread.call.is_some_and(|call| wait::depends_on_ends(call.nr));
        }
        by_ends && read < last + ALL_SLEEP
    }

    /// Whether a thread came to rest in this scan at a lock whose owner rests too. Then all are
    /// asked anew what they wait for.
    pub(super) fn is_ring_possible(&mut self, t: f64) -> bool {
        let is_possible = self.has_new_ring(t);
        if is_possible {
            let all = self.threads.values_mut().filter(|thread| thread.asked > f64::MIN);
            all.take(ASKED_ANEW).for_each(|thread| thread.asked = f64::MIN);
        }
        is_possible
    }

    fn has_new_ring(&self, t: f64) -> bool {
        let waits = |thread: &&Thread| thread.sight.st == 'S' && waits_for_lock(&thread.sight);
        self.threads.values().filter(|thread| thread.since == t).filter(waits).any(|thread| {
            let owner = thread.wait.as_ref().and_then(WaitFacts::named_owner);
            owner.and_then(|owner| self.threads.get(&owner)).is_some_and(|thread| waits(&thread))
        })
    }
}

/// A thread's name as it is: `status` shows a line break as `\n` and a backslash doubled.
fn unescaped(name: &str) -> String {
    let parts: Vec<String> = name.split(r"\\").map(|part| part.replace(r"\n", "\n")).collect();
    parts.join(r"\")
}

/// Whether it made a timer that signals it.
fn has_timer(pid: i32) -> bool {
    procfs::text(format!("/proc/{pid}/timers")).is_ok_and(|text| text.contains("notify: signal"))
}

impl Thread {
    /// That it ran, with nothing more known of it.
    fn unread(&mut self, t: f64) -> Sight {
        self.sight = Sight {
            t,
            st: '?',
            nr: -1,
            run: self.sched.run,
            wt: self.sched.wait,
            sl: self.sched.slices,
            comm: None,
            exec: 0,
            ..self.sight.clone()
        };
        (self.since, self.call, self.wait, self.asks) = (t, None, None, 0);
        self.sight.clone()
    }

    /// Reads it closer and hands that over; `false` if what it waits for may not be seen.
    fn read(
        &mut self,
        pid: i32,
        tid: i32,
        t: f64,
        start_of_code: Option<&mut u64>,
        out: &mut dyn FnMut(Record),
    ) -> bool {
        let text = |file: &str| procfs::record(format!("/proc/{pid}/task/{tid}/{file}"));
        let status = Status::of_thread(pid, tid).unwrap_or_default();
        let Some(state) = status.state() else { return true };
        let line = text("syscall");
        let forbidden = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM));
        // Of one that has ended and was not waited for the kernel shows that to nobody but root.
        let is_seen = !line.as_ref().is_err_and(forbidden) || status.has_ended();
        let call = line.ok().and_then(|line| thread::call(&line));
        let io = text("io").ok().and_then(|text| thread::io(&text)).unwrap_or(self.sight.io);
        let mut exec = 0;
        if let Some(known) = start_of_code {
            let now = text("stat").map_or(0, |stat| thread::start_of_code(&stat));
            exec = u8::from(*known != 0 && now != 0 && now != *known);
            *known = now;
        }
        // Its name is handed over when it is new, or changed.
        let name = unescaped(status.name());
        let is_new = self.sight.sl == 0 && self.sight.comm.is_none();
        let comm = (is_new || exec != 0 || self.sight.comm.as_deref() != Some(&name)).then_some(name);
        let c = call.unwrap_or(Call { nr: -1, ..Call::default() });
        let sight = Sight {
            t,
            p: pid,
            i: tid,
            run: self.sched.run,
            wt: self.sched.wait,
            sl: self.sched.slices,
            // Of one whose call may not be seen it is not known where it sleeps.
            st: if is_seen { state } else { '?' },
            nr: c.nr,
            a0: c.args[0],
            a1: c.args[1],
            a2: c.args[2],
            a3: c.args[3],
            sp: c.sp,
            pc: c.pc,
            v: status.voluntary_switches().unwrap_or(0),
            nv: status.involuntary_switches().unwrap_or(0),
            io,
            exec,
            comm: comm.clone(),
            ni: status.innermost_id().filter(|inner| *inner != tid),
        };
        let known = self.sight.comm.take();
        let same = (self.sight.nr, self.sight.a0, self.sight.pc, self.sight.v) == (c.nr, c.args[0], c.pc, sight.v);
        if !same || self.sight.st != 'S' || sight.st != 'S' {
            (self.since, self.wait, self.asks, self.asked) = (t, None, 0, f64::MIN);
        }
        (self.pending, self.call) = (false, call);
        out(Record::Thread(sight.clone()));
        self.sight = sight;
        self.sight.comm = comm.or(known);
        self.inner = status.innermost_id().unwrap_or(tid);
        is_seen
    }

    /// Asks what it waits for, if it is time to, and hands that over if it is news.
    fn ask(&mut self, pid: i32, tid: i32, t: f64, stirred: f64, out: &mut dyn FnMut(Record)) {
        let Some(call) = self.call.filter(|_| self.sight.st == 'S' && !self.pending) else { return };
        let at_lock = waits_for_lock(&self.sight);
        let due = if at_lock && self.asks < REPEATS { 0.0 } else { ASK_AFTER };
        let seldom = if self.asked > stirred { ASK_SELDOM } else { ASK_EVERY };
        let again = if at_lock && self.asks < REPEATS { 0.0 } else { seldom };
        if t - self.since < due || t - self.asked < again {
            return;
        }
        self.asked = t;
        // One that was woken and has no CPU yet has the same counters as before.
        let line = procfs::record(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
        if thread::call(&line) != Some(call) {
            self.pending = true;
            return;
        }
        self.asks = self.asks.saturating_add(1);
        let facts = wait::read(pid, tid, t, &call);
        self.wait = Some(facts.clone());
        out(Record::Wait(facts));
    }
}
