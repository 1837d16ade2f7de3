//! P_APIC delivers overflows: as ticks of a CPU, as events of an armed counter, as a signal to a
//! process; and it finds a silent CPU.

mod common;
use common::{Forked, event, kernel_programs_or_skip};
use orbit_rmk::{Command, Delivery, Filter, Kind, Measure, Reply, Target};

/// A child that computes and never ends by itself.
fn busy() -> Forked {
    Forked::new(|| {
        let mut x = 0u64;
        loop {
            x = std::hint::black_box(x.wrapping_add(1));
        }
    })
}

#[test]
fn every_cpu_ticks() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("ticks");
    module.use_pin("P_APIC").expect("P_APIC");
    let guest = busy();
    module.subscr_event("P_APIC", Kind::CpuTick, Filter::everyone()).expect("a subscription");
    let first = event(&module, "a tick", |event| event.pid == guest.pid());
    let later = event(&module, "a later tick", |event| event.cpu == first.cpu && event.values[0] > first.values[0]);
    assert!(later.time > first.time);
}

#[test]
fn a_cpu_that_does_not_switch_is_reported_once_with_what_runs_there() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("stall");
    module.use_pin("P_APIC").expect("P_APIC");
    module.subscr_event("P_APIC", Kind::CpuStalled, Filter::everyone().ticks(2)).expect("a subscription");
    // SAFETY: the set and the parameter live for the calls, which concern the child only. Above
    // every other program, it leaves its CPU no switch for 100 ms at a time.
    let guest = Forked::new(|| unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
        let above = libc::sched_param { sched_priority: 90 };
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &above);
        loop {
            let until = orbit_rmk::now() + 100_000_000;
            while orbit_rmk::now() < until {
                std::hint::spin_loop();
            }
            libc::usleep(200_000);
        }
    });
    let stall = event(&module, "a silent CPU", |event| event.pid == guest.pid());
    assert_eq!(stall.values[0], 2, "{stall:?}");
    assert!(stall.values[1] >= 20_000_000 && stall.values[3] < 256, "{stall:?}");
}

#[test]
fn an_armed_overflow_comes_as_event_and_as_signal_without_kernel_programs() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = core.client("armed");
    module.use_pin("P_APIC").expect("P_APIC");
    module.subscr_event("P_APIC", Kind::Overflow, Filter::everyone()).expect("a subscription");
    let guest = busy();
    let arm = |delivery: Delivery| {
        let target = Target::Thread { tid: guest.pid() };
        let command = Command::OverflowArm { target, measure: Measure::Instructions, period: 5_000_000, delivery };
        match module.issue_cmd("P_APIC", &command) {
            Ok(Reply::Counter { id, .. }) => id,
            Err(error) if error.to_string().contains("perf") => {
                println!("SKIP: needs perf events ({error})");
                0
            }
            other => panic!("{other:?}"),
        }
    };
    let id = arm(Delivery::Event);
    if id == 0 {
        return;
    }
    let seen = event(&module, "an overflow", |event| event.values[0] == id);
    assert_eq!(seen.tid, guest.pid());
    module.issue_cmd("P_APIC", &Command::OverflowDisarm { id }).expect("disarmed");
    arm(Delivery::Signal { pid: guest.pid(), signal: libc::SIGTERM as u32 });
    let status = guest.wait();
    assert_eq!(status & 0x7f, libc::SIGTERM, "the signal ended the guest");
}
