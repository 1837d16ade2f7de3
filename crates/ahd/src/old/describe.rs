//! Waits in words, and stacks taken for a report.

use crate::event::{Edge, Involved};
use crate::old::at_lock::{AtLock, at_lock};
use orbit_inspect::rings::Ring;
use orbit_inspect::stacks::{End, Frame, How, ThreadStack, Unwinder, of_c_library};
use orbit_inspect::waits::{Direction, FutexKind, FutexWait, Owner, Wait, call_name};
use orbit_inspect::{Sure, python};
use std::collections::BTreeMap;

/// What a thread does, as a clause: `waits for mutex 0x10 held by thread 7`.
pub(crate) fn words(wait: &Wait) -> String {
    match wait {
        Wait::Running => "runs, or waits for a CPU".into(),
        Wait::Futex(f) => format!("waits for {}{}", futex(f), limit(f.call.timed)),
        Wait::Pipe { fd, direction, peers, named, .. } => {
            let (does, end) = match direction {
                Direction::Read => ("bytes from", "written"),
                Direction::Write => ("room in", "read"),
            };
            let name = if *named { "named " } else { "" };
            format!("waits for {does} a {name}pipe (descriptor {fd}), which can be {end} by {}", processes(peers))
        }
        Wait::Socket { fd, call, local, remote, peers, .. } => {
            let mut s = format!("waits in {call} on socket {fd}");
            if let Some(l) = local {
                s += &format!(", {l}");
            }
            if let Some(r) = remote {
                s += &format!(", connected to {r}");
            }
            if !peers.is_empty() {
                s += &format!(", other side: {}", processes(peers));
            }
            s
        }
        Wait::FileLock { path, owner: Some(o) } => format!("waits for a lock on file {path} held by process {o}"),
        Wait::FileLock { path, owner: None } => format!("waits for a lock on file {path}"),
        Wait::Child { pids } => format!("waits for a child to end: {}", processes(pids)),
        Wait::Poll { fds, timed } => format!("waits in poll for {fds} descriptors{}", limit(*timed)),
        Wait::Epoll { fds, timed } => format!("waits in epoll for {fds} descriptors{}", limit(*timed)),
        Wait::Sleep => "sleeps".into(),
        Wait::Signal => "waits for a signal".into(),
        Wait::Stopped => "is stopped by a signal".into(),
        Wait::Traced { by } => format!("is stopped by its tracer, process {by}"),
        Wait::Disk { wchan, .. } => format!("is in an uninterruptible wait in the kernel {wchan}"),
        Wait::Other(c) => match call_name(c.nr) {
            Some(name) => format!("waits in {name}"),
            None => format!("waits in system call {}", c.nr),
        },
        Wait::Fault { wchan } => format!("waits in a page fault or the like {wchan}"),
        Wait::Ended => "has ended".into(),
        Wait::Hidden(why) => format!("cannot be seen: {why}"),
    }
}

fn limit(timed: bool) -> &'static str {
    if timed { " with a time limit" } else { "" }
}

fn processes(pids: &[i32]) -> String {
    match pids {
        [] => "no process in sight".into(),
        [one] => format!("process {one} alone"),
        some => {
            let list: Vec<String> = some.iter().take(8).map(i32::to_string).collect();
            let more = if some.len() > 8 { ", ..." } else { "" };
            format!("processes {}{more}", list.join(", "))
        }
    }
}

fn futex(f: &FutexWait) -> String {
    let at = f.lock;
    let by = |o: &Owner, how: &str| match o {
        Owner::Thread { tid, .. } => format!(" {how} thread {tid}"),
        Owner::Gone { tid } => format!(" {how} thread {tid}, which has ended"),
        Owner::Forked { parent, tid } => {
            format!(", which thread {tid} of process {parent} held when this process was forked from it")
        }
        Owner::Unknown => String::new(),
    };
    let mut s = match &f.kind {
        FutexKind::Mutex { owner: Owner::Unknown } => format!("mutex {at:#x}, which keeps no owner"),
        FutexKind::Mutex { owner } => format!("mutex {at:#x}{}", by(owner, "held by")),
        FutexKind::RwLock { writer: Owner::Unknown } => format!("rwlock {at:#x}, perhaps held by readers"),
        FutexKind::RwLock { writer } => format!("rwlock {at:#x}{}", by(writer, "held by writer")),
        FutexKind::Condvar => format!("condition variable {at:#x}"),
        FutexKind::Join(o) => format!("the end of a thread{}", by(o, "by name")).replace(" by name thread", ":"),
        FutexKind::Semaphore => format!("semaphore {at:#x}"),
        FutexKind::Parked => format!("being unparked, futex {at:#x}"),
        FutexKind::GivenUp => "a mutex it can never get (the kernel refused the wait)".into(),
        FutexKind::Unknown => format!("futex {at:#x}"),
    };
    let forked = |o: &Owner| matches!(o, Owner::Forked { .. });
    if matches!(&f.kind, FutexKind::Mutex { owner: o } | FutexKind::RwLock { writer: o } if forked(o)) {
        s += " (nobody in this process can give it back, unless its first thread is the copy of that one)";
    } else if f.lost() && f.kind != FutexKind::GivenUp {
        s += " (nobody holds it now: a wake-up was lost, or the holder died)";
    }
    if f.sure < Sure::Certain {
        s += &format!(" ({})", f.sure);
    }
    s
}

/// The lock of a futex wait in few words.
pub(crate) fn lock(kind: &FutexKind, addr: u64) -> String {
    match kind {
        FutexKind::Mutex { .. } => format!("mutex {addr:#x}"),
        FutexKind::RwLock { .. } => format!("rwlock {addr:#x}"),
        FutexKind::Join(_) => "end of thread".into(),
        FutexKind::GivenUp => format!("mutex refused by the kernel, waiting at {addr:#x}"),
        _ => format!("futex {addr:#x}"),
    }
}

/// A ring as edges.
pub(crate) fn edges(ring: &Ring) -> Vec<Edge> {
    let edge = |m: &orbit_inspect::rings::Member| Edge {
        pid: m.pid,
        tid: m.tid,
        waits_for: lock(&m.kind, m.lock),
        held_by: m.waits_for,
        sure: m.sure,
    };
    ring.members.iter().map(edge).collect()
}

/// Takes stacks of threads; files once parsed are kept, a process at a time.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    unwinders: BTreeMap<i32, Unwinder>,
}

impl Stacks {
    /// Parses the process' files ahead of need.
    pub(crate) fn prepare(&mut self, pid: i32) {
        if let std::collections::btree_map::Entry::Vacant(free) = self.unwinders.entry(pid)
            && let Ok(mut u) = Unwinder::new(pid)
        {
            // A process that cannot be read says so when its stack is taken.
            let _ = u.prepare();
            free.insert(u);
        }
    }

    /// Does something else while the files that name a thread's stack are read, as that takes longer than to take the stack.
    pub(crate) fn foresee<T>(&mut self, (pid, tid): (i32, i32), meanwhile: impl FnOnce() -> T) -> T {
        self.prepare(pid);
        let Some(u) = self.unwinders.get_mut(&pid) else {
            return meanwhile();
        };
        u.gentle(false);
        let copies = u.copy(&[tid]);
        std::thread::scope(|s| {
            s.spawn(|| drop(u.name(copies)));
            meanwhile()
        })
    }

    pub(crate) fn forget(&mut self, pid: i32) {
        self.unwinders.remove(&pid);
    }

    /// Native stack and state of one thread, if it could be stopped.
    pub(crate) fn state(&mut self, pid: i32, tid: i32) -> Option<(Vec<Frame>, Option<u64>)> {
        self.prepare(pid);
        let u = self.unwinders.get_mut(&pid)?;
        u.gentle(false);
        u.states(true);
        let s = u.capture(&[tid]).pop().filter(|s| s.how == How::Stopped);
        u.states(false);
        s.map(|s| (s.frames, s.state))
    }

    /// Whether a thread that sleeps at a futex does so in a function of a lock: the bytes at the futex may be anything's. The thread is
    /// not stopped.
    pub(crate) fn waits_for_lock(&mut self, pid: i32, tid: i32) -> AtLock {
        let threads = self.involve(vec![(pid, tid, String::new())], true);
        let functions = threads.iter().flat_map(|t| &t.stack).map(|frame| frame.function.as_deref());
        at_lock(functions)
    }

    /// The threads with their stacks. `gentle`: without stopping those that sleep.
    pub(crate) fn involve(&mut self, threads: Vec<(i32, i32, String)>, gentle: bool) -> Vec<Involved> {
        let mut out: Vec<Involved> = threads
            .into_iter()
            .map(|(pid, tid, does)| Involved {
                pid,
                tid,
                comm: String::new(),
                does,
                stack: Vec::new(),
                python: Vec::new(),
                note: None,
            })
            .collect();
        let pids: std::collections::BTreeSet<i32> = out.iter().map(|t| t.pid).collect();
        for pid in pids {
            self.prepare(pid);
            // One may be part of several hangs.
            let mut met = std::collections::BTreeSet::new();
            let tids: Vec<i32> = out.iter().filter(|t| t.pid == pid && met.insert(t.tid)).map(|t| t.tid).collect();
            let taken = match self.unwinders.get_mut(&pid) {
                Some(u) => {
                    u.gentle(gentle);
                    u.capture(&tids)
                }
                None => Vec::new(),
            };
            let python =
                if taken.iter().any(|t| t.frames.iter().any(of_python)) { of_interpreter(pid) } else { Ok(Vec::new()) };
            let taken: BTreeMap<i32, ThreadStack> = taken.into_iter().map(|s| (s.tid, s)).collect();
            for t in out.iter_mut().filter(|t| t.pid == pid) {
                let Some(s) = taken.get(&t.tid) else {
                    t.note = Some("the process has ended or may not be looked into".into());
                    continue;
                };
                t.comm.clone_from(&s.comm);
                t.note = match (&s.error, s.how, s.end) {
                    (Some(e), ..) => Some(e.to_string()),
                    (None, How::Not, _) => Some("no stack".into()),
                    (None, _, End::Complete) => None,
                    (None, _, End::Lost) => Some("the stack ends early: no unwind information".into()),
                    (None, _, End::TooDeep) => Some("deeper than shown".into()),
                };
                t.stack.clone_from(&s.frames);
                match &python {
                    Ok(all) => {
                        t.python = all.iter().find(|p| p.tid == s.tid).map(|p| p.frames.clone()).unwrap_or_default();
                    }
                    Err(e) => t.note = Some(e.clone()),
                }
            }
        }
        out
    }
}

fn of_python(f: &Frame) -> bool {
    f.module.contains("python") || f.function.as_deref().is_some_and(|n| n.starts_with("_PyEval_EvalFrame"))
}

fn of_interpreter(pid: i32) -> Result<Vec<python::PyThread>, String> {
    match python::find(pid) {
        Ok(Some(p)) => Ok(p.stacks()),
        Ok(None) => Ok(Vec::new()),
        Err(e) => Err(e.to_string()),
    }
}

/// The function to blame in a stack: the innermost that is not the C library's or Rust's own, with its place.
pub(crate) fn place(stack: &[Frame]) -> String {
    let system = |f: &Frame| {
        let library = f.file.as_deref().is_some_and(|s| s.starts_with("/rustc/") || s.contains("/lib/rustlib/src/"));
        library || of_c_library(&f.module) || f.module == "[vdso]"
    };
    match stack.iter().find(|f| !system(f) && f.function.is_some()).or(stack.first()) {
        Some(f) => f.to_string(),
        None => "code that could not be seen".into(),
    }
}
