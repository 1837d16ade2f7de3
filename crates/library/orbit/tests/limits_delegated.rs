//! An ordinary user to whom a control group was delegated has groups for his orbits in it, with
//! memory and CPU held; main itself is not moved.

mod common;
mod limits_common;

use std::ffi::{c_long, c_void};
use std::os::unix::fs::MetadataExt;

use common::{eventually, groups_of};
use limits_common::{is_unified, memory_max, needs_group};
use orbit::{Limits, Orbit, Outcome};

unsafe extern "C" fn answer(_: *mut c_void, _: *mut c_void) -> c_long {
    42
}

#[test]
fn a_delegated_group_is_used() {
    // SAFETY: asks for a number.
    let user = unsafe { libc::geteuid() };
    if user == 0 {
        println!("SKIP: needs an ordinary user");
        return;
    }
    if needs_group("memory").is_none() || needs_group("CPU").is_none() {
        return;
    }
    let own = || std::fs::read_to_string("/proc/self/cgroup").expect("own group");
    let before = own();
    let limits = Limits::new().memory(64 << 20).cpu_percent(50);
    let orbits: Vec<Orbit> =
        (0..3).map(|_| Orbit::builder("mine").entry(answer).limits(limits.clone()).build().expect("orbit")).collect();
    let groups = groups_of(std::process::id());
    assert_eq!(groups.len(), 3, "{groups:?}");
    for dir in &groups {
        assert_eq!(dir.metadata().expect("it is there").uid(), user, "{dir:?}");
        assert!(is_unified(dir) && memory_max(dir) == Some(64 << 20), "{dir:?}");
        assert_eq!(std::fs::read_to_string(dir.join("cpu.max")).expect("a bound").trim(), "50000 100000");
    }
    assert_eq!(own(), before, "main stays where it was");
    for orbit in &orbits {
        assert_eq!(orbit.call(&[], &[]).expect("call"), Outcome::Returned(42));
        let group = std::fs::read_to_string(format!("/proc/{}/cgroup", orbit.pid())).expect("its group");
        assert!(group.contains(&format!("/orbit-{}-", std::process::id())), "{group}");
    }
    drop(orbits);
    assert!(eventually(|| groups_of(std::process::id()).is_empty()));
}
