//! What is remembered of a watched process and its threads between two looks.

use crate::Config;
use crate::event::Kind;
use crate::old::history::History;
use crate::old::holders::Holders;
use crate::old::learn::Points;
use crate::old::passes::Passes;
use crate::old::proc::{self, Call, Dir, Kept, Sched};
use crate::old::progress::{Counted, Meter};
use crate::old::queues::Queues;
use crate::old::sections::Marks;
use crate::old::stays::Stay;
use orbit_inspect::waits::{Watched, inner_id};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A stretch of CPU use without a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    /// CPU time it had used when it was first noticed.
    pub(crate) run: u64,
    /// When that was.
    pub(crate) began: Instant,
    /// When it exceeded the check value.
    pub(crate) exceeded: Option<Instant>,
    /// Progress at which it is examined (again).
    pub(crate) examine: u64,
}

/// One thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) tid: i32,
    file: Option<File>,
    /// Its `status` while it is a suspect, and the list of its children.
    pub(crate) status: Kept,
    pub(crate) children: Kept,
    pub(crate) sched: Sched,
    /// The call it was found asleep in, if in one, and what it had run at the look of that: as long as this is the same so is the call.
    asleep: Option<((u64, u64), Option<Call>)>,
    /// CPU time it used between the last two looks, ns.
    pub(crate) ran: u64,
    /// For how long it has not run, by looks: what it is judged by. Time in which the watcher was held up does not count.
    pub(crate) still: Duration,
    /// The last look by which it had run, or it was met, later by the time since in which nobody looked: what is told of how long
    /// it waits counts from here.
    pub(crate) rest: Instant,
    /// It came to rest and nobody has looked yet where.
    pub(crate) unseen: bool,
    pub(crate) points: Points,
    pub(crate) history: History,
    pub(crate) burst: Option<Burst>,
    /// What looks at it have shown, if it has no main loop.
    pub(crate) stay: Option<Box<Stay>>,
    /// Counts what it gets done while it is suspected.
    pub(crate) meter: Option<Meter>,
    /// Counts how often it gets back to its loop, if its waits do not tell.
    pub(crate) passes: Passes,
    /// Waits at the last reading of `status`.
    pub(crate) waits: Option<u64>,
    /// Factor on the check value, raised while the thread is busy without hanging.
    pub(crate) ease: u64,
    /// When its wait is judged next.
    pub(crate) judge: Duration,
    /// When it is judged again in place of the usual time: its wait looks like a hang, and might for a moment only.
    pub(crate) judge_soon: Option<Duration>,
    /// It was told to hang.
    pub(crate) told: Option<(Kind, Instant)>,
    /// It was told as a member of a ring.
    pub(crate) in_ring: bool,
    /// It waits too in the hang told of this thread.
    pub(crate) involved: Option<i32>,
    /// The call it was in when it was told.
    pub(crate) told_in: Option<Call>,
    /// It ran since; whether it got on is not known yet.
    pub(crate) stirred: bool,
}

/// How a thread fared between two looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since {
    pub(crate) run: u64,
    pub(crate) wait: u64,
    pub(crate) slices: u64,
}

impl Thread {
    fn new(dir: &Dir, tid: i32, keep: bool, window: usize) -> Option<Thread> {
        let file = dir.file(format_args!("task/{tid}/schedstat")).ok()?;
        let sched = proc::sched(&file)?;
        Some(Thread {
            tid,
            file: keep.then_some(file),
            status: Kept::default(),
            children: Kept::default(),
            sched,
            asleep: None,
            ran: 0,
            still: Duration::ZERO,
            rest: Instant::now(),
            unseen: true,
            points: Points::default(),
            history: History::new(window),
            burst: None,
            stay: None,
            meter: None,
            passes: Passes::default(),
            waits: None,
            ease: 1,
            judge: Duration::ZERO,
            judge_soon: None,
            told: None,
            in_ring: false,
            involved: None,
            told_in: None,
            stirred: false,
        })
    }

    /// Reads the counters; nothing once the thread has ended.
    pub(crate) fn read(&mut self, dir: &Dir) -> Option<Since> {
        let now = match &self.file {
            Some(f) => proc::sched(f)?,
            None => proc::sched(&dir.file(format_args!("task/{}/schedstat", self.tid)).ok()?)?,
        };
        let was = std::mem::replace(&mut self.sched, now);
        self.ran = now.run.saturating_sub(was.run);
        Some(Since {
            run: self.ran,
            wait: now.wait.saturating_sub(was.wait),
            slices: now.slices.saturating_sub(was.slices),
        })
    }

    /// The call it sleeps in, read once a wait: to leave it the thread must be put on a CPU. What changes between two looks shows in the second.
    pub(crate) fn asleep_in(&mut self, dir: &Dir) -> Option<Call> {
        if let Some(call) = self.known_call() {
            return call;
        }
        self.found_in(dir.call(self.tid).ok().flatten())
    }

    /// The same if it is known already.
    pub(crate) fn known_call(&self) -> Option<Option<Call>> {
        self.asleep.filter(|(had, _)| *had == self.had()).map(|(_, call)| call)
    }

    /// Takes down the call it was found in after the look began.
    pub(crate) fn found_in(&mut self, call: Option<Call>) -> Option<Call> {
        self.asleep = Some((self.had(), call));
        call
    }

    /// CPU time and times put on a CPU.
    pub(crate) fn had(&self) -> (u64, u64) {
        (self.sched.run, self.sched.slices)
    }

    /// Forgets all habits, as after exec.
    pub(crate) fn renew(&mut self, window: usize) {
        self.points = Points::default();
        self.history = History::new(window);
        self.burst = None;
        self.stay = None;
        self.meter = None;
        self.passes = Passes::default();
        self.ease = 1;
    }

    /// CPU times of a busy hang, in instructions if those are counted.
    pub(crate) fn counted(&self, dir: &Dir, progress: u64, check: u64, usual: Option<u64>) -> Counted {
        let rate = self.meter.as_ref().and_then(|m| m.rate(self.run_now(dir)?));
        Counted::of(progress, check, usual, rate)
    }

    /// CPU time up to this moment, ns.
    pub(crate) fn run_now(&self, dir: &Dir) -> Option<u64> {
        Some(self.sched_now(dir)?.run)
    }

    /// The counters at this moment.
    pub(crate) fn sched_now(&self, dir: &Dir) -> Option<Sched> {
        proc::sched(&dir.file(format_args!("task/{}/schedstat", self.tid)).ok()?)
    }
}

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) dir: Dir,
    pub(crate) threads: BTreeMap<i32, Thread>,
    /// Ids of its threads in a pid namespace of its own, and ours of them; nothing where they are the same.
    pub(crate) inner: Option<BTreeMap<i32, i32>>,
    pub(crate) exe: Option<PathBuf>,
    /// Where its code and its first stack begin, as far as that was seen, and where that is read.
    image: Option<(u64, u64)>,
    stat: Kept,
    /// Sections marked in its source.
    pub(crate) marks: Marks,
    /// For looking at waits; made when first needed.
    pub(crate) watched: Option<Watched>,
    pub(crate) queues: Queues,
    pub(crate) holders: Holders,
    /// Threads it had when waits were last judged.
    pub(crate) had: usize,
    /// A thread that may have been able to wake all others when that was asked last.
    pub(crate) waker: Option<i32>,
    /// When all of its threads may be asked again what they wait for.
    pub(crate) ask_all_from: Instant,
    /// When it may be asked again whether it and other processes wait for each other.
    pub(crate) ask_others_from: Instant,
    /// A thread could not be read: the list is out of date.
    stale: bool,
}

impl Process {
    /// Threads of other processes keep so many descriptors.
    pub(crate) fn new(pid: i32, config: &Config, others: usize) -> std::io::Result<Process> {
        let dir = Dir::open(pid)?;
        let mut stat = Kept::default();
        let (exe, image) = (dir.exe(), dir.image(pid, &mut stat));
        let mut p = Process {
            pid,
            dir,
            threads: BTreeMap::new(),
            inner: inner_id(pid).is_some_and(|id| id != pid).then(BTreeMap::new),
            exe,
            image,
            stat,
            marks: Marks::default(),
            watched: None,
            queues: Queues::default(),
            holders: Holders::default(),
            had: 0,
            waker: None,
            ask_all_from: Instant::now(),
            ask_others_from: Instant::now(),
            stale: true,
        };
        p.keep_up(config.window, others);
        if p.threads.is_empty() {
            return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(p)
    }

    /// Brings the list of threads up to date; threads of other processes keep so many descriptors. `false` once the process is gone.
    pub(crate) fn keep_up(&mut self, window: usize, others: usize) -> bool {
        let Some(count) = self.dir.count() else {
            return false;
        };
        if !self.stale && count == self.threads.len() {
            return true;
        }
        self.stale = false;
        let Ok(tids) = self.dir.tids() else {
            return false;
        };
        self.threads.retain(|t, _| tids.binary_search(t).is_ok());
        if let Some(inner) = &mut self.inner {
            inner.retain(|_, t| tids.binary_search(t).is_ok());
        }
        let room = room().saturating_sub(others);
        for tid in tids {
            let keep = self.threads.len() < room;
            if let std::collections::btree_map::Entry::Vacant(v) = self.threads.entry(tid)
                && let Some(t) = Thread::new(&self.dir, tid, keep, window)
            {
                v.insert(t);
                if let Some((inner, id)) = self.inner.as_mut().zip(inner_id(tid)) {
                    inner.insert(id, tid);
                }
            }
        }
        !self.threads.is_empty()
    }

    /// A thread's counters since the last look. A thread that has ended is forgotten.
    pub(crate) fn read(&mut self, tid: i32) -> Option<Since> {
        let since = self.threads.get_mut(&tid)?.read(&self.dir);
        if since.is_none() {
            self.threads.remove(&tid);
            self.stale = true;
        }
        since
    }

    /// For asking what threads wait for.
    pub(crate) fn waits(&mut self) -> Option<&mut Watched> {
        if self.watched.is_none() {
            // The descriptors that there are go to the counters and to the search for rings.
            self.watched = Watched::of_few(self.pid).ok();
        }
        self.watched.as_mut()
    }

    /// Forgets what was learnt of the program.
    pub(crate) fn renew(&mut self, window: usize) {
        for t in self.threads.values_mut() {
            t.renew(window);
        }
        self.marks = Marks::default();
        self.watched = None;
    }

    /// Whether exec has put another program in its place, or the same one anew.
    pub(crate) fn replaced(&mut self) -> bool {
        // After a change of credentials it may no longer be asked: that is no exec.
        let Some(now) = self.dir.exe() else {
            return false;
        };
        let anew =
            self.dir.image(self.pid, &mut self.stat).is_some_and(|i| self.image.replace(i).is_some_and(|was| was != i));
        let was = self.exe.replace(now);
        anew || (was.is_some() && was != self.exe)
    }
}

/// Descriptors that may be kept for counters: a third of what this process may open.
fn room() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    let ok = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if ok { usize::try_from(limit.rlim_cur / 3).unwrap_or(usize::MAX) } else { 0 }
}
