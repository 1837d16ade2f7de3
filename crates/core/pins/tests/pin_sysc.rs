//! P_SYSC reports the calls of a listed process that were asked for, with result and duration, and
//! no others.

mod common;
use common::{Forked, Guest, event, kernel_programs_or_skip, take_all, until};
use orbit_rmk::{Command, Filter, Kind, Reply};
use std::time::Duration;

#[test]
fn a_call_is_begun_and_completed() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("calls");
    module.use_pin("P_SYSC").expect("P_SYSC");
    // SAFETY: the child makes two system calls over and over.
    let guest = Forked::new(|| unsafe {
        loop {
            libc::getppid();
            libc::usleep(3000);
        }
    });
    let filter = || Filter::pids(&[guest.pid()]);
    let nap = libc::SYS_clock_nanosleep as u32;
    let begun =
        module.subscr_event("P_SYSC", Kind::CallBegun, filter().keys(&[libc::SYS_getppid as u32])).expect("begun");
    let slow = filter().keys(&[nap, libc::SYS_getppid as u32]).min_duration(Duration::from_millis(3));
    let slow = module.subscr_event("P_SYSC", Kind::CallCompleted, slow).expect("completed");
    let first = event(&module, "getppid begins", |event| event.subscription == begun);
    assert_eq!((first.kind(), first.values[0]), (Some(Kind::CallBegun), libc::SYS_getppid as u64));
    let done = event(&module, "a slow call completes", |event| event.subscription == slow);
    assert_eq!(done.values[0], u64::from(nap), "only the nap is slow");
    assert_eq!((done.values[1] as i64, done.pid), (0, guest.pid()));
    assert!(done.values[2] >= 3_000_000, "{done:?}");
    for other in take_all(&module) {
        assert!([libc::SYS_getppid as u64, u64::from(nap)].contains(&other.values[0]), "{other:?}");
    }
}

#[test]
fn the_call_each_thread_is_in_is_reported_also_without_kernel_programs() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = core.client("calls");
    module.use_pin("P_SYSC").expect("P_SYSC");
    let guest = Guest::shell("exec cat");
    let calls = || match module.issue_cmd("P_SYSC", &Command::CallsNow { pid: guest.pid() }) {
        Ok(Reply::Calls { calls }) => calls,
        other => panic!("{other:?}"),
    };
    until("it reads", || {
        calls().iter().any(|call| call.number == libc::SYS_read && call.arguments.first() == Some(&0))
    });
    let error = module.subscr_event("P_SYSC", Kind::CallBegun, Filter::everyone()).expect_err("no events").to_string();
    assert!(error.contains("P_SYSC") && error.contains("calls") && error.contains("kernel programs"), "{error}");
}
