//! What is done about a hang.

use super::program::{self, Signals};
use super::settings::quoted;
use orbit_ahd::{Hang, Sure};
use orbit_linux::child::Exit;
use orbit_linux::status::Status;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

/// What to do when the program hangs, and how sure a report must be for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnHang {
    /// What to do.
    pub action: Action,
    /// Reports that are less sure are shown, and nothing is done about them.
    pub from: Sure,
    /// Acts on what has lasted for so long instead, however sure its report is.
    pub after: Option<Duration>,
}

impl Default for OnHang {
    fn default() -> OnHang {
        OnHang { action: Action::Report, from: Sure::Certain, after: None }
    }
}

impl OnHang {
    /// Whether it does something, but not about a report as sure as this one.
    pub fn spares(&self, sure: Sure) -> bool {
        self.action != Action::Report && sure < self.from
    }
}

/// What is done about a hang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing but to report it.
    Report,
    /// Send the hung process this signal.
    Signal(i32),
    /// Kill the hung process.
    Kill,
    /// Kill the program with all processes it made, and start it anew.
    Restart,
    /// Have `orbit keep`, where it keeps the hung process, put it back to a checkpoint.
    Recover,
    /// Run this shell command, the report on its stdin.
    Exec(String),
}

/// Signals by name, in the order of their numbers, then other names of the same. Real-time ones:
/// [`real_time`].
const SIGNALS: [(&str, i32); 34] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("STKFLT", libc::SIGSTKFLT),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
    ("IOT", libc::SIGABRT),
    ("CLD", libc::SIGCHLD),
    ("POLL", libc::SIGIO),
];

/// The number of a signal by its name (`TERM`, `SIGTERM`, `RTMIN+1`) or number.
///
/// # Errors
/// A sentence that lists the names.
pub fn signal(text: &str) -> Result<i32, String> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    if let Some((_, number)) = SIGNALS.iter().find(|(n, _)| *n == name) {
        return Ok(*number);
    }
    let number = name.parse().ok().filter(|n| (1..=64).contains(n));
    number.or_else(|| real_time(name)).ok_or_else(|| {
        let all: Vec<&str> = SIGNALS.iter().map(|(n, _)| *n).collect();
        let all = all.join(", ");
        format!(
            "`{}` is no signal: use one of {all}, RTMIN, RTMIN+N, RTMAX-N, RTMAX or a number from 1 to 64",
            quoted(text)
        )
    })
}

/// A real-time signal: `RTMIN`, `RTMIN+N`, `RTMAX-N` or `RTMAX`, numbered as the C library leaves
/// them to programs.
fn real_time(name: &str) -> Option<i32> {
    let (low, high) = (libc::SIGRTMIN(), libc::SIGRTMAX());
    let distance = |rest: &str, sign| match rest.strip_prefix(sign) {
        None => rest.is_empty().then_some(0),
        Some(digits) => digits.parse::<u8>().ok().map(i32::from),
    };
    let number = match name.strip_prefix("RTMIN") {
        Some(rest) => low + distance(rest, '+')?,
        None => high - distance(name.strip_prefix("RTMAX")?, '-')?,
    };
    (low..=high).contains(&number).then_some(number)
}

impl FromStr for OnHang {
    type Err = String;

    fn from_str(text: &str) -> Result<OnHang, String> {
        if let Some((time, action)) = text.strip_prefix("after=").and_then(|rest| rest.split_once(':')) {
            let after = lasting(time).ok_or_else(|| format!("`{}` {AFTER}", quoted(text)))?;
            return Ok(OnHang { action: action.parse()?, from: Sure::Guess, after: Some(after) });
        }
        let bar = text.split_once(':').and_then(|(word, action)| {
            let from = [Sure::Guess, Sure::Likely, Sure::Certain].into_iter().find(|sure| sure.to_string() == word)?;
            Some((from, action))
        });
        let (from, action) = bar.unwrap_or((Sure::Certain, text));
        Ok(OnHang { action: action.parse()?, from, after: None })
    }
}

/// What is wrong with a time.
const AFTER: &str = "has no time: write after=TIME:ACTION with a time from 1s to 24h, as 60s, 5m or 1h";

/// A time from a second to a day, as `60s`, `5m` or `1h`.
fn lasting(text: &str) -> Option<Duration> {
    let unit = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        _ => return None,
    };
    let number: u64 = text[..text.len() - 1].parse().ok()?;
    number.checked_mul(unit).filter(|s| (1..=86_400).contains(s)).map(Duration::from_secs)
}

impl FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Action, String> {
        match text.split_once(':') {
            None if text == "report" => Ok(Action::Report),
            None if text == "kill" => Ok(Action::Kill),
            None if text == "restart" => Ok(Action::Restart),
            None if text == "recover" => Ok(Action::Recover),
            Some(("signal", name)) => signal(name).map(Action::Signal),
            Some(("exec", command)) if !command.trim().is_empty() => Ok(Action::Exec(command.to_owned())),
            _ => Err(format!(
                "`{}` is no action: use report, signal:SIG, kill, restart, recover or exec:CMD, with likely: or \
                 guess: before it to act on such reports too, or after=60s: to act on what lasts so long",
                quoted(text)
            )),
        }
    }
}

/// Whether the signal ends the process: it cannot or does not handle, ignore or hold it back, and
/// it is not one that does nothing or only stops.
pub fn ends(pid: i32, signal: i32) -> bool {
    const HARMLESS: [i32; 8] = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGURG,
        libc::SIGWINCH,
    ];
    if signal == libc::SIGKILL {
        return true;
    }
    !HARMLESS.contains(&signal)
        && ![Status::blocked_signals, Status::ignored_signals, Status::caught_signals]
            .into_iter()
            .any(|set| is_in(pid, set, signal))
}

/// Signals that ask for the end of the process: SIGTERM and SIGINT, unless it ignores them, and
/// others that end it.
pub fn asks_to_end(pid: i32) -> Vec<i32> {
    let asks = |signal: &i32| match *signal {
        libc::SIGTERM | libc::SIGINT => !ignores(pid, *signal),
        other => ends(pid, other),
    };
    program::forwarded().filter(asks).collect()
}

/// Whether the process ignores the signal.
pub fn ignores(pid: i32, signal: i32) -> bool {
    is_in(pid, Status::ignored_signals, signal)
}

/// Whether a set of its signals has this one. So it has where that cannot be read; of one that has
/// ended each is empty.
fn is_in(pid: i32, set: fn(&Status) -> Option<u64>, signal: i32) -> bool {
    let bits = Status::of(pid).ok().and_then(|status| set(&status));
    bits.is_none_or(|bits| bits >> (signal - 1) & 1 == 1)
}

/// Commands of `exec:` that run at a time.
const MAX_RUNNING_COMMANDS: usize = 4;
/// Most reports that wait for their command to run.
const MAX_WAITING_REPORTS: usize = 100;

/// What a command gets.
struct Report {
    pid: i32,
    tid: i32,
    kind: &'static str,
    why: String,
    /// All of it.
    json: String,
}

/// A command that was started.
struct Running {
    child: Child,
    /// Readable once it has ended.
    process: Option<OwnedFd>,
    /// The process that its report is about.
    about: i32,
}

/// The commands of `exec:`: a few run, more wait for those to end, what is beyond that is left out
/// and counted.
#[derive(Default)]
pub struct Commands {
    running: Vec<Running>,
    waiting: VecDeque<Report>,
    left_out: usize,
}

impl Commands {
    /// Has the command run for this report, now or later.
    pub fn add(&mut self, hang: &Hang) {
        if self.waiting.len() >= MAX_WAITING_REPORTS {
            self.left_out += 1;
            return;
        }
        let json = orbit_ahd::json::of_hang(hang).to_string();
        let why = hang.why.clone();
        self.waiting.push_back(Report { pid: hang.pid, tid: hang.tid, kind: hang.kind.word(), why, json });
    }

    /// Whether this process is a command that was started and not reaped.
    pub fn includes(&self, pid: i32) -> bool {
        self.running.iter().any(|running| running.child.id() as i32 == pid)
    }

    /// Readable once one has ended.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.running.iter().filter_map(|running| Some(running.process.as_ref()?.as_fd()))
    }

    /// Runs what may run; answers what was done, and about which process. Waits for nothing.
    pub fn go_on(&mut self, command: &str, signals: &Signals, limit: (u64, u64)) -> Vec<(String, i32)> {
        let mut did = self.ended();
        while self.running.len() < MAX_RUNNING_COMMANDS
            && let Some(report) = self.waiting.pop_front()
        {
            did.push(match exec(command, &report, signals, limit) {
                Ok(child) => {
                    let process = orbit_linux::pidfd::open(child.id() as i32).ok();
                    self.running.push(Running { child, process, about: report.pid });
                    ("started the command".to_owned(), report.pid)
                }
                Err(e) => (format!("could not run the command: {e}"), report.pid),
            });
        }
        if self.waiting.is_empty() && self.left_out != 0 {
            let left_out = std::mem::take(&mut self.left_out);
            let why = format!("{MAX_RUNNING_COMMANDS} run at a time, and {MAX_WAITING_REPORTS} waited");
            did.push((format!("did not run the command for {left_out} more reports: {why}"), 0));
        }
        did
    }

    /// Takes those off that have ended; answers of which it was not well, and about which process.
    fn ended(&mut self) -> Vec<(String, i32)> {
        let mut did = Vec::new();
        self.running.retain_mut(|Running { child, about, .. }| {
            let how = match child.exited() {
                Ok(None) => return true,
                Ok(Some(status)) if status.success() => return false,
                Ok(Some(status)) => match status.code() {
                    Some(code) => format!("the command ended with status {code}"),
                    None => format!("the command was ended by signal {}", status.signal().unwrap_or_default()),
                },
                Err(e) => format!("how the command ended is not known: {e}"),
            };
            did.push((how, *about));
            false
        });
        did
    }

    /// The program has ended: nothing more is run; answers what that leaves out, and how commands
    /// ended, as far as they have.
    pub fn finish(&mut self) -> Vec<(String, i32)> {
        let mut did = self.ended();
        let left_out = self.waiting.len() + self.left_out;
        if left_out != 0 {
            did.push((format!("did not run the command for {left_out} more reports: nothing is watched any more"), 0));
        }
        did
    }
}

/// Runs the shell command of `exec:`, with the report as JSON on its stdin and its main points in
/// the environment. Does not wait for it.
fn exec(command: &str, report: &Report, signals: &Signals, limit: (u64, u64)) -> io::Result<Child> {
    let mut file = File::from(orbit_linux::memfd::create("orbit-guard-report", 0, false)?);
    writeln!(file, "{}", report.json)?;
    file.flush()?;
    file.rewind()?;
    let mut shell = Command::new("/bin/sh");
    program::as_given(&mut shell, signals, limit);
    shell.args(["-c", command]).envs(environment(report)).stdin(Stdio::from(file)).spawn()
}

/// The main points of a report, each under its name and the one that it had while the command was
/// `orbit guard`.
fn environment(report: &Report) -> impl Iterator<Item = (String, String)> {
    let points = [
        ("PID", report.pid.to_string()),
        ("TID", report.tid.to_string()),
        ("KIND", report.kind.to_owned()),
        ("WHY", report.why.clone()),
    ];
    points.into_iter().flat_map(|(point, value)| {
        ["ORBIT_WATCH_", "ORBIT_GUARD_"].map(|prefix| (format!("{prefix}{point}"), value.clone()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_signals_end_a_process() {
        // This thread: another one holds all signals back while it makes a thread.
        // SAFETY: reads a number.
        let own = unsafe { libc::gettid() };
        assert!(ends(own, libc::SIGKILL) && ends(own, libc::SIGUSR1));
        // Rust's runtime ignores SIGPIPE and handles SIGSEGV.
        for signal in [libc::SIGPIPE, libc::SIGSEGV, libc::SIGSTOP, libc::SIGCONT] {
            assert!(!ends(own, signal), "{signal}");
        }
    }

    #[test]
    fn actions() {
        assert_eq!("signal:SIGABRT".parse(), Ok(Action::Signal(libc::SIGABRT)));
        assert_eq!("signal:12".parse(), Ok(Action::Signal(12)));
        assert_eq!("recover".parse(), Ok(Action::Recover));
        assert_eq!("exec:a:b".parse(), Ok(Action::Exec("a:b".into())));
        let (low, high) = (libc::SIGRTMIN(), libc::SIGRTMAX());
        for (name, number) in [
            ("CONT", libc::SIGCONT),
            ("SIGSYS", libc::SIGSYS),
            ("CLD", libc::SIGCHLD),
            ("RTMIN", low),
            ("SIGRTMIN+3", low + 3),
            ("RTMAX-1", high - 1),
            ("RTMAX", high),
        ] {
            assert_eq!(format!("signal:{name}").parse(), Ok(Action::Signal(number)), "{name}");
        }
        assert!(SIGNALS.iter().take(31).map(|(_, number)| *number).eq(1..=31), "a name for each");
        for wrong in [
            "",
            "signal",
            "signal:65",
            "signal:RTMIN+31",
            "signal:RTMIN-1",
            "signal:RTMAX-31",
            "exec:",
            "kill:9",
            "Report",
        ] {
            assert!(wrong.parse::<OnHang>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_that_a_hang_is_to_last() {
        let on_hang: OnHang = "after=2m:restart".parse().expect("an action");
        let (after, action) = (on_hang.after, on_hang.action);
        assert_eq!((after, action), (Some(Duration::from_secs(120)), Action::Restart));
        for wrong in
            ["after=60:kill", "after=0s:kill", "after=25h:kill", "after=:kill", "after=60s", "after=6\u{e4}:kill"]
        {
            assert!(wrong.parse::<OnHang>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_certain_reports_are_acted_on_unless_asked_for() {
        let spared = |text: &str| {
            let on_hang: OnHang = text.parse().expect("an action");
            [Sure::Guess, Sure::Likely, Sure::Certain].map(|sure| on_hang.spares(sure))
        };
        for action in ["kill", "restart", "signal:TERM", "exec:true", "certain:kill"] {
            assert_eq!(spared(action), [true, true, false], "{action}");
        }
        assert_eq!(spared("likely:kill"), [true, false, false]);
        assert_eq!(spared("guess:exec:likely:x"), [false; 3]);
        assert_eq!(spared("report"), [false; 3]);
        for wrong in ["likely", "likely:", "sure:kill", "likely:likely:kill", "Likely:kill"] {
            assert!(wrong.parse::<OnHang>().is_err(), "{wrong}");
        }
    }
}
