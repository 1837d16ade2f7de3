//! A function entered as fast as can be costs no more than its bound; where it was probed, hits were counted. Prints what a hit costs.

mod common;
use common::{Program, duty, until};
use orbit_uprobe::State;
use std::time::Instant;

const BOUND: f64 = 0.02;

#[test]
fn windows_of_a_hot_function() {
    let Some(mut duty) = duty(Some(BOUND)) else { return };
    let State::Ready(costs) = duty.state() else { unreachable!("it was ready") };
    println!(
        "a hit: {:.0} ns at an instruction the kernel runs itself, {:.0} ns at a return, {:.0} ns at others",
        costs.emulated, costs.returned, costs.stepped
    );
    assert!(costs.emulated > 10.0 && costs.stepped > costs.emulated, "{costs:?}");
    let mut program = Program::start("hot", "counted.c");
    let target = program.target();
    assert!(target.shape.entry.emulated);
    let id = duty.watch(target);
    let clock = ticks();
    let start = Instant::now();
    let mut cpu = 0;
    // At least three windows, and the bound holds at the end; a delay of the prober's thread is paid back.
    until("the bound does not hold", || {
        program.run(0, 100_000);
        cpu = cpu_of(program.pid()) * 1_000_000_000 / clock;
        duty.used(id, cpu);
        let t = duty.tally(id).expect("an account");
        t.windows >= 3 && t.hits.entries > 100 && t.spent <= cpu as f64 * BOUND
    });
    let t = duty.tally(id).expect("an account");
    println!(
        "{} hits in {} windows, {:.2} % of {:.1} s of CPU ({:.1} s of time)",
        t.hits.all(),
        t.windows,
        t.spent / cpu as f64 * 100.0,
        cpu as f64 / 1e9,
        start.elapsed().as_secs_f64()
    );
}

/// CPU time of a process in clock ticks.
fn cpu_of(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the program");
    let fields: Vec<&str> = stat[stat.rfind(')').expect("a name")..].split(' ').collect();
    fields[12].parse::<u64>().expect("a number") + fields[13].parse::<u64>().expect("a number")
}

fn ticks() -> u64 {
    // SAFETY: plain call.
    (unsafe { libc::sysconf(libc::_SC_CLK_TCK) }) as u64
}
