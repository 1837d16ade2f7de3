//! Has another process make one mprotect(2) on itself, by ptrace: its main thread is stopped, its
//! registers are set for the call, and put back afterwards, so that a system call that was
//! interrupted is taken up again as if nothing had happened.
//!
//! x86-64 only. The process must not have a debugger. It is stopped for some hundred microseconds.

use super::proc;
#[cfg(target_arch = "x86_64")]
use orbit_linux::{ptrace, remote, signals};
use orbit_rmk::PinError;
use std::io;

/// Sets the protection of a range of the process.
pub(super) fn protect(pid: u32, start: u64, length: u64, protection: i32) -> Result<(), PinError> {
    let what = || format!("protecting {length} bytes at {start:#x} of process {pid}");
    match call(pid, libc::SYS_mprotect, [start, length, protection as u64])
        .map_err(|error| PinError::of(what(), error))?
    {
        0 => Ok(()),
        code => Err(PinError::of(what(), io::Error::from_raw_os_error(-code as i32))),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn call(_pid: u32, _number: i64, _arguments: [u64; 3]) -> io::Result<i64> {
    let _ = proc::regions;
    Err(io::Error::new(io::ErrorKind::Unsupported, "done on x86-64 only"))
}

#[cfg(target_arch = "x86_64")]
fn call(pid: u32, number: i64, arguments: [u64; 3]) -> io::Result<i64> {
    // The kernel's own page of code in every process has a system call instruction.
    let regions = proc::regions(pid).map_err(|error| io::Error::other(error.to_string()))?;
    let vdso = regions.iter().find(|region| region.name == "[vdso]");
    let vdso = vdso.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the process has no [vdso]"))?;
    let mut code = vec![0u8; (vdso.end - vdso.start) as usize];
    remote::read(pid as i32, vdso.start, &mut code)?;
    let at = code.windows(2).position(|bytes| bytes == [0x0f, 0x05]);
    let at = at.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no system call instruction in [vdso]"))?;
    let stopped = Stopped::new(pid as i32)?;
    let saved = ptrace::registers(stopped.tid)?;
    let mut set = saved;
    (set.rip, set.rax, set.orig_rax) = (vdso.start + at as u64, number as u64, u64::MAX);
    [set.rdi, set.rsi, set.rdx] = arguments;
    ptrace::set_registers(stopped.tid, &set)?;
    let stepped = stopped.step().and_then(|()| ptrace::registers(stopped.tid));
    // Whatever became of the step, the thread must continue where it was.
    ptrace::set_registers(stopped.tid, &saved)?;
    Ok(stepped?.rax as i64)
}

/// A thread stopped by this one; it continues, without its tracer, when this is dropped. Signals
/// that come meanwhile are kept and released.
#[cfg(target_arch = "x86_64")]
struct Stopped {
    tid: i32,
    signals: std::cell::RefCell<Vec<i32>>,
}

#[cfg(target_arch = "x86_64")]
impl Stopped {
    fn new(tid: i32) -> io::Result<Stopped> {
        ptrace::seize(tid, 0)?;
        let stopped = Stopped { tid, signals: Vec::new().into() };
        ptrace::interrupt(tid)?;
        stopped.wait(|status| status >> 16 == libc::PTRACE_EVENT_STOP)?;
        Ok(stopped)
    }

    /// Waits for a stop of this kind; lets others pass, keeping their signals.
    fn wait(&self, wanted: impl Fn(i32) -> bool) -> io::Result<()> {
        loop {
            let status = ptrace::state::wait_status(self.tid)?;
            if !libc::WIFSTOPPED(status) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if wanted(status) {
                return Ok(());
            }
            if status >> 16 == 0 {
                self.signals.borrow_mut().push(libc::WSTOPSIG(status));
            }
            ptrace::go_on(self.tid, 0)?;
        }
    }

    /// Runs one instruction. A signal that comes first is kept, and the step tried again.
    fn step(&self) -> io::Result<()> {
        loop {
            ptrace::step(self.tid)?;
            let status = ptrace::state::wait_status(self.tid)?;
            if !libc::WIFSTOPPED(status) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            match (libc::WSTOPSIG(status), status >> 16) {
                (libc::SIGTRAP, 0) => return Ok(()),
                (signal, 0) => self.signals.borrow_mut().push(signal),
                _ => {}
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for Stopped {
    fn drop(&mut self) {
        // A thread that is gone needs nothing more; the first kept signal goes with the detaching,
        // the others are sent again.
        let signals = self.signals.take();
        let _ = ptrace::detach(self.tid, signals.first().copied().unwrap_or(0));
        for signal in signals.iter().skip(1) {
            let _ = signals::send_to_thread(self.tid, self.tid, *signal);
        }
    }
}
