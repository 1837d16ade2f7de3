//! Threads of a stopped program that end, or are made with a number of their own.

use crate::seize::pause;
use crate::thread::{Held, Regs};
use crate::{Error, Stopped, seize};
use orbit_linux::ptrace::state::{Rseq, Stop};
use std::time::{Duration, Instant};

/// A thread to be made: what the kernel holds of it.
#[derive(Clone, Debug)]
pub struct NewThread<'a> {
    /// Its id, which must be free.
    pub tid: i32,
    /// Registers to continue with. `general.fs_base` is its thread pointer.
    pub regs: &'a Regs,
    /// Blocked signals.
    pub mask: u64,
    /// Address of the word that the kernel clears when the thread ends; 0: none.
    pub cleared: u64,
    /// Address and length of its list of robust mutexes; 0: none.
    pub robust: (u64, u64),
    /// Its registration for restartable sequences.
    pub rseq: Option<Rseq>,
    /// Its name, at most 15 bytes are kept.
    pub name: &'a str,
}

/// How long a number may be taken by a thread that is ending.
const NUMBER_LIMIT: Duration = Duration::from_secs(2);

/// `struct clone_args`, in words.
const CLONE_ARGS: usize = 11;

impl Stopped<'_> {
    /// Ends one thread, as if it had called `exit`: the word that the kernel clears at its end is
    /// cleared, and a waiter on it woken.
    ///
    /// # Errors
    /// Those of [`Stopped::call`].
    pub fn end_thread(&mut self, tid: i32) -> Result<(), Error> {
        match self.call_any(tid, libc::SYS_exit, [0; 6]) {
            Err(Error::Gone { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(Error::Unsuitable { id: tid, why: "it has not ended".into() }),
        }
    }

    /// Makes a thread. If this process is killed before the program is released, the thread may run
    /// from where another one is: for programs that are lost then in any case.
    ///
    /// # Errors
    /// [`Error::Call`] with `EPERM` if the program lacks `CAP_CHECKPOINT_RESTORE`, `EEXIST` if the
    /// number is not free; those of [`Stopped::call`].
    pub fn make_thread(&mut self, new: &NewThread<'_>) -> Result<(), Error> {
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM
            | libc::CLONE_SETTLS
            | if new.cleared != 0 { libc::CLONE_CHILD_CLEARTID } else { 0 };
        let scratch = self.scratch()?;
        let number = scratch + (CLONE_ARGS * 8) as u64;
        let mut arguments = [0u64; CLONE_ARGS + 1];
        arguments[0] = flags as u64;
        arguments[2] = new.cleared;
        arguments[7] = new.regs.general.fs_base;
        (arguments[8], arguments[9]) = (number, 1);
        arguments[CLONE_ARGS] = new.tid as u64;
        let bytes: Vec<u8> = arguments.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.write(scratch, &bytes)?;
        let maker = self.caller()?;
        let since = Instant::now();
        loop {
            match self.call_any(maker, libc::SYS_clone3, [scratch, (CLONE_ARGS * 8) as u64, 0, 0, 0, 0]) {
                // A thread is joined before the kernel is through with it.
                Err(Error::Call { errno: libc::EEXIST, .. }) if since.elapsed() < NUMBER_LIMIT => {
                    pause(since.elapsed())
                }
                made => {
                    made?;
                    break;
                }
            }
        }
        // Seized by the kernel, since its maker is; it has not run yet.
        match seize::next(self.pid, new.tid)? {
            Stop::Trap(_) => {}
            _ => return Err(Error::Gone { id: new.tid }),
        }
        self.threads.insert(new.tid, Held::read(self.pid, new.tid)?);
        self.set_up(new, scratch)
    }

    fn set_up(&mut self, new: &NewThread<'_>, scratch: u64) -> Result<(), Error> {
        let mut name = [0u8; 16];
        let kept = new.name.len().min(15);
        name[..kept].copy_from_slice(&new.name.as_bytes()[..kept]);
        self.write(scratch, &name)?;
        // It begins in the stub, and calls put it back there: its registers must be its own before.
        let mut thread = self.thread(new.tid)?;
        thread.set_regs(new.regs)?;
        thread.set_signal_mask(new.mask)?;
        thread.call(libc::SYS_prctl, [libc::PR_SET_NAME as u64, scratch, 0, 0, 0, 0])?;
        if new.robust.0 != 0 {
            thread.call(libc::SYS_set_robust_list, [new.robust.0, new.robust.1, 0, 0, 0, 0])?;
        }
        if let Some(rseq) = new.rseq {
            thread.call(libc::SYS_rseq, [rseq.address, rseq.size.into(), 0, rseq.signature.into(), 0, 0])?;
        }
        Ok(())
    }
}
