//! Wasm services: the same sources as native ones do the same, and what misbehaves is aborted and
//! revoked.

use orbit_services::{AttributeClass, Budget, GrantRequest, Guard, Host, Manager, Options, sys};
use orbit_services_wasm::{Engine, Handler, Id, Outcome, Runner, Service, WasmSpec};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

#[path = "../../services/tests/common/mod.rs"]
mod common;

use common::{until, wasm};

fn spec(name: &str) -> WasmSpec {
    WasmSpec {
        name: name.to_owned(),
        owner: std::process::id() as i32,
        budget: Budget::new(Duration::from_millis(2), Duration::from_millis(10)).expect("a budget"),
        memory: 1 << 20,
        period: Some(Duration::from_millis(2)),
        arguments: Vec::new(),
    }
}

/// The account of a service.
fn account(runner: &Runner, id: Id) -> orbit_services::Account {
    runner.status(id).expect("loaded").account
}

#[test]
fn sets_attributes_through_its_handles_and_they_are_put_back() {
    let Some(module) = wasm("count") else { return };
    let mut host = Host::new(Options { agent_priority: 0, ..Options::default() }).expect("a host");
    let mut target = Command::new("sleep").arg("infinity").spawn().expect("sleep");
    let pid = target.id() as i32;
    let nice = || orbit_linux::sched::nice(pid).expect("its niceness");
    let (engine, runner) = (Engine::new().expect("an engine"), Runner::start(0, 0, 0.5, 3).expect("a thread"));
    let before = nice();
    let guard = Guard { min: i64::from(before) + 1, max: 19, clamp: true };
    let request = GrantRequest { guard: Some(guard), ..GrantRequest::set("cpu:nice", pid) };
    let grants = host.grant(std::process::id() as i32, &[request]).expect("granted");
    let spec = spec("count");
    let service = Service::load(&engine, &spec, &module, grants).expect("loaded");
    let id = runner.add(spec, service).expect("admitted");
    until("it sets the niceness", || nice() > before && account(&runner, id).runs > 20);
    assert_eq!(account(&runner, id).aborts(), 0);
    let service = runner.unload(id).expect("loaded");
    // Only root may lower a niceness again.
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } == 0 {
        assert_eq!(nice(), before);
    }
    host.release(service.grants());
    target.kill().expect("own child");
    target.wait().expect("own child");
}

#[test]
fn modules_that_misbehave_are_aborted_and_revoked() {
    let Some(module) = wasm("wild") else { return };
    let (engine, runner) = (Engine::new().expect("an engine"), Runner::start(0, 0, 0.9, 3).expect("a thread"));
    let ways: [(u8, &str, bool); 6] = [
        (b's', "spins", true),
        (b'c', "calls without end", true),
        (b'm', "allocates without end", false),
        (b'd', "divides by zero", false),
        (b'i', "executes an unreachable instruction", false),
        (b'r', "recurses without end", false),
    ];
    for (way, what, is_overrun) in ways {
        let mut spec = spec("wild");
        spec.arguments = vec![way];
        let service = Service::load(&engine, &spec, &module, vec![]).expect("loaded");
        let id = runner.add(spec, service).expect("admitted");
        until(what, || runner.status(id).expect("loaded").is_revoked);
        let account = account(&runner, id);
        assert!(if is_overrun { account.overruns > 3 } else { account.faults > 3 }, "{what}: {account:?}");
        runner.unload(id).expect("loaded");
    }
}

#[test]
fn a_run_costs_no_more_than_a_few_budgets() {
    let Some(module) = wasm("wild") else { return };
    let engine = Engine::new().expect("an engine");
    for way in *b"sc" {
        let mut spec = spec("wild");
        spec.arguments = vec![way];
        let mut service = Service::load(&engine, &spec, &module, vec![]).expect("loaded");
        let event = orbit_services::Event { kind: 1, ..Default::default() };
        let mut costs: Vec<u64> = (0..9)
            .map(|_| {
                let before = service.account().cpu_ns;
                assert_eq!(service.run(&event), Outcome::Overrun);
                service.account().cpu_ns - before
            })
            .collect();
        costs.sort_unstable();
        let budget = spec.budget.cpu().as_nanos() as u64;
        assert!(costs[4] < 4 * budget && costs[4] > budget / 20, "{}: {costs:?} of {budget}", way as char);
    }
}

/// A manager whose `wait:sleep` waits that long without CPU time, and whose `wait:spin` uses it.
#[derive(Debug)]
struct Waits;

const CALL: Duration = Duration::from_millis(20);

impl Manager for Waits {
    fn classes(&self) -> &'static [AttributeClass] {
        const fn class(id: u32, name: &'static str) -> AttributeClass {
            AttributeClass { id, name, unit: "", min: 0, max: 100, settable: true, about: "" }
        }
        const CLASSES: [AttributeClass; 2] = [class(901, "wait:sleep"), class(902, "wait:spin")];
        &CLASSES
    }

    fn read(&self, _: &AttributeClass, _: i32) -> orbit_services::Result<i64> {
        Ok(0)
    }

    fn apply(&self, class: &AttributeClass, _: i32, _: i64) -> orbit_services::Result<()> {
        if class.name == "wait:sleep" {
            std::thread::sleep(CALL);
        } else {
            let end = sys::clock(sys::THREAD_CPU) + CALL.as_nanos() as u64;
            while sys::clock(sys::THREAD_CPU) < end {}
        }
        Ok(())
    }
}

/// An agent that waits for its CPU within a call uses none of the budget.
#[test]
fn a_call_is_charged_the_cpu_time_it_takes_not_what_passes_meanwhile() {
    let Some(module) = wasm("count") else { return };
    let mut host = Host::new(Options { agent_priority: 0, ..Options::default() }).expect("a host");
    host.manage(Arc::new(Waits)).expect("classes of its own");
    let (engine, me) = (Engine::new().expect("an engine"), std::process::id() as i32);
    for (class, outcome) in [("wait:sleep", Outcome::Done), ("wait:spin", Outcome::Overrun)] {
        let grants = host.grant(me, &[GrantRequest::set(class, me)]).expect("granted");
        // Half of the call: time for which a virtual machine stood still counts as CPU time, too.
        let budget = Budget::new(CALL / 2, CALL).expect("a budget");
        let spec = WasmSpec { budget, ..spec("count") };
        let mut service = Service::load(&engine, &spec, &module, grants).expect("loaded");
        for _ in 0..3 {
            assert_eq!(service.run(&orbit_services::Event::default()), outcome, "{class}");
        }
    }
}

#[test]
fn forged_handles_are_refused() {
    let Some(module) = wasm("wild") else { return };
    let mut host = Host::new(Options { agent_priority: 0, ..Options::default() }).expect("a host");
    let me = std::process::id() as i32;
    let guard = Guard { min: 0, max: 19, clamp: false };
    let grants =
        host.grant(me, &[GrantRequest { guard: Some(guard), ..GrantRequest::set("cpu:nice", me) }]).expect("granted");
    let mut spec = spec("wild");
    spec.arguments = vec![b'f'];
    let mut service = Service::load(&Engine::new().expect("an engine"), &spec, &module, grants).expect("loaded");
    assert_eq!(service.run(&orbit_services::Event::default()), Outcome::Done);
    assert_eq!((service.account().refused, service.account().failed), (9, 0));
}

#[test]
fn what_is_no_service_is_refused_with_the_reason() {
    let engine = Engine::new().expect("an engine");
    let no_handler = b"\0asm\x01\0\0\0";
    for (module, hint) in [(&b"\x7fELF"[..], "no wasm module"), (no_handler, "orbit_handler"), (b"", "no wasm module")]
    {
        let error = Service::load(&engine, &spec("x"), module, vec![]).expect_err("no service");
        assert!(error.to_string().contains(hint), "{error}");
    }
    let mut often = spec("often");
    often.period = Some(Duration::from_nanos(1));
    let error = Service::load(&engine, &often, no_handler, vec![]).expect_err("ticks without end");
    assert!(error.to_string().contains("the least is 100"), "{error}");
    let Some(module) = wasm("count") else { return };
    // Cut after its last code it may still be a module: the names at its end are optional.
    let loads = |length: usize| Service::load(&engine, &spec("cut"), &module[..length], vec![]).is_ok();
    let complete = (0..module.len()).filter(|length| loads(*length)).count();
    assert!(complete < 5 && !loads(module.len() / 3), "{complete} of {} cuts load", module.len());
    let mut small = spec("small");
    small.memory = 1000;
    let error = Service::load(&engine, &small, &module, vec![]).expect_err("too much memory");
    assert!(error.to_string().contains("1000 bytes"), "{error}");
}

#[test]
fn a_thousand_services_and_a_flood_of_events_are_bounded() {
    let Some(module) = wasm("wild") else { return };
    let (engine, runner) = (Engine::new().expect("an engine"), Runner::start(0, 0, 0.9, 3).expect("a thread"));
    let mut spec = spec("idle");
    spec.period = None;
    spec.budget = Budget::new(Duration::from_micros(50), Duration::from_millis(100)).expect("a budget");
    let ids: Vec<Id> = (0..1000)
        .map(|_| {
            runner.add(spec.clone(), Service::load(&engine, &spec, &module, vec![]).expect("loaded")).expect("admitted")
        })
        .collect();
    for nth in 0..10_000 {
        runner.post(ids[500], nth).expect("loaded");
    }
    until("the queue is empty", || {
        let status = runner.status(ids[500]).expect("loaded");
        status.account.runs + status.account.unpaid + status.lost == 10_000
    });
    let beyond = Service::load(&engine, &spec, &module, vec![]).expect("loaded");
    spec.budget = Budget::new(Duration::from_millis(50), Duration::from_millis(100)).expect("a budget");
    let error = runner.add(spec, beyond).expect_err("more than there is");
    assert_eq!(error.kind(), orbit_services::Kind::Full);
}

/// A number in LEB128, as instructions have it.
fn leb(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x40 {
        bytes.push(number as u8 & 0x7f | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A module with four pages of memory, a table, a passive segment of data and a function of one
/// argument, whose handler is an endless loop around these instructions.
fn endless(instructions: &[u8]) -> Vec<u8> {
    let section = |id: u8, content: &[u8]| [&[id][..], &leb(content.len() as u32), content].concat();
    let body = |code: &[u8]| [&leb(code.len() as u32 + 1)[..], &[0], code].concat();
    let handler = body(&[&[0x03, 0x40], instructions, &[0x0c, 0, 0x0b, 0x0b]].concat());
    let identity = body(&[0x20, 0, 0x0b]);
    [
        &b"\0asm\x01\0\0\0"[..],
        &section(1, &[2, 0x60, 2, 0x7f, 0x7f, 0, 0x60, 1, 0x7f, 1, 0x7f]),
        &section(3, &[2, 0, 1]),
        &section(4, &[1, 0x70, 0, 1]),
        &section(5, &[1, 0, 4]),
        &section(7, b"\x02\x06memory\x02\0\x0dorbit_handler\0\0"),
        &section(12, &[1]),
        &section(10, &[&[2][..], &handler, &identity].concat()),
        &section(11, b"\x01\x01\x06abcdef"),
    ]
    .concat()
}

/// Loops around single instructions, with what such a loop is called.
fn loops() -> Vec<(&'static str, Vec<u8>)> {
    let constant = |number: u32| [&[0x41][..], &leb(number)].concat();
    vec![
        ("memory.grow, always refused", endless(&[constant(100_000), vec![0x40, 0, 0x1a]].concat())),
        (
            "table.grow, always refused",
            endless(&[vec![0xd0, 0x70], constant(10_000_000), vec![0xfc, 15, 0, 0x1a]].concat()),
        ),
        ("memory.init", endless(&[constant(0), constant(0), constant(3), vec![0xfc, 8, 0, 0]].concat())),
        ("memory.copy", endless(&[constant(0), constant(65_536), constant(65_536), vec![0xfc, 10, 0, 0]].concat())),
        ("call", endless(&[constant(1), vec![0x10, 1, 0x1a]].concat())),
    ]
}

/// The interpreter takes no more of its thread's stack for any of them, however long they run, and
/// the clock ends them where the budget does.
#[test]
fn loops_of_any_instruction_end_with_their_budget_and_leave_their_host_alone() {
    let engine = Engine::new().expect("an engine");
    let mut spec = spec("endless");
    spec.budget = Budget::new(Duration::from_millis(40), Duration::from_millis(100)).expect("a budget");
    for (what, module) in loops() {
        let mut service = Service::load(&engine, &spec, &module, vec![]).expect(what);
        let mut costs: Vec<u64> = (0..5)
            .map(|_| {
                let before = service.account().cpu_ns;
                assert_eq!(service.run(&orbit_services::Event::default()), Outcome::Overrun, "{what}");
                service.account().cpu_ns - before
            })
            .collect();
        costs.sort_unstable();
        println!("{what}: {costs:?} ns");
        let budget = spec.budget.cpu().as_nanos() as u64;
        assert!(costs[0] >= budget && costs[0] < budget + 1_000_000, "{what}: {costs:?} of {budget} ns");
        assert!(costs[4] < 2 * budget, "{what}: {costs:?} of {budget} ns");
    }
}

/// Translating a function costs fuel too, in a run it could not be resumed: it is done at load.
#[test]
fn a_handler_that_calls_a_large_function_for_the_first_time_is_not_over_its_budget() {
    let section = |id: u8, content: &[u8]| [&[id][..], &leb(content.len() as u32), content].concat();
    let body = |code: &[u8]| [&leb(code.len() as u32 + 1)[..], &[0], code].concat();
    let large = body(&[[0x41, 1, 0x1a].repeat(200_000), vec![0x0b]].concat());
    let module = [
        &b"\0asm\x01\0\0\0"[..],
        &section(1, &[2, 0x60, 2, 0x7f, 0x7f, 0, 0x60, 0, 0]),
        &section(3, &[2, 0, 1]),
        &section(5, &[1, 0, 1]),
        &section(7, b"\x02\x06memory\x02\0\x0dorbit_handler\0\0"),
        &section(10, &[&[2][..], &body(&[0x10, 1, 0x0b]), &large].concat()),
    ]
    .concat();
    let mut spec = spec("large");
    spec.budget = Budget::new(Duration::from_millis(40), Duration::from_millis(100)).expect("a budget");
    let mut service = Service::load(&Engine::new().expect("an engine"), &spec, &module, vec![]).expect("loaded");
    assert_eq!(service.run(&orbit_services::Event::default()), Outcome::Done);
}
