//! What every part needs of the machine: pinned threads, the clock, the module that hangs CPUs,
//! settings, a last way out.

use super::Failed;
use orbit_linux::{clock, sched};
use std::{fs, io::Write, time::Duration};

const MODULE: &str = "/sys/module/orbit_hang/parameters";
/// The ways in which a CPU can be hung (`tools/lab/module/orbit_hang.c` says what they are).
pub const KINDS: [&str; 7] = ["preempt", "irq", "lock", "lock-irq", "order", "halt", "kernel"];

/// Monotonic nanoseconds, the clock of the module and of the detection.
pub fn now_ns() -> u64 {
    clock::monotonic_ns()
}

/// Pins the calling thread.
pub fn pin(cpu: usize) {
    run_on(&[cpu]);
}

/// Lets the calling thread run on these CPUs only.
pub fn run_on(cpus: &[usize]) {
    // Without it the lab is only a little less steady.
    let _ = sched::set_affinity(0, cpus);
}

/// Gives the calling thread a real-time priority.
pub fn urgent(priority: i32) {
    // Without it the lab is only a little less steady.
    let _ = sched::set_fifo(0, priority);
}

pub fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Hangs a CPU (`KIND`) or both (`KIND-all`) for a while.
pub fn hang(kind: &str, cpu: usize, ms: u64) -> Result<(), Failed> {
    fs::write(format!("{MODULE}/begin"), format!("{kind} {cpu} {ms}"))
        .map_err(|e| format!("cannot begin {kind} on CPU {cpu}: {e}"))
}

/// Ends it before its time. Called again and again until it has: one that is still beginning does
/// not hear of it.
pub fn let_go() {
    // Its own time ends it, if this does not.
    let _ = fs::write(format!("{MODULE}/end"), "1");
}

/// Threads of the module that have not ended, and when the hang began and ended (0: not yet).
pub fn state() -> (u64, u64, u64) {
    let text = fs::read_to_string(format!("{MODULE}/state")).unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

/// Sets `/proc/sys/kernel/NAME`; the kernel's answer as text.
pub fn set(name: &str, value: usize) -> String {
    match fs::write(format!("/proc/sys/kernel/{name}"), value.to_string()) {
        Ok(()) => {
            let now = fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
            if now.trim() == value.to_string() { format!("{value}") } else { format!("stays {}", now.trim()) }
        }
        Err(e) => e.to_string(),
    }
}

/// A machine that was broken is not continued with: this ends it at once, from any CPU that lives.
pub struct WayOut(fs::File);

impl WayOut {
    pub fn new() -> Result<WayOut, Failed> {
        let trigger = fs::File::options().write(true).open("/proc/sysrq-trigger");
        trigger.map(WayOut).map_err(|e| format!("opening /proc/sysrq-trigger: {e}"))
    }

    pub fn take(&self) {
        // The host ends what does not end by itself.
        let _ = (&self.0).write_all(b"b");
    }
}
