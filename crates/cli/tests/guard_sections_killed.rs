//! A guard that is killed with -9 while probes of a hot function come and go leaves none in the
//! program, which continues, and no process of its own.

mod guard_common;
use guard_common::{Dir, Owned, PATIENCE, build, signal, skipped, until};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const KILLS: u64 = 6;

/// The program's code as its process has it.
fn code(pid: u32) -> Vec<u8> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its maps");
    let line = maps.lines().find(|line| line.contains("/hot") && line.contains(" r-xp ")).expect("its code");
    let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
    let number = |hex: &str| u64::from_str_radix(hex, 16).expect("a number");
    let mut code = vec![0; (number(end) - number(start)) as usize];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    memory.read_exact_at(&mut code, number(start)).expect("its code");
    code
}

#[test]
fn while_probes_come_and_go() {
    if skipped() {
        return;
    }
    // SAFETY: always succeeds.
    if unsafe { libc::geteuid() } != 0 || orbit_linux::uprobes::kind().is_err() {
        println!("SKIP: needs root and uprobes");
        return;
    }
    let dir = Dir::new("sections-killed");
    let program = build(&dir, "hot.c");
    let mut hot = Owned(Command::new(program).stdin(Stdio::piped()).spawn().expect("the program"));
    let pid = hot.0.id();
    until("its code", || {
        std::fs::read_to_string(format!("/proc/{pid}/maps")).ok().filter(|maps| maps.contains("/hot"))
    });
    let mut before = code(pid);
    let mut left = 0;
    for n in 0..KILLS {
        let mut orbit = Command::new(env!("CARGO_BIN_EXE_orbit"));
        orbit.args(["watch", "--pid", &pid.to_string(), "--section", "work=work"]);
        let mut guard = Owned(orbit.stderr(Stdio::null()).spawn().expect("orbit"));
        until("probes", || (code(pid) != before).then_some(()));
        // At another moment each time: windows open and close some times a second.
        std::thread::sleep(Duration::from_millis(n * 37));
        signal(guard.0.id() as i32, libc::SIGKILL);
        guard.0.wait().expect("the guard");
        let killed = Instant::now();
        while code(pid) != before && killed.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        left += u32::from(code(pid) != before);
        before = code(pid);
    }
    assert!(hot.0.try_wait().expect("wait").is_none(), "the program has ended");
    assert_eq!(left, 0, "of {KILLS} that left a breakpoint");
}
