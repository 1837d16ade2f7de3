//! A guard that is killed with -9 while probes of a hot function come and go leaves none in the program, and none to the kernel.

mod guard_common;
use guard_common::{Dir, Owned, build, signal, skipped, until};
use orbit_linux::Support;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::time::Duration;

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

/// The kernel's log from now on.
fn log() -> Option<std::fs::File> {
    let mut log = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").ok()?;
    log.seek(SeekFrom::End(0)).ok()?;
    Some(log)
}

#[test]
fn while_probes_come_and_go() {
    if skipped() {
        return;
    }
    if let Support::No(why) = orbit_linux::uprobes::probe() {
        println!("SKIP: needs {why}");
        return;
    }
    let Some(mut log) = log() else {
        println!("SKIP: needs the kernel's log");
        return;
    };
    let dir = Dir::new("sections-killed");
    let program = build(&dir, "hot.c");
    let hot = Owned(Command::new(program).stdin(Stdio::piped()).spawn().expect("the program"));
    let pid = hot.0.id();
    until("its code", || {
        std::fs::read_to_string(format!("/proc/{pid}/maps")).ok().filter(|maps| maps.contains("/hot"))
    });
    let before = code(pid);
    for n in 0..KILLS {
        let mut orbit = Command::new(env!("CARGO_BIN_EXE_orbit"));
        orbit.args(["guard", "--pid", &pid.to_string(), "--section", "work=work"]);
        let mut guard = Owned(orbit.stderr(Stdio::null()).spawn().expect("orbit"));
        until("probes", || (code(pid) != before).then_some(()));
        // At another moment each time: windows open and close some times a second.
        std::thread::sleep(Duration::from_millis(n * 37));
        signal(guard.0.id() as i32, libc::SIGKILL);
        guard.0.wait().expect("the guard");
        until("the program's code as it was", || (code(pid) == before).then_some(()));
    }
    let mut said = String::new();
    let mut line = [0; 8192];
    while let Ok(n @ 1..) = log.read(&mut line) {
        said += &String::from_utf8_lossy(&line[..n]);
    }
    let leaks: Vec<&str> = said.lines().filter(|l| l.contains("uprobe") && l.contains("unregister")).collect();
    assert!(leaks.is_empty(), "{leaks:?}");
}
