//! An execution that ended by no exit is not counted as one that returned, where its caller comes
//! by behind the call all the same.

mod common;
use common::{Program, duty, tell_callers, until};
use orbit_uprobe::Target;

#[test]
fn by_longjmp_to_what_follows_the_call() {
    let Some(mut duty) = duty(None) else { return };
    let mut program = Program::start("lands", "lands.c");
    let target = Target { callers: true, ..program.target() };
    assert!(target.shape.whole && target.shape.stepped(), "{:?}", target.shape);
    let id = duty.watch(target);
    until("no probes", || duty.tally(id).is_some_and(|t| t.attached));
    program.run(0, 1);
    assert_eq!(tell_callers(&mut duty, id, &program, 1), 1, "nobody else comes by behind the call");
    let record = duty.record(id, program.pid()).expect("a record");
    let before: u64 = record.exits.iter().sum();
    program.run(1, 50);
    let record = duty.record(id, program.pid()).expect("a record");
    assert_eq!((record.sp, record.exits.iter().sum::<u64>()), (0, before), "{record:?}");
    program.run(0, 50);
    let record = duty.record(id, program.pid()).expect("a record");
    assert_eq!((record.sp, record.exits.iter().sum::<u64>()), (0, before + 50), "{record:?}");
    assert_eq!(duty.tally(id).map(|t| t.hits.stepped), Some(0));
}
