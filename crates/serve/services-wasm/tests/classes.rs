//! A service written once builds as each class that a user may choose, and does the same in each:
//! wasm, an upcall, a thread.

#[path = "../../services/tests/common/mod.rs"]
mod common;

use common::{Killed, is_root, native, until, wasm};
use orbit_services::{Dispatch, GrantRequest};
use orbit_services_wasm::{Engine, Runner, Service, WasmSpec};
use std::time::Duration;

#[test]
#[ignore = "the program of members"]
fn member_program() {
    common::member_program();
}

#[test]
fn one_source_does_the_same_as_wasm_as_an_upcall_and_in_a_thread() {
    if !is_root() {
        return;
    }
    let Some(module) = wasm("record") else { return };
    let object = native("record");
    let (mut host, target) = (common::host(), Killed::sleeper());
    let nice = || orbit_linux::sched::nice(target.pid()).expect("its niceness");
    let before = nice();
    let me = std::process::id() as i32;
    let request = GrantRequest::set("cpu:nice", target.pid());

    let (engine, runner) = (Engine::new().expect("an engine"), Runner::start(0, 0, 0.5, 3).expect("a thread"));
    let spec = WasmSpec {
        name: "record".into(),
        owner: me,
        budget: "2ms/10ms".parse().expect("a budget"),
        memory: 1 << 20,
        period: None,
        arguments: vec![b'v'],
    };
    let grants = host.grant(me, std::slice::from_ref(&request)).expect("granted");
    let service = Service::load(&engine, &spec, &module, grants.clone()).expect("loaded");
    let id = runner.add(spec, service).expect("admitted");
    for value in [3, 11, 7] {
        runner.post(id, value).expect("loaded");
        until("wasm sets the value", || nice() == value as i32);
    }
    runner.unload(id).expect("loaded");
    host.release(&grants);
    assert_eq!(nice(), before);

    for dispatch in [Dispatch::Upcall, Dispatch::Thread] {
        let mut spec = common::spec("record", dispatch, vec![request.clone()]);
        (spec.period, spec.arguments) = (Duration::ZERO, vec![b'v']);
        let id = host.load(&spec, &object).expect("loaded");
        for value in [3, 11, 7] {
            host.post(id, value).expect("loaded");
            until("native code sets the value", || nice() == value as i32);
        }
        assert_eq!(host.status(id).expect("loaded").account.runs, 3);
        host.unload(id).expect("unloaded");
        assert_eq!(nice(), before);
    }
}
