//! A probed function reads its own constants as they are, also those with the bytes of return
//! instructions; where exits are unknown each entry begins a new execution.

mod common;
use common::{Program, duty, until};

#[test]
fn constants_among_the_code() {
    let Some(mut duty) = duty(None) else { return };
    let mut program = Program::start("constants", "constants.c");
    let id = duty.watch(program.target());
    until("no probes", || duty.tally(id).is_some_and(|t| t.attached));
    // It says so if it reads anything else.
    program.run(0, 1000);
    let first = duty.record(id, program.pid()).expect("a record");
    assert_eq!((first.entries, first.exits.iter().sum::<u64>()), (1000, 0), "{first:?}");
    // It has left, which nobody saw: one that is called from further down the stack is not a part
    // of that execution.
    program.run(1, 1);
    let next = duty.record(id, program.pid()).expect("a record");
    assert!(next.entries == 1001 && next.time > first.time && next.sp < first.sp, "{first:?} {next:?}");
}
