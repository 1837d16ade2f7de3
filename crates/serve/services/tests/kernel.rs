//! A service in the kernel: a BPF handler decides, an agent applies through the guards of its
//! handles.

mod common;

use common::{Busy, host, is_root, until};
use orbit_services::{GrantRequest, Kernel, KernelSpec, Kind, objects};
use std::time::Duration;

fn spec(grants: Vec<orbit_services::grant::Granted>) -> KernelSpec {
    let arguments = [20_000_000u64, 100_000_000].iter().flat_map(|number| number.to_ne_bytes()).collect();
    KernelSpec {
        name: "cpu".into(),
        period: Duration::from_millis(2),
        arguments,
        grants,
        cpu: common::cpu(),
        priority: 98,
    }
}

#[test]
fn a_share_is_kept_against_others_and_what_was_set_is_put_back() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let (managed, _other) = (Busy::start(), Busy::start());
    let pid = managed.pid();
    let priority = || orbit_services::sys::priority(pid);
    let request = GrantRequest::set("cpu:priority", pid);
    let grants = host.grant(std::process::id() as i32, std::slice::from_ref(&request)).expect("granted");
    let kernel = match Kernel::load(spec(grants.clone()), objects::CPU_KERNEL) {
        Err(error) if error.kind() == Kind::Unsupported => return println!("SKIP: needs BPF: {error}"),
        loaded => loaded.expect("loaded"),
    };
    until("it is owed time", || priority() == 70);
    until("it has had its share", || priority() == 0);
    until("and is owed time again", || priority() == 70);
    let account = kernel.account();
    assert!(account.runs > 10 && account.failed == 0 && account.refused == 0, "{account:?}");
    drop(kernel);
    host.release(&grants);
    assert_eq!(priority(), 0);

    // The guard clamps what the handler asks for.
    let narrow: GrantRequest = format!("cpu:priority:set(pid={pid},max=5)").parse().expect("a grant");
    let grants = host.grant(std::process::id() as i32, &[narrow]).expect("granted");
    let kernel = Kernel::load(spec(grants.clone()), objects::CPU_KERNEL).expect("loaded");
    until("a clamped priority", || priority() == 5);
    assert!(kernel.account().clamped > 0);
    drop(kernel);
    host.release(&grants);
}

#[test]
fn broken_objects_and_others_are_refused() {
    if !is_root() {
        return;
    }
    let object = objects::CPU_KERNEL;
    for length in [0, 4, 64, object.len() / 2, object.len() - 1] {
        assert!(Kernel::load(spec(vec![]), &object[..length]).is_err(), "{length} bytes");
    }
    assert!(Kernel::load(spec(vec![]), objects::CPU).is_err(), "native code");
    let mut fast = spec(vec![]);
    fast.period = Duration::from_nanos(1);
    assert_eq!(Kernel::load(fast, object).map(drop).map_err(|e| e.kind()), Err(Kind::Invalid));
}
