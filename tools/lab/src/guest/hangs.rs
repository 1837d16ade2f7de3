//! Hangs each CPU in each way, RUNS times in all (and each way with every CPU), then loads the
//! machine for a while.
//!
//! Lines: `run` one a run, times in milliseconds; `again` a run made once more; `summary` one a
//! kind and CPU; `all` the runs with every CPU hung; `load` false alarms; `hangs` the sum; at last
//! `unwatched`, alarms while the detection ended. Latency is from the module's own note of the time
//! at which the hang began to the handler's in user space.

use super::{
    Failed, line,
    lives::Lives,
    machine::{KINDS, hang, let_go, now_ns, pin, run_on, sleep_ms, state},
};
use orbit_shd::{Event, How, Options, Shd};
use serde_json::{Value, json};
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Kinds of which both CPUs get well again by themselves, with interrupts on and off.
const ALL: [&str; 3] = ["preempt", "irq", "order"];
/// How long a hang lasts at most; what is not found by then is missed.
const HANG_MS: u64 = 10_000;
/// A run does not count, and is made again, if the other CPU too ran no thread for longer than this
/// (`lives.rs`): then the host did not run the machine, and nobody was there to judge.
const HELD_UP_MS: u64 = 500;
/// One that was found lasts so much longer.
const MORE_MS: u64 = 300;
/// The load is judged, and made again if it says nothing, in pieces of at most so many seconds.
const PIECE_S: u64 = 20;
/// So often at most: then the host is as it is, and what that piece said is left out.
const MOST_VOID: usize = 4;
/// How long a CPU stood still is heeded for so much longer at both ends than alarms are: it notes
/// it when it runs again, and an alarm may be reported a little later.
const SETTLE_MS: u64 = 500;
/// How long both CPUs hang.
const ALL_MS: u64 = 1500;
/// Longer than the detection's window, so that a run does not see the one before.
const PAUSE_MS: u64 = 1500;
/// A run that takes this much longer than it should is given up: the module did not let go.
const GIVE_UP: Duration = Duration::from_secs(60);

/// A CPU's alarms: how many, and the last, as the handler left it.
#[derive(Default)]
struct Of {
    alarms: AtomicUsize,
    reported_ns: AtomicU64,
    judged_ns: AtomicU64,
    interrupts_on: AtomicBool,
}

/// What the detection said of both CPUs, and the truth.
pub struct Heard {
    of: [Of; 2],
    lives: Arc<Lives>,
}

impl Heard {
    /// Begins a time in which no CPU is hung: alarms of each CPU until now.
    fn quiet(&self) -> [usize; 2] {
        for cpu in [0, 1] {
            self.lives.longest_ms(cpu);
        }
        sleep_ms(SETTLE_MS);
        [0, 1].map(|cpu| self.of[cpu].alarms.load(Relaxed))
    }

    /// Ends it: alarms for a CPU that ran threads all the while, and for one that did not, as the
    /// host did not run it.
    fn judged(&self, before: [usize; 2]) -> Alarms {
        sleep_ms(PAUSE_MS);
        let now = [0, 1].map(|cpu| self.of[cpu].alarms.load(Relaxed));
        sleep_ms(SETTLE_MS);
        let mut alarms = Alarms::default();
        for (cpu, (now, before)) in now.into_iter().zip(before).enumerate() {
            let since = now - before;
            let still = self.lives.longest_ms(cpu) >= CHECK_MS;
            *(if still { &mut alarms.excused } else { &mut alarms.wrong }) += since;
        }
        alarms
    }
}

/// Alarms while no CPU was hung.
#[derive(Default)]
struct Alarms {
    wrong: usize,
    excused: usize,
}

/// Starts the detection; every event is also a line.
pub fn detect() -> Result<(Shd, Arc<Heard>), Failed> {
    let heard = Arc::new(Heard { of: Default::default(), lives: Lives::start(2, u64::MAX, |_, _| {}) });
    let ear = heard.clone();
    let shd = Shd::start(&Options::default(), move |event| {
        if let Event::Hung { cpu, how, judged, .. } = event {
            let of = &ear.of[cpu & 1];
            of.judged_ns.store(judged.as_nanos() as u64, Relaxed);
            of.reported_ns.store(now_ns(), Relaxed);
            of.interrupts_on.store(*how == How::InterruptsOn, Relaxed);
            of.alarms.fetch_add(1, Relaxed);
        }
        line::say_text(&orbit_shd::json(event));
    })
    .map_err(|e| e.to_string())?;
    // It knows the machine by then.
    sleep_ms(2000);
    line::say(&json!({"started": {"counter": shd.has_counter(), "cpus": shd.cpus().len()}}));
    Ok((shd, heard))
}

/// One run: latency of the alarm (reported, judged) in milliseconds, if it came while the CPU hung
/// (or, with every CPU hung, after).
pub struct Run {
    pub reported: Option<f64>,
    pub judged: Option<f64>,
    pub began_ns: u64,
    pub lasted: f64,
    /// The longest time for which the other CPU did not run its thread.
    pub held_up_ms: u64,
    pub interrupts_on: bool,
    /// Alarms for the other CPU, which in truth did not run either for as long as an alarm takes:
    /// it waited for the hung one.
    pub dragged: usize,
    /// Alarms for the other CPU, which ran.
    pub wrong: usize,
}

/// No alarm comes sooner (`Options::check_least`).
const CHECK_MS: u64 = 160;

/// For how long.
#[derive(Clone, Copy, PartialEq)]
pub enum Length {
    /// Milliseconds, at most: until it was found.
    UntilFound(u64),
    /// Milliseconds, also if it was found.
    Whole(u64),
    /// The same, of both CPUs.
    Both(u64),
}

/// Hangs a CPU, and waits until it is well again.
pub fn run_one(heard: &Heard, kind: &str, cpu: usize, length: Length) -> Result<Run, Failed> {
    let all = matches!(length, Length::Both(_));
    let (Length::UntilFound(ms) | Length::Whole(ms) | Length::Both(ms)) = length;
    pin(1 - cpu);
    let (this, other) = (&heard.of[cpu], &heard.of[1 - cpu]);
    let (before, others) = (this.alarms.load(Relaxed), other.alarms.load(Relaxed));
    heard.lives.longest_ms(1 - cpu);
    hang(kind, cpu, ms)?;
    let begun = Instant::now();
    let (began, ended) = loop {
        sleep_ms(20);
        let (running, began, ended) = state();
        if running == 0 && ended != 0 {
            break (began, ended);
        }
        let reported = if this.alarms.load(Relaxed) > before { this.reported_ns.load(Relaxed) } else { u64::MAX };
        if matches!(length, Length::UntilFound(_)) && reported.saturating_add(MORE_MS * 1_000_000) < now_ns() {
            let_go();
        }
        if begun.elapsed() > GIVE_UP + Duration::from_millis(ms) {
            return Err(format!("{kind} on CPU {cpu} did not let go"));
        }
    };
    if all {
        sleep_ms(200);
    }
    let reported = this.reported_ns.load(Relaxed);
    let found = this.alarms.load(Relaxed) > before && reported > began && (all || reported < ended);
    let ms = |ns: u64| ns.saturating_sub(began) as f64 / 1e6;
    sleep_ms(PAUSE_MS);
    let others = if all { 0 } else { other.alarms.load(Relaxed) - others };
    let held_up_ms = heard.lives.longest_ms(1 - cpu);
    let still = held_up_ms >= CHECK_MS;
    Ok(Run {
        reported: found.then(|| ms(reported)),
        judged: found.then(|| ms(this.judged_ns.load(Relaxed))),
        began_ns: began,
        lasted: ms(ended),
        held_up_ms,
        interrupts_on: found && this.interrupts_on.load(Relaxed),
        dragged: if still { others } else { 0 },
        wrong: if still { 0 } else { others },
    })
}

/// To a whole number, as JSON shall have it.
fn whole(ms: f64) -> u64 {
    ms.round() as u64
}

fn middle_and_most(values: &[f64]) -> (Value, Value) {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.last() {
        Some(most) => (whole(values[values.len() / 2]).into(), whole(*most).into()),
        None => (Value::Null, Value::Null),
    }
}

/// A run's line.
fn report(kind: &str, cpu: usize, run: &Run, void: bool) {
    line::say(&json!({
        "run": kind, "cpu": cpu, "void": void, "reported_ms": run.reported.map(whole),
        "judged_ms": run.judged.map(whole), "lasted_ms": whole(run.lasted), "held_up_ms": run.held_up_ms,
        "interrupts_on": run.interrupts_on,
        "dragged": run.dragged, "wrong": run.wrong,
    }));
}

/// Busy threads of several sorts, more than there are CPUs, until a stop is requested: computing,
/// system calls, files, forks.
fn load(seconds: u64) {
    // What hung a CPU last stayed on the other one, and so would all that is made here.
    run_on(&[0, 1]);
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
    sleep_ms(seconds * 1000);
    stop.store(true, Relaxed);
    for thread in threads {
        // A worker has nothing to panic about.
        let _ = thread.join();
    }
}

/// Alarms in that much load. A piece with an alarm for a CPU that the host did not run is void, and
/// made again.
fn loaded(heard: &Heard, seconds: u64) -> (Alarms, usize) {
    let (mut all, mut void, mut left) = (Alarms::default(), 0, seconds);
    while left > 0 {
        let piece = left.min(PIECE_S);
        let before = heard.quiet();
        load(piece);
        let alarms = heard.judged(before);
        all.wrong += alarms.wrong;
        all.excused += alarms.excused;
        let is_void = alarms.excused > 0;
        void += usize::from(is_void);
        if !is_void || void > MOST_VOID {
            left -= piece;
        }
    }
    (all, void)
}

pub fn run(runs: usize, seconds: u64) -> Result<bool, Failed> {
    let (shd, heard) = detect()?;
    let places = KINDS.len() * 2;
    let (mut found, mut dragged, mut wrong, mut latencies) = (0, 0, 0, Vec::new());
    let mut table: Vec<Vec<f64>> = vec![Vec::new(); places];
    let mut counts = vec![(0usize, 0usize); places];
    let (mut void, mut again) = (0, Vec::new());
    // Kinds take turns, so that a short form has each of them; so do the CPUs, in a form too short
    // for both.
    let mut n = 0;
    while n < runs {
        let (kind, cpu) = (n % KINDS.len(), (n / KINDS.len() + n % KINDS.len()) % 2);
        let place = kind * 2 + cpu;
        let run = run_one(&heard, KINDS[kind], cpu, Length::UntilFound(HANG_MS))?;
        dragged += run.dragged;
        let counts_not = run.held_up_ms > HELD_UP_MS;
        report(KINDS[kind], cpu, &run, counts_not);
        if counts_not {
            void += 1;
            if void > 20 + runs {
                return Err(format!(
                    "the host of this machine is too busy: {void} runs in which nothing ran for a while"
                ));
            }
            continue;
        }
        wrong += run.wrong;
        // Where a kind has but one run, an alarm that came late, or was overwritten by that for the
        // other CPU, would leave it with none.
        if run.reported.is_none() && runs <= KINDS.len() && !again.contains(&kind) {
            again.push(kind);
            line::say(&json!({"again": KINDS[kind], "cpu": cpu}));
            continue;
        }
        n += 1;
        counts[place].0 += 1;
        if let Some(reported) = run.reported {
            found += 1;
            counts[place].1 += usize::from(run.interrupts_on);
            table[place].push(reported);
            latencies.push(reported);
        }
    }
    for (place, values) in table.iter().enumerate().filter(|(place, _)| counts[*place].0 > 0) {
        let (p50, max) = middle_and_most(values);
        line::say(&json!({
            "summary": KINDS[place / 2], "cpu": place % 2, "runs": counts[place].0, "found": values.len(),
            "interrupts_on": counts[place].1, "p50_ms": p50, "max_ms": max,
        }));
    }
    for kind in ALL {
        let mut reported = Vec::new();
        let rounds = runs / 12;
        for n in 0..rounds {
            reported.extend(run_one(&heard, &format!("{kind}-all"), n % 2, Length::Both(ALL_MS))?.reported);
        }
        let (p50, max) = middle_and_most(&reported);
        line::say(&json!({
            "all": kind, "runs": rounds, "hang_ms": ALL_MS, "reported_once_over": reported.len(),
            "p50_ms": p50, "max_ms": max,
        }));
    }
    let (alarms, load_void) = loaded(&heard, seconds);
    let false_alarms = alarms.wrong;
    let switches: u64 = shd.cpus().iter().map(|cpu| cpu.switches).sum();
    line::say(&json!({
        "load": seconds, "false_alarms": false_alarms, "excused": alarms.excused, "void": load_void,
        "switches": switches,
    }));
    let (p50, max) = middle_and_most(&latencies);
    let before = heard.quiet();
    line::say(&json!({"hangs": {
        "runs": runs, "void": void, "again": again.len(), "found": found, "dragged": dragged, "wrong": wrong,
        "load_s": seconds, "load_void": load_void, "false_alarms": false_alarms, "p50_ms": p50, "max_ms": max,
    }}));
    // The detection ends piece by piece: that must not be taken for a hang.
    drop(shd);
    let ending = heard.judged(before);
    line::say(&json!({"unwatched": {"false_alarms": ending.wrong, "excused": ending.excused}}));
    Ok(found == runs && wrong + false_alarms + ending.wrong == 0)
}
