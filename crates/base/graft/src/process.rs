//! A process that was found: what can be read and written without stopping it, and the way to stop
//! it.

use crate::denial::explain;
use crate::limits::Wait;
use crate::{Error, Stopped, seize};
use orbit_linux::maps::{self, Entry};
use orbit_linux::stat::Stat;
use orbit_linux::status::Status;
use orbit_linux::{pidfd, remote};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A process that may be entered. It stays named even if its number is given to another; dropping
/// it changes nothing.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    handle: OwnedFd,
    /// Threads that were found in calls whose time limits begin anew.
    waits: Mutex<HashMap<i32, Wait>>,
}

impl Process {
    /// Finds the process with this id. It is not touched yet; whether it may be traced shows when
    /// it is stopped.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Unsuitable`] for a 32-bit program, a kernel thread, a thread that
    /// leads no process, the caller's own process, and one that has no memory any more.
    pub fn find(pid: i32) -> Result<Process, Error> {
        let unsuitable = |why: String| Err(Error::Unsuitable { id: pid, why });
        if pid == std::process::id() as i32 {
            return unsuitable("a process cannot trace itself: start a helper process".into());
        }
        let status = Status::of(pid).map_err(|e| Error::of(pid, "reading the status of", e))?;
        if let Some(leader) = status.process().filter(|leader| *leader != pid) {
            return unsuitable(format!("it is a thread of process {leader}: name that"));
        }
        if status.field("Kthread") == Some("1") {
            return unsuitable("it is a thread of the kernel".into());
        }
        if is_32_bit(pid) {
            return unsuitable("it is a 32-bit program: only 64-bit programs can be entered".into());
        }
        let handle = pidfd::open(pid).map_err(|e| Error::of(pid, "opening", e))?;
        Ok(Process { pid, handle, waits: Mutex::default() })
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// A pidfd of the process: readable once it has exited.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Whether it has exited, reaped or not.
    pub fn has_exited(&self) -> bool {
        pidfd::has_ended(self.handle())
    }

    /// Stops all threads, runs `work`, gives back what it did not leave, and lets the threads
    /// continue.
    ///
    /// `work` runs in a new thread, for the kernel ties a tracer to a thread: when that ends, even
    /// a thread that could not be stopped in time is released. Blocks until then. A panic of `work`
    /// is passed on after the program was released.
    ///
    /// While it is stopped, signals to the program wait; a debugger cannot attach. Calls in
    /// progress continue afterwards. The time limit of `epoll_wait`, `rt_sigtimedwait`,
    /// `semtimedop` and `io_getevents` begins anew once: later stops by this `Process` do not
    /// prolong it. That of a socket (`SO_RCVTIMEO`, `SO_SNDTIMEO`) and of `io_uring_enter` begins
    /// anew each time.
    ///
    /// # Errors
    /// Those of `work`. [`Error::Traced`], [`Error::NotPermitted`], [`Error::NotStopped`],
    /// [`Error::Gone`], before `work` runs; [`Error::Gone`], [`Error::NotReturned`] and
    /// [`Error::Io`] where something could not be given back.
    pub fn while_stopped<R, E>(&self, work: impl FnOnce(&mut Stopped<'_>) -> Result<R, E> + Send) -> Result<R, E>
    where
        R: Send,
        E: From<Error> + Send,
    {
        let run = || {
            let mut stopped = Stopped::new(self, seize::all(self)?);
            let result = work(&mut stopped)?;
            stopped.release()?;
            Ok(result)
        };
        std::thread::scope(|scope| {
            let tracer = std::thread::Builder::new().name("graft-tracer".into()).spawn_scoped(scope, run);
            let tracer =
                tracer.map_err(|source| Error::Io { id: self.pid, what: "making a thread to trace", source })?;
            tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Returns its mappings, sorted by address.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::NotPermitted`], [`Error::Io`].
    pub fn mappings(&self) -> Result<Vec<Entry>, Error> {
        let whole = |tid| match maps::of(tid) {
            Ok(maps) if maps.is_empty() => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            maps => maps,
        };
        self.through_a_thread(whole).map_err(|e| explain(self.pid, self.pid, "reading the mappings of", e))
    }

    pub(crate) fn waits(&self) -> MutexGuard<'_, HashMap<i32, Wait>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the memory through the leader, or through another thread if that has ended
    /// before the others.
    pub(crate) fn through_a_thread<R>(&self, mut work: impl FnMut(i32) -> io::Result<R>) -> io::Result<R> {
        let first = work(self.pid);
        match first {
            Ok(done) => Ok(done),
            Err(error) => match self.living_thread() {
                Some(tid) if tid != self.pid => work(tid),
                _ => Err(error),
            },
        }
    }

    fn living_thread(&self) -> Option<i32> {
        let ended = |tid: i32| Stat::of_thread(self.pid, tid).is_ok_and(|stat| matches!(stat.state, 'Z' | 'X'));
        match ended(self.pid) {
            false => Some(self.pid),
            true => seize::tasks(self.pid).into_iter().find(|tid| !ended(*tid)),
        }
    }

    /// Reads memory at `address` into all of `buffer`. Torn while the program runs.
    ///
    /// # Errors
    /// [`Error::Memory`] if a part is not mapped; [`Error::Gone`], [`Error::NotPermitted`].
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Error> {
        match self.through_a_thread(|tid| remote::read(tid, address, buffer)) {
            Ok(n) if n == buffer.len() => Ok(()),
            Ok(_) => Err(self.memory("reading", address, buffer.len(), io::Error::from_raw_os_error(libc::EFAULT))),
            Err(e) => Err(self.memory("reading", address, buffer.len(), e)),
        }
    }

    /// Writes memory that the program itself may write.
    ///
    /// # Errors
    /// As [`Process::read`]; a part may be written then.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.through_a_thread(|tid| remote::write(tid, address, bytes))
            .map_err(|e| self.memory("writing", address, bytes.len(), e))
    }

    pub(crate) fn memory(&self, what: &'static str, address: u64, len: usize, source: io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::ESRCH) => Error::Gone { id: self.pid },
            Some(libc::EPERM | libc::EACCES) => explain(self.pid, self.pid, "memory of", source),
            _ => Error::Memory { what, address, len, source },
        }
    }
}

/// Whether a process runs a 32-bit program, as far as its file may be read.
fn is_32_bit(pid: i32) -> bool {
    const CLASS: usize = 4;
    const CLASS_32: u8 = 1;
    let mut header = [0u8; CLASS + 1];
    let read = File::open(format!("/proc/{pid}/exe")).and_then(|mut file| file.read_exact(&mut header));
    read.is_ok() && header.starts_with(b"\x7fELF") && header[CLASS] == CLASS_32
}
