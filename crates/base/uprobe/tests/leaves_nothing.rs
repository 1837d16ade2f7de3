//! The process that probes is never probed itself, and once it has settled the program's code is as
//! it was.

mod common;
use common::{PATIENCE, Program, duty, until};
use std::os::unix::fs::FileExt;

#[test]
fn code_is_as_before_and_this_process_untouched() {
    let Some(mut duty) = duty(None) else { return };
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    assert!(!maps.contains("[uprobes]"), "this process was probed:\n{maps}");
    let mut program = Program::start("settled", "counted.c");
    let memory = std::fs::File::open(format!("/proc/{}/mem", program.pid())).expect("its memory");
    let code = || {
        let mut bytes = vec![0; program.code().len()];
        memory.read_exact_at(&mut bytes, program.address).expect("its code");
        bytes
    };
    let id = duty.watch(program.target());
    until("it is not probed", || duty.tally(id).is_some_and(|t| t.attached));
    assert_ne!(code(), program.code(), "breakpoints");
    duty.leave(id);
    assert!(duty.settle(PATIENCE), "probes are left");
    assert_eq!(code(), program.code());
    program.run(0, 1000);
    assert!(duty.tally(id).is_none());
}
