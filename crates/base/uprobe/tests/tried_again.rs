//! A function for which there is no place among those that can be probed is probed once there is
//! one.

mod common;
use common::{Program, duty, until};
use orbit_uprobe::{Error, SLOTS};

#[test]
fn once_another_one_is_left() {
    let Some(mut duty) = duty(None) else { return };
    if std::env::var_os("ORBIT_VM").is_some() && !orbit_linux::uprobes::probe().is_yes() {
        println!("SKIP: needs probes many at a time: one by one so many take minutes in an emulated machine");
        return;
    }
    let program = Program::start("tried-again", "counted.c");
    let others: Vec<u64> = (0..SLOTS).map(|_| duty.watch(program.target())).collect();
    until("others are not probed", || others.iter().all(|id| duty.tally(*id).is_some_and(|t| t.attached)));
    let id = duty.watch(program.target());
    until("there is room", || duty.tally(id).is_some_and(|t| t.error == Some(Error::Full)));
    for other in others {
        duty.leave(other);
    }
    until("it is not tried again", || duty.tally(id).is_some_and(|t| t.attached && t.error.is_none()));
}
