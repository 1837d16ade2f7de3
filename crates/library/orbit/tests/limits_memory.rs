//! An orbit over its memory limit ends as `out of memory`, by its control group's own count, with
//! all that its task started; main and the next call continue, and the group goes with the orbit.

mod common;
mod limits_common;

use std::ffi::{c_long, c_void};
use std::path::PathBuf;

use common::{eventually, groups_of};
use limits_common::{bytes, is_unified, memory_max, needs_group, number, oom_kills};
use orbit::{Area, Limits, Orbit, Outcome, Restart};

const LIMIT: u64 = 48 << 20;
const PAGES_OF_8_MIB: c_long = 2048;

/// How a task fills its memory: lets go of it afterwards, keeps it, or has a child of its own do
/// it.
const PASSING: i64 = 0;
const KEPT: i64 = 1;
const IN_CHILD: i64 = 2;

/// Fills so many MiB with ones.
unsafe extern "C" fn fill(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes two i64.
    let [mib, how] = unsafe { *args.cast::<[i64; 2]>() };
    let grow = || {
        let memory = std::hint::black_box(vec![1u8; (mib as usize) << 20]);
        let pages = memory.iter().step_by(4096).map(|&byte| c_long::from(byte)).sum::<c_long>();
        if how == KEPT {
            std::mem::forget(memory);
        }
        pages
    };
    if how != IN_CHILD {
        return grow();
    }
    // SAFETY: the task has one thread, so its child may allocate; the child ends here.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(grow() == 0));
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        c_long::from(status)
    }
}

fn greedy(name: &str) -> Orbit {
    let limits = Limits::new().memory(LIMIT);
    Orbit::builder(name).entry(fill).restart(Restart::Always).limits(limits).build().expect("orbit")
}

fn call(orbit: &Orbit, area: &Area, mib: i64, how: i64) -> Outcome {
    let mut outcome = None;
    let answered = eventually(|| {
        outcome = orbit.call(&[area], &bytes([mib, how])).ok();
        outcome.is_some()
    });
    assert!(answered, "the orbit takes calls");
    outcome.expect("answered")
}

/// The group of this process' orbit with that name.
fn group_of(name: &str) -> PathBuf {
    let groups = groups_of(std::process::id());
    let hers = groups.iter().find(|dir| {
        dir.file_name().is_some_and(|file| file.to_string_lossy().ends_with(name)) && memory_max(dir) == Some(LIMIT)
    });
    hers.unwrap_or_else(|| panic!("no group of {name} has the limit: {groups:?}")).clone()
}

#[test]
fn beyond_its_memory_an_orbit_ends_and_comes_back() {
    if needs_group("memory").is_none() {
        return;
    }
    let area = Area::new(1 << 20).expect("area");
    let orbit = greedy("greedy");
    assert!(orbit.limits_held().starts_with("memory 50331648 bytes by control group"), "{}", orbit.limits_held());
    let group = group_of("greedy");
    let members = std::fs::read_to_string(group.join("cgroup.procs")).expect("members");
    assert!(members.lines().any(|pid| number(pid) == orbit.pid() as u64), "{members:?} has {}", orbit.pid());

    for round in 1..=3 {
        let before = oom_kills(&group);
        assert_eq!(call(&orbit, &area, 8, PASSING), Outcome::Returned(PAGES_OF_8_MIB), "within the limit");
        assert_eq!(call(&orbit, &area, 256, PASSING), Outcome::OutOfMemory);
        assert!(oom_kills(&group) > before, "killed by the group");
        assert_eq!(orbit.stats().crashes, round);
    }
    // More room is room at once, without a restart.
    assert_eq!(call(&orbit, &area, 8, PASSING), Outcome::Returned(PAGES_OF_8_MIB));
    orbit.set_limits(Limits::new().memory(512 << 20)).expect("more");
    assert_eq!(call(&orbit, &area, 256, PASSING), Outcome::Returned(32 * PAGES_OF_8_MIB));

    orbit.destroy().expect("destroy");
    assert!(eventually(|| !group.exists()), "the group is gone");
}

#[test]
fn a_limit_below_what_is_in_use_is_refused() {
    if needs_group("memory").is_none() {
        return;
    }
    let area = Area::new(1 << 20).expect("area");
    let orbit = greedy("holder");
    assert_eq!(call(&orbit, &area, 32, KEPT), Outcome::Returned(4 * PAGES_OF_8_MIB));
    let used = limits_common::memory_now(&group_of("holder"));
    assert!(used > 32 << 20, "{used} bytes are in use");
    let error = orbit.set_limits(Limits::new().memory(16 << 20)).expect_err("32 MiB are in use");
    assert!(error.to_string().contains("uses more already"), "{error}");
    assert_eq!(call(&orbit, &area, 8, PASSING), Outcome::Returned(PAGES_OF_8_MIB), "it lives, under the limit it had");
    assert_eq!(orbit.stats().crashes, 0);
    drop(orbit);
    assert!(
        eventually(|| groups_of(std::process::id()).iter().all(|dir| !dir.to_string_lossy().ends_with("holder"))),
        "the group is gone"
    );
}

#[test]
fn what_a_task_starts_counts_and_goes_with_it() {
    if needs_group("memory").is_none() {
        return;
    }
    let area = Area::new(1 << 20).expect("area");
    let orbit = greedy("parent");
    let group = group_of("parent");
    assert_eq!(call(&orbit, &area, 8, IN_CHILD), Outcome::Returned(0), "within the limit");
    match call(&orbit, &area, 256, IN_CHILD) {
        // Version 1 has no way to say that the group ends together: the kernel may kill the child
        // alone.
        Outcome::Returned(status) if !is_unified(&group) => assert_eq!(status, c_long::from(libc::SIGKILL)),
        other => assert_eq!(other, Outcome::OutOfMemory),
    }
    assert!(oom_kills(&group) > 0);
    assert_eq!(call(&orbit, &area, 8, PASSING), Outcome::Returned(PAGES_OF_8_MIB), "and goes on");
    drop(orbit);
    assert!(eventually(|| !group.exists()), "the group is gone");
}
