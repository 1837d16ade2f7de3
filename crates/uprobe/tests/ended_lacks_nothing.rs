//! A process that ended before it was probed is no error: nothing is amiss with probes.

mod common;
use common::{Program, duty, until};
use orbit_uprobe::Target;

#[test]
fn of_one_that_has_ended_nothing_is_told() {
    let Some(mut duty) = duty(None) else { return };
    let (ended, lives) = (Program::start("ended", "counted.c"), Program::start("lives", "counted.c"));
    let without_file = ended.target();
    let with_file = Target { file: lives.file.clone(), ..without_file.clone() };
    drop(ended);
    let gone = [without_file, with_file].map(|target| duty.watch(target));
    // Probed one after the other.
    let id = duty.watch(lives.target());
    until("it is not probed", || duty.tally(id).is_some_and(|t| t.attached));
    for id in gone {
        let tally = duty.tally(id).expect("its account");
        assert!(!tally.attached && tally.error.is_none(), "{:?}", tally.error);
    }
}
