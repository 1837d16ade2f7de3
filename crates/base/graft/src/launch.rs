//! Starting a program that is stopped before its first instruction.
//!
//! The child waits before its `exec` until a new thread of this process has seized it, and is
//! stopped after it.

use crate::denial::explain;
use crate::seize::{next, onward};
use crate::thread::{CODE_64, Held};
use crate::{Error, Process, Stopped};
use orbit_linux::child::Exit;
use orbit_linux::ptrace::{self, state::Stop};
use orbit_linux::{descriptors, pidfd, stream};
use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts a program, runs `work` with it while it stands before its first instruction (that of the
/// dynamic loader, if it has one), and lets it run. As with [`Process::while_stopped`], `work` runs
/// in a thread of its own.
///
/// # Errors
/// [`Error::Start`] if the program cannot be started; those of `work` and of
/// [`Process::while_stopped`]: then the program is killed.
pub fn launch<R, E>(
    mut command: Command,
    work: impl FnOnce(&mut Stopped<'_>) -> Result<R, E> + Send,
) -> Result<(Child, R), E>
where
    R: Send,
    E: From<Error> + Send,
{
    let program = command.get_program().to_string_lossy().into_owned();
    let start = |source| Error::Start { program: program.clone(), source };
    let (ready, says_ready) = io::pipe().map_err(start)?;
    let (go, says_go) = io::pipe().map_err(start)?;
    let (in_child, out_child, other) = (go.as_raw_fd(), says_ready.as_raw_fd(), says_go.as_raw_fd());
    // SAFETY: the closure makes system calls only, on descriptors that stay open until the child
    // has been made.
    unsafe { command.pre_exec(move || wait_for_tracer(in_child, out_child, other)) };
    std::thread::scope(|scope| {
        let tracer = std::thread::Builder::new().name("graft-tracer".into());
        let tracer = tracer.spawn_scoped(scope, || trace(ready, says_go, work)).map_err(start)?;
        let started = command.spawn();
        // The tracer waits for a child that there may not be.
        drop((says_ready, go));
        let traced = tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (started, traced) {
            (Ok(child), Ok(Some(result))) => Ok((child, result)),
            (Ok(mut child), traced) => {
                // It may have ended already.
                let _ = child.kill();
                let _ = child.wait_for_exit();
                Err(traced.err().unwrap_or_else(|| Error::Gone { id: child.id() as i32 }.into()))
            }
            (Err(_), Err(error)) => Err(error),
            (Err(source), Ok(_)) => Err(start(source).into()),
        }
    })
}

/// In the child, before its `exec`: reports its id and waits. Makes system calls only.
fn wait_for_tracer(go: RawFd, ready: RawFd, other: RawFd) -> io::Result<()> {
    let mut byte = [0u8];
    // Its own copy of the end that says go is closed, so that the tracer's exit ends the wait.
    descriptors::close_number(other);
    // SAFETY: descriptors that the child inherited, and that stay open until its exec.
    let (go, ready) = unsafe { (BorrowedFd::borrow_raw(go), BorrowedFd::borrow_raw(ready)) };
    let pid = std::process::id().to_ne_bytes();
    let went = stream::write(ready, &pid).is_ok() && matches!(stream::read(go, &mut byte), Ok(1));
    match went {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
    }
}

/// Nothing if the program did not start.
fn trace<R, E: From<Error>>(
    mut ready: PipeReader,
    mut says_go: PipeWriter,
    work: impl FnOnce(&mut Stopped<'_>) -> Result<R, E>,
) -> Result<Option<R>, E> {
    let mut pid = [0u8; 4];
    if ready.read_exact(&mut pid).is_err() {
        return Ok(None);
    }
    let pid = i32::from_ne_bytes(pid);
    let process = Process::find(pid)?;
    let options = ptrace::CALLS_MARKED | ptrace::CLONES | libc::PTRACE_O_TRACEEXEC;
    ptrace::seize(pid, options).map_err(|e| explain(pid, pid, "tracing", e))?;
    if says_go.write_all(b"g").is_err() {
        return Ok(None);
    }
    loop {
        match next(pid, pid)? {
            Stop::Event(libc::PTRACE_EVENT_EXEC) => break,
            Stop::Ended => return Ok(None),
            Stop::Signal(signal) => proceed(pid, signal),
            Stop::Trap(_) | Stop::Call | Stop::Event(_) => proceed(pid, 0),
            Stop::None => {}
        }
    }
    onward(pid, 0);
    loop {
        match next(pid, pid)? {
            Stop::Trap(_) => break,
            Stop::Ended => return Err(Error::Gone { id: pid }.into()),
            Stop::Signal(signal) => onward(pid, signal),
            Stop::Call | Stop::Event(_) => onward(pid, 0),
            Stop::None => {}
        }
    }
    let held = Held::read(pid, pid)?;
    if held.registers.cs != CODE_64 {
        let why = "it is a 32-bit program: only 64-bit programs can be entered".into();
        return Err(Error::Unsuitable { id: pid, why }.into());
    }
    let mut stopped = Stopped::new(&process, BTreeMap::from([(pid, held)]));
    let result = work(&mut stopped).and_then(|result| stopped.release().map(|()| result).map_err(E::from));
    if result.is_err() {
        // While it is still stopped, so that it does not run at all. It may have ended.
        let _ = pidfd::send_signal(process.handle(), libc::SIGKILL);
    }
    result.map(Some)
}

/// Lets the child continue, before its `exec`.
fn proceed(pid: i32, signal: i32) {
    // Fails only if it was killed: then comes its end.
    let _ = ptrace::go_on(pid, signal);
}
