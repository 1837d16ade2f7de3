//! The single costs: entering an upcall, opening a slot, aborting a runaway, dispatch to an agent,
//! wasm calls, joining, and that no member sees EINTR.

use super::child;
use crate::reach::{Reach, ratio};
use crate::row::Measured;
use crate::stats::{Samples, Summary, median};
use orbit_console::out::Failure;
use orbit_linux::child::Exit;
use orbit_services::{
    AttributeClass, Budget, Dispatch, GrantRequest, Host, Manager, Options, ServiceId, Spec, objects, sys,
};
use orbit_services_wasm::{Engine, Handler, Outcome, Service, WasmSpec};
use serde::Serialize;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use orbit_services::layout as abi;

/// A row without fields of its own.
#[derive(Debug, Serialize)]
pub struct Plain {}

/// A row of this bench.
pub type Row = Measured<Plain>;

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    pub rows: Vec<Row>,
    pub reaches: Vec<Reach>,
}

impl Found {
    /// A row and its bounds.
    pub fn add(&mut self, row: Row, bounds: Vec<Reach>) {
        self.rows.push(row.reach(&bounds));
        self.reaches.extend(bounds);
    }

    /// A row without a figure: what it needs is not here.
    fn missing(&mut self, what: &str) {
        self.rows.push(Row::new(what, "us", Plain {}));
    }

    /// A row in microseconds whose median has a bound.
    fn bounded(&mut self, what: &str, ours: Option<Summary>, limit: f64) {
        let bounds = vec![Reach::at_most(what, median(ours), limit, "us")];
        self.add(Row::new(what, "us", Plain {}).ours(ours), bounds);
    }
}

/// How often things are measured.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub upcalls: usize,
    pub aborts: usize,
    pub joins: usize,
    pub calls: usize,
    pub ticks: usize,
}

impl Counts {
    pub fn new(quick: bool, long: bool) -> Counts {
        match (quick, long) {
            (true, _) => Counts { upcalls: 5_000, aborts: 1_000, joins: 100, calls: 10_000, ticks: 500 },
            (_, false) => Counts { upcalls: 20_000, aborts: 10_000, joins: 1_000, calls: 10_000, ticks: 2_000 },
            (_, true) => Counts { upcalls: 200_000, aborts: 100_000, joins: 5_000, calls: 200_000, ticks: 20_000 },
        }
    }
}

/// The signals of the bench's host.
const SIGNALS: (i32, i32) = (60, 61);
/// No tick comes by itself, and no agent takes an event, within this.
const NEVER: Duration = Duration::from_secs(3600);

pub fn said(error: orbit_services::Error) -> Failure {
    Failure::text(error.to_string())
}

/// A host whose agents leave events to members, and admit every budget.
pub fn host(cpu: usize) -> Result<Host, Failure> {
    let options = Options { cpus: vec![cpu], grace: NEVER, limit: 8.0, signals: SIGNALS, ..Options::default() };
    Host::new(options).map_err(said)
}

/// A service that touches so many bytes, or spins.
pub fn work(
    host: &mut Host,
    dispatch: Dispatch,
    budget: &str,
    spec: (u32, bool),
    grants: Vec<GrantRequest>,
) -> Result<ServiceId, Failure> {
    let (bytes, spins) = spec;
    let spec = Spec {
        name: "work".to_owned(),
        owner: std::process::id() as i32,
        budget: budget.parse::<Budget>().map_err(said)?,
        period: if dispatch == Dispatch::Agent { Duration::from_millis(2) } else { NEVER },
        dispatch,
        raise: None,
        arguments: [bytes, u32::from(spins)].iter().flat_map(|word| word.to_ne_bytes()).collect(),
        grants,
    };
    host.load(&spec, objects::WORK).map_err(said)
}

/// In a member: makes the event of the first service due, and sends this thread the signal of
/// upcalls.
pub fn upcall(process: i32, thread: i32) {
    abi::control(abi::FIRST_SERVICE).due.store(sys::now(), SeqCst);
    sys::signal_thread(process, thread, SIGNALS.0);
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Entry and return of an upcall: of frequent ones, whose budget an agent checks, and of others,
/// which arm a timer each.
pub fn upcalls(found: &mut Found, cpu: usize, counts: Counts) -> Result<(), Failure> {
    let (entry, both) = upcalls_with(cpu, counts, "1ms/1ms")?;
    found.bounded("upcall, signal to current: entry", entry.summary(), 3.0);
    found.bounded("upcall with budget, there and back", both.summary(), 10.0);
    // Below what agents check.
    let (_, both) = upcalls_with(cpu, counts, "100us/100us")?;
    let what = "upcall with budget, there and back, a timer for each";
    found.add(Row::new(what, "us", Plain {}).ours(both.summary()), Vec::new());
    Ok(())
}

/// Entry, and there and back.
fn upcalls_with(cpu: usize, counts: Counts, budget: &str) -> Result<(Samples, Samples), Failure> {
    let mut host = host(cpu)?;
    work(&mut host, Dispatch::Upcall, budget, (0, false), Vec::new())?;
    let n = counts.upcalls;
    let (samples, ()) = child::run(cpu, Some(host.invitation()), |_| Ok(()), |out| {
        let (process, thread) = (sys::process(), sys::thread());
        let control = abi::control(abi::FIRST_SERVICE);
        warm(process, thread);
        for _ in 0..n {
            let began = sys::now();
            upcall(process, thread);
            let ended = sys::now();
            let run = (control.runs.load(Relaxed).wrapping_sub(1)) as usize % abi::KEPT;
            out.extend([us(u64::from(control.delays[run].load(Relaxed))), us(ended - began)]);
        }
    })?;
    let (mut entry, mut both) = (Samples::default(), Samples::default());
    for pair in samples.figures().chunks_exact(2) {
        entry.add_figure(pair[0]);
        both.add_figure(pair[1]);
    }
    Ok((entry, both))
}

/// Upcalls until agents have seen that they are frequent: they check every 100 ms.
pub fn warm(process: i32, thread: i32) {
    let end = sys::now() + 250_000_000;
    while sys::now() < end {
        upcall(process, thread);
    }
}

/// Opening and closing a slot.
pub fn opening(found: &mut Found, cpu: usize, counts: Counts) -> Result<(), Failure> {
    let host = host(cpu)?;
    for (length, limit) in [(4096, 3.0), (65_536, 5.0)] {
        let (samples, ()) = child::run(cpu, Some(host.invitation()), |_| Ok(()), |out| {
            let at = abi::PROTECTED + 3 * abi::SLOT;
            // As the library does: the slot is a mapping of its own.
            sys::advise(at, length, 1);
            for nth in 0..counts.upcalls + 100 {
                let began = sys::now();
                sys::protect(at, length, 3);
                // SAFETY: a byte of an empty slot, which was just opened in this process.
                unsafe { (at as *mut u8).write_volatile(nth as u8) };
                sys::protect(at, length, 0);
                if nth >= 100 {
                    out.push(us(sys::now() - began));
                }
            }
        })?;
        let what = format!("region opened and closed by mprotect, {} KiB", length / 1024);
        found.bounded(&what, samples.summary(), limit);
    }
    Ok(())
}

/// Aborts of a handler that spins: how long after its budget, and that the interrupted program
/// computes as before.
pub fn aborts(found: &mut Found, cpu: usize, counts: Counts) -> Result<(), Failure> {
    let mut host = host(cpu)?;
    let id = work(&mut host, Dispatch::Upcall, "100us/100us", (0, true), Vec::new())?;
    let n = counts.aborts;
    let (samples, ()) = child::run(cpu, Some(host.invitation()), |_| Ok(()), |out| {
        let (process, thread) = (sys::process(), sys::thread());
        let control = abi::control(abi::FIRST_SERVICE);
        let expected = checksum();
        let mut is_unharmed = true;
        while out.len() < n {
            let before = control.overruns.load(Relaxed);
            upcall(process, thread);
            is_unharmed &= checksum() == expected;
            if control.overruns.load(Relaxed) != before {
                out.push(us(control.latest_overrun_ns.load(Relaxed)));
            }
        }
        // A figure that misses every bound.
        out.extend((!is_unharmed).then_some(f64::MAX));
    })?;
    let account = host.status(id).map_err(said)?.account;
    let (summary, harmed) = (samples.summary(), samples.figures().contains(&f64::MAX));
    let aborted = account.overruns as f64;
    let bounds = vec![
        Reach::at_most("abort of a runaway handler, after its budget", median(summary), 50.0, "us"),
        Reach::at_most("abort of a runaway handler, p99", summary.map_or(f64::MAX, |s| s.p99), 200.0, "us"),
        Reach::at_least("runaways aborted, of all", ratio(aborted, account.runs as f64), 1.0, "times"),
    ];
    let program = if harmed { "harmed" } else { "unharmed" };
    let what = format!("abort of a runaway after its budget: {aborted} of {}, interrupted program \
        {program}", account.runs);
    found.add(Row::new(what, "us", Plain {}).ours(summary), bounds);
    Ok(())
}

/// Uses general and floating-point registers.
#[inline(never)]
fn checksum() -> u64 {
    let (mut x, mut n) = (1.5f64, 1u64);
    for i in 0..200u64 {
        n = black_box(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
        x = x.mul_add(0.999_99, (n >> 40) as f64);
    }
    x.to_bits() ^ n
}

/// A timer's event to the handler on an agent, against a bare timer and a process at the same
/// priority.
pub fn dispatch(found: &mut Found, cpu: usize, counts: Counts) -> Result<(), Failure> {
    let mut bare = Samples::default();
    let mut ours = Samples::default();
    let rounds = 4;
    for _ in 0..rounds {
        let n = counts.ticks / rounds;
        let (samples, ()) = child::run(cpu, None, |_| Ok(()), |out| {
            sys::set_priority(0, 99);
            let period = 2_000_000;
            let timer = sys::timer_descriptor() as i32;
            let mut due = sys::now();
            while out.len() < n {
                due += period;
                sys::timer_descriptor_set(timer, due);
                sys::poll(&mut [sys::Poll { descriptor: timer, events: libc::POLLIN, ready: 0 }]);
                out.push(us(sys::now().saturating_sub(due)));
                sys::read_word(timer);
            }
        })?;
        bare.extend(samples.figures());
        let mut host = Host::new(Options { cpus: vec![cpu], limit: 8.0, ..Options::default() }).map_err(said)?;
        let id = work(&mut host, Dispatch::Agent, "1ms/1ms", (0, false), Vec::new())?;
        while host.status(id).map_err(said)?.account.runs < n.min(abi::KEPT) as u64 {
            std::thread::sleep(Duration::from_millis(20));
        }
        ours.extend(&host.status(id).map_err(said)?.delays_ns.iter().map(|ns| us(u64::from(*ns))).collect::<Vec<_>>());
    }
    let (ours, bare) = (ours.summary(), bare.summary());
    let what = "timer due to handler, on an agent";
    let reach = Reach::at_most("dispatch to an agent, times a bare \
        timer", ratio(median(ours), median(bare)), 1.5, "times");
    found.add(Row::new(what, "us", Plain {}).ours(ours).rival("bare timer, process at FIFO 99", bare), vec![reach]);
    Ok(())
}

/// A manager of one number, in the bench itself: what is left is the engine's.
#[derive(Debug)]
struct Number(AtomicI64);

const NUMBERS: &[AttributeClass] = &[AttributeClass {
    id: 1000,
    name: "bench:number",
    unit: "",
    min: 0,
    max: i64::MAX,
    settable: true,
    about: "a number in the bench",
}];

impl Manager for Number {
    fn classes(&self) -> &'static [AttributeClass] {
        NUMBERS
    }
    fn read(&self, _: &AttributeClass, _: i32) -> orbit_services::Result<i64> {
        Ok(self.0.load(Relaxed))
    }
    fn apply(&self, _: &AttributeClass, _: i32, value: i64) -> orbit_services::Result<()> {
        self.0.store(value, Relaxed);
        Ok(())
    }
}

/// A module whose handler gets and sets its first attribute 1,000 times.
#[rustfmt::skip]
const MODULE: &[u8] = &[
    0, b'a', b's', b'm', 1, 0, 0, 0,
    // types: get (i64, i32) -> i64; set (i64, i64) -> i64; handler (i32, i32)
    1, 18, 3, 0x60, 2, 0x7e, 0x7f, 1, 0x7e, 0x60, 2, 0x7e, 0x7e, 1, 0x7e, 0x60, 2, 0x7f, 0x7f, 0,
    // imports: orbit.get, orbit.set
    2, 25, 2, 5, b'o', b'r', b'b', b'i', b't', 3, b'g', b'e', b't', 0, 0,
    5, b'o', b'r', b'b', b'i', b't', 3, b's', b'e', b't', 0, 1,
    // one function, of the third type; one page of memory
    3, 2, 1, 2, 5, 3, 1, 0, 1,
    // exports: memory, orbit_handler
    7, 26, 2, 6, b'm', b'e', b'm', b'o', b'r', b'y', 2, 0,
    13, b'o', b'r', b'b', b'i', b't', b'_', b'h', b'a', b'n', b'd', b'l', b'e', b'r', 0, 2,
    // code: a local n = 1000; loop { get(1, 64); set(1, *64); n -= 1; if n, again }
    10, 42, 1, 40, 1, 1, 0x7f, 0x41, 0xe8, 0x07, 0x21, 2,
    0x03, 0x40,
    0x42, 1, 0x41, 0xc0, 0, 0x10, 0, 0x1a,
    0x42, 1, 0x41, 0xc0, 0, 0x29, 3, 0, 0x10, 1, 0x1a,
    0x20, 2, 0x41, 1, 0x6b, 0x22, 2, 0x0d, 0,
    0x0b, 0x0b,
];

/// One get and one set, in a handler of wasm.
pub fn wasm(found: &mut Found, cpu: usize, counts: Counts) -> Result<(), Failure> {
    const EACH: f64 = 1000.0;
    let mut host = host(cpu)?;
    host.manage(Arc::new(Number(AtomicI64::new(7)))).map_err(said)?;
    let me = std::process::id() as i32;
    let grants = host.grant(me, &[GrantRequest::set("bench:number", me)]).map_err(said)?;
    let engine = Engine::new().map_err(said)?;
    let spec = WasmSpec {
        name: "bench".to_owned(),
        owner: me,
        budget: "1s/1s".parse().map_err(said)?,
        memory: 65_536,
        period: None,
        arguments: Vec::new(),
    };
    let mut service = Service::load(&engine, &spec, MODULE, grants).map_err(said)?;
    let event = orbit_services::Event::default();
    let mut samples = Samples::default();
    for _ in 0..(counts.calls / 50).max(100) {
        let began = sys::now();
        if service.run(&event) != Outcome::Done {
            return Err(Failure::text("the wasm module of the bench did not run to its end"));
        }
        samples.add_figure((sys::now() - began) as f64 / EACH);
    }
    let (ours, what) = (samples.summary(), "wasm: get and set an attribute");
    let reach = Reach::at_most(what, median(ours), 200.0, "ns");
    found.add(Row::new(what, "ns", Plain {}).ours(ours), vec![reach]);
    Ok(())
}

/// Joining and leaving a running program: a dynamic one, and a static one and one in Go where a
/// compiler is there.
pub fn joining(found: &mut Found, cpu: usize, counts: Counts) -> Result<(), Failure> {
    let what = |kind: &str| format!("joining a running program, {kind}, {} joins and leaves: stopped \
        for", counts.joins);
    let stopped = joins(cpu, counts.joins, std::process::Command::new("sleep").arg("infinity"))?;
    found.bounded(&what("dynamic"), stopped.summary(), 2000.0);
    let folder = std::env::temp_dir().join(format!("orbit-bench-join-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let outcome = (|| {
        for (kind, source, text, compiler) in SUBJECTS {
            std::fs::write(folder.join(source), text)?;
            let mut build = std::process::Command::new(compiler[0]);
            build.args(&compiler[1..]).current_dir(&folder).stderr(std::process::Stdio::null());
            // The environment of a bench may lack what the Go compiler keeps its results in.
            build.env("GOCACHE", folder.join("cache")).env("GO111MODULE", "off");
            if !build.status().is_ok_and(|status| status.success()) {
                found.missing(&what(kind));
                continue;
            }
            let stopped = joins(cpu, counts.joins, &mut std::process::Command::new(folder.join("subject")))?;
            found.bounded(&what(kind), stopped.summary(), 2000.0);
        }
        Ok(())
    })();
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

/// Programs that sleep and compute in turn: a kind, its source, and how it is compiled.
const SUBJECTS: [(&str, &str, &str, &[&str]); 2] = [
    (
        "static",
        "subject.c",
        "#include <unistd.h>\n\
         int main(void) { for (volatile unsigned n = 0;; n++) if (n % 100000 == 0) usleep(1000); }\n",
        &["cc", "-O2", "-static", "-o", "subject", "subject.c"],
    ),
    (
        "Go",
        "subject.go",
        "package main\nimport \"time\"\n\
         func work() { for n := uint64(1); ; n++ { if n%100000 == 0 { time.Sleep(time.Millisecond) } } }\n\
         func main() { go work(); go work(); work() }\n",
        &["go", "build", "-o", "subject", "subject.go"],
    ),
];

/// So many joins and leaves of a program. Answers how long each join stopped it.
fn joins(cpu: usize, n: usize, program: &mut std::process::Command) -> Result<Samples, Failure> {
    let mut host = host(cpu)?;
    let mut program = program.spawn()?;
    let pid = program.id() as i32;
    // Until it has begun: its loader must not be met in the middle.
    std::thread::sleep(Duration::from_millis(100));
    let mut samples = Samples::default();
    let mut outcome = Ok(());
    for _ in 0..n {
        match host.join(pid).and_then(|stopped| host.leave(pid).map(|()| stopped)) {
            Ok(stopped) => samples.add(stopped),
            Err(error) => {
                outcome = Err(said(error));
                break;
            }
        }
    }
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let _ = program.kill();
    let _ = program.wait_for_exit();
    outcome?;
    if maps.contains("orbit-sandbox") {
        return Err(Failure::text("a program that left still has the region mapped"));
    }
    Ok(samples)
}

/// System calls of a member that end with EINTR while upcalls come.
pub fn interrupted(found: &mut Found, cpu: usize, counts: Counts) -> Result<(), Failure> {
    let mut host = Host::new(Options { cpus: vec![cpu], limit: 8.0, ..Options::default() }).map_err(said)?;
    host.start_ticks(Duration::from_micros(500));
    if let Some(why) = host.no_ticks() {
        return Err(Failure::text(why));
    }
    let spec = Spec {
        name: "work".to_owned(),
        owner: std::process::id() as i32,
        budget: "100us/1ms".parse().map_err(said)?,
        period: Duration::from_micros(500),
        dispatch: Dispatch::Upcall,
        raise: None,
        arguments: Vec::new(),
        grants: Vec::new(),
    };
    let id = host.load(&spec, objects::WORK).map_err(said)?;
    let n = counts.calls;
    let invitation = host.invitation();
    let (samples, ()) = child::run(cpu, Some(invitation), |pid| host.add_member(pid).map_err(said), |out| {
        let mut x = 1u32;
        for _ in 0..n {
            for _ in 0..20_000 {
                x = black_box(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
            }
            out.push(f64::from(u8::from(sys::sleep_until(sys::now() + 50_000) == -4)));
        }
    })?;
    let upcalls = host.status(id).map_err(said)?.account.upcalls;
    let interrupted: f64 = samples.figures().iter().sum();
    let what = format!("calls of a member that ended with EINTR, of {n} with {upcalls} upcalls between");
    let bounds = vec![
        Reach::at_most("calls that ended with EINTR", interrupted, 0.0, "calls"),
        Reach::at_least("upcalls meanwhile", upcalls as f64, 100.0, "upcalls"),
    ];
    let ours = Some(Summary { p50: interrupted, p99: interrupted, n });
    found.add(Row::new(what, "calls", Plain {}).ours(ours), bounds);
    Ok(())
}
