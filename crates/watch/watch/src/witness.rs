//! Witnesses: two processes beside the guard, from which it learns which others got a signal that
//! it got.
//!
//! A signal carries its sender, not its receivers. One for the guard alone is to continue to the
//! program; one that the program got as well is not to reach it twice. The witnesses are copies of
//! the guard that do nothing but note the signals they get: the *near* one is in the guard's
//! process group, the *far* one in a session of its own. The kernel gives a group's signal to all
//! of it at once.
//!
//! | near | far | sent to |
//! |---|---|---|
//! | no | no | the guard alone |
//! | no | yes | each process with some text in its command line that is of the program's, by `pkill -f server` |
//! | yes | no | the guard's process group |
//! | yes | yes | one process after the other: of a control group, by systemd, or of one name, by `kill $(pidof orbit)` |
//!
//! For the second, which the guard's own command line has in it, they have command lines of their
//! own ([`Arguments`]).
//!
//! Promises: they end with the guard, however that ends; they hold none of its descriptors; they
//! are no children of the program's, raise no SIGCHLD, and are named `guard-witness`; the guard
//! waits for them a second at most, and never where they are at rest.

use super::arguments::Arguments;
use super::program;
use orbit_linux::process::{self, RawChild};
use orbit_linux::signals::{self, Blocked};
use orbit_linux::status::Status;
use orbit_linux::{pidfd, stream};
use orbit_rmk::now;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A signal as one process got it. Read from a pipe, into which a witness wrote it whole.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// When it was read: ns of the monotonic clock.
    pub at: u64,
    pub signal: u32,
    /// How it was sent: `SI_USER`, [`program::SI_KERNEL`] and others.
    pub code: i32,
    /// The sender; 0 where it is the kernel, or a process that cannot be seen from here.
    pub pid: u32,
    pub uid: u32,
    /// [`NEAR`] or [`FAR`]; the guard's own notes have no use for it.
    pub witness: u32,
    pub padding: u32,
}

impl Note {
    /// As it is written to the pipe.
    fn bytes(&self) -> [u8; SIZE] {
        // SAFETY: a note is 32 bytes of plain numbers without gaps, so that all its bytes are
        // values.
        unsafe { std::mem::transmute(*self) }
    }

    /// Whether the other is of a signal of the same kind from the same sender.
    pub fn same(&self, other: &Note) -> bool {
        let key = |n: &Note| (n.signal, n.code, n.pid, n.uid);
        key(self) == key(other)
    }
}

const SIZE: usize = size_of::<Note>();
const NEAR: u32 = 0;
const FAR: u32 = 1;

/// To whom a signal went that the guard got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The guard alone, as far as the witnesses know.
    Guard,
    /// By a text in the program's command line, which is in the guard's.
    Line,
    /// All of the guard's process group.
    Group,
    /// Each process by itself.
    Each,
}

/// See the module's head.
pub struct Witnesses {
    /// Near, far.
    all: Vec<(i32, OwnedFd)>,
    from: File,
    notes: Vec<Note>,
}

impl Witnesses {
    /// Makes them, of this process, which has one thread and has blocked [`program::forwarded`],
    /// and is to run this program.
    pub fn new(program: &[OsString]) -> io::Result<Witnesses> {
        let (from, to) = stream::pipe(libc::O_NONBLOCK)?;
        let mut witnesses = Witnesses { all: Vec::new(), from: from.into(), notes: Vec::new() };
        let arguments = Arguments::own(program);
        for witness in [NEAR, FAR] {
            witnesses.all.push(begin(witness, to.as_fd(), arguments.as_ref())?);
        }
        Ok(witnesses)
    }

    /// Readable when there is something to [`Witnesses::read`].
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }

    /// Whether both are there, the near one in the guard's process group.
    pub fn there(&self) -> bool {
        !self.all.iter().any(|(_, process)| pidfd::has_ended(process.as_fd())) && program::in_own_group(self.all[0].0)
    }

    /// Takes in what was noted.
    pub fn read(&mut self) {
        let mut bytes = [0; 32 * SIZE];
        while let Ok(n) = self.from.read(&mut bytes)
            && n > 0
        {
            // SAFETY: a note is plain numbers, of which any bytes make some; a chunk has the bytes
            // of one.
            self.notes
                .extend(bytes[..n].chunks_exact(SIZE).map(|b| unsafe { b.as_ptr().cast::<Note>().read_unaligned() }));
        }
    }

    /// Whether one of them may have yet to note a signal that it got.
    pub fn busy(&self, signal: u32) -> bool {
        self.all.iter().any(|(pid, _)| {
            let status = Status::of(*pid).unwrap_or_default();
            status.pending_signals() >> (signal - 1) & 1 == 1 || matches!(status.state(), Some('R' | 'D'))
        })
    }

    /// To whom a signal went that the guard got, as far as it was noted.
    pub fn to(&self, got: &Note) -> To {
        let has = |witness| self.notes.iter().any(|n| n.witness == witness && n.same(got));
        match (has(NEAR), has(FAR)) {
            (false, false) => To::Guard,
            (false, true) => To::Line,
            (true, false) => To::Group,
            (true, true) => To::Each,
        }
    }

    /// Whether the program has the command line that it was started with, and a text in it that
    /// hits the guard and the far one hits it.
    pub fn in_line(&self, program: i32) -> bool {
        Arguments::shown(self.all[1].0, program)
    }

    /// Forgets the notes of a signal that the guard got: all from before it was read, for while
    /// several wait they are one, but of real-time ones, else the first.
    pub fn settle(&mut self, got: &Note) {
        let one = (got.signal as i32) < libc::SIGRTMIN();
        for witness in [NEAR, FAR] {
            let mut first = true;
            self.notes.retain(|n| {
                let of_it =
                    n.witness == witness && n.same(got) && (std::mem::take(&mut first) || one && n.at <= got.at);
                !of_it
            });
        }
    }

    /// Forgets the notes that are older than this and of no signal that the guard has: it did not
    /// get those.
    pub fn forget(&mut self, before: u64, has: impl Fn(&Note) -> bool) {
        self.notes.retain(|n| n.at >= before || has(n));
    }

    /// Whether notes are left.
    pub fn any(&self) -> bool {
        !self.notes.is_empty()
    }
}

impl Drop for Witnesses {
    fn drop(&mut self) {
        for (_, process) in &self.all {
            // One that has ended already only is to be reaped.
            let _ = pidfd::send_signal(process.as_fd(), libc::SIGKILL);
            let _ = pidfd::wait(process.as_fd(), false);
        }
    }
}

/// The signals that are handed on, as a set. Async-signal-safe.
pub fn forwarded() -> signals::Set {
    signals::Set::of(program::forwarded())
}

/// The next signal of a descriptor of signals. Async-signal-safe.
///
/// # Errors
/// Those of [`signals::next`].
pub fn next(descriptor: BorrowedFd<'_>) -> io::Result<Note> {
    let at = now();
    let info = signals::next(descriptor)?;
    let (signal, code, pid, uid) = (info.ssi_signo, info.ssi_code, info.ssi_pid, info.ssi_uid);
    Ok(Note { at, signal, code, pid, uid, ..Note::default() })
}

/// Makes one.
fn begin(witness: u32, to: BorrowedFd<'_>, arguments: Option<&Arguments>) -> io::Result<(i32, OwnedFd)> {
    let guard = std::process::id() as i32;
    let blocked = Blocked::all();
    // SAFETY: the child makes system calls only, and does not return from `note`.
    let child = unsafe { process::raw_fork(0) }?;
    let Some(RawChild { pid, pidfd }) = child else { note(guard, witness, to, arguments) };
    drop(blocked);
    let process = pidfd.map_or_else(|| pidfd::open(pid), Ok).inspect_err(|_| process::kill_child(pid))?;
    Ok((pid, process))
}

/// What a witness does, with all signals blocked.
fn note(guard: i32, witness: u32, to: BorrowedFd<'_>, arguments: Option<&Arguments>) -> ! {
    let ended = |_| process::parent() != guard;
    if process::set_parent_death_signal(libc::SIGKILL).map_or(true, ended) {
        process::end(1);
    }
    if let Some(arguments) = arguments {
        arguments.overwrite(witness == FAR);
    }
    process::close_all_but(&[to.as_raw_fd()]);
    if witness == FAR && process::new_session().is_err() {
        process::end(1);
    }
    let Ok(signals) = forwarded().descriptor(true) else { process::end(1) };
    // Last, so that a witness with the name is ready. Without it it does its work.
    let _ = process::set_name(c"guard-witness");
    loop {
        // Asked for again after a stop.
        let got = match next(signals.as_fd()) {
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => process::end(1),
        };
        // When it was read, not when it was waited for.
        let note = Note { at: now(), witness, ..got };
        // One that finds no room is lost: the guard takes its signal for one to itself alone.
        let _ = stream::write(to, &note.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(witness: u32, signal: i32, pid: u32, at: u64) -> Note {
        Note { at, signal: signal as u32, pid, witness, ..Note::default() }
    }

    #[test]
    fn notes_show_the_receivers_and_each_is_of_one_signal() {
        let mut w = Witnesses::new(&[]).expect("processes");
        assert!(w.there() && !w.any());
        let got = noted(0, libc::SIGINT, 7, 100);
        assert_eq!(w.to(&got), To::Guard);
        w.notes = vec![noted(NEAR, libc::SIGINT, 8, 90), noted(NEAR, libc::SIGTERM, 7, 90)];
        assert_eq!(w.to(&got), To::Guard, "another's, and another one");
        w.notes.extend([90, 110, 120].map(|at| noted(NEAR, libc::SIGINT, 7, at)));
        assert_eq!(w.to(&got), To::Group);
        w.notes.push(noted(FAR, libc::SIGINT, 7, 130));
        assert_eq!(w.to(&got), To::Each);
        w.notes.push(noted(FAR, libc::SIGHUP, 7, 140));
        assert_eq!(w.to(&noted(0, libc::SIGHUP, 7, 100)), To::Line);
        w.notes.pop();
        w.settle(&got);
        let left: Vec<u64> = w.notes.iter().map(|n| n.at).collect();
        assert_eq!(left, [90, 90, 110, 120], "the first of each witness'");
        w.settle(&noted(0, libc::SIGINT, 7, 115));
        w.forget(100, |n| n.pid == 8);
        let left: Vec<(u32, u64)> = w.notes.iter().map(|n| (n.pid, n.at)).collect();
        assert_eq!(left, [(8, 90), (7, 120)]);
        w.notes.extend([200, 210, 300].map(|at| noted(NEAR, libc::SIGINT, 7, at)));
        w.settle(&noted(0, libc::SIGINT, 7, 250));
        assert_eq!(w.notes.iter().map(|n| n.at).collect::<Vec<_>>(), [90, 300], "several that waited are one");
        w.notes = [200, 210].map(|at| noted(NEAR, libc::SIGRTMIN(), 7, at)).to_vec();
        w.settle(&noted(0, libc::SIGRTMIN(), 7, 250));
        assert_eq!(w.notes.len(), 1, "real-time ones wait each by itself");
        let processes: Vec<i32> = w.all.iter().map(|(pid, _)| *pid).collect();
        drop(w);
        for pid in processes {
            assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "ended and reaped");
        }
    }
}
