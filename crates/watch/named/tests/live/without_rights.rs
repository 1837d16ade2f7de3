//! Without rights for uprobes a section by name that jumps back to its first instruction, and is
//! left by a jump through a pointer, is not reported.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Event};
use orbit_modules::hangs::Settings;
use orbit_named::Named;
use std::process::Command;
use std::time::Duration;

#[test]
fn turns_by_way_of_the_first_instruction() {
    if !give_up(&[CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF]) {
        println!("SKIP: needs capset");
        return;
    }
    let dir = Dir::new("without-rights");
    let Some(program) = dir.build("unknown", include_str!("c/unknown.c")) else { return };
    let mut program = Program::start(Command::new(program).args(["turns", "70"]));
    let section = Named { name: "turns".into(), function: "turns".parse().expect("a function") };
    let config = Settings {
        config: Config { limit: Duration::from_secs(1), ..Config::default() },
        sections: vec![section],
        ..Settings::default()
    };
    let mut watcher = Watcher::of(program.pid(), config);
    while program.0.try_wait().expect("wait").is_none() {
        watcher.scan();
    }
    watcher.quiet();
    let is_limited =
        |e: &Event| matches!(e, Event::Trouble { text, .. } if text.contains("found by stacks and breakpoints"));
    assert!(watcher.events.iter().any(is_limited), "it had the rights: {:#?}", watcher.events);
}

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Takes capabilities from the calling thread, and so from those that it starts.
fn give_up(capabilities: &[u32]) -> bool {
    let header = [0x2008_0522u32, 0];
    // Effective, permitted, inheritable; low words, then high ones.
    let mut data = [0u32; 6];
    // SAFETY: version 3 takes a header of two words and data of six, which these are; 0 is the
    // calling thread.
    if unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) } != 0 {
        return false;
    }
    for c in capabilities {
        for set in 0..3 {
            data[(c / 32) as usize * 3 + set] &= !(1 << (c % 32));
        }
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) == 0 }
}
