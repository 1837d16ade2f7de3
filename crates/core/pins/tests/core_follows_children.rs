//! Processes that a listed one makes are listed too, whatever was subscribed to, and taken off the
//! list when they end.

mod common;
use common::{Forked, Gate, LIMIT, event, kernel_programs_or_skip, until};
use orbit_rmk::{Filter, Kind, ModuleOptions, Report, modules::Silence};

/// Runs `body` in a child that ends with the calling process; gives its pid.
fn child(body: impl FnOnce()) -> i32 {
    // SAFETY: the child takes no locks, ends with its parent and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: no pointers are passed.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            body();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        pid => pid,
    }
}

fn calls_for_ever() {
    loop {
        // SAFETY: no pointers are passed.
        unsafe {
            libc::getppid();
            libc::usleep(2000);
        }
    }
}

/// Makes a child that runs `body` in the same memory, while the calling process waits; collects it.
fn brief_child<const STACK: usize>(body: extern "C" fn(*mut libc::c_void) -> i32) {
    let mut stack = [0u128; STACK];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child has a stack of its own, which lives until it has ended, and nobody uses the
    // memory meanwhile.
    collect(unsafe { libc::clone(body, stack.as_mut_ptr_range().end.cast(), flags, std::ptr::null_mut()) });
}

extern "C" fn nothing(_: *mut libc::c_void) -> i32 {
    0
}

/// Makes a child in its turn, which is seen only if the caller was listed.
extern "C" fn parent(_: *mut libc::c_void) -> i32 {
    brief_child::<1024>(nothing);
    0
}

fn collect(pid: i32) {
    // SAFETY: nothing is written where there is no pointer.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

#[test]
fn a_childs_calls_are_seen_though_nobody_subscribed_to_starts() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("calls");
    module.use_pin("P_SYSC").expect("P_SYSC");
    let gate = Gate::new();
    let parent = Forked::new(|| {
        gate.pass();
        collect(child(calls_for_ever));
    });
    core.guard(parent.pid()).expect("guarded");
    let filter = Filter::guarded().keys(&[libc::SYS_getppid as u32]);
    module.subscr_event("P_SYSC", Kind::CallBegun, filter).expect("a subscription");
    gate.open();
    event(&module, "a call of the child", |event| event.pid != parent.pid());
}

#[test]
fn a_program_whose_child_makes_calls_is_not_silent() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let (made, gate) = (Gate::new(), Gate::new());
    let parent = Forked::new(|| {
        gate.pass();
        collect(child(|| {
            made.open();
            gate.pass();
            calls_for_ever();
        }));
    });
    core.guard(parent.pid()).expect("guarded");
    let module = core.install::<Silence>(ModuleOptions::default()).expect("installed");
    gate.open();
    made.pass();
    let said = |what: &str| {
        until(what, || module.report(LIMIT).expect("a report") == Report::Said(what.into()));
    };
    said("silent for a second");
    // The parent waits: only the child can break the silence.
    gate.open();
    said("speaks again");
}

#[test]
fn more_children_than_the_list_has_room_for_are_all_seen_one_after_another() {
    const CHILDREN: u64 = 9_000; // and as many of theirs: room is for 16,384
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("starts");
    module.use_pin("P_SCHL").expect("P_SCHL");
    let (gate, made) = (Gate::new(), Gate::new());
    let guest = Forked::new(|| {
        gate.pass();
        (0..CHILDREN).for_each(|_| brief_child::<4096>(parent));
        made.open();
        gate.pass();
    });
    core.guard(guest.pid()).expect("guarded");
    let started = module.subscr_event("P_SCHL", Kind::Started, Filter::guarded().count_only()).expect("a subscription");
    gate.open();
    made.pass();
    let counts = module.counts(started).expect("counts");
    assert_eq!(counts.passed, 2 * CHILDREN, "{counts:?}");
    gate.open();
}

#[test]
fn a_child_for_which_the_list_has_no_room_is_counted() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("starts");
    module.use_pin("P_SCHL").expect("P_SCHL");
    let (gate, made) = (Gate::new(), Gate::new());
    let guest = Forked::new(|| {
        gate.pass();
        brief_child::<4096>(nothing);
        made.open();
        gate.pass();
    });
    core.guard(guest.pid()).expect("guarded");
    let subscribe = |filter: Filter| module.subscr_event("P_SCHL", Kind::Started, filter.count_only());
    let started = subscribe(Filter::guarded()).expect("a subscription");
    // Numbers beyond those that the kernel gives: they have no processes, but rows.
    (1 << 30..(1 << 30) + 16_384).for_each(|pid| core.mark_own(pid, true));
    let refused = subscribe(Filter::pids(&[std::process::id() - 1, 1])).expect_err("no room").to_string();
    assert!(refused.contains("P_SCHL") && refused.contains("16384"), "{refused}");
    gate.open();
    made.pass();
    let counts = module.counts(started).expect("counts");
    assert_eq!((counts.passed, counts.unlisted), (0, 1), "{counts:?}");
    gate.open();
}
