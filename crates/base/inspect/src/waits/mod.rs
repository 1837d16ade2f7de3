//! What the threads of another process do and what each waits for.
//!
//! Owns: the descriptors of `/proc/PID/task/*`, kept open between scans, because opening costs
//! several times what reading does. Promises: [`Watched::scan`] reads two small files a thread and
//! nothing else; the holder of a lock or of the other end of a pipe is found only when
//! [`Watched::wait_of`] is asked about that thread. The process is not stopped or written. Refuses:
//! waits of 32-bit programs, which are reported by the call's number only.

mod call;
mod children;
pub mod epoll;
mod files;
mod futex;
mod lock;
mod lost;
mod owner;
mod peers;
mod socket;
mod text;
mod thread;

pub use call::{Call, name as call_name};
pub use children::unreaped;
pub use futex::Waiting;
pub use lock::{FutexKind, FutexWait, Key};
pub use lost::stays_lost;
pub use owner::{Owner, inner_id};
pub use peers::{Direction, Ends};
pub use thread::{State, ThreadState};

use crate::{Error, Maps, Memory, Sure};
pub(crate) use call::Seen;
use files::Kept;
pub(crate) use futex::GLIBC_TID;
use futex::{Around, Held, Shape, WINDOW};
use orbit_linux::procfs::ids_in;
use owner::Elsewhere;
use std::collections::{BTreeMap, BTreeSet};

/// What a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For nothing: it runs, or could if it had a CPU.
    Running,
    /// For a lock or another word in memory.
    Futex(FutexWait),
    /// For bytes or room in a pipe.
    Pipe {
        /// Descriptor of the waiting process.
        fd: i32,
        /// The pipe's inode.
        ino: u64,
        /// Whether it reads or writes.
        direction: Direction,
        /// Processes that hold the other end, sorted. Only those this process may inspect are
        /// found. If it is the waiting process alone and the pipe has no name, nothing else can
        /// ever end the wait.
        peers: Vec<i32>,
        /// It has a name in a file system (a FIFO): any process may open it later.
        named: bool,
    },
    /// For a socket.
    Socket {
        /// Descriptor of the waiting process.
        fd: i32,
        /// The socket's inode.
        ino: u64,
        /// What is done: `recvfrom`, `accept`, ...
        call: &'static str,
        /// Its own address (`tcp 127.0.0.1:80`, `unix /run/x`), where it has one.
        local: Option<String>,
        /// The other side's address, where it has one.
        remote: Option<String>,
        /// Processes of this machine that hold the other side. Empty if there is none or it is
        /// elsewhere.
        peers: Vec<i32>,
    },
    /// For a lock on a file.
    FileLock {
        /// The file.
        path: String,
        /// Process that holds a lock in the way: that took it, or one that has it from a process
        /// that took it and has ended.
        owner: Option<i32>,
    },
    /// For a child process to end.
    Child {
        /// The children there are now, sorted; empty if none is left in sight.
        pids: Vec<i32>,
    },
    /// In `poll` or `select`.
    Poll {
        /// Descriptors waited for.
        fds: usize,
        /// Has a time limit.
        timed: bool,
    },
    /// In `epoll_wait`.
    Epoll {
        /// Descriptors the epoll instance watches.
        fds: usize,
        /// Has a time limit.
        timed: bool,
        /// Those of them, of the first [`epoll::MAX_DESCRIPTORS_ASKED`], that have input for which
        /// it does not fire: it has fired for that (edge-triggered), or is not armed (one shot).
        unread: Vec<i32>,
    },
    /// In `open` of a FIFO, until another process opens its other end.
    Fifo {
        /// As the program gave it; may be relative.
        path: String,
        /// Whether it opens it for reading, so that a writer is missing.
        direction: Direction,
    },
    /// For time to pass.
    Sleep,
    /// For a signal.
    Signal,
    /// Stopped by a signal (SIGSTOP, Ctrl-Z).
    Stopped,
    /// Stopped by a tracer.
    Traced {
        /// The tracer's process id, 0 where it cannot be seen.
        by: i32,
    },
    /// Inside the kernel, not to be interrupted: disk, network file system, memory.
    Disk {
        /// Where in the kernel, if it says.
        wchan: String,
        /// In which call, if in one.
        call: Option<Call>,
    },
    /// In another call.
    Other(Call),
    /// Blocked outside any call, for instance in a page fault.
    Fault {
        /// Where in the kernel, if it says.
        wchan: String,
    },
    /// The thread has ended.
    Ended,
    /// The kernel does not let this process see it; the text says what it would need.
    Hidden(String),
}

/// The FIFO that a thread opens, if the kernel says that it waits in there for the other end. The
/// path is not followed: what is behind it may answer as little as it did the thread.
fn fifo(pid: i32, tid: i32, call: &Call) -> Option<Wait> {
    const LONGEST: usize = 256;
    if !["wait_for_partner", "fifo_open"].contains(&files::wchan(tid).as_str()) {
        return None;
    }
    let (path, flags) = match call.nr {
        libc::SYS_open => (call.args[0], call.args[1]),
        _ => (call.args[1], call.args[2]),
    };
    let bytes = Memory::of(pid).vec(path, LONGEST);
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let reads = flags as i32 & libc::O_ACCMODE == libc::O_RDONLY;
    let direction = if reads { Direction::Read } else { Direction::Write };
    Some(Wait::Fifo { path: String::from_utf8_lossy(&bytes[..end]).into_owned(), direction })
}

/// A process whose threads are rechecked. Not to be shared between threads at the same time.
#[derive(Debug)]
pub struct Watched {
    pid: i32,
    threads: BTreeMap<i32, Kept>,
    /// Threads that may keep descriptors; the rest open theirs each time.
    room: usize,
    compat: bool,
    /// A thread could not be read: the list of threads is out of date.
    stale: bool,
    /// Ids inside the process' own pid namespace, where that is another one: theirs to ours.
    foreign: Option<BTreeMap<i32, i32>>,
}

impl Watched {
    /// Begins to inspect a process. Fails if there is none.
    pub fn new(pid: i32) -> Result<Watched, Error> {
        Watched::beside(pid, 0)
    }

    /// The same where the descriptors of so many threads of other processes are kept open too.
    pub(crate) fn beside(pid: i32, others: usize) -> Result<Watched, Error> {
        let mut w = Watched::empty(pid, files::room().saturating_sub(others));
        w.refresh()?;
        Ok(w)
    }

    /// The same for an occasional sample of a few threads: it keeps no descriptors open.
    pub fn of_few(pid: i32) -> Result<Watched, Error> {
        let mut w = Watched::empty(pid, 0);
        w.refresh()?;
        Ok(w)
    }

    fn empty(pid: i32, room: usize) -> Watched {
        Watched { pid, threads: BTreeMap::new(), room, compat: files::is_32bit(pid), stale: false, foreign: None }
    }

    /// The process' id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Ids of the threads seen at the last scan, sorted.
    pub fn tids(&self) -> Vec<i32> {
        self.threads.keys().copied().collect()
    }

    /// Brings the list of threads up to date.
    fn refresh(&mut self) -> Result<(), Error> {
        let ids =
            ids_in(format!("/proc/{}/task", self.pid)).map_err(|e| Error::of(self.pid, "listing the threads", e))?;
        if ids.is_empty() {
            return Err(Error::Gone { id: self.pid });
        }
        self.threads.retain(|t, _| ids.binary_search(t).is_ok());
        for tid in ids {
            let keep = self.threads.len() < self.room;
            self.threads.entry(tid).or_insert_with(|| Kept::new(self.pid, tid, keep));
        }
        self.foreign = owner::foreign(self.pid, self.threads.keys());
        Ok(())
    }

    /// All threads as they are now, sorted by id; empty once the process is gone. Costs about 6 us
    /// a thread.
    pub fn scan(&mut self) -> Vec<ThreadState> {
        let known = self.threads.len();
        if files::count(self.pid) != Some(known) && self.refresh().is_err() {
            self.threads.clear();
            return Vec::new();
        }
        let states: Vec<ThreadState> = self.threads.values_mut().filter_map(Kept::state).collect();
        if states.len() == known && known == self.threads.len() {
            return states;
        }
        // A thread ended and perhaps another took its place.
        if self.refresh().is_err() {
            self.threads.clear();
        }
        self.threads.values_mut().filter_map(Kept::state).collect()
    }

    /// What one thread waits for. Blocks for no longer than reading `/proc` takes; finding the
    /// other end of a pipe or socket reads the descriptors of every process and takes
    /// milliseconds.
    pub fn wait_of(&mut self, tid: i32) -> Wait {
        self.wait_of_by(tid, &mut Ends::default())
    }

    /// The same, for many threads at a time: the holders of the other ends are found in `ends`,
    /// which is read once.
    pub fn wait_of_by(&mut self, tid: i32, ends: &mut Ends) -> Wait {
        let pid = self.pid;
        let Some(kept) = self.threads.get_mut(&tid) else {
            if self.refresh().is_ok() && self.threads.contains_key(&tid) {
                return self.wait_of_by(tid, ends);
            }
            return Wait::Ended;
        };
        let Some(state) = kept.state() else {
            return Wait::Ended;
        };
        match state.state {
            State::Running => return Wait::Running,
            State::Ended => return Wait::Ended,
            State::Stopped => return Wait::Stopped,
            State::Traced => {
                let status = orbit_linux::status::Status::of(tid).unwrap_or_default();
                return Wait::Traced { by: crate::procfs::tracer(&status) };
            }
            State::Sleeping | State::Uninterruptible | State::Other(_) => {}
        }
        let seen = match kept.seen() {
            Ok(s) => s,
            Err(e) => {
                return match Error::of(tid, "seeing the system call", e) {
                    Error::Gone { .. } => Wait::Ended,
                    e => Wait::Hidden(e.to_string()),
                };
            }
        };
        let disk = state.state == State::Uninterruptible;
        match seen {
            Seen::Running => Wait::Running,
            Seen::Outside(..) if disk => Wait::Disk { wchan: files::wchan(tid), call: None },
            Seen::Outside(..) => Wait::Fault { wchan: files::wchan(tid) },
            Seen::In(call) if self.compat => Wait::Other(call),
            Seen::In(call) if disk && !matches!(call.nr, libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3) => {
                Wait::Disk { wchan: files::wchan(tid), call: Some(call) }
            }
            Seen::In(call) => match self.in_call(pid, tid, call, ends) {
                // What came meanwhile wakes it.
                Wait::Epoll { fds, timed, unread } if !unread.is_empty() && !self.sleeps_since(tid, &state) => {
                    Wait::Epoll { fds, timed, unread: Vec::new() }
                }
                wait => wait,
            },
        }
    }

    /// Whether a thread sleeps, and has not run since it was in this state.
    fn sleeps_since(&mut self, tid: i32, was: &ThreadState) -> bool {
        let now = self.threads.get_mut(&tid).and_then(Kept::state);
        now.is_some_and(|now| now.state == State::Sleeping && now.switches == was.switches)
    }

    fn in_call(&self, pid: i32, tid: i32, mut call: Call, ends: &mut Ends) -> Wait {
        if call.nr == libc::SYS_restart_syscall {
            // A timed wait that a stop interrupted; the arguments are still those of the first
            // call.
            let code = Memory::of(pid).bytes::<7>(call.pc.wrapping_sub(7)).unwrap_or_default();
            let wchan = files::wchan(tid);
            call.nr = match code {
                // mov $nr, %eax; syscall
                [0xb8, nr @ .., 0x0f, 0x05] => i64::from(i32::from_le_bytes(nr)),
                _ if wchan.contains("futex") => libc::SYS_futex,
                _ if wchan.contains("poll") => libc::SYS_poll,
                _ if wchan.contains("nanosleep") => libc::SYS_nanosleep,
                _ => call.nr,
            };
        }
        let a = call.args;
        match call.nr {
            libc::SYS_futex => match Waiting::of(&a) {
                Some(w) => Wait::Futex(self.futexes(&[(tid, w)]).remove(0)),
                None => Wait::Other(call),
            },
            libc::SYS_nanosleep | libc::SYS_clock_nanosleep => Wait::Sleep,
            libc::SYS_pause | libc::SYS_rt_sigsuspend | libc::SYS_rt_sigtimedwait => Wait::Signal,
            libc::SYS_wait4 | libc::SYS_waitid | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => {
                Wait::Child { pids: peers::children(pid, &call) }
            }
            libc::SYS_poll => Wait::Poll { fds: a[1].min(1 << 20) as usize, timed: a[2] as i32 >= 0 },
            libc::SYS_ppoll => Wait::Poll { fds: a[1].min(1 << 20) as usize, timed: a[2] != 0 },
            libc::SYS_select | libc::SYS_pselect6 => {
                Wait::Poll { fds: peers::selected(Memory::of(pid), &a), timed: a[4] != 0 }
            }
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait => epoll::wait(pid, tid, a[0] as i32, a[3] as i32 >= 0),
            libc::SYS_epoll_pwait2 => epoll::wait(pid, tid, a[0] as i32, a[3] != 0),
            libc::SYS_open | libc::SYS_openat => fifo(pid, tid, &call).unwrap_or(Wait::Other(call)),
            _ => peers::of_descriptor(pid, tid, &call, ends).unwrap_or(Wait::Other(call)),
        }
    }

    /// Brings the list of threads up to date if it changed; `false` once the process is gone.
    pub(crate) fn keep_up(&mut self) -> bool {
        let same = !self.stale && files::count(self.pid) == Some(self.threads.len());
        self.stale = false;
        same || self.refresh().is_ok()
    }

    /// The futex waits of all threads (or of some) that are in one now, by thread id.
    /// A thread whose call cannot be read is left out.
    pub(crate) fn futex_calls(&mut self, only: Option<&BTreeSet<i32>>) -> Vec<(i32, Waiting)> {
        if self.compat {
            return Vec::new();
        }
        self.threads
            .values_mut()
            .filter(|k| only.is_none_or(|o| o.contains(&k.tid())))
            .filter_map(|k| match k.seen() {
                Ok(Seen::In(c)) if c.nr == libc::SYS_futex => Some((k.tid(), Waiting::of(&c.args)?)),
                Ok(_) => None,
                Err(_) => {
                    self.stale = true;
                    None
                }
            })
            .collect()
    }

    /// CPU time (nanoseconds) and switches of one thread, fresh; nothing once it has ended. The
    /// cheapest sample: some 2 us. Of a thread that runs, the CPU time may lack the last
    /// clock tick.
    pub fn progress(&mut self, tid: i32) -> Option<(u64, u64)> {
        self.threads.get_mut(&tid)?.progress()
    }

    /// The same if the thread also sleeps: equal before and after something, it did not run in
    /// between.
    pub(crate) fn still(&mut self, tid: i32) -> Option<(u64, u64)> {
        let kept = self.threads.get_mut(&tid)?;
        (kept.state()?.state != State::Running).then(|| kept.progress()).flatten()
    }

    /// Our id of one of the process' threads, by its id in the process' own pid namespace.
    pub(crate) fn translated(&self, id: i32) -> Option<i32> {
        let tid = self.foreign.as_ref().map_or(Some(id), |map| map.get(&id).copied())?;
        self.threads.contains_key(&tid).then_some(tid)
    }

    /// Reads the locks of futex waits, all memory in one go.
    pub(crate) fn futexes(&self, waits: &[(i32, Waiting)]) -> Vec<FutexWait> {
        let memory = Memory::of(self.pid);
        let at: Vec<u64> = waits.iter().flat_map(|(_, w)| [w.addr.saturating_sub(WINDOW as u64), w.addr]).collect();
        let bytes = memory.many::<WINDOW>(&at);
        let shared = waits.iter().any(|(_, w)| !w.private());
        let maps = shared.then(|| Maps::of(self.pid).unwrap_or_default());
        let elsewhere = Elsewhere::of(self.pid);
        waits
            .iter()
            .zip(bytes.chunks_exact(2))
            .map(|(&(tid, w), b)| {
                let around = Around { before: b[0], after: b[1], id_of_thread: self.id_of_thread(&w, memory) };
                self.futex(tid, w, around, (memory, maps.as_ref()), &elsewhere)
            })
            .collect()
    }

    fn futex(
        &self,
        tid: i32,
        call: Waiting,
        mut around: Around,
        (memory, maps): (Memory, Option<&Maps>),
        elsewhere: &Elsewhere,
    ) -> FutexWait {
        if around.after.is_none() {
            // The word may stand at the very end of what is mapped.
            let got = memory.vec(call.addr, WINDOW);
            if got.len() >= 4 {
                let mut b = [0; WINDOW];
                b[..got.len()].copy_from_slice(&got);
                around.after = Some(b);
            }
        }
        // A private lock is held by a thread of this process, or was by one of the process it was
        // forked from.
        let holder = |id: i32, private: bool| {
            let other = || {
                if private {
                    return elsewhere.holder(id);
                }
                let tid = if self.foreign.is_some() { elsewhere.ours(id)? } else { id };
                crate::procfs::process_of_living(tid).map(|pid| Owner::Thread { pid, tid })
            };
            self.owner(id).or_else(other)
        };
        let live = |id: i32| holder(id, call.private()).is_some();
        let (shape, sure) = futex::shape(&call, &around, &live);
        let held = |h: Held| match h {
            Held::Unsaid => Owner::Unknown,
            Held::By(id) => holder(id, call.private()).unwrap_or(Owner::Gone { tid: id }),
            Held::Block(at) => memory
                .u32(at + GLIBC_TID)
                .and_then(|id| holder(i32::try_from(id).ok()?, true))
                .unwrap_or(Owner::Unknown),
        };
        let kind = match shape {
            Shape::Mutex(h) => FutexKind::Mutex { owner: held(h) },
            Shape::RwLock(h) => FutexKind::RwLock { writer: held(h) },
            Shape::Condvar => FutexKind::Condvar,
            Shape::Semaphore => FutexKind::Semaphore,
            Shape::Parked => FutexKind::Parked,
            Shape::Unknown => FutexKind::Unknown,
            // Only threads of one's own process can be joined.
            Shape::Join(id) => FutexKind::Join(self.owner(id).unwrap_or(Owner::Gone { tid: id })),
        };
        let free = futex::free(&call, shape, &around);
        let lock = futex::begins(&call, shape);
        // The bytes around a word on a stack may have any form.
        let (kind, sure) =
            if self.given_up(tid, &call, &around) { (FutexKind::GivenUp, Sure::Likely) } else { (kind, sure) };
        let key = self.key(&call, maps);
        FutexWait { call, lock, word: around.u32(0), free, kind, sure, key }
    }

    /// What names the word of a wait. Without maps, all memory counts as the process' own.
    fn key(&self, call: &Waiting, maps: Option<&Maps>) -> Key {
        let private = Key::Private { pid: self.pid, addr: call.addr };
        maps.filter(|_| !call.private())
            .and_then(|m| m.at(call.addr))
            .filter(|m| m.shared)
            .map_or(private, |m| Key::Shared { dev: m.dev, ino: m.ino, offset: call.addr - m.start + m.offset })
    }

    /// Whether the word that is waited for is the id of a thread of this process and stands where
    /// glibc keeps it: in the thread's block, which names itself twice.
    fn id_of_thread(&self, call: &Waiting, memory: Memory) -> bool {
        let block = call.addr.wrapping_sub(GLIBC_TID);
        !call.private()
            && memory.u64(block) == Some(block)
            && memory.u64(block.wrapping_add(16)) == Some(block)
            && i32::try_from(call.expected).is_ok_and(|id| self.owner(id).is_some())
    }

    /// A live thread of this process by its id in its own pid namespace.
    fn owner(&self, id: i32) -> Option<Owner> {
        let tid = self.foreign.as_ref().map_or(Some(id), |map| map.get(&id).copied())?;
        self.threads.contains_key(&tid).then_some(Owner::Thread { pid: self.pid, tid })
    }

    /// Whether glibc gave up on a priority-inheriting mutex here.
    ///
    /// When the kernel answers that the wait would close a ring, or that the holder has ended,
    /// glibc parks the thread for ever on a zero word of its own stack, close to the top. What
    /// programs wait at there by themselves (semaphores and atomics of C++, whose calls are inlined
    /// into the frame that has them) is waited for by another call.
    fn given_up(&self, tid: i32, call: &Waiting, around: &Around) -> bool {
        const FRAME: u64 = 112;
        if call.timed || !call.by_wall_clock() || call.expected != 0 || around.u32(0) != Some(0) {
            return false;
        }
        match self.threads.get(&tid).map(Kept::peek) {
            Some(Ok(Seen::In(seen))) => call.addr.wrapping_sub(seen.sp) < FRAME,
            _ => false,
        }
    }
}
