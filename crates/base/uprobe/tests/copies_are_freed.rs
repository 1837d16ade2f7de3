//! A child that a probed process makes by `fork` is freed of the breakpoints it inherits, while the
//! process stays probed.

mod common;
use common::{Program, duty, until};
use std::os::unix::fs::FileExt;
use std::time::Instant;

#[test]
fn a_child_has_no_breakpoints_a_moment_later() {
    let Some(mut duty) = duty(None) else { return };
    let mut program = Program::start("forks", "forks.c");
    let me = std::process::id();
    if std::fs::metadata(format!("/proc/{me}/task/{me}/children")).is_err() {
        println!("SKIP: needs CONFIG_PROC_CHILDREN");
        return;
    }
    let code = program.code();
    let id = duty.watch(program.target());
    until("it is not probed", || duty.tally(id).is_some_and(|t| t.attached));
    for n in 1..=2 {
        let child: i32 = program.ask("fork").parse().expect("a process");
        let began = Instant::now();
        let memory = std::fs::File::open(format!("/proc/{child}/mem")).expect("its memory");
        let code_of_child = || {
            let mut bytes = vec![0; code.len()];
            memory.read_exact_at(&mut bytes, program.address).expect("its code");
            bytes
        };
        let inherited = code_of_child() != code;
        until("breakpoints stay", || code_of_child() == code);
        println!("inherited: {inherited}, freed after {:?}", began.elapsed());
        let tally = duty.tally(id).expect("an account");
        assert!(tally.attached && tally.windows == 1, "{tally:?}");
        until("hits are not shown", || duty.tally(id).is_some_and(|t| t.hits.entries == n));
    }
}
