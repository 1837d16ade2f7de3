//! Every entry and exit is counted, nested ones apart, with the CPU time of each exit's executions.

mod common;
use common::{Program, duty, until};

#[test]
fn entries_exits_nesting_and_longjmp() {
    let Some(mut duty) = duty(None) else { return };
    let mut program = Program::start("counted", "counted.c");
    let target = program.target();
    assert_eq!(target.shape.exits.len(), 3, "two returns and a tail call: {:?}", target.shape);
    let id = duty.watch(target);
    until("no probes", || duty.tally(id).is_some_and(|t| t.attached));
    program.run(0, 700);
    program.run(1, 30);
    program.run(2, 5);
    let record = duty.record(id, program.pid()).expect("a record");
    assert_eq!((record.entries, record.sp), (735, 0), "{record:?}");
    assert_eq!(record.exits[..3], [700, 30, 5], "{record:?}");
    let each = record.used[2] / 5;
    assert!((19_000_000..40_000_000).contains(&each), "20 ms of CPU each: {record:?}");
    assert!(record.used[0] / 700 < 1_000_000, "{record:?}");
    // Nested: two entries each, of which the outer one is measured, and leaves by its own exit.
    program.run(3, 10);
    let nested = duty.record(id, program.pid()).expect("a record");
    assert_eq!((nested.entries, nested.sp), (755, 0));
    assert_eq!(nested.exits[..3], [700, 30, 15], "{nested:?}");
    // Left by no exit: the next entry begins a new execution all the same.
    program.run(10, 4);
    let jumped = duty.record(id, program.pid()).expect("a record");
    assert!(jumped.sp != 0 && jumped.entries == 759, "{jumped:?}");
    program.run(0, 1);
    let after = duty.record(id, program.pid()).expect("a record");
    assert_eq!((after.sp, after.exits[0]), (0, 701), "{after:?}");
    until("hits are not shown", || {
        duty.tally(id).is_some_and(|t| t.hits.entries == 760 && t.hits.exits == 755 + 1 && t.hits.lost == 0)
    });
}
