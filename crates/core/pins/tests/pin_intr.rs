//! P_INTR reports interrupts, soft interrupts, page faults and exceptions, and counts interrupts
//! since boot.

mod common;
use common::{Forked, Gate, event, kernel_programs_or_skip};
use orbit_rmk::{Command, Filter, Kind, Reply};

#[test]
fn interrupts_come_by_themselves() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("interrupts");
    module.use_pin("P_INTR").expect("P_INTR");
    module.subscr_event("P_INTR", Kind::SoftInterrupt, Filter::everyone()).expect("soft");
    module.subscr_event("P_INTR", Kind::Interrupt, Filter::everyone()).expect("hard");
    let soft = event(&module, "a soft interrupt", |event| event.kind() == Some(Kind::SoftInterrupt));
    assert!(soft.values[0] < 16 && soft.values[1] > 0, "{soft:?}");
}

#[test]
fn page_faults_and_a_wild_write_of_a_listed_process_are_seen() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("faults");
    module.use_pin("P_INTR").expect("P_INTR");
    let gate = Gate::new();
    // SAFETY: the child touches fresh memory of its own and then, on purpose, memory that is not
    // there.
    let guest = Forked::new(|| unsafe {
        gate.pass();
        let fresh = libc::mmap(std::ptr::null_mut(), 4096, 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        fresh.cast::<u8>().write_volatile(1);
        gate.pass();
        (0x10 as *mut u8).write_volatile(1);
    });
    for kind in [Kind::PageFault, Kind::Exception] {
        module.subscr_event("P_INTR", kind, Filter::pids(&[guest.pid()])).expect("a subscription");
    }
    gate.open();
    event(&module, "a page fault", |event| event.kind() == Some(Kind::PageFault) && event.pid == guest.pid());
    gate.open();
    let wild = event(&module, "the exception", |event| event.kind() == Some(Kind::Exception));
    assert_eq!((wild.pid, wild.values[0], wild.values[2]), (guest.pid(), libc::SIGSEGV as u64, 0x10));
}

#[test]
fn counts_since_boot_need_no_kernel_program() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = core.client("counts");
    module.use_pin("P_INTR").expect("P_INTR");
    match module.issue_cmd("P_INTR", &Command::InterruptCounts).expect("counts") {
        Reply::Interrupts { counts } => assert!(counts.iter().any(|one| one.soft && one.count > 0), "{counts:?}"),
        other => panic!("{other:?}"),
    }
}
