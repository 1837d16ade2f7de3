//! Compiled modules do what interpreted ones do, faster; what misbehaves is aborted within its
//! budget.

use orbit_services::{Answer, Event, GrantRequest, Host, Options, Question, sys};
use orbit_services_wasm::{Engine, Handler, Loader, Outcome, Runner, WasmSpec};
use orbit_services_wasmtime::Compiler;
use std::time::Duration;

#[path = "../../services/tests/common/mod.rs"]
mod common;

use common::{Killed, PATIENCE, times, until, wasm};

const EVENT: Event = Event { kind: 1, lost: 0, due_ns: 0, now_ns: 0, value: 5 };

fn spec(name: &str, budget: &str, arguments: Vec<u8>) -> WasmSpec {
    WasmSpec {
        name: name.to_owned(),
        owner: std::process::id() as i32,
        budget: budget.parse().expect("a budget"),
        memory: 1 << 20,
        period: None,
        arguments,
    }
}

/// CPU time of a run.
fn timed(handler: &mut dyn Handler) -> (Outcome, Duration) {
    let began = sys::clock(sys::THREAD_CPU);
    let outcome = handler.run(&EVENT);
    (outcome, Duration::from_nanos(sys::clock(sys::THREAD_CPU) - began))
}

#[test]
fn a_long_handler_takes_a_fraction_of_the_interpreters_time() {
    let Some(module) = wasm("long") else { return };
    let (interpreter, compiler) = (Engine::new().expect("an engine"), Compiler::new().expect("a compiler"));
    let spec = spec("long", "10s/10s", 1_000_000u32.to_ne_bytes().to_vec());
    let mut interpreted = interpreter.load(&spec, &module, vec![]).expect("loaded");
    let mut compiled = compiler.load(&spec, &module, vec![]).expect("loaded");
    let mut ratios = Vec::new();
    for _ in 0..9 {
        let ((a, slow), (b, fast)) = (timed(&mut *interpreted), timed(&mut *compiled));
        assert_eq!((a, b), (Outcome::Done, Outcome::Done));
        ratios.push((slow.as_secs_f64() / fast.as_secs_f64(), slow, fast));
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ratio, slow, fast) = ratios[4];
    println!(
        "a million rounds: {slow:.1?} by {}, {fast:.1?} by {}: {ratio:.1} times",
        interpreter.name(),
        compiler.name()
    );
    assert!(ratio > 2.0, "{ratio:.1} times");
}

#[test]
fn sets_attributes_through_its_handles_and_they_are_put_back() {
    let Some(module) = wasm("record") else { return };
    let mut host = Host::new(Options { agent_priority: 0, ..Options::default() }).expect("a host");
    let target = Killed::sleeper();
    let nice = || orbit_linux::sched::nice(target.pid()).expect("its niceness");
    let before = nice();
    let request = GrantRequest::set("cpu:nice", target.pid());
    let grants = host.grant(std::process::id() as i32, &[request]).expect("granted");
    let (compiler, runner) = (Compiler::new().expect("a compiler"), Runner::start(0, 0, 0.5, 3).expect("a thread"));
    let spec = spec("record", "2ms/10ms", vec![b'v']);
    let handler = compiler.load(&spec, &module, grants.clone()).expect("loaded");
    let id = runner.add(spec, handler).expect("admitted");
    for value in [3, 11, 7] {
        runner.post(id, value).expect("loaded");
        until("it sets the value", || nice() == value as i32);
    }
    assert_eq!(runner.status(id).expect("loaded").account.runs, 3);
    runner.unload(id).expect("loaded");
    host.release(&grants);
    assert_eq!(nice(), before);
}

#[test]
fn what_spins_calls_recurses_or_traps_is_aborted_within_its_budget() {
    let (Some(wild), Some(count)) = (wasm("wild"), wasm("count")) else { return };
    let compiler = Compiler::new().expect("a compiler");
    let mut healthy = compiler.load(&spec("count", "2ms/10ms", vec![]), &count, vec![]).expect("loaded");
    for (way, outcome) in [
        (b's', Outcome::Overrun),
        (b'c', Outcome::Overrun),
        (b'm', Outcome::Trapped),
        (b'd', Outcome::Trapped),
        (b'i', Outcome::Trapped),
        (b'r', Outcome::Trapped),
        (b'f', Outcome::Done),
    ] {
        let mut handler = compiler.load(&spec("wild", "20ms/100ms", vec![way]), &wild, vec![]).expect("loaded");
        let mut used = Vec::new();
        for _ in 0..5 {
            let (seen, time) = timed(&mut *handler);
            assert_eq!(seen, outcome, "{}", way as char);
            used.push(time);
        }
        used.sort();
        println!("{}: {outcome:?} after {:.2?} (median)", way as char, used[2]);
        if outcome == Outcome::Overrun {
            assert!((Duration::from_millis(20)..Duration::from_millis(60)).contains(&used[2]), "{used:?}");
            let account = handler.account();
            assert_eq!((account.runs, account.overruns), (5, 5));
            assert!(account.cpu_ns >= 5 * 20_000_000, "calls are charged too: {account:?}");
        } else if outcome == Outcome::Trapped {
            assert_eq!(handler.account().faults, 5);
        }
        assert_eq!(healthy.run(&EVENT), Outcome::Done);
    }
}

/// What its own pages do not fit is refused; growing stops at the limit, as in the interpreter.
#[test]
fn memory_is_limited() {
    let (Some(wild), Some(grow)) = (wasm("wild"), wasm("grow")) else { return };
    let compiler = Compiler::new().expect("a compiler");
    let refused = compiler.load(&WasmSpec { memory: 1, ..spec("wild", "20ms/100ms", vec![b'm']) }, &wild, vec![]);
    let error = refused.err().expect("its own pages are more");
    assert!(error.kind() == orbit_services::Kind::BadObject && error.to_string().contains("memory"), "{error}");
    let interpreter = Engine::new().expect("an engine");
    for loader in [&interpreter as &dyn Loader, &compiler] {
        // 4 MiB, and the host's page.
        for (pages, outcome) in [(65u32, Outcome::Done), (64, Outcome::Trapped), (66, Outcome::Trapped)] {
            let spec = WasmSpec { memory: 4 << 20, ..spec("grow", "2s/10s", pages.to_ne_bytes().to_vec()) };
            let mut handler = loader.load(&spec, &grow, vec![]).expect("loaded");
            assert_eq!(handler.run(&EVENT), outcome, "{} with {pages} pages", loader.name());
            assert_eq!(handler.run(&EVENT), outcome, "{} with {pages} pages, again", loader.name());
        }
    }
}

/// Forged handles and values out of range: both engines refuse and count the same.
#[test]
fn calls_are_refused_and_counted_as_by_the_interpreter() {
    let Some(wild) = wasm("wild") else { return };
    let mut host = Host::new(Options { agent_priority: 0, ..Options::default() }).expect("a host");
    let target = Killed::sleeper();
    let before = orbit_linux::sched::nice(target.pid()).expect("its niceness");
    let grants =
        host.grant(std::process::id() as i32, &[GrantRequest::set("cpu:nice", target.pid())]).expect("granted");
    let (interpreter, compiler) = (Engine::new().expect("an engine"), Compiler::new().expect("a compiler"));
    let accounts = [&interpreter as &dyn Loader, &compiler].map(|loader| {
        let spec = spec("wild", "2s/10s", vec![b'f']);
        let mut handler = loader.load(&spec, &wild, grants.clone()).expect("loaded");
        for _ in 0..3 {
            assert_eq!(handler.run(&EVENT), Outcome::Done, "{}", loader.name());
        }
        let account = handler.account();
        (account.runs, account.refused, account.clamped, account.failed)
    });
    assert_eq!(accounts[0], accounts[1]);
    assert!(accounts[1].1 >= 3 * 8, "eight forged handles a run: {accounts:?}");
    host.release(&grants);
    assert_eq!(orbit_linux::sched::nice(target.pid()).expect("its niceness"), before);
}

#[test]
fn answers_questions_about_system_calls() {
    let Some(judge) = wasm("judge") else { return };
    let (compiler, runner) = (Compiler::new().expect("a compiler"), Runner::start(0, 0, 0.5, 3).expect("a thread"));
    let spec = spec("judge", "20ms/100ms", vec![]);
    let handler = compiler.load(&spec, &judge, vec![]).expect("loaded");
    let id = runner.add(spec, handler).expect("admitted");
    let ask = |path: &str, limit| {
        let question = Question { call: 2, arguments: [0; 6], pid: 7, tid: 8, site: 9, path: path.to_owned() };
        runner.ask(id, &question).expect("asked").wait(limit)
    };
    assert_eq!(ask("/tmp/denied", PATIENCE), Some(Answer { verdict: 1, result: -13 }));
    assert_eq!(ask("/tmp/0", PATIENCE), Some(Answer { verdict: 1, result: 0 }));
    assert_eq!(ask("/tmp/x", PATIENCE), Some(Answer { verdict: 0, result: 0 }));
    assert_eq!(ask("/tmp/s", Duration::from_millis(300)), None, "it is silent");
    assert_eq!(ask("/tmp/l", Duration::from_secs(1)), None, "it loops");
    until("the loop is aborted", || runner.status(id).expect("loaded").account.overruns == 1);
    assert_eq!(ask("/tmp/denied", PATIENCE), Some(Answer { verdict: 1, result: -13 }), "after an abort");
}

#[test]
fn ten_thousand_runaways_are_aborted() {
    let Some(wild) = wasm("wild") else { return };
    let compiler = Compiler::new().expect("a compiler");
    let mut handler = compiler.load(&spec("wild", "100us/1ms", vec![b's']), &wild, vec![]).expect("loaded");
    let mut over = Vec::new();
    for _ in 0..times(500, 10_000) {
        let (outcome, used) = timed(&mut *handler);
        assert_eq!(outcome, Outcome::Overrun);
        over.push(used.saturating_sub(Duration::from_micros(100)));
    }
    over.sort();
    println!(
        "{} aborts: {:.1?} over the budget (median), {:.1?} (p99)",
        over.len(),
        over[over.len() / 2],
        over[over.len() * 99 / 100]
    );
}

#[test]
fn the_same_modules_are_refused_as_by_the_interpreter() {
    let (interpreter, compiler) = (Engine::new().expect("an engine"), Compiler::new().expect("a compiler"));
    let header: &[u8] = b"\0asm\x01\0\0\0";
    let of = |sections: &[&[u8]]| [&[header], sections].concat().concat();
    let (types, function, code): (&[u8], &[u8], &[u8]) =
        (&[1, 4, 1, 0x60, 0, 0], &[3, 2, 1, 0], &[10, 4, 1, 2, 0, 0x0b]);
    for module in [
        Vec::new(),
        b"\x7fELF".to_vec(),
        header.to_vec(),
        of(&[types, function, code]),
        of(&[types, function, &[8, 1, 0], code]),
        of(&[types, &[2, 7, 1, 1, b'x', 1, b'y', 0, 0]]),
    ] {
        for loader in [&interpreter as &dyn Loader, &compiler] {
            let loaded = loader.load(&spec("x", "1ms/10ms", vec![]), &module, vec![]);
            let error = loaded.err().unwrap_or_else(|| panic!("{} loads {module:?}", loader.name()));
            assert_eq!(error.kind(), orbit_services::Kind::BadObject, "{}: {error}", loader.name());
        }
    }
    let large = [header, &vec![0u8; 1 << 20]].concat();
    assert!(compiler.load(&spec("x", "1ms/10ms", vec![]), &large, vec![]).is_err());
}

#[test]
fn changed_modules_are_refused_or_bounded() {
    let (Some(wild), Some(count)) = (wasm("wild"), wasm("count")) else { return };
    let compiler = Compiler::new().expect("a compiler");
    let mut healthy = compiler.load(&spec("count", "2ms/10ms", vec![]), &count, vec![]).expect("loaded");
    let (mut refused, mut done, mut aborted) = (0, 0, 0);
    let mut random = orbit_testing::Random::new(0x9e37_79b9_7f4a_7c15);
    let mut next = || random.draw();
    for round in 0..times(60, 1000) {
        let mut module = wild.clone();
        for _ in 0..next() % 4 {
            let at = next() as usize % module.len();
            module[at] = next() as u8;
        }
        let way = b"scmdirf"[next() as usize % 7];
        match compiler.load(&spec("wild", "2ms/10ms", vec![way]), &module, vec![]) {
            Err(_) => refused += 1,
            Ok(mut handler) => {
                for _ in 0..2 {
                    let (outcome, used) = timed(&mut *handler);
                    if outcome == Outcome::Done {
                        done += 1
                    } else {
                        aborted += 1
                    }
                    assert!(used < Duration::from_millis(100), "round {round}, {}: {used:?}", way as char);
                }
            }
        }
        assert_eq!(healthy.run(&EVENT), Outcome::Done, "round {round}");
    }
    println!("{refused} refused, {done} runs done, {aborted} aborted");
    assert!(refused > 0 && done > 0 && aborted > 0);
}
