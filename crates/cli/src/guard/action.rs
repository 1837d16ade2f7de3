//! What is done about a hang.

use super::program::{self, Signals};
use orbit_ahd::Hang;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::process::{Command, Stdio};
use std::str::FromStr;

/// What to do when the program hangs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OnHang {
    /// Say so, and nothing else.
    #[default]
    Report,
    /// Send the hung process this signal.
    Signal(i32),
    /// Kill the hung process.
    Kill,
    /// Kill the program with all processes it made, and start it anew.
    Restart,
    /// Run this shell command, the report on its stdin.
    Exec(String),
}

/// Signals by name, as far as they make sense here.
const SIGNALS: [(&str, i32); 14] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("STOP", libc::SIGSTOP),
    ("XCPU", libc::SIGXCPU),
];

fn signal(text: &str) -> Result<i32, String> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    if let Some((_, number)) = SIGNALS.iter().find(|(n, _)| *n == name) {
        return Ok(*number);
    }
    name.parse().ok().filter(|n| (1..=64).contains(n)).ok_or_else(|| {
        let all: Vec<&str> = SIGNALS.iter().map(|(n, _)| *n).collect();
        format!("`{text}` is no signal: use one of {} or a number from 1 to 64", all.join(", "))
    })
}

impl FromStr for OnHang {
    type Err = String;

    fn from_str(text: &str) -> Result<OnHang, String> {
        match text.split_once(':') {
            None if text == "report" => Ok(OnHang::Report),
            None if text == "kill" => Ok(OnHang::Kill),
            None if text == "restart" => Ok(OnHang::Restart),
            Some(("signal", name)) => signal(name).map(OnHang::Signal),
            Some(("exec", command)) if !command.trim().is_empty() => Ok(OnHang::Exec(command.to_owned())),
            _ => Err(format!("`{text}` is no action: use report, signal:SIG, kill, restart or exec:CMD")),
        }
    }
}

/// Whether the signal ends the process: it cannot or does not handle, ignore or hold it back, and it is not one that does nothing
/// or only stops.
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
    !HARMLESS.contains(&signal) && !["SigBlk:", "SigIgn:", "SigCgt:"].into_iter().any(|set| is_in(pid, set, signal))
}

/// Signals that ask for the end of the process: SIGTERM and SIGINT, unless it ignores them, and others that end it.
pub fn asks_to_end(pid: i32) -> Vec<i32> {
    let asks = |signal: &i32| match *signal {
        libc::SIGTERM | libc::SIGINT => !is_in(pid, "SigIgn:", *signal),
        other => ends(pid, other),
    };
    program::FORWARDED.into_iter().filter(asks).collect()
}

/// Whether a set of its signals, by the name it has in `status`, has this one. So it has where that cannot be read; of one that has ended each is empty.
fn is_in(pid: i32, set: &str, signal: i32) -> bool {
    let status = orbit_linux::procfs::text(format!("/proc/{pid}/status")).unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix(set)).map(str::trim);
    bits.and_then(|bits| u64::from_str_radix(bits, 16).ok()).is_none_or(|bits| bits >> (signal - 1) & 1 == 1)
}

/// Runs the shell command of `exec:`, with the report as JSON on its stdin and its main points in the environment. Does not wait
/// for it.
pub fn exec(command: &str, hang: &Hang, signals: &Signals, limit: libc::rlimit) -> io::Result<std::process::Child> {
    let mut report = File::from(orbit_linux::memfd::create("orbit-guard-report", 0, false)?);
    writeln!(report, "{}", orbit_ahd::json::of_hang(hang))?;
    report.flush()?;
    report.rewind()?;
    let mut shell = Command::new("/bin/sh");
    program::as_given(&mut shell, signals, limit);
    shell
        .args(["-c", command])
        .env("ORBIT_GUARD_PID", hang.pid.to_string())
        .env("ORBIT_GUARD_TID", hang.tid.to_string())
        .env("ORBIT_GUARD_KIND", hang.kind.word())
        .env("ORBIT_GUARD_WHY", &hang.why)
        .stdin(Stdio::from(report))
        .spawn()
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
        assert_eq!("signal:SIGABRT".parse(), Ok(OnHang::Signal(libc::SIGABRT)));
        assert_eq!("signal:12".parse(), Ok(OnHang::Signal(12)));
        assert_eq!("exec:a:b".parse(), Ok(OnHang::Exec("a:b".into())));
        for wrong in ["", "signal", "signal:65", "exec:", "kill:9", "Report"] {
            assert!(wrong.parse::<OnHang>().is_err(), "{wrong}");
        }
    }
}
