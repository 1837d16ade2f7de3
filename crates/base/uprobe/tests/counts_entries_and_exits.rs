//! Every entry and exit is counted, nested ones apart, with the CPU time of each exit's executions.

mod common;
use common::{Program, duty, until};

#[test]
fn entries_exits_nesting_and_longjmp() {
    let Some(mut duty) = duty(None) else { return };
    let mut program = Program::start("counted", "counted.c");
    let target = program.target();
    assert_eq!(target.shape.exits, 3, "two returns and a tail call: {:?}", target.shape);
    let id = duty.watch(target);
    until("no probes", || duty.tally(id).is_some_and(|t| t.attached));
    program.run(0, 700);
    program.run(1, 30);
    program.run(2, 5);
    let record = duty.record(id, program.pid()).expect("a record");
    assert_eq!((record.entries, record.sp), (735, 0), "{record:?}");
    assert_eq!(record.exits[..3], [700, 30, 5], "{record:?}");
    let each = record.used[2] / 5;
    // On a busy host a virtual machine is charged for what others used.
    assert!((19_000_000..1_000_000_000).contains(&each), "20 ms of CPU each: {record:?}");
    assert!(record.used[0] / 700 < each / 10, "{record:?}");
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

#[test]
fn left_by_no_exit_then_entered_from_further_down() {
    let Some(mut duty) = duty(None) else { return };
    let mut program = Program::start("further-down", "counted.c");
    let id = duty.watch(program.target());
    until("no probes", || duty.tally(id).is_some_and(|t| t.attached));
    program.run(10, 1);
    let jumped = duty.record(id, program.pid()).expect("a record");
    assert!(jumped.sp != 0 && jumped.opened == jumped.entries, "{jumped:?}");
    // What was at the place of its return address is no more: these are executions of their own.
    program.run(100, 5);
    let after = duty.record(id, program.pid()).expect("a record");
    assert_eq!((after.entries, after.sp, after.exits[0]), (6, 0, 5), "{after:?}");
    // Those that are called by one that is open are not.
    program.run(109, 1);
    let nested = duty.record(id, program.pid()).expect("a record");
    assert_eq!((nested.entries, nested.sp, nested.opened), (10, 0, 7), "{nested:?}");
    assert_eq!((nested.exits[0], nested.exits[2]), (5, 1), "{nested:?}");
}

#[test]
fn two_watch_the_same_function() {
    let (Some(mut one), Some(mut other)) = (duty(None), duty(None)) else { return };
    let mut program = Program::start("watched-twice", "counted.c");
    let ids = [one.watch(program.target()), other.watch(program.target())];
    let tally = |n: usize| if n == 0 { one.tally(ids[0]) } else { other.tally(ids[1]) };
    until("no probes", || (0..2).all(|n| tally(n).is_some_and(|t| t.attached)));
    // Each return is carried out once, whoever of the two does it, and counted by both.
    program.run(0, 500);
    program.run(3, 20);
    for record in [one.record(ids[0], program.pid()), other.record(ids[1], program.pid())] {
        let record = record.expect("a record");
        assert_eq!((record.entries, record.sp), (540, 0), "{record:?}");
        assert_eq!(record.exits[..3], [500, 0, 20], "{record:?}");
    }
}
