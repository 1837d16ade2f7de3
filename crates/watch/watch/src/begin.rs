//! From the arguments to a guard at work. What cannot be is rejected before the program starts.

use super::action::{Action, Commands, OnHang};
use super::detector::{self, Detector};
use super::health::Health;
use super::lasting::Lasting;
use super::pages::Pages;
use super::program::{self, Signals};
use super::settings::{self, Settings};
use super::writer::Writer;
use super::{Args, CPU_SAMPLE_OF_JOINED, Guard, LEAST_FILES, restart};
use orbit_console::events::Events;
use orbit_console::out::Failure;
use orbit_family as family;
use orbit_linux::child::Exit;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

/// Starts or joins the program, and its detection.
///
/// # Errors
/// A sentence about the argument, setting or facility that stands in the way. Then no program of
/// ours is left.
pub(super) fn begin(args: &Args) -> Result<Guard, Failure> {
    check(args)?;
    let settings = read_settings(args)?;
    let on_hang = choose_action(args, &settings)?;
    let events = open_events(args, &settings)?;
    let mut signals = Signals::catch().map_err(|e| cannot("cannot receive signals", e))?;
    if args.pid.is_none() {
        signals = signals.with_witnesses(&args.program);
    }
    let limit = program::raise_limit();
    let health = Health::start(args.health.as_deref(), args.health_listen, on_hang.after).map_err(Failure::Text)?;
    let of_pages = |dir: &PathBuf| {
        let failed = |e| cannot(&format!("cannot write to {} for --report", dir.display()), e);
        Pages::start(dir).map_err(failed)
    };
    let pages = args.report.as_ref().map(of_pages).transpose()?;
    let adopts = on_hang.action == Action::Restart && family::adopt().is_ok();
    let others = if adopts { family::Others::before_program() } else { family::Others::default() };
    // Tried here, while nothing has begun: a filter may forbid it.
    orbit_linux::pidfd::open(std::process::id() as i32).map_err(|e| cannot("cannot hold a process", e))?;
    let (mut child, pid, mut signals) = match args.pid {
        Some(pid) => (None, pid, signals),
        None => {
            let (child, signals) = start(args, signals, limit, others.mark());
            let pid = child.id() as i32;
            (Some(child), pid, signals)
        }
    };
    signals.before_program();
    let pidfd = orbit_linux::pidfd::open(pid).inspect_err(|_| unmake(&mut child));
    let pidfd = pidfd.map_err(|e| cannot(&format!("cannot join process {pid}"), e))?;
    // A program of our own may have ended already.
    if child.is_none() {
        check_joined(pid)?;
    }
    let mut detector = Detector::new(&settings.detection, settings.deadline, args.in_process);
    detector.watch(pid);
    if args.pid.is_some() {
        // It may hang already: then nothing changes that the detector could report.
        why::if_it_seems_to_hang(pid, CPU_SAMPLE_OF_JOINED, &mut anstream::stderr().lock())?;
    }
    let writer = Writer::start(events).inspect_err(|_| unmake(&mut child));
    let writer = writer.map_err(|e| cannot("cannot make a thread", e))?;
    if let Some(address) = health.as_ref().and_then(|health| health.address) {
        writer.did(format!("answers at http://{address}/ whether the program hangs"), pid);
    }
    Ok(Guard {
        detector,
        on_hang,
        adopts,
        reaps: family::gets_orphans(),
        others,
        writer,
        signals,
        limit,
        program: args.program.clone(),
        child,
        pid,
        pidfd,
        ended: BTreeSet::new(),
        spared: BTreeSet::new(),
        waves: BTreeMap::new(),
        commands: Commands::default(),
        lasting: Lasting::default(),
        pages,
        health,
        core: args.core,
        started: Instant::now(),
        pause: restart::FIRST_PAUSE,
    })
}

fn cannot(what: &str, e: io::Error) -> Failure {
    Failure::Text(format!("{what}: {e}"))
}

/// Whether there is something to watch, and what watching takes.
fn check(args: &Args) -> Result<(), Failure> {
    // What is no option of the guard's would else be taken for the program, without a `--` before
    // it.
    if let Some(program) = args.program.first().filter(|p| p.as_encoded_bytes().starts_with(b"-")) {
        let name = program.to_string_lossy();
        return Err(Failure::Text(format!("no option {name}: see --help; a program of that name is ./{name}")));
    }
    if args.program.is_empty() && args.pid.is_none() {
        let ways = "a program (`orbit watch -- PROGRAM`), a process that runs (`--pid N`) or the kernel (`--system`)";
        return Err(Failure::Text(format!("nothing to watch is named: give {ways}; see --help")));
    }
    if let Some((_, most)) = program::files_limit().filter(|limit| limit.1 < LEAST_FILES) {
        return Err(Failure::Text(format!(
            "{most} descriptors are allowed (ulimit -H -n), and watching takes {LEAST_FILES} at least: raise the limit"
        )));
    }
    if !program::may_make_threads() {
        let why = "its children are in another namespace of processes, so that it can make no thread";
        return Err(Failure::Text(format!("{why}: use `unshare -pf --mount-proc` in place of `unshare -p`")));
    }
    Ok(())
}

/// The settings of the file, with those of the arguments over them.
fn read_settings(args: &Args) -> Result<Settings, Failure> {
    let mut settings = match &args.config {
        Some(path) => settings::read(path).map_err(Failure::Text)?,
        None => Settings::default(),
    };
    settings.detection.sections.extend(args.section.iter().cloned());
    let config = &mut settings.detection.config;
    config.limit = args.limit.map_or(config.limit, Duration::from_secs_f64);
    config.record = args.record.as_ref().map(std::path::absolute).transpose()?;
    if let Some(path) = &config.record {
        // The detector writes it: what it could not open is refused before the program starts. A
        // FIFO's reader would take the end of this for the recording's.
        let is_fifo = path.metadata().is_ok_and(|m| m.file_type().is_fifo());
        let opened =
            (!is_fifo).then(|| OpenOptions::new().append(true).create(true).mode(0o600).open(path)).transpose();
        opened.map_err(|e| Failure::Text(format!("cannot record to {}: {e}", path.display())))?;
    }
    Ok(settings)
}

/// What is done on a hang.
fn choose_action(args: &Args, settings: &Settings) -> Result<OnHang, Failure> {
    let on_hang = args.on_hang.clone().or_else(|| settings.on_hang.clone()).unwrap_or_default();
    if args.pid.is_some() && on_hang.action == Action::Restart {
        return Err(Failure::text("--on-hang restart needs a program that the guard started, not --pid"));
    }
    if args.core && on_hang.action != Action::Restart {
        return Err(Failure::text(
            "--core needs --on-hang restart, perhaps with likely:, guess: or after=60s: before it",
        ));
    }
    Ok(on_hang)
}

fn open_events(args: &Args, settings: &Settings) -> Result<Option<Events>, Failure> {
    let opened = match (&args.events, &settings.events) {
        (Some(path), _) => Events::open(path, "watch"),
        (None, Some((path, at))) => Events::open(path, "watch").map_err(|e| format!("{at}: events: {e}")),
        (None, None) => return Ok(None),
    };
    opened.map(Some).map_err(Failure::Text)
}

/// Starts the program. Where that fails the watcher exits, as a shell would.
fn start(args: &Args, signals: Signals, limit: (u64, u64), mark: Option<(u64, u64)>) -> (Child, Signals) {
    match program::start(&args.program, &signals, limit, mark) {
        Ok(child) => (child, signals),
        Err(e) => {
            let name = args.program[0].to_string_lossy();
            let why = Failure::text(format!("cannot start {name}: {e}"));
            let _ = writeln!(anstream::stderr(), "orbit watch: {why}");
            // No destructor runs at exit.
            drop(signals);
            std::process::exit(i32::from(program::not_started(&e)));
        }
    }
}

/// Whether the process, which is not ours, can be watched: tried for the error.
fn check_joined(pid: i32) -> Result<(), Failure> {
    if let Some(why) = detector::lacks_proc() {
        return Err(Failure::Text(format!("cannot watch process {pid}: {why}")));
    }
    if family::is_kernel_thread(pid) {
        return Err(Failure::Text(format!(
            "cannot watch process {pid}: it is a thread of the kernel and runs no program; --system watches the kernel"
        )));
    }
    detector::may_see(pid).map_err(|e| {
        cannot(
            &format!(
                "cannot see what the threads of process {pid} wait for (it takes the same user, or \
                 CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH; \
                 where kernel.yama.ptrace_scope \
                 is 1, an ordinary user has to start it by `orbit watch -- PROGRAM`)"
            ),
            e,
        )
    })
}

/// Terminates a program that cannot be guarded: the caller that gets the error may start it again.
pub(super) fn unmake(child: &mut Option<Child>) {
    if let Some(child) = child {
        // It may have ended in this very moment.
        let _ = child.kill();
        let _ = child.wait_for_exit();
    }
}
