//! A program whose file was replaced under its name, as by an upgrade, is probed on.

mod common;
use common::{Program, duty, until};

#[test]
fn what_is_mapped_is_probed() {
    let Some(mut duty) = duty(None) else { return };
    let mut program = Program::start("replaced", "counted.c");
    let target = program.target();
    let other = program.file.with_extension("new");
    std::fs::copy(&program.file, &other).expect("a copy");
    std::fs::rename(&other, &program.file).expect("the name");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.pid())).expect("maps");
    assert!(maps.contains("(deleted)"), "{maps}");
    // As a window that begins after it.
    let id = duty.watch(target);
    until("it is not probed", || duty.tally(id).is_some_and(|t| t.attached));
    program.run(0, 100);
    until("hits are not shown", || duty.tally(id).is_some_and(|t| t.hits.entries == 100));
}
