//! A process that ended before it was probed is no error: nothing is amiss with probes.

mod common;
use common::{Program, duty, until};

#[test]
fn of_an_exited_process_nothing_is_reported() {
    let Some(mut duty) = duty(None) else { return };
    let (ended, lives) = (Program::start("ended", "counted.c"), Program::start("lives", "counted.c"));
    let target = ended.target();
    drop(ended);
    let gone = duty.watch(target);
    // Probed one after the other.
    let id = duty.watch(lives.target());
    until("it is not probed", || duty.tally(id).is_some_and(|t| t.attached));
    let tally = duty.tally(gone).expect("its account");
    assert!(!tally.attached && tally.error.is_none(), "{:?}", tally.error);
}
