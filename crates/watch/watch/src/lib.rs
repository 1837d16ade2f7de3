//! `orbit watch`: runs or joins a program and reports when, where and why it hangs.
//!
//! Owns: the loop that waits for signals, the program's end and news, what is shown, what is done
//! about a hang. The detection is `orbit-ahd`'s, in a module of a core of the guard's own
//! (`detector`); reports are written by a thread (`writer`), so that nothing waits for a
//! reader. Exit status: that of the program (128 and the signal's number if one ended it), 127 or
//! 126 if it could not be found or run, 125 if the guard itself could not begin; with `--pid` 0
//! once the process has ended or the guard was asked to leave.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod action;
mod arguments;
mod begin;
mod detector;
mod health;
mod lasting;
mod pages;
mod program;
pub mod replay;
mod restart;
mod settings;
mod show;
mod system;
mod witness;
mod writer;

pub use orbit_console::harmless::Harmless;

pub use action::{ends as ends_process, signal as signal_by_name};
pub use pages::found;

use action::{Action, Commands, OnHang};
use detector::{Detector, News};
use health::Health;
use lasting::Lasting;
use orbit_ahd::{Event, Hang};
use orbit_console::out::{self, Done, Failure};
use orbit_family as family;
use orbit_linux::child::Exit;
use pages::Pages;
use program::Signals;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};
use writer::Writer;

const EXAMPLES: &str = "\
exec:CMD: /bin/sh runs CMD with ORBIT_WATCH_PID, ORBIT_WATCH_TID (process and thread
that hang), ORBIT_WATCH_KIND (busy or blocked), ORBIT_WATCH_WHY (a sentence), and the
report as a line of JSON on stdin.

Examples:
  orbit watch -- redis-server --port 7000
  orbit watch --events hangs.jsonl --on-hang kill -- ./server
  orbit watch --on-hang 'likely:exec:mail -s hang ops@example.org' --pid 4711
  orbit watch --report /var/log/hangs --on-hang after=60s:restart -- ./server
  orbit watch --health /run/server.health --health-listen 127.0.0.1:8086 -- ./server
  orbit watch --on-hang recover -- orbit keep --log -- redis-server
  orbit watch --section request=handle_request --section query=libdb.so:Db::run -- ./server
  orbit watch --system=reboot --events /var/log/cpu-hangs.jsonl

Exit status: the program's own; 128 and the number of the signal that ended it;
127 or 126 if it could not be found or run, 125 if the guard could not begin.";

const USAGE: &str = "\
orbit watch [OPTIONS] [--] PROGRAM [ARGUMENT]...
       orbit watch [OPTIONS] --pid N
       orbit watch [OPTIONS] --system[=ACTION]";

/// Runs or joins a program and reports when it hangs: what hangs, where, and why.
///
/// Reported are rings of locks and other waits that only the waiting threads themselves could end;
/// threads that left the loop they kept coming back to; locks held and requests unanswered for
/// longer than the limit; and sections (--section, or marks in the source) that take far longer
/// than usual. A slow machine is no hang. No thread is stopped to decide. Reports go to stderr.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub struct Args {
    /// Settings: lines of `key = value`, as `limit_ms = 2000` (as --limit; 5000 if not given). An
    /// unknown key is answered with all known ones; docs/watch.md, Configuration, has each with
    /// range and default.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Appends events as JSON lines to this file; - for stdout.
    #[arg(long, value_name = "FILE|-")]
    events: Option<PathBuf>,
    /// What to do about a certain hang: report, signal:SIG, kill (the hung process), restart (the
    /// program, with all processes it made), recover (back to a checkpoint, where `orbit keep`
    /// keeps the process), exec:CMD. With likely: or guess: before it, as in likely:kill, about
    /// those too; with after=60s: about every hang that lasts for so long. For restart the guard,
    /// in place of init, becomes the parent of processes whose own has exited.
    #[arg(long, value_name = "ACTION")]
    on_hang: Option<OnHang>,
    /// Writes a page for each hang to DIR: what waits for what as a picture, stacks on a click
    /// (`orbit why --html`). None but its owner may read it; an action waits until it is written.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["system", "replay"])]
    report: Option<PathBuf>,
    /// With --on-hang restart: has the kernel write a core of the hung process first.
    #[arg(long, conflicts_with_all = ["system", "replay", "pid"])]
    core: bool,
    /// Keeps FILE up to date, a line of JSON, for the probes of an orchestrator: whether the
    /// program hangs, since when, and when it last got on.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["system", "replay"])]
    health: Option<PathBuf>,
    /// Answers the same by HTTP at this address and port: status 503 while it hangs, else 200.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["system", "replay"])]
    health_listen: Option<SocketAddr>,
    /// A section: FUNCTION of the program or a library it uses. A thread that uses far more CPU in
    /// one execution of it than usual, or sits in it without running, is reported with NAME.
    /// FUNCTION is [FILE:]SYMBOL or [FILE:]0xADDRESS; may be given several times.
    #[arg(long, value_name = "NAME=FUNCTION", value_parser = settings::section)]
    section: Vec<orbit_named::Named>,
    /// Joins a running process instead of starting one.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = settings::process,
        conflicts_with = "program"
    )]
    pid: Option<i32>,
    /// Watches the kernel instead: reports when a CPU no longer schedules. ACTION: report, crash or
    /// reboot (by sysrq, at once). Needs root (to report, CAP_BPF, CAP_PERFMON, CAP_SYS_NICE and
    /// CAP_IPC_LOCK will do) and a kernel with BTF. Events go to --events, else to stdout; a
    /// sentence of each to stderr; hangs to the kernel's log too.
    #[arg(
        long,
        value_name = "ACTION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "report",
        conflicts_with_all = ["pid", "program", "on_hang", "config", "section"]
    )]
    system: Option<orbit_shd::Action>,
    /// With --system: a CPU is not called hung sooner than after MS milliseconds without progress
    /// (60 to 3600000; 160 if not given). In a virtual machine more than its host ever leaves a CPU
    /// waiting, at least 2000 with crash or reboot.
    #[arg(
        long,
        value_name = "MS",
        requires = "system",
        conflicts_with_all = ["pid", "program"],
        value_parser = clap::value_parser!(u64).range(60..=3_600_000)
    )]
    check_least: Option<u64>,
    /// How long a thread may be away from its loop, a request wait for its answer, a lock be waited
    /// for, or a thread wait in a section (5s if not given, limit_ms in --config). Shorter ones
    /// find hangs sooner and report more healthy programs as guesses.
    #[arg(long, value_name = "SECONDS", value_parser = replay::limit)]
    limit: Option<f64>,
    /// Writes all facts to FILE, so that a false alarm can be judged again with --replay.
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Judges a recording, and watches nothing: prints what would have been reported, without
    /// stacks. Of a folder it judges all, with limits of 0.2, 0.5, 1, 2 and 5 s: hangs found, how
    /// soon, and healthy programs reported.
    #[arg(
        long,
        value_name = "FILE|FOLDER",
        conflicts_with_all = ["pid", "program", "system", "on_hang", "config", "section"]
    )]
    replay: Option<PathBuf>,
    /// With --replay: prints events, or figures, as JSON lines.
    // A program conflicts with --replay, and so suspends that this requires it.
    #[arg(long, requires = "replay", conflicts_with_all = ["pid", "program", "system"])]
    json: bool,
    /// Runs the detection in the guard itself: one process less, but a detector that fails takes
    /// the guard with it.
    #[arg(long)]
    in_process: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The guard could not begin, or its arguments make no sense.
pub const NOT_BEGUN: u8 = 125;

/// For how long the CPU use of a process is measured that ran before it was joined.
const CPU_SAMPLE_OF_JOINED: Duration = Duration::from_millis(500);

/// Least limit of descriptors: with fewer a detector begins that then finds nothing.
const LEAST_FILES: u64 = 64;

/// Longest wait while it can wait for the program only.
const MAX_WAIT_WITHOUT_SIGNALS: Duration = Duration::from_millis(50);

/// A process whose reports come at shorter intervals is sent a signal once for all of them.
const ONE_SIGNAL_WITHIN: Duration = Duration::from_secs(5);

/// Runs the command until the program exits, or until it is asked to leave.
pub fn run(args: &Args) -> Done {
    let done = match args.system {
        None if args.replay.is_some() => {
            replay::run(args.replay.as_deref().unwrap_or(Path::new("")), args.limit, args.json)
        }
        Some(action) => system::run(action, system::options(args.check_least), args.events.as_deref(), args.in_process),
        None => begin::begin(args).and_then(|mut guard| {
            let code = guard.watch()?;
            guard.writer.finish(&mut guard.signals);
            Ok(code)
        }),
    };
    done.or_else(|why| match why {
        // Whoever read the events has left.
        Failure::Io(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Io(error)),
        why => {
            // With stderr closed there is no reader.
            let _ = writeln!(anstream::stderr(), "orbit watch: {why}");
            Ok(ExitCode::from(NOT_BEGUN))
        }
    })
}

struct Guard {
    detector: Detector,
    on_hang: OnHang,
    /// Whether orphans of the program become the guard's children, so that a restart finds them.
    adopts: bool,
    /// Whether orphans become the guard's children for any reason, and nobody else reaps them.
    reaps: bool,
    others: family::Others,
    writer: Writer,
    signals: Signals,
    limit: (u64, u64),
    program: Vec<OsString>,
    /// The program, if the guard started it.
    child: Option<Child>,
    pid: i32,
    pidfd: OwnedFd,
    /// Processes that were sent a signal for hanging that ends them, and have not left: that they
    /// get on is no news.
    ended: BTreeSet<i32>,
    /// Processes about whose hangs nothing was done, since no report was sure enough, which has
    /// been said.
    spared: BTreeSet<i32>,
    /// Processes that a signal was sent for hanging, with the time of their last report.
    waves: BTreeMap<i32, Instant>,
    commands: Commands,
    /// Hangs that are acted on when they have lasted for long enough.
    lasting: Lasting,
    pages: Option<Pages>,
    health: Option<Health>,
    /// A restart has the kernel write a core first.
    core: bool,
    started: Instant,
    pause: Duration,
}

impl Guard {
    fn watch(&mut self) -> Done {
        loop {
            let reports = self.detector.descriptors();
            let mut fds = vec![readable(self.pidfd.as_fd())];
            fds.extend(self.signals.polled());
            fds.extend(self.commands.descriptors().map(readable));
            fds.extend(reports.iter().map(|fd| readable(fd.as_fd())));
            let pause = self.detector.pause().min(self.signals.pause()).min(self.lasting.pause());
            let pause = if self.health.is_some() { pause.min(health::EVERY) } else { pause };
            // Without room to wait for all it waits for the program, and polls for the
            // rest.
            orbit_linux::poll::poll(&mut fds, Some(pause))
                .or_else(|_| orbit_linux::poll::poll(&mut fds[..1], Some(pause.min(MAX_WAIT_WITHOUT_SIGNALS))))?;
            for signal in self.signals.take(self.child.as_ref().map(|_| self.pid)) {
                let leave = self.child.is_none() && signal != libc::SIGWINCH;
                if leave {
                    self.finish();
                    return Ok(ExitCode::SUCCESS);
                }
                // It may have ended in this very moment.
                let _ = orbit_linux::pidfd::send_signal(self.pidfd.as_fd(), signal);
            }
            if fds[0].revents != 0 {
                return Ok(self.end());
            }
            if self.child.is_some() {
                program::stop_with(self.pid);
            }
            let mut restart = None;
            for news in self.detector.news() {
                let Some(event) = self.event(news) else { continue };
                // Read before anything is done: afterwards there may be none.
                let command = match &event {
                    Event::Hang(hang) => family::command(hang.pid),
                    _ => String::new(),
                };
                let acted = match &event {
                    Event::Hang(hang) => self.hangs(hang, &mut restart).map(|did| (did, hang.pid)),
                    _ => None,
                };
                self.report(event, command);
                if let Some((did, pid)) = acted {
                    self.writer.did(did, pid);
                }
            }
            for hang in self.lasting.due() {
                if let Some(did) = self.act(&hang, &mut restart) {
                    self.writer.did(did, hang.pid);
                }
            }
            for (did, pid) in self.pages.as_mut().map_or_else(Vec::new, Pages::did) {
                self.writer.did(did, pid);
            }
            if let Some(health) = &mut self.health {
                health.tick(self.pid, &self.detector.pids());
            }
            if let Some(pid) = restart
                && let Some(code) = self.restart(pid)
            {
                return Ok(code);
            }
            if let Action::Exec(command) = &self.on_hang.action {
                for (did, pid) in self.commands.go_on(command, &self.signals, self.limit) {
                    self.writer.did(did, pid);
                }
            }
            if self.reaps {
                family::reap(|pid| pid == self.pid || self.commands.includes(pid));
            }
        }
    }

    /// Reports an event, unless it is no news.
    fn report(&mut self, event: Event, command: String) {
        if let Event::Recovered { pid, tid, .. } = event {
            self.lasting.over(pid, tid);
            self.health.iter_mut().for_each(|health| health.over(pid, tid));
        }
        match event {
            Event::Recovered { pid, .. } if self.ended.contains(&pid) => return,
            Event::Left { pid } => {
                self.lasting.left(pid);
                self.health.iter_mut().for_each(|health| health.left(pid));
                self.ended.remove(&pid);
                self.spared.remove(&pid);
                self.waves.remove(&pid);
            }
            _ => {}
        }
        self.writer.event(event, command);
    }

    /// The event that a piece of news is; else it is about a module, and reported.
    fn event(&mut self, news: News) -> Option<Event> {
        match news {
            News::Event(event) => Some(event),
            News::Module(about) => {
                // What ended while there was no detection is never reported.
                if ["failed", "reloaded", "gave up", "loaded", "unloaded", "dropped"].contains(&about.state) {
                    self.lasting.forget();
                    self.health.iter_mut().for_each(Health::forget);
                }
                self.writer.about(about);
                None
            }
        }
    }

    /// Reports what is left when nothing will be watched any more.
    fn finish(&mut self) {
        self.finish_pages();
        for (did, pid) in self.commands.finish() {
            self.writer.did(did, pid);
        }
        for news in self.detector.finish() {
            if let Some(event) = self.event(news) {
                self.report(event, String::new());
            }
        }
    }

    /// Notes a hang, and does what was asked for about it; returns what was done.
    fn hangs(&mut self, hang: &Hang, restart: &mut Option<i32>) -> Option<String> {
        self.health.iter_mut().for_each(|health| health.hangs(hang));
        if let Some((did, pid)) = self.pages.as_mut().and_then(|pages| pages.add(hang)) {
            self.writer.did(did, pid);
        }
        if let Some(after) = self.on_hang.after {
            self.lasting.add(hang.clone(), after);
            return None;
        }
        if self.on_hang.spares(hang.sure) {
            let is_first = self.spared.insert(hang.pid);
            let (sure, from) = (hang.sure, self.on_hang.from);
            return is_first.then(|| {
                let pid = hang.pid;
                format!(
                    "did nothing about process {pid}: its report is `{sure}`, --on-hang acts from `{from}` on \
                    ({sure}:ACTION lowers that)"
                )
            });
        }
        self.act(hang, restart)
    }

    /// Does what was asked for, but for a restart, or has it done; returns what was done.
    fn act(&mut self, hang: &Hang, restart: &mut Option<i32>) -> Option<String> {
        if self.on_hang.action != Action::Report {
            // Afterwards there is nothing to be drawn.
            self.finish_pages();
        }
        let signal = match &self.on_hang.action {
            Action::Report => return None,
            Action::Restart => {
                *restart = restart.or(Some(hang.pid));
                return None;
            }
            Action::Signal(signal) => Some(*signal),
            Action::Kill => Some(libc::SIGKILL),
            Action::Recover => None,
            Action::Exec(_) => {
                self.commands.add(hang);
                return None;
            }
        };
        // Many threads that hang at once are one reason to act.
        let now = Instant::now();
        if self.waves.insert(hang.pid, now).is_some_and(|last| now - last < ONE_SIGNAL_WITHIN) {
            return None;
        }
        let Some(signal) = signal else {
            return Some(match orbit_keep::recover(hang.pid, hang.tid, &hang.why) {
                Ok(did) => format!("process {}: {did}", hang.pid),
                Err(why) => format!("could not put process {} back: {why}", hang.pid),
            });
        };
        let sent = orbit_linux::pidfd::open(hang.pid).and_then(|fd| {
            // Read before: afterwards it may be gone.
            let ends = action::ends(hang.pid, signal);
            orbit_linux::pidfd::send_signal(fd.as_fd(), signal).map(|()| ends)
        });
        Some(match sent {
            Ok(ends) => {
                if ends {
                    self.ended.insert(hang.pid);
                }
                format!("sent signal {signal} to process {}", hang.pid)
            }
            Err(e) => format!("could not send signal {signal} to process {}: {e}", hang.pid),
        })
    }

    fn finish_pages(&mut self) {
        for (did, pid) in self.pages.as_mut().map_or_else(Vec::new, Pages::finish) {
            self.writer.did(did, pid);
        }
    }

    /// The program has ended.
    fn end(&mut self) -> ExitCode {
        let there = self.detector.pids().contains(&self.pid);
        self.finish();
        if there {
            self.report(Event::Left { pid: self.pid }, String::new());
        }
        match self.child.as_mut().map(Exit::wait_for_exit) {
            None => ExitCode::SUCCESS,
            Some(Ok(status)) => ExitCode::from(program::status(status)),
            Some(Err(e)) => {
                self.writer.did(format!("how the program ended is not known: {e}"), self.pid);
                ExitCode::from(NOT_BEGUN)
            }
        }
    }
}

/// Shows on stderr what the module `name` said, if it is the detection; `false` if it is not.
pub fn shown(name: &str, text: &str) -> bool {
    let value = serde_json::from_str(text).ok();
    let event = value.as_ref().and_then(orbit_ahd::json::event).filter(|_| name == "ahd");
    // With stderr closed there is no reader.
    event.map(|event| out::say(|to| show::text(to, &event))).is_some()
}

fn readable(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}
