//! Every event that passed a module's subscription is counted once, whatever befalls the module: as
//! handled, missed or lost.

mod common;
use common::{Forked, Gate, LIMIT, until};
use orbit_rmk::{Context, Core, Event, Filter, Installed, Kind, Module, ModuleOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Waits at its first event until its file "go" is there, and aborts at its third; while "down" is
/// there it aborts in its start. With "slow" it subscribes at once and takes a while to start then,
/// and does not abort at events.
struct Brittle {
    pid: u32,
    queue: u32,
    flags: PathBuf,
    seen: u32,
}

impl Module for Brittle {
    const NAME: &'static str = "brittle";
    const PINS: &'static [&'static str] = &["P_SYSC"];

    fn create(settings: &[u8]) -> Brittle {
        let text = String::from_utf8_lossy(settings);
        let mut words = text.splitn(3, ' ');
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        let (pid, queue) = (number(), number());
        Brittle { pid, queue, flags: words.next().expect("a directory").into(), seen: 0 }
    }
    fn start(&mut self, context: &mut Context) {
        let (down, slow) = (self.flags.join("down").exists(), self.flags.join("slow").exists());
        if down && !slow {
            std::process::abort();
        }
        let filter = Filter::pids(&[self.pid]).keys(&[libc::SYS_getppid as u32]).queue(self.queue);
        context.subscr_event("P_SYSC", Kind::CallBegun, filter);
        if slow {
            context.hand_over();
            std::thread::sleep(Duration::from_millis(150));
        }
        if down {
            std::process::abort();
        }
    }
    fn event(&mut self, _context: &mut Context, _event: &Event) {
        self.seen += 1;
        if self.seen == 1 {
            until("go", || self.flags.join("go").exists());
        }
        if self.seen == 3 && !self.flags.join("slow").exists() {
            std::process::abort();
        }
    }
}

/// A directory of its own for a test's flags.
fn flags(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("orbit-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a directory");
    path
}

fn set(flags: &Path, flag: &str) {
    std::fs::write(flags.join(flag), "").expect("a flag");
}

fn installed(core: &Core, child: &Forked, queue: u32, flags: &Path) -> Installed {
    let settings = format!("{} {queue} {}", child.pid(), flags.display()).into_bytes();
    core.install::<Brittle>(ModuleOptions { settings, deadline: 2 * LIMIT, ..ModuleOptions::default() })
        .expect("brittle")
}

fn call(times: u32) {
    for _ in 0..times {
        // SAFETY: takes no arguments.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
}

fn one_call_of_many(name: &str, queue: u32) -> orbit_rmk::ModuleStatus {
    let (core, gate, flags) = (orbit_pins::core().expect("a core"), Gate::new(), flags(name));
    let child = Forked::new(|| {
        gate.pass();
        call(900);
    });
    let module = installed(&core, &child, queue, &flags);
    gate.open();
    child.wait();
    set(&flags, "go");
    until("it is loaded again", || module.status().failures == 1 && module.status().up);
    let status = module.status();
    assert!(status.handled <= 2, "at its third event it failed: {status:?}");
    assert_eq!(status.handled + status.missed + status.lost, 900, "{status:?}");
    std::fs::remove_dir_all(flags).expect("the directory");
    status
}

#[test]
fn those_of_the_call_in_which_it_failed_are_missed() {
    if !common::kernel_programs_or_skip() {
        return;
    }
    let status = one_call_of_many("call", 8192);
    assert_eq!(status.lost, 0, "{status:?}");
}

#[test]
fn what_was_lost_before_it_failed_stays_lost() {
    if !common::kernel_programs_or_skip() {
        return;
    }
    let status = one_call_of_many("lost", 4);
    assert!(status.lost > 0, "{status:?}");
}

#[test]
fn those_that_come_while_its_start_fails_are_missed() {
    if !common::kernel_programs_or_skip() {
        return;
    }
    let (core, gate, flags) = (orbit_pins::core().expect("a core"), Gate::new(), flags("start"));
    let child = Forked::new(|| {
        gate.pass();
        call(3);
        gate.pass();
        call(500);
    });
    set(&flags, "go");
    let module = installed(&core, &child, 8192, &flags);
    set(&flags, "down");
    gate.open();
    until("its start failed twice", || module.status().failures >= 3);
    gate.open();
    child.wait();
    let failures = module.status().failures;
    until("its start failed again", || module.status().failures > failures);
    std::fs::remove_file(flags.join("down")).expect("the flag");
    until("it is loaded again", || module.status().up);
    let status = module.status();
    assert_eq!(status.handled + status.missed, 503, "{status:?}");
    std::fs::remove_dir_all(flags).expect("the directory");
}

#[test]
fn those_that_come_while_it_is_loaded_again_are_counted_once() {
    if !common::kernel_programs_or_skip() {
        return;
    }
    const CALLS: u64 = 20_000;
    let (core, gate, flags) = (orbit_pins::core().expect("a core"), Gate::new(), flags("throughout"));
    let child = Forked::new(|| {
        gate.pass();
        call(3);
        gate.pass();
        for _ in 3..CALLS {
            call(1);
            // SAFETY: takes no pointers.
            unsafe { libc::usleep(50) };
        }
    });
    let module = installed(&core, &child, 65_536, &flags);
    for flag in ["go", "down"] {
        set(&flags, flag);
    }
    gate.open();
    until("its start failed before it subscribed", || module.status().failures >= 2);
    set(&flags, "slow");
    gate.open();
    let failures = module.status().failures;
    until("its start failed thrice after it subscribed", || module.status().failures >= failures + 3);
    std::fs::remove_file(flags.join("down")).expect("the flag");
    until("it is loaded again", || module.status().up);
    child.wait();
    let counted = || {
        let status = module.status();
        status.handled + status.missed + status.lost
    };
    until("it saw the last", || counted() >= CALLS);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(counted(), CALLS, "{:?}", module.status());
    std::fs::remove_dir_all(flags).expect("the directory");
}
