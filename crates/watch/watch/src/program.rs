//! The guarded program: starting it, handing signals on, its end.
//!
//! Promises: the program gets the guard's own descriptors, signal mask, ignored signals and limits
//! as they were given to the guard (but for the mark of [`orbit_family`], where it has one); a
//! signal of [`forwarded`] sent to the guard continues to the program, in order, one that was sent
//! to both does not go twice; the end of the guard, however it comes, does not end the program.
//! Where it is not known whether the program got a signal, it continues.

use super::action;
use super::witness::{self, Note, To, Witnesses};
use orbit_console::inherited;
use orbit_linux::rlimit::{self, Resource};
use orbit_linux::{process, procfs, signals};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::time::Duration;

/// Signals that are handed on, with the real-time ones. Not those that cannot be caught, that stop,
/// that do nothing by default (but for the size of the terminal), and those by which the kernel
/// reports the guard's own faults, limits and readers.
const FORWARDED: [i32; 14] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGABRT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGSTKFLT,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGWINCH,
    libc::SIGIO,
    libc::SIGPWR,
];

/// The signals that are handed on. Async-signal-safe.
pub fn forwarded() -> impl Iterator<Item = i32> {
    FORWARDED.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// How the kernel itself sends: for the terminal, to a group, and at the terminal's end to one
/// process.
pub const SI_KERNEL: i32 = 0x80;
/// How long a signal may take from the guard to the witnesses, where a process sends it to one
/// after the other.
const MAX_SIGNAL_DELAY: Duration = Duration::from_millis(50);
/// Longest wait for a witness that got something and has yet to say what.
const MAX_WAIT_FOR_WITNESS: Duration = Duration::from_secs(1);
/// Pause between two checks of such a witness.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// A program that continues for so long after SIGINT has taken it for something else than to end.
const INTERRUPT_COUNTS_FOR: Duration = Duration::from_secs(60);

/// Signals that came for the guard, read from a descriptor.
pub struct Signals {
    fd: OwnedFd,
    /// The mask the guard was started with.
    before: signals::Set,
    witnesses: Option<Witnesses>,
    /// What was read, and is not known yet to be for the program, in order.
    came: VecDeque<Came>,
    /// When the program got SIGTERM and SIGINT last, from the guard or by itself, unless it ignored
    /// them then.
    asked: BTreeMap<i32, Note>,
}

/// A signal that the guard got.
#[derive(Clone, Copy)]
struct Came {
    got: Note,
    /// Whether the program was in the guard's process group.
    near: bool,
}

impl Signals {
    /// From now on signals wait here. To be called before there are other threads.
    pub fn catch() -> io::Result<Signals> {
        inherited::keep_child_statuses();
        let set = witness::forwarded();
        let before = set.block();
        let fd = set.descriptor(false)?;
        Ok(Signals { fd, before, witnesses: None, came: VecDeque::new(), asked: BTreeMap::new() })
    }

    /// From now on the witnesses are asked which others got a signal: for a program that the guard
    /// is to start. To be called before there are other threads.
    pub fn with_witnesses(self, program: &[OsString]) -> Signals {
        // Without them all that came from processes continues.
        Signals { witnesses: Witnesses::new(program).ok(), ..self }
    }

    /// To wait for before [`Signals::take`].
    pub fn polled(&self) -> [libc::pollfd; 2] {
        let witnesses = self.witnesses.as_ref().map_or(-1, |w| w.as_fd().as_raw_fd());
        [self.fd.as_raw_fd(), witnesses].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
    }

    /// How long to wait at most before [`Signals::take`].
    pub fn pause(&self) -> Duration {
        match self.came.front() {
            Some(first) => MAX_SIGNAL_DELAY.saturating_sub(age(&first.got)).max(CHECK_INTERVAL),
            None if self.witnesses.as_ref().is_some_and(Witnesses::any) => MAX_SIGNAL_DELAY,
            None => Duration::MAX,
        }
    }

    /// Signals that came, but for those that `program` got by itself; without a program, all. Does
    /// not wait.
    pub fn take(&mut self, program: Option<i32>) -> Vec<i32> {
        let since = orbit_rmk::now();
        let near = program.is_some_and(in_own_group);
        while let Ok(got) = witness::next(self.fd.as_fd()) {
            self.came.push_back(Came { got, near });
        }
        if let Some(w) = &mut self.witnesses {
            w.read();
        }
        let mut out = Vec::new();
        while let Some(Came { got, near }) = self.came.front().copied()
            && let Some(passed) = program.map_or(Some(true), |pid| self.goes_on(pid, &got, near))
        {
            self.came.pop_front();
            let signal = got.signal as i32;
            if let Some(pid) = program
                && [libc::SIGTERM, libc::SIGINT].contains(&signal)
                && !action::ignores(pid, signal)
            {
                self.asked.insert(signal, got);
            }
            if let Some(w) = &mut self.witnesses {
                w.settle(&got);
            }
            if passed {
                out.push(signal);
            }
        }
        if let Some(w) = &mut self.witnesses {
            w.forget(since.saturating_sub(MAX_SIGNAL_DELAY.as_nanos() as u64), |note| {
                self.came.iter().any(|c| c.got.same(note))
            });
        }
        out
    }

    /// What the program got last that asks for its end, and that it has not ended by: SIGTERM, and
    /// SIGINT within a minute.
    pub fn asked_to_end(&self) -> Option<i32> {
        let of = |signal| self.asked.get(&signal).map(age);
        let interrupted = of(libc::SIGINT).filter(|age| *age < INTERRUPT_COUNTS_FOR).map(|_| libc::SIGINT);
        of(libc::SIGTERM).map(|_| libc::SIGTERM).or(interrupted)
    }

    /// To be called when a program was started: what came so far may have come before it was there,
    /// and continues.
    pub fn before_program(&mut self) {
        self.asked.clear();
        while let Ok(got) = witness::next(self.fd.as_fd()) {
            self.came.push_back(Came { got, near: false });
        }
    }

    /// Forgets what is not known yet to be for the program.
    pub fn forget(&mut self) {
        self.came.clear();
    }

    /// Whether a signal continues to the program, once that is known.
    fn goes_on(&mut self, program: i32, got: &Note, near: bool) -> Option<bool> {
        // Others are sent to one process, if not to one thread.
        if ![libc::SI_USER, SI_KERNEL].contains(&got.code) {
            return Some(true);
        }
        let Some(w) = self.witnesses.as_mut().filter(|w| w.there()) else {
            return Some(got.code != SI_KERNEL || !near || !to_a_group(got.signal as i32));
        };
        let waited = age(got);
        if waited < MAX_SIGNAL_DELAY || waited < MAX_WAIT_FOR_WITNESS && w.busy(got.signal) {
            return None;
        }
        w.read();
        Some(match w.to(got) {
            To::Guard => true,
            To::Line => !w.in_line(program),
            To::Group => !near,
            To::Each => !by_systemd(got.pid) || !with_guard(program),
        })
    }
}

/// Time since it came.
fn age(got: &Note) -> Duration {
    Duration::from_nanos(orbit_rmk::now().saturating_sub(got.at))
}

/// Whether the kernel sends such a signal to a group: the terminal's but for its end, of which it
/// informs the session's leader alone.
fn to_a_group(signal: i32) -> bool {
    match signal {
        libc::SIGINT | libc::SIGQUIT | libc::SIGWINCH => true,
        libc::SIGHUP => !process::leads_session(),
        _ => false,
    }
}

/// Whether the process is systemd, which sends a signal to each process of a service.
fn by_systemd(pid: u32) -> bool {
    procfs::text(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == "systemd")
}

/// Whether the process is in the guard's control group.
fn with_guard(pid: i32) -> bool {
    let groups = |pid: i32| procfs::text(format!("/proc/{pid}/cgroup"));
    groups(pid).is_ok_and(|of| groups(std::process::id() as i32).is_ok_and(|own| own == of))
}

/// Whether the process, a child not reaped yet, is in the guard's own process group.
pub fn in_own_group(pid: i32) -> bool {
    process::is_in_own_group(pid)
}

/// Stops the guard where the program has stopped itself in the foreground of their terminal, as an
/// editor does: else the shell that waits for the guard would not learn of it, and the terminal
/// would be nobody's. Does nothing where no shell would let them continue.
pub fn stop_with(program: i32) {
    if !process::child_has_stopped(program, true) || !in_own_group(program) || !in_foreground() {
        return;
    }
    // A shell that lets a group continue sends to one process after the other, to the guard perhaps
    // first.
    std::thread::sleep(CHECK_INTERVAL);
    if process::child_has_stopped(program, false) {
        // The kernel ignores it in a group without a shell above.
        signals::raise(libc::SIGTSTP);
    }
}

/// Whether the guard's process group is in the foreground of its terminal.
fn in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| process::is_in_foreground(terminal.as_fd()))
}

/// The limit of open files, soft and hard, if it can be read.
pub fn files_limit() -> Option<(u64, u64)> {
    rlimit::get(0, Resource::Files).ok()
}

/// Raises the limit of open files, of which every watched thread takes one; answers what it was,
/// soft and hard.
pub fn raise_limit() -> (u64, u64) {
    let was = files_limit().unwrap_or((0, 0));
    // One that cannot be raised stays as it was: then fewer descriptors are kept open.
    let _ = rlimit::set(0, Resource::Files, was.1, was.1);
    was
}

/// Whether the process may make threads: not where its next child is to be the first of a namespace
/// (`unshare -p` became the guard).
pub fn may_make_threads() -> bool {
    // There is none to read before its first process.
    let namespace = |of| procfs::own(of, |path| std::fs::read_link(path)).ok();
    namespace("ns/pid") == namespace("ns/pid_for_children")
}

/// Starts the program, marked if it is to be.
pub fn start(
    program: &[OsString],
    signals: &Signals,
    limit: (u64, u64),
    mark: Option<(u64, u64)>,
) -> io::Result<Child> {
    let (name, args) = program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(name);
    inherited::rename_pid_variables(&mut command);
    as_given(command.args(args), signals, limit);
    if let Some(mark) = mark {
        orbit_family::marked(&mut command, mark);
    }
    command.spawn()
}

/// Gives the command what the guard was given, in place of what the guard has made of it.
pub fn as_given(command: &mut Command, signals: &Signals, limit: (u64, u64)) {
    let mask = signals.before;
    inherited::restore_ignored_signals(command);
    // SAFETY: only async-signal-safe calls, on values copied beforehand.
    unsafe {
        command.pre_exec(move || {
            let _ = rlimit::set(0, Resource::Files, limit.0, limit.1);
            mask.set_mask();
            Ok(())
        });
    }
}

/// The exit status a shell would give: the program's own, or 128 and the signal that ended it.
pub fn status(of: std::process::ExitStatus) -> u8 {
    match (of.code(), of.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => ended_by(signal),
        (None, None) => 125,
    }
}

/// The exit status a shell would give for a program that this signal ended.
pub fn ended_by(signal: i32) -> u8 {
    128u8.wrapping_add(signal as u8)
}

/// The exit status for a program that could not be started, as `env` has it.
pub fn not_started(e: &io::Error) -> u8 {
    if e.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}
