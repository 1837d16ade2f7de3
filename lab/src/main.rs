//! `orbit-lab RUNS LOAD_SECONDS`: hangs each CPU of a virtual machine in each way, RUNS times in all (and each way with every
//! CPU), then loads the machine for a while; writes JSON lines and ends with status 1 if a hang was missed.
//!
//! Runs inside the virtual machine of `scripts/lab.sh`, with `orbit_hang.ko` loaded. Never anywhere else.
//!
//! Lines: `{"run":...}` one a run, times in milliseconds; `{"summary":...}` one a kind and CPU; `{"all":...}` the runs with
//! every CPU hung; `{"load":...}` false alarms; at last `{"lab":...}`. Latency is from the module's own note of the time at
//! which the hang began to the handler's in user space.
#![deny(unsafe_op_in_unsafe_fn)]

use orbit_shd::{Event, Options, Shd, json};
use std::{
    fs,
    io::Write,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

const MODULE: &str = "/sys/module/orbit_hang/parameters";
const KINDS: [&str; 7] = ["preempt", "irq", "lock", "lock-irq", "order", "halt", "kernel"];
const ALL: [&str; 3] = ["preempt-all", "irq-all", "order-all"];
/// How long a hang lasts; what is not found by then is missed.
const HANG_MS: u64 = 1500;
/// Longer than the detection's window, so that a run does not see the one before.
const PAUSE: Duration = Duration::from_millis(1500);
/// A run that takes longer than this is given up: the module did not let go.
const GIVE_UP: Duration = Duration::from_secs(60);

/// The last alarm, as the handler left it.
#[derive(Default)]
struct Heard {
    cpu: AtomicUsize,
    told_ns: AtomicU64,
    judged_ns: AtomicU64,
    alarms: AtomicUsize,
    how: [AtomicUsize; 2],
}

fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn pin(cpu: usize) {
    // SAFETY: all zeros is an empty set; the call reads it and affects the calling thread only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody is left to tell if the console is gone.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Threads that have not ended, and when the hang began and ended.
fn state() -> (u64, u64, u64) {
    let text = fs::read_to_string(format!("{MODULE}/state")).unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

/// One run: latency of the alarm (told, judged) in milliseconds, if it came while the CPU hung (or, with every CPU hung, after).
struct Run {
    told: Option<f64>,
    judged: Option<f64>,
    lasted: f64,
    interrupts_on: bool,
    /// Alarms for another CPU than the hung one.
    wrong: usize,
}

fn run(heard: &Heard, kind: &str, cpu: usize, all: bool) -> Result<Run, String> {
    pin(1 - cpu);
    let before = heard.alarms.load(Relaxed);
    let on_before = heard.how[0].load(Relaxed);
    fs::write(format!("{MODULE}/begin"), format!("{kind} {cpu} {HANG_MS}"))
        .map_err(|e| format!("cannot begin {kind} on CPU {cpu}: {e}"))?;
    let begun = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(20));
        let (running, _, ended) = state();
        if running == 0 && ended != 0 {
            break;
        }
        if begun.elapsed() > GIVE_UP {
            return Err(format!("{kind} on CPU {cpu} did not let go"));
        }
    }
    if all {
        thread::sleep(Duration::from_millis(200));
    }
    let (_, began, ended) = state();
    let alarms = heard.alarms.load(Relaxed) - before;
    let told = heard.told_ns.load(Relaxed);
    let right = alarms > 0 && (all || heard.cpu.load(Relaxed) == cpu);
    let found = right && told > began && (all || told < ended);
    let ms = |ns: u64| ns.saturating_sub(began) as f64 / 1e6;
    thread::sleep(PAUSE);
    Ok(Run {
        told: found.then(|| ms(told)),
        judged: found.then(|| ms(heard.judged_ns.load(Relaxed))),
        lasted: ms(ended),
        interrupts_on: heard.how[0].load(Relaxed) > on_before,
        wrong: if all { 0 } else { heard.alarms.load(Relaxed) - before - usize::from(right) },
    })
}

fn middle_and_most(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    match values.last() {
        Some(most) => format!(r#""p50_ms":{:.0},"max_ms":{most:.0}"#, values[values.len() / 2]),
        None => r#""p50_ms":null,"max_ms":null"#.into(),
    }
}

/// Busy threads of several sorts, more than there are CPUs, until told to stop: computing, system calls, pipes, files, forks.
fn load(seconds: u64) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for sort in 0..6 {
        let stop = stop.clone();
        threads.push(thread::spawn(move || {
            let mut x = 1u64;
            while !stop.load(Relaxed) {
                match sort {
                    0 | 1 => (0..100_000).for_each(|i| x = std::hint::black_box(x.wrapping_mul(i | 1))),
                    2 => drop(fs::read_to_string("/proc/self/maps")),
                    3 => drop(fs::write(format!("/tmp/load{sort}"), vec![x as u8; 4 << 20])),
                    4 => drop(std::process::Command::new("/bin/busybox").arg("true").status()),
                    _ => drop(
                        fs::read_dir("/proc")
                            .map(|all| all.flatten().filter(|one| fs::read_link(one.path()).is_ok()).count()),
                    ),
                }
            }
        }));
    }
    thread::sleep(Duration::from_secs(seconds));
    stop.store(true, Relaxed);
    for thread in threads {
        // A worker has nothing to panic about.
        let _ = thread.join();
    }
}

fn lab(runs: usize, seconds: u64) -> Result<bool, String> {
    // SAFETY: no memory is given to the call. Where it fails, the lab is only a little less steady.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    let heard = Arc::new(Heard::default());
    let ear = heard.clone();
    let shd = Shd::start(&Options::default(), move |event| {
        if let Event::Hung { cpu, how, judged, .. } = event {
            ear.cpu.store(*cpu, Relaxed);
            ear.judged_ns.store(judged.as_nanos() as u64, Relaxed);
            ear.told_ns.store(now_ns(), Relaxed);
            ear.how[usize::from(how.name() != "interrupts-on")].fetch_add(1, Relaxed);
            ear.alarms.fetch_add(1, Relaxed);
        }
        say(&json(event));
    })
    .map_err(|e| e.to_string())?;
    thread::sleep(Duration::from_secs(2));
    say(&format!(r#"{{"started":{{"counter":{},"cpus":{}}}}}"#, shd.has_counter(), shd.cpus().len()));

    let (mut done, mut found, mut wrong, mut latencies) = (0, 0, 0, Vec::new());
    let mut table: Vec<Vec<f64>> = vec![Vec::new(); KINDS.len() * 2];
    let mut counts = vec![(0usize, 0usize); KINDS.len() * 2];
    // Kinds take turns, so that a short form has each of them.
    for n in 0..runs {
        let place = n % (KINDS.len() * 2);
        let (kind, cpu) = (KINDS[place / 2], place % 2);
        let run = run(&heard, kind, cpu, false)?;
        done += 1;
        wrong += run.wrong;
        counts[place].0 += 1;
        if let Some(told) = run.told {
            found += 1;
            counts[place].1 += usize::from(run.interrupts_on);
            table[place].push(told);
            latencies.push(told);
        }
        let number = |ms: Option<f64>| ms.map_or("null".into(), |ms| format!("{ms:.0}"));
        say(&format!(
            r#"{{"run":"{kind}","cpu":{cpu},"told_ms":{},"judged_ms":{},"lasted_ms":{:.0},"interrupts_on":{},"wrong":{}}}"#,
            number(run.told),
            number(run.judged),
            run.lasted,
            run.interrupts_on,
            run.wrong
        ));
    }
    for (place, values) in table.into_iter().enumerate().filter(|(place, _)| counts[*place].0 > 0) {
        let (kind, cpu, found) = (KINDS[place / 2], place % 2, values.len());
        say(&format!(
            r#"{{"summary":"{kind}","cpu":{cpu},"runs":{},"found":{found},"interrupts_on":{},{}}}"#,
            counts[place].0,
            counts[place].1,
            middle_and_most(values)
        ));
    }
    for kind in ALL {
        let mut told = Vec::new();
        let rounds = (runs / 12).clamp(1, 10);
        for n in 0..rounds {
            told.extend(run(&heard, kind, n % 2, true)?.told);
        }
        let (found, times) = (told.len(), middle_and_most(told));
        say(&format!(r#"{{"all":"{kind}","runs":{rounds},"hang_ms":{HANG_MS},"told_once_over":{found},{times}}}"#));
    }
    let before = heard.alarms.load(Relaxed);
    load(seconds);
    let false_alarms = heard.alarms.load(Relaxed) - before;
    let cpus = shd.cpus();
    let switches: u64 = cpus.iter().map(|cpu| cpu.switches).sum();
    say(&format!(r#"{{"load":{seconds},"false_alarms":{false_alarms},"switches":{switches}}}"#));
    say(&format!(
        r#"{{"lab":{{"runs":{done},"found":{found},"wrong":{wrong},"false_alarms":{false_alarms},{}}}}}"#,
        middle_and_most(latencies)
    ));
    Ok(done == found)
}

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (Some(Ok(runs)), Some(Ok(seconds)), None) = (numbers.next(), numbers.next(), numbers.next()) else {
        eprintln!("usage: orbit-lab RUNS LOAD_SECONDS, inside the virtual machine of scripts/lab.sh");
        return ExitCode::from(2);
    };
    match lab(runs as usize, seconds) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            say(&format!(r#"{{"error":{why:?}}}"#));
            ExitCode::FAILURE
        }
    }
}
