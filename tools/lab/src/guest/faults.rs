//! Faults at random in the code of a driver (the RMK paper, section 7.1): each in a fresh copy of
//! it, one altered byte a copy.
//!
//! Three of four are a flipped bit, as the paper's; the fourth is a byte of any other value. Which
//! byte follows from the seed and the fault's number alone. Every other copy is used from one CPU
//! only: where all use it, one lock held for ever hangs all of them, and nobody inside is left to
//! find it. A machine continues with the next fault while it is well; after a hang, a stuck caller
//! or three exceptions it ends, and the host boots a fresh one.
//!
//! Lines: `fault` before, `outcome` after each. A CPU counts as hung when its pinned thread
//! (`lives.rs`) did not run for a second; the detection has two more to speak.

use super::{
    Failed,
    elf::Code,
    exercise::{DRIVER, NOT_LOADED, REFUSED, WRONG},
    kmsg::Kmsg,
    line,
    lives::Lives,
    machine::{WayOut, now_ns, sleep_ms},
};
use orbit_linux::child::Exit;
use orbit_shd::{Event, Options, Shd};
use serde_json::{Value, json};
use std::{
    process::{Command, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// A copy that is not done by then is stuck.
const PATIENCE: Duration = Duration::from_secs(8);
/// Longer than that needs no waiting after an exception, nor for a killed process.
const AFTERMATH: Duration = Duration::from_secs(1);
/// Exceptions after which the rest of the kernel is no longer trusted.
const EXCEPTIONS: usize = 3;
/// Rounds of the lives' threads, 20 ms each.
const DEAD_ROUNDS: u64 = 50;
const GRACE_MS: u64 = 2000;

/// Numbers that seem random, and are the same for the same seed (splitmix64).
fn random(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A byte of the file, and what it becomes.
struct Fault {
    at: usize,
    value: u8,
}

fn fault(seed: u64, nth: usize, code: &Code, file: &[u8]) -> Fault {
    let first = random(seed ^ random(nth as u64));
    let second = random(first);
    let at = code.bytes[(first % code.bytes.len() as u64) as usize];
    let change = if second % 4 < 3 { 1 << (second >> 8 & 7) } else { 1 + (second >> 8) % 255 };
    Fault { at, value: file[at] ^ change as u8 }
}

/// What the detection said, per CPU, for the judge of the lives.
#[derive(Default)]
struct Ear {
    alarms: AtomicUsize,
    reported_ns: [AtomicU64; 2],
    recovered: AtomicUsize,
    longest_ms: AtomicU64,
}

fn start(ear: &Arc<Ear>) -> Result<Shd, Failed> {
    let ear = ear.clone();
    let shd = Shd::start(&Options::default(), move |event| {
        match event {
            Event::Hung { cpu, .. } => {
                ear.reported_ns[cpu & 1].store(now_ns(), Relaxed);
                ear.alarms.fetch_add(1, Relaxed);
            }
            Event::Recovered { lasted, .. } => {
                ear.longest_ms.fetch_max(lasted.as_millis() as u64, Relaxed);
                ear.recovered.fetch_add(1, Relaxed);
            }
            Event::Left { .. } => {}
        }
        line::say_text(&orbit_shd::json(event));
    });
    shd.map_err(|e| e.to_string())
}

fn ended(status: ExitStatus) -> &'static str {
    match status.code() {
        Some(0) => "correct",
        Some(WRONG) => "wrong",
        Some(REFUSED) => "refused",
        Some(NOT_LOADED) => "not-loaded",
        _ => "killed",
    }
}

pub fn run(seed: u64, first: usize, count: usize) -> Result<bool, Failed> {
    let file = std::fs::read(DRIVER).map_err(|e| format!("reading {DRIVER}: {e}"))?;
    let code = Code::of(&file);
    let ear = Arc::new(Ear::default());
    let _shd = start(&ear)?;
    sleep_ms(2000);
    let now = Arc::new(AtomicUsize::new(first));
    let out = WayOut::new()?;
    let (heard, number, once) = (ear.clone(), now.clone(), AtomicBool::new(false));
    let _lives = Lives::start(2, DEAD_ROUNDS, move |cpu, last| {
        if once.swap(true, Relaxed) {
            return;
        }
        sleep_ms(GRACE_MS);
        let reported = heard.reported_ns[cpu].load(Relaxed);
        // Reported for an earlier stall, not for this one.
        let latency = (reported > last).then(|| (reported - last) / 1_000_000);
        line::say(&json!({
            "outcome": "hang", "fault": number.load(Relaxed), "cpu": cpu, "found": latency.is_some(),
            "latency_ms": latency,
        }));
        out.take();
    });
    line::say(&json!({"driver": {
        "functions": code.functions.len(), "bytes": code.bytes.len(), "seed": seed, "first": first,
    }}));
    let mut kmsg = Kmsg::new()?;
    let mut exceptions = 0;
    for nth in first..first + count {
        let one = fault(seed, nth, &code, &file);
        let callers = if nth % 2 == 0 { "every-cpu" } else { "one-cpu" };
        now.store(nth, Relaxed);
        let (alarms, recovered) = (ear.alarms.load(Relaxed), ear.recovered.load(Relaxed));
        line::say(&json!({
            "fault": nth, "at": code.name(one.at), "was": file[one.at], "is": one.value,
            "bits": (file[one.at] ^ one.value).count_ones(), "callers": callers,
        }));
        let mut child = Command::new("/bin/orbit-lab")
            .args([
                "guest",
                "exercise",
                &format!("orbit_crc_{:02}", nth % 100),
                &one.at.to_string(),
                &one.value.to_string(),
                callers,
            ])
            .spawn()
            .map_err(|e| format!("starting a process for the driver: {e}"))?;
        let begun = Instant::now();
        let (mut exception, mut patience) = (None, PATIENCE);
        let status = loop {
            sleep_ms(20);
            if exception.is_none() {
                exception = kmsg.new_failures().first().map(|said| said.what);
                if exception.is_some() {
                    // It kills a thread, and the rest of the process would wait for that one for
                    // ever.
                    patience = begun.elapsed() + AFTERMATH;
                }
            }
            match child.exited().map_err(|e| e.to_string())? {
                Some(status) => break Some(status),
                None if begun.elapsed() > patience + AFTERMATH => break None,
                None if begun.elapsed() > patience => child.kill().map_err(|e| e.to_string())?,
                None => {}
            }
        };
        // What breaks last, timers and work items, shall be seen too.
        sleep_ms(100);
        exception = exception.or(kmsg.new_failures().first().map(|said| said.what));
        let outcome = match (exception, status) {
            (Some(_), _) => "exception",
            (None, Some(status)) => ended(status),
            (None, None) => "stuck",
        };
        exceptions += usize::from(exception.is_some());
        line::say(&json!({
            "outcome": outcome, "fault": nth, "exception": exception, "stuck": status.is_none(),
            "alarms": ear.alarms.load(Relaxed) - alarms, "recovered": ear.recovered.load(Relaxed) - recovered,
        }));
        let stuck = status.is_none() && exception.is_none();
        if stuck || exceptions >= EXCEPTIONS || exception.is_some_and(|what| what.contains("lockup")) {
            break;
        }
    }
    line::say(&json!({"longest_stall_ms": Value::from(ear.longest_ms.load(Relaxed))}));
    Ok(true)
}
