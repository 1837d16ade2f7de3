//! A program gets its signals as if nothing stood between: what was ignored stays ignored, what was
//! blocked stays blocked, and Ctrl-C reaches it once, also where the terminal does not send it
//! there, or ends a guard that has no program of its own.

mod guard_common;
use guard_common::{Dir, Owned, PATIENCE};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const ORBIT: &str = env!("CARGO_BIN_EXE_orbit");

/// Signals that are ignored and blocked when a program is started.
#[derive(Clone, Copy)]
struct Given {
    ignored: &'static [i32],
    blocked: &'static [i32],
}

const USUAL: Given = Given { ignored: &[], blocked: &[] };
const ODD: Given = Given { ignored: &[libc::SIGPIPE, libc::SIGHUP, libc::SIGCHLD], blocked: &[libc::SIGUSR1] };

fn run(given: Given, program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    // SAFETY: only async-signal-safe calls.
    unsafe {
        command.pre_exec(move || {
            for signal in given.ignored {
                libc::signal(*signal, libc::SIG_IGN);
            }
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in given.blocked {
                libc::sigaddset(&raw mut set, *signal);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
            Ok(())
        });
    }
    command.output().expect("it runs")
}

const SHOW_SIGNALS: [&str; 4] = ["grep", "-E", "Sig(Ign|Blk|Cgt)", "/proc/self/status"];

fn same_as_alone(options: &[&str]) {
    for given in [USUAL, ODD] {
        let alone = String::from_utf8(run(given, SHOW_SIGNALS[0], &SHOW_SIGNALS[1..]).stdout).expect("text");
        let bits = |name: &str| {
            let line = alone.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
            u64::from_str_radix(line.trim_start_matches([':', '\t']), 16).expect("hexadecimal")
        };
        for (name, signals) in [("SigIgn", given.ignored), ("SigBlk", given.blocked)] {
            let set = signals.iter().fold(0, |all, signal| all | 1 << (signal - 1));
            assert_eq!(bits(name) & set, set, "{alone}");
        }
        let through = run(given, ORBIT, &[options, &["--"], &SHOW_SIGNALS].concat());
        assert!(through.status.success(), "{through:?}");
        assert_eq!(String::from_utf8(through.stdout).expect("text"), alone, "{options:?}");
    }
}

#[test]
fn what_was_ignored_stays_ignored() {
    same_as_alone(&["watch"]);
}

#[test]
fn so_it_does_under_modules_run() {
    let tried = Command::new(ORBIT).args(["modules", "run", "ahd", "--", "true"]).output().expect("orbit");
    if !tried.status.success() {
        println!("SKIP: needs `orbit modules run ahd`: {}", String::from_utf8_lossy(&tried.stderr));
        return;
    }
    same_as_alone(&["modules", "run", "ahd"]);
}

#[test]
fn the_status_is_known_where_sigchld_is_ignored() {
    assert_eq!(run(ODD, ORBIT, &["watch", "--", "sh", "-c", "exit 42"]).status.code(), Some(42));
}

/// Both sides of a new terminal. `openpty` would leave them open in the children of other tests,
/// for which it then would not end.
fn terminal() -> (File, File) {
    let open = |path: &str| File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path);
    let master = open("/dev/ptmx").expect("a terminal");
    let mut name = [0; 64];
    // SAFETY: a descriptor that lives, and a place for the name, as long as said.
    unsafe {
        assert_eq!(libc::unlockpt(master.as_raw_fd()), 0);
        assert_eq!(libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
    }
    // SAFETY: the call has ended the name.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    let slave = open(name.to_str().expect("a path")).expect("its other side");
    (master, slave)
}

/// A command in a session of its own with a terminal, whose other side is the answer.
fn on_terminal(args: &[&str]) -> (Owned, File) {
    let mut orbit = Command::new(ORBIT);
    orbit.args(args);
    leads_a_session(orbit)
}

fn leads_a_session(mut command: Command) -> (Owned, File) {
    let (master, slave) = terminal();
    let fd = slave.as_raw_fd();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    // SAFETY: only async-signal-safe calls, on a descriptor that lives until then.
    unsafe {
        command.pre_exec(move || {
            // What starts the test may ignore them.
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            if libc::setsid() < 0 || libc::ioctl(fd, libc::TIOCSCTTY, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let child = Owned(command.spawn().expect("orbit"));
    (child, master)
}

fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn end(child: &mut Owned) -> Option<i32> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.0.try_wait().expect("wait") {
            return status.code();
        }
        assert!(start.elapsed() < PATIENCE, "the guard does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

const COUNTS: &str = "trap 'echo >>$1' INT; trap 'exit 6' USR1; echo >$0; while :; do sleep 0.02; done";

#[test]
fn ctrl_c_ends_a_guard_that_joined() {
    let program = Owned(Command::new("sleep").arg("1000").spawn().expect("sleep"));
    let dir = Dir::new("ctrl-c-joined");
    let events = dir.0.join("events");
    let pid = program.0.id().to_string();
    let (mut guard, mut terminal) =
        on_terminal(&["watch", "--events", events.to_str().expect("a path"), "--pid", &pid]);
    until("the guard to join", || lines(&events) > 0);
    terminal.write_all(b"\x03").expect("Ctrl-C");
    assert_eq!(end(&mut guard), Some(0));
    drop(program);
}

#[test]
fn ctrl_c_reaches_a_program_in_another_session() {
    let dir = Dir::new("ctrl-c-apart");
    let (ready, count) = (dir.0.join("ready"), dir.0.join("count"));
    let script = COUNTS.replace("echo >>$1", "exit 9");
    let paths = [ready.to_str().expect("a path"), count.to_str().expect("a path")];
    let (mut guard, mut terminal) =
        on_terminal(&[&["watch", "--", "setsid", "sh", "-c", &script][..], &paths].concat());
    until("the program", || ready.exists());
    terminal.write_all(b"\x03").expect("Ctrl-C");
    assert_eq!(end(&mut guard), Some(9));
}

#[test]
fn ctrl_c_reaches_a_program_in_the_foreground_once() {
    let dir = Dir::new("ctrl-c-once");
    let (ready, count) = (dir.0.join("ready"), dir.0.join("count"));
    let paths = [ready.to_str().expect("a path"), count.to_str().expect("a path")];
    let events = dir.0.join("events");
    let options = ["watch", "--events", events.to_str().expect("a path"), "--", "sh", "-c", COUNTS];
    let (mut guard, mut terminal) = on_terminal(&[&options[..], &paths].concat());
    // What comes while it is being started may have come before it was there, and continues.
    until("the guard and the program", || ready.exists() && lines(&events) > 0);
    terminal.write_all(b"\x03").expect("Ctrl-C");
    until("the first", || lines(&count) > 0);
    // The guard takes signals in the order of their numbers, so a second SIGINT would come before
    // this.
    guard_common::signal(guard.0.id() as i32, libc::SIGUSR1);
    assert_eq!(end(&mut guard), Some(6));
    assert_eq!(lines(&count), 1);
}

fn named(pid: u32, name: &str) -> Vec<i32> {
    let children = orbit_linux::procfs::text(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let comm = |pid: &i32| orbit_linux::procfs::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| comm(pid).trim_end() == name).collect()
}

#[test]
fn the_end_of_the_terminal_reaches_it_through_the_guard_that_leads_the_session() {
    let script = COUNTS.replace("USR1", "HUP");
    for witnesses in [true, false] {
        let dir = Dir::new(&format!("terminal-ends-{witnesses}"));
        let (ready, count) = (dir.0.join("ready"), dir.0.join("count"));
        let paths = [ready.to_str().expect("a path"), count.to_str().expect("a path")];
        let (mut guard, terminal) = on_terminal(&[&["watch", "--", "sh", "-c", &script][..], &paths].concat());
        until("the program", || ready.exists());
        if !witnesses {
            for pid in named(guard.0.id(), "guard-witness") {
                guard_common::signal(pid, libc::SIGKILL);
            }
        }
        drop(terminal);
        let start = Instant::now();
        while guard.0.try_wait().expect("wait").is_none() {
            if start.elapsed() > PATIENCE {
                // It would stay when the guard is killed.
                named(guard.0.id(), "sh").into_iter().for_each(|pid| guard_common::signal(pid, libc::SIGKILL));
                panic!("the guard does not end, witnesses: {witnesses}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(end(&mut guard), Some(6), "witnesses: {witnesses}");
    }
}

#[test]
fn a_shell_learns_that_the_program_stopped_itself() {
    let dir = Dir::new("stops-itself");
    let report = dir.0.join("report");
    let script = r#"set -m; "$0" guard -- sh -c 'kill -STOP $$; exit 5'; echo $? >>"$1"; fg; echo $? >>"$1""#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, ORBIT]).arg(&report);
    let (mut shell, _terminal) = leads_a_session(shell);
    until("the shell to continue", || lines(&report) == 2);
    assert_eq!(end(&mut shell), Some(0));
    let report = std::fs::read_to_string(&report).expect("a file");
    assert_eq!(report, format!("{}\n5\n", 128 + libc::SIGTSTP));
}
