//! A program that the guard joined and leaves has its code back, breakpoints of sections by name
//! included.

use crate::guard_common::{Dir, Owned, signal, until};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

/// The code of libc as a process has it; nothing while it is not loaded.
fn code(pid: u32) -> Option<Vec<u8>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its maps");
    let line = maps.lines().find(|line| line.contains("/libc.so.6") && line.contains(" r-xp "))?;
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let number = |hex: &str| u64::from_str_radix(hex, 16).expect("a number");
    let mut code = vec![0; (number(end) - number(start)) as usize];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    memory.read_exact_at(&mut code, number(start)).expect("its code");
    Some(code)
}

fn leave(name: &str, options: &[&str]) {
    let dir = Dir::new(name);
    // Functions of a file that the guard maps as well.
    let sections = ["--section", "x=libc.so.6:clock_nanosleep", "--section", "y=libc.so.6:read"];
    let program = Owned(Command::new("sleep").arg("1000").spawn().expect("sleep"));
    let pid = program.0.id();
    until("the program", || code(pid).filter(|_| sleeps(pid)));
    let before = code(pid);
    let mut orbit = Command::new(env!("CARGO_BIN_EXE_orbit"));
    orbit.args(["watch", "--pid", &pid.to_string()]).args(sections).args(options);
    let events = dir.0.join("events");
    let mut guard = Owned(orbit.arg("--events").arg(&events).stderr(Stdio::null()).spawn().expect("orbit"));
    let probed = until("probes", || {
        let lacking = std::fs::read_to_string(&events).is_ok_and(|said| said.contains("\"trouble\""));
        (lacking || code(pid) != before).then_some(!lacking)
    });
    if !probed {
        println!("SKIP: needs uprobes, and a libc.so.6 with these functions");
        return;
    }
    signal(guard.0.id() as i32, libc::SIGTERM);
    assert!(guard.0.wait().expect("the guard").success());
    let after = code(pid);
    assert!(before == after, "{options:?}: code differs");
}

/// It has started: its loader has come to an end.
fn sleeps(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its state");
    stat.contains("(sleep) S")
}

#[test]
fn by_a_module() {
    leave("leave-module", &[]);
}

#[test]
fn in_process() {
    leave("leave-here", &["--in-process"]);
}
