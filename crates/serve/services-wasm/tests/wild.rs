//! Modules changed at random: each is refused or runs within its budget, and a healthy service
//! beside it is unharmed. 1,000 with ORBIT_TEST_FULL=1.

use orbit_services::{Budget, Event, sys};
use orbit_services_wasm::{Engine, Handler, Outcome, Service, WasmSpec};
use std::time::Duration;

#[path = "../../services/tests/common/mod.rs"]
mod common;

use common::{times, wasm};

fn spec(name: &str, arguments: Vec<u8>) -> WasmSpec {
    WasmSpec {
        name: name.to_owned(),
        owner: std::process::id() as i32,
        budget: Budget::new(Duration::from_millis(2), Duration::from_millis(10)).expect("a budget"),
        memory: 1 << 20,
        period: None,
        arguments,
    }
}

#[test]
fn changed_modules_are_refused_or_bounded() {
    let (Some(wild), Some(count)) = (wasm("wild"), wasm("count")) else { return };
    let engine = Engine::new().expect("an engine");
    let mut healthy = Service::load(&engine, &spec("count", vec![]), &count, vec![]).expect("loaded");
    let event = Event { kind: 1, ..Event::default() };
    let (mut refused, mut done, mut aborted) = (0, 0, 0);
    let mut random = orbit_testing::Random::new(0x9e37_79b9_7f4a_7c15);
    let mut next = || random.draw();
    for round in 0..times(100, 1000) {
        let mut module = wild.clone();
        // One in four is whole: it misbehaves in the ways that it knows.
        for _ in 0..next() % 4 {
            let at = next() as usize % module.len();
            module[at] = next() as u8;
        }
        let way = b"scmndirf"[next() as usize % 8];
        match Service::load(&engine, &spec("wild", vec![way]), &module, vec![]) {
            Err(_) => refused += 1,
            Ok(mut service) => {
                for _ in 0..2 {
                    let began = sys::clock(sys::THREAD_CPU);
                    match service.run(&event) {
                        Outcome::Done => done += 1,
                        Outcome::Overrun | Outcome::Trapped => aborted += 1,
                    }
                    let used = Duration::from_nanos(sys::clock(sys::THREAD_CPU) - began);
                    // Fuel is calibrated by a loop: other code may take some times as long. A
                    // loaded machine is no excuse.
                    assert!(used < Duration::from_millis(100), "round {round}, {}: {used:?}", way as char);
                }
            }
        }
        assert_eq!(healthy.run(&event), Outcome::Done, "round {round}");
    }
    println!("{refused} refused, {done} runs done, {aborted} aborted");
    assert!(refused > 0 && done > 0 && aborted > 0);
}
