//! The ways to see a call, each in a process of its own; and whole programs.

use super::failure;
use orbit_console::out::Failure;
use orbit_hijack::{Options, Session};
use orbit_linux::child::Exit;
use orbit_linux::{descriptors, map};
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A way to see a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Native,
    Rewritten,
    Saved,
    Trapped,
    Traced,
    Dispatch,
    Notify,
    Ptrace,
    /// A call of an address in page 0, as zpoline makes of a syscall.
    PageZero,
}

/// A program whose time counts.
pub struct Program {
    pub name: &'static str,
    pub arguments: &'static [&'static str],
    /// Times native, at most.
    pub limit: Option<f64>,
}

/// The programs that this machine has.
pub fn programs(quick: bool) -> Vec<Program> {
    let dd: &[&str] = if quick {
        &["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=20000"]
    } else {
        &["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=200000"]
    };
    let all = [
        Program { name: "dd bs=1", arguments: dd, limit: Some(1.25) },
        Program { name: "find /usr/share", arguments: &["find", "/usr/share", "-name", "x"], limit: Some(1.03) },
        Program {
            name: "bash with 20 execs",
            arguments: &["bash", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i | cat | wc -c; done"],
            limit: Some(1.03),
        },
    ];
    let has = |name: &str| name.contains('/') || Command::new(name).arg("--version").output().is_ok();
    all.into_iter().filter(|program| has(program.arguments[0])).collect()
}

/// Whether a process may map page 0.
pub fn has_page_zero() -> bool {
    let is_mapped = super::guest::map_page_zero().is_ok();
    if is_mapped {
        // SAFETY: nothing uses the page that was just mapped; accesses by null pointers must fault
        // again.
        let _ = unsafe { map::unmap(0, 4096) };
    }
    is_mapped
}

/// Whether strace is installed.
pub fn has_strace() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success()))
}

/// Runs a program natively (0), under the executive (1), under strace (2): how long it took.
/// `None`: no strace.
pub fn program(program: &Program, way: usize) -> Result<Option<Duration>, Failure> {
    let failed = |error: std::io::Error| failure(program.name, &error);
    let quiet = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    };
    let began = Instant::now();
    if way == 1 {
        let arguments: Vec<OsString> = program.arguments.iter().map(OsString::from).collect();
        // The host's part of a session is not the guest's start: it ends before the clock runs.
        let mut session = Session::start_with(&Options::default(), &arguments, quiet).map_err(failed)?;
        session.follow(|_| Ok(())).map_err(failed)?;
        return Ok(Some(began.elapsed()));
    }
    let mut command = if way == 0 { Command::new(program.arguments[0]) } else { Command::new("strace") };
    if way == 0 {
        command.args(&program.arguments[1..]);
    } else if has_strace() {
        command.args(["-f", "-c", "-o", "/dev/null"]).args(program.arguments);
    } else {
        return Ok(None);
    }
    quiet(&mut command);
    command.status().map_err(failed)?;
    Ok(Some(began.elapsed()))
}

/// Cycles of one getppid: the median batch of one process.
pub fn call(way: Way) -> Result<f64, Failure> {
    let word = match way {
        Way::Dispatch => "dispatch",
        Way::Notify => "notify",
        Way::Ptrace => "ptrace",
        Way::PageZero => "page-zero",
        _ => "plain",
    };
    measured(way, word)
}

/// Microseconds from the start of /bin/true to its end, as a program sees it that runs this way.
pub fn start(way: Way) -> Result<f64, Failure> {
    measured(way, "start")
}

/// Cycles of a call that only guests have, by the word of `guest.rs`; `is_guest` false: natively, a
/// rival.
pub fn between(word: &str, is_guest: bool) -> Result<f64, Failure> {
    measured(if is_guest { Way::Rewritten } else { Way::Native }, word)
}

/// The figure that a process reports that runs this way.
fn measured(way: Way, word: &str) -> Result<f64, Failure> {
    let failed = |error: std::io::Error| failure("a process that measures", &error);
    let (mut reader, writer) = std::io::pipe().map_err(failed)?;
    let fd = writer.as_raw_fd();
    let exe = std::env::current_exe().map_err(failed)?;
    let arguments = ["hijack", "--guest", word, &fd.to_string()].map(OsString::from);
    let keep = move || descriptors::inherit(fd);
    let options = Options {
        trace: way == Way::Traced,
        no_rewrite: way == Way::Trapped,
        save_all: way == Way::Saved,
        ..Options::default()
    };
    if matches!(way, Way::Rewritten | Way::Saved | Way::Trapped | Way::Traced) {
        let mut all = vec![exe.into_os_string()];
        all.extend(arguments);
        let configure = |command: &mut Command| {
            // SAFETY: the closure only makes a system call.
            unsafe { command.pre_exec(keep) };
        };
        let mut session = Session::start_with(&options, &all, configure).map_err(failed)?;
        drop(writer);
        session.follow(|_| Ok(())).map_err(failed)?;
    } else {
        let mut command = Command::new(exe);
        command.args(arguments);
        // SAFETY: the closure only makes a system call.
        unsafe { command.pre_exec(keep) };
        let mut child = command.spawn().map_err(failed)?;
        drop(writer);
        child.wait_for_exit().map_err(failed)?;
    }
    let mut text = String::new();
    reader.read_to_string(&mut text).map_err(failed)?;
    text.trim().parse().map_err(|_| failure("a process that measures", &format!("{way:?} reported {text:?}")))
}
