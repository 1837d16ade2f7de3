//! A guest from its start to its end, and what was counted meanwhile.

use crate::attendant::{Attendant, Decider};
use crate::calls;
use crate::object::Object;
use crate::reader::{Event, Reader};
use crate::rules::Rules;
use crate::shared::{
    Memory, OPTION_ASK_KILL, OPTION_IO_URING, OPTION_LOSSY, OPTION_NO_REWRITE, OPTION_OBJECT_KILL, OPTION_SAVE_ALL,
    OPTION_TRACE, OPTION_VIRTUAL_TIME, ObjectDescription, SHARE_BYTES, Shared, VERSION,
};
use crate::time::{Jump, Speed};
use orbit_linux::child::Exit;
use orbit_linux::rlimit::{self, Resource};
use orbit_linux::{clock, descriptors, dispatch, futex, memfd, pidfd, poll, signals};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

pub(crate) static EXECUTIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/executive"));

/// A site is rewritten when it was trapped this often: two changes of protection and a reading of
/// the mappings cost some ten traps.
const REWRITE_AT: u32 = 4;
/// Longest sleep between two readings of the rings.
const MAX_SLEEP: Duration = Duration::from_millis(5);

/// How long a guest waits for an answer, if nothing else is set.
pub(crate) const ASK_LIMIT: Duration = Duration::from_secs(1);

/// How a guest is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Records each call.
    pub trace: bool,
    /// A full ring drops records, and counts them; else the guest waits for the reader.
    pub lossy: bool,
    /// Leaves the guest's code as it is: every call costs a signal.
    pub no_rewrite: bool,
    /// Takes every call through the executive's C code, as if each had a rule (for measurements).
    pub save_all: bool,
    /// A program that cannot attach the session's memory (its descriptor was taken away) runs
    /// without rules. Else it does not run.
    pub fail_open: bool,
    /// Lets io_uring pass, whose operations are not seen.
    pub io_uring: bool,
    /// Clocks, sleeps and time-outs at another speed than the real one.
    pub speed: Option<Speed>,
    /// The guests' real-time clock is set meanwhile.
    pub jump: Option<Jump>,
    /// Rules for calls.
    pub rules: Rules,
    /// Of what rules with `p=` draw. `None`: another one each time.
    pub seed: Option<u64>,
    /// Code that runs on the executive's side of each guest.
    pub object: Option<Object>,
    /// What the memory that policy objects and the host share begins with, at most 64 KiB.
    pub share: Vec<u8>,
    /// What becomes of a process whose policy object faults or loops.
    pub on_object_failure: OnFailure,
    /// CPU time that one function of the policy object may take. `None`: 100 ms. Checked each 20
    /// ms.
    pub object_limit: Option<Duration>,
    /// Answers the questions of `ask` rules and of the policy object.
    pub decider: Option<Decider>,
    /// Answers the questions of `ask service` rules: see `orbit_service::decider`.
    pub services: Option<Decider>,
    /// How long a guest waits for an answer. `None`: 1 s.
    pub ask_limit: Option<Duration>,
    /// What becomes of a process whose question has no answer by then.
    pub on_no_answer: OnFailure,
}

/// What becomes of a process whose policy object faults or uses more CPU time than its limit, or
/// whose question has no answer. Each is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The call passes; a policy object is not asked again in this process.
    #[default]
    Pass,
    /// The process ends with status 120 and a sentence on stderr.
    Kill,
}

/// A guest that runs.
pub struct Session {
    pub(crate) memory: Arc<Memory>,
    /// Device and inode of the executive, by which guests are known.
    pub(crate) image: (u64, u64),
    _attendant: Option<Attendant>,
    child: Child,
    status: Option<ExitStatus>,
    reader: Reader,
    trace: bool,
    rules: Rules,
    seed: u64,
}

/// What was counted.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Exit status of the guest's first process, or 128 and the signal that killed it.
    pub status: i32,
    /// Calls by name.
    pub calls: std::collections::BTreeMap<String, u64>,
    /// Calls that came by a signal (SIGSYS).
    pub traps: u64,
    /// Sites that made calls.
    pub sites: u64,
    /// Sites that were rewritten.
    pub rewritten: u64,
    /// Signals that waited until the thread left the executive.
    pub deferred_signals: u64,
    /// Signals given to handlers of guests.
    pub delivered_signals: u64,
    /// Calls by the 32-bit interface, rejected.
    pub compat_calls: u64,
    /// Calls rejected since they named the executive's memory or means.
    pub refused: u64,
    /// Records that did not fit.
    pub lost: u64,
    /// Rings that held nonsense.
    pub damaged: u64,
    /// Functions of the policy object that faulted.
    pub object_faults: u64,
    /// Functions of the policy object that took more CPU time than their limit.
    pub object_loops: u64,
    /// Questions to the decider.
    pub asked: u64,
    /// Of these, the ones without an answer in time, or with one that makes no sense. Their calls
    /// passed.
    pub unanswered: u64,
    /// Programs that would have got the rights of another user or group (setuid, setgid), and ran
    /// without.
    pub setuid: u64,
    /// Seccomp filters of guests that were refused with EINVAL, by the reason, with their number.
    pub filters_refused: std::collections::BTreeMap<String, u64>,
    /// Calls at sites beyond the 8192 that the executive keeps: each costs a signal.
    pub crowded: u64,
    /// With which rules drew whether they act, where one has `p=`: `Options::seed` repeats that.
    pub seed: Option<u64>,
    /// For each rule: its text, how often it matched, how often it acted.
    pub rules: Vec<(String, u64, u64)>,
}

impl Session {
    /// Starts a program under the executive. Its descriptors, environment and working directory are
    /// this process'.
    ///
    /// `arguments[0]` is the program: a path, or a name that is searched in `PATH`.
    ///
    /// # Errors
    /// A sentence in an `io::Error`: no such program, dispatch not available, no room for the
    /// session's descriptors.
    pub fn start(options: &Options, arguments: &[OsString]) -> io::Result<Session> {
        Session::start_with(options, arguments, |_| ())
    }

    /// As [`Session::start`]; `configure` may set descriptors 0 to 2, the environment and the
    /// working directory.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start_with(
        options: &Options,
        arguments: &[OsString],
        configure: impl FnOnce(&mut Command),
    ) -> io::Result<Session> {
        if let orbit_linux::Support::No(why) = dispatch::probe() {
            let needs = "it needs Linux 5.11, and does not work under an executive";
            return Err(io::Error::other(format!("Syscall User Dispatch is not available: {why}; {needs}")));
        }
        if let orbit_linux::Support::No(why) = dispatch::probe_gs_base() {
            return Err(io::Error::other(format!(
                "FSGSBASE is not available: {why}; it needs Linux 5.9 (orbit doctor)"
            )));
        }
        let Some(program) = arguments.first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no program given"));
        };
        let deciders = [
            (false, &options.decider, "decider (--decider)"),
            (true, &options.services, "host of services (orbit service run, --services)"),
        ];
        for (is_service, decider, what) in deciders {
            if let (Some(rule), None) = (options.rules.asking(is_service), decider) {
                let problem = format!("rule `{}` asks, and there is no {what} to answer", rule.text);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
            }
        }
        let path = find(program)?;
        let file = File::open(&path).map_err(|error| named(&path, &error))?;
        if !is_executable(&file) {
            let problem = format!("{} is neither an ELF program nor a script with #!", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let object = options.object.as_ref().map_or(&[][..], |object| &object.image);
        // Half of the bits are a number that can be typed.
        let seed = options.seed.unwrap_or_else(|| clock::ns_of(libc::CLOCK_REALTIME).unwrap_or(0) >> 10 & 0xffff_ffff);
        let memory = Memory::create(object, options.trace, |shared| fill(shared, options, seed))
            .map_err(|error| io::Error::new(error.kind(), format!("cannot make shared memory: {error}")))?;
        let image = memfd::program("hijack", EXECUTIVE)?;
        let program_fd = file.as_raw_fd();
        let mut command = Command::new(format!("/proc/self/fd/{}", image.as_raw_fd()));
        let kept = kept_numbers()?;
        let attach = format!("{kept}{}:{}", if options.fail_open { "+" } else { "" }, identity(&image)?);
        command.arg0("hijack").arg(attach).arg(program_fd.to_string()).arg(&path).args(arguments);
        let files = [memory.file().as_raw_fd(), image.as_raw_fd()];
        // SAFETY: the closure makes system calls, on its limit, its mask, and descriptors that are
        // open in the child, since this function keeps them until it is made. A stop that comes
        // before the executive has its handler waits.
        unsafe {
            command.pre_exec(move || {
                signals::Set::of([libc::SIGSYS]).block();
                keep(kept, files.map(|file| BorrowedFd::borrow_raw(file)))?;
                descriptors::inherit(program_fd)
            });
        }
        configure(&mut command);
        if options.share.len() > SHARE_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the shared part has more than 64 KiB"));
        }
        for (to, byte) in memory.share().iter().zip(&options.share) {
            to.store(*byte, Ordering::Relaxed);
        }
        let memory = Arc::new(memory);
        let about = File::from(image.try_clone()?).metadata()?;
        let image = (about.dev(), about.ino());
        let _attendant = Attendant::start(&memory, image, options)?;
        let child = command.spawn()?;
        let (trace, rules) = (options.trace, options.rules.clone());
        Ok(Session { memory, image, _attendant, child, status: None, reader: Reader::new(), trace, rules, seed })
    }

    /// The guest's first process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the guest's first process writes, if `configure` asked for a pipe.
    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Follows the guest and all its descendants to their ends; gives each event to `sink` as it
    /// comes. Without a trace the first process' end is the end.
    ///
    /// # Errors
    /// Those of waiting, and of `sink`, which end the following but not the guest.
    pub fn follow(&mut self, mut sink: impl FnMut(&Event) -> io::Result<()>) -> io::Result<()> {
        if !self.trace {
            // Nothing comes through the rings: no need to wake up until the end.
            self.status = Some(self.child.wait_for_exit()?);
            return Ok(());
        }
        loop {
            let bell = self.memory.bell().load(Ordering::Acquire);
            if self.status.is_none() {
                self.status = self.child.exited()?;
            }
            let (events, is_used) = self.reader.poll(&self.memory);
            for event in &events {
                sink(event)?;
            }
            if self.status.is_some() && !is_used {
                return Ok(());
            }
            if events.is_empty() {
                // A wait that ends early or late makes no difference.
                let _ = futex::wait(self.memory.bell(), bell, Some(MAX_SLEEP));
            }
        }
    }

    /// Waits for the end of the guest's first process, at most for `limit`; false: it runs on. For
    /// a session without a trace.
    ///
    /// # Errors
    /// Those of waiting.
    pub fn wait_for(&mut self, limit: Duration) -> io::Result<bool> {
        let end = Instant::now() + limit;
        let handle = pidfd::open(self.child.id() as i32)?;
        while !pidfd::has_ended(handle.as_fd()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let mut ends = [libc::pollfd { fd: handle.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            poll::poll(&mut ends, Some(left))?;
        }
        self.status = Some(self.child.wait_for_exit()?);
        Ok(true)
    }

    /// The 64 KiB that policy objects and the host share (`orbit_executive.share`). Guests can
    /// write all of it.
    pub fn share(&self) -> &[AtomicU8] {
        self.memory.share()
    }

    /// What was counted until now.
    pub fn outcome(&self) -> Outcome {
        let name =
            |nr: usize| calls::by_number(nr as u64).map_or_else(|| format!("call {nr}"), |call| call.name.into());
        let counts = self.memory.counts();
        let calls = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let stat = |which| self.memory.stat(which);
        let rules = self.rules.texts().enumerate().map(|(nth, text)| {
            let (matched, applied) = self.memory.rule_counts(nth);
            (text.to_owned(), matched, applied)
        });
        Outcome {
            status: self.status.map_or(0, |status| status.code().unwrap_or(128 + status.signal().unwrap_or(0))),
            calls: calls.map(|(nr, count)| (name(nr), *count)).collect(),
            traps: stat(0),
            sites: stat(1),
            rewritten: stat(2) + stat(3),
            deferred_signals: stat(5),
            delivered_signals: stat(6),
            compat_calls: stat(9),
            refused: stat(10),
            lost: self.reader.lost + stat(11),
            damaged: self.reader.damaged,
            object_faults: stat(12),
            object_loops: stat(13),
            asked: stat(14),
            unanswered: stat(15),
            setuid: stat(16),
            crowded: stat(17),
            filters_refused: filters_refused(stat),
            seed: self.rules.iter().any(|rule| rule.chance != u32::MAX).then_some(self.seed),
            rules: rules.collect(),
        }
    }
}

/// Why filters are refused: `STAT_FILTERS_*` of `executive/abi.h`, from this one on.
const FIRST_OF_FILTERS: usize = 18;
const FILTERS_REFUSED: [&str; 4] = [
    "seccomp's strict mode would kill for the executive's own calls",
    "a listener (SECCOMP_FILTER_FLAG_NEW_LISTENER), or an unknown flag",
    "the filter reads the instruction pointer, which is the executive's",
    "the filter has no room for the executive's instructions below the 4096 that the kernel takes",
];

fn filters_refused(stat: impl Fn(usize) -> u64) -> std::collections::BTreeMap<String, u64> {
    let counted =
        FILTERS_REFUSED.iter().enumerate().map(|(nth, why)| ((*why).to_owned(), stat(FIRST_OF_FILTERS + nth)));
    counted.filter(|(_, count)| *count > 0).collect()
}

/// Descriptors that guests keep open over exec.
const KEPT: RawFd = 2;

/// Two numbers for the descriptors that guests keep: not open here, and above the limit of
/// descriptors where that can be raised, so that guests come to none of them by counting. Not far
/// up, since fork copies the table.
fn kept_numbers() -> io::Result<RawFd> {
    let (soft, hard) = rlimit::get(0, Resource::Files)?;
    let is_above = (256..=4096).contains(&soft) && hard >= soft + KEPT as u64;
    let first = if is_above { soft as RawFd } else { soft.min(1024) as RawFd - KEPT };
    let is_free = |first: &RawFd| (0..KEPT).all(|nth| !descriptors::is_open(first + nth));
    let none = || io::Error::other("no room for two descriptors: raise the limit of open files (ulimit -n)");
    (3..=first).rev().find(is_free).ok_or_else(none)
}

/// In the child, before exec: the descriptors under the numbers for them. Async-signal-safe.
fn keep(first: RawFd, files: [BorrowedFd<'_>; KEPT as usize]) -> io::Result<()> {
    let (soft, hard) = rlimit::get(0, Resource::Files)?;
    let needed = (first + KEPT) as u64;
    if needed > soft {
        rlimit::set(0, Resource::Files, needed, hard)?;
    }
    for (number, file) in (first..).zip(files) {
        if descriptors::is_open(number) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        descriptors::put_at(file, number, true)?;
    }
    rlimit::set(0, Resource::Files, soft, hard)
}

/// What the executive knows its own file by; see `identity` in `executive/hints.c`.
fn identity(image: &OwnedFd) -> io::Result<u64> {
    let about = File::from(image.try_clone()?).metadata()?;
    let key = about.ino().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ about.dev().wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    Ok((key ^ (about.ctime() as u64) << 32 ^ about.ctime_nsec() as u64).max(1))
}

fn fill(shared: &mut Shared, options: &Options, seed: u64) {
    shared.seed = seed;
    let flag = |set, bit| if set { bit } else { 0 };
    let (speed, jump) = (options.speed.or(options.rules.speed()), options.jump.or(options.rules.jump()));
    let bits = flag(options.trace, OPTION_TRACE)
        | flag(options.lossy, OPTION_LOSSY)
        | flag(options.no_rewrite, OPTION_NO_REWRITE)
        | flag(options.io_uring, OPTION_IO_URING)
        | flag(options.save_all, OPTION_SAVE_ALL)
        | flag(options.on_object_failure == OnFailure::Kill, OPTION_OBJECT_KILL)
        | flag(options.on_no_answer == OnFailure::Kill, OPTION_ASK_KILL)
        | flag(speed.is_some() || jump.is_some(), OPTION_VIRTUAL_TIME);
    if let Some(object) = &options.object {
        let bytes = object.image.len() as u64;
        shared.object = ObjectDescription { bytes, text_bytes: object.text_bytes, policy: object.policy };
    }
    let limit = options.ask_limit.unwrap_or(ASK_LIMIT);
    shared.ask_limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2);
    if speed.is_some() || jump.is_some() {
        (shared.speed, shared.speed_per) = (speed.map_or(1000, |speed| speed.thousandths), 1000);
        shared.jump = jump.map_or(0, |jump| jump.by_ns);
        shared.jump_after = jump.map_or(0, |jump| u64::try_from(jump.after.as_nanos()).unwrap_or(u64::MAX / 4));
        for (id, base) in (0..).zip(&mut shared.time_base) {
            *base = clock::ns_of(id).unwrap_or(0);
        }
    }
    shared.version = VERSION;
    shared.options = bits.into();
    shared.threshold = REWRITE_AT;
    shared.first = 1.into();
    shared.calls = calls::descriptions();
    shared.rule_count = options.rules.compile_into(&mut shared.rules);
}

/// The program's file. A sentence if there is none that can be run.
fn find(program: &OsStr) -> io::Result<PathBuf> {
    let path = Path::new(program);
    if program.as_encoded_bytes().contains(&b'/') {
        return is_program(path).map(|()| path.to_owned());
    }
    let places = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let found = std::env::split_paths(&places).map(|place| place.join(path)).find(|path| is_program(path).is_ok());
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no program {} in PATH", path.display())))
}

fn is_program(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let about = path.metadata().map_err(|error| named(path, &error))?;
    if !about.is_file() || about.permissions().mode() & 0o111 == 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} is not a program", path.display())));
    }
    Ok(())
}

/// Whether it begins as a program does. What is wrong further on, the executive says.
fn is_executable(file: &File) -> bool {
    use std::os::unix::fs::FileExt;
    let mut begin = [0; 4];
    let count = file.read_at(&mut begin, 0).unwrap_or(0);
    begin[..count].starts_with(b"#!") || begin == *b"\x7fELF"
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
