//! The campaign: hangs injected into real servers, one a run; what the guard found, when, and what
//! a heartbeat saw.
//!
//! A run: a fresh server under guard and load; after a while one thread hangs at a chosen place;
//! the first report that names it counts. Found is that; right are kind, thread, ring, and the
//! injected function in the thread's stack. A report before the hang is a false alarm. In some runs
//! the hang is left until a heartbeat watchdog saw it, or did not.

use super::guarded::{Guarded, Reported};
use super::order::{Hung, Order, Orders};
use super::places::{self, Class, Host, Place, WAYS, Way};
use super::scratch::{self, Scratch};
use super::watchdog::Watchdog;
use super::{Lines, servers, talk};
use crate::Progress;
use crate::plot::Series;
use crate::reach::Reach;
use crate::stats::Shuffle;
use orbit_console::out::Failure;
use serde::Serialize;
use orbit_linux::procfs;
use orbit_linux::status::Status;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time a server is watched before a thread hangs, at least,
const WARM: Duration = Duration::from_millis(3500);
/// and at most; between the two until the guard says that it knows the loop: on a loaded machine
/// it sees the thread less often.
const WARM_AT_LAST: Duration = Duration::from_secs(60);
/// A thread that does something a few times a second is watched until it has slept so often, as a
/// loop must be learnt.
const SLEPT_RARE: u64 = 64;
/// A place that nobody comes by in this time is not reached.
const REACHED: Duration = Duration::from_secs(15);
/// A hang that is not reported in this time is not found,
const FOUND: Duration = Duration::from_secs(60);
/// unless a thread that spins has had less CPU time than this by then (as on a loaded machine):
const CPU: u64 = 3_000_000_000;
/// then after this time.
const FOUND_AT_LAST: Duration = Duration::from_secs(120);
/// Calls of a place before the one that hangs, at most.
const CALLS: usize = 40;
/// Runs that may fail for other reasons, such as a server that did not begin.
const FAILED: usize = 10;
/// What the guard reports beside the report that counts.
const BESIDE: usize = 3;

/// What to run.
pub struct Wanted<'a> {
    /// Threads to hang. Places that are not reached are made up for by others, up to a quarter more
    /// runs.
    pub runs: usize,
    /// Every so many runs a heartbeat is watched to its end.
    pub rival_every: usize,
    pub rival_allows: Duration,
    /// Further programs, as command lines.
    pub programs: &'a [String],
    /// The guard's limit, ms.
    pub limit_ms: u64,
}

/// Latencies, milliseconds from the hang to the report.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
    pub n: usize,
}

impl Latency {
    /// Nothing without samples.
    pub fn of(samples: &mut [f64]) -> Option<Latency> {
        samples.sort_by(f64::total_cmp);
        let last = samples.len().checked_sub(1)?;
        let at = |part: f64| samples[(last as f64 * part).round() as usize];
        Some(Latency { p50: at(0.5), p99: at(0.99), max: samples[last], n: samples.len() })
    }
}

/// Runs that belong together: those of one way to hang, or of one place.
#[derive(Debug, Default, Serialize)]
pub struct Row {
    pub what: String,
    /// Runs in which the thread hung.
    pub runs: usize,
    /// Runs in which nobody came by the place: not counted.
    pub not_reached: usize,
    pub found: usize,
    pub right_kind: usize,
    pub right_thread: usize,
    pub right_ring: usize,
    /// The injected function is in the thread's stack.
    pub right_function: usize,
    pub false_alarms: usize,
    pub latency_ms: Option<Latency>,
    /// What the guard counted progress in: `cpu_ns` is thread CPU time, as where there is no PMU.
    pub progress: Option<String>,
    /// But for rings: the guard's limit.
    pub limit_ms: Option<u64>,
    #[serde(skip)]
    samples: Vec<f64>,
}

/// What a heartbeat watchdog saw of hangs of one sort of thread.
#[derive(Debug, Default, Serialize)]
pub struct RivalRow {
    pub what: String,
    pub watchdog_s: f64,
    pub runs: usize,
    pub seen: usize,
    pub latency_ms: Option<Latency>,
    /// Of the guard, in the same runs.
    pub guard_latency_ms: Option<Latency>,
    #[serde(skip)]
    samples: Vec<f64>,
    #[serde(skip)]
    guard_samples: Vec<f64>,
}

/// How one run went.
struct Outcome {
    hung: Option<Hung>,
    found: Option<Reported>,
    early: Vec<Reported>,
    beside: Vec<Reported>,
    /// Of one that was not found: what its thread does, and what the guard reported of itself.
    state: String,
    /// With a rival: milliseconds until the heartbeat was missed; nothing if it continued.
    rival: Option<Option<f64>>,
}

/// Everything that runs have in common.
struct Campaign<'a> {
    scratch: &'a Scratch,
    library: PathBuf,
    www: PathBuf,
    config: PathBuf,
    shuffle: Shuffle,
}

impl Campaign<'_> {
    /// With this limit of the guard's, ms.
    fn new(limit_ms: u64, scratch: &Scratch) -> Result<Campaign<'_>, Failure> {
        let library = scratch.compile("inject.so", include_str!("c/inject.c"), &["-shared", "-fPIC"])?;
        let www = scratch.path("www-small");
        std::fs::create_dir_all(&www)?;
        std::fs::write(www.join("1k"), [b'x'; 1024])?;
        let config = scratch.file("limit.toml", format!("limit_ms = {limit_ms}\n"))?;
        Ok(Campaign { scratch, library, www, config, shuffle: Shuffle::new(orbit_rmk::now()) })
    }
}

/// All places of the servers that are installed.
fn places(lines: &mut Lines) -> Vec<Place> {
    let mut places = Vec::new();
    for (server, all) in [("redis-server", places::redis()), ("nginx", places::nginx())] {
        if scratch::has(server) {
            places.extend(all);
        } else {
            lines.note(format!("hangs: {server} is not installed, so nothing hangs in it"));
        }
    }
    places
}

/// How long an endless loop of a main thread lasts until its report, by the guard's limit.
pub fn spins(each: usize, scratch: &Scratch, lines: &mut Lines) -> Result<(), Failure> {
    let mut places = places(lines);
    places.retain(|place| !place.side && !place.rare);
    let Some(way) = WAYS.iter().find(|way| way.class == Class::Busy).filter(|_| !places.is_empty()) else {
        return Ok(());
    };
    for limit_ms in SPIN_LIMITS {
        let mut campaign = Campaign::new(limit_ms, scratch)?;
        campaign.shuffle.shuffle(&mut places);
        let mut row = Row { limit_ms: Some(limit_ms), ..Row::default() };
        let progress = Progress::new(each);
        for nth in 0..each * 2 {
            if row.runs == each {
                break;
            }
            progress.at(row.runs, &format!("spins: limit {} s", limit_ms as f64 / 1e3));
            row.add(way, &campaign.one(&places[nth % places.len()], way, None)?);
        }
        progress.finish();
        row.what = format!("endless loop, --limit {}s", limit_ms as f64 / 1e3);
        let row = row.finish();
        if let Some(latency) = row.latency_ms {
            let what = format!("{}: hang to report, p50, {} of {} found", row.what, row.found, row.runs);
            lines.reach([Reach::at_most(what, latency.p50, limit_ms as f64 + AFTER_SPIN, "ms")]);
        }
        lines.hangs(row);
    }
    Ok(())
}

/// Runs them all.
pub fn run(wanted: &Wanted<'_>, scratch: &Scratch, lines: &mut Lines) -> Result<(), Failure> {
    let mut campaign = Campaign::new(wanted.limit_ms, scratch)?;
    let mut places = places(lines);
    places.extend(wanted.programs.iter().flat_map(|line| places::program(line)));
    if places.is_empty() {
        return Err(Failure::text("there is no program to hang: install redis-server or nginx"));
    }
    let mut tried: Vec<(Place, Way)> = places.iter().flat_map(|p| WAYS.map(|w| (p.clone(), w))).collect();
    // A worker's usual wait is one on a condition variable as well: from outside the two are the
    // same.
    tried.retain(|(place, way)| !(place.side && way.name == "signal"));
    campaign.shuffle.shuffle(&mut tried);
    let mut ways: BTreeMap<&str, Row> = BTreeMap::new();
    let mut at: BTreeMap<String, Row> = BTreeMap::new();
    let mut rivals: BTreeMap<&str, RivalRow> = BTreeMap::new();
    let progress = Progress::new(wanted.runs);
    let (mut failed, mut hung) = (0, 0);
    for nth in 0..wanted.runs + wanted.runs / 4 {
        if hung == wanted.runs {
            break;
        }
        let (place, way) = &tried[nth % tried.len()];
        let what = format!("{} in {}", way.name, place.name());
        progress.at(hung, &format!("hangs: {what}"));
        let rival = (nth % wanted.rival_every == wanted.rival_every - 1 && !matches!(place.host, Host::Program(_)))
            .then_some(wanted.rival_allows);
        let outcome = match campaign.one(place, way, rival) {
            Ok(outcome) => outcome,
            Err(_) if scratch::go_on().is_err() => {
                lines.note(format!("hangs: interrupted after {hung} of {}", wanted.runs));
                break;
            }
            Err(failure) if failed < FAILED => {
                failed += 1;
                lines.note_at_once(format!("not counted: run {nth}, {what}: {failure}"));
                continue;
            }
            Err(failure) => return Err(Failure::text(format!("{what}: {failure}"))),
        };
        hung += usize::from(outcome.hung.is_some());
        if outcome.hung.is_some() && outcome.found.is_none() {
            let beside: Vec<_> = outcome.beside.iter().map(Reported::report).collect();
            let state = &outcome.state;
            lines.note_at_once(format!("NOT FOUND: run {nth}, {what}; reported beside: {beside:?}; {state}"));
        }
        for alarm in &outcome.early {
            lines.note_at_once(format!("FALSE ALARM: run {nth}, before {what}: {}", alarm.report()));
        }
        if let (Some(hung), Some(found)) = (&outcome.hung, &outcome.found)
            && !right(way, hung, found).iter().all(|r| *r)
        {
            lines.note_at_once(format!(
                "not right: run {nth}, {what}, thread {} {:?}: {}",
                hung.tid,
                hung.ring,
                found.report()
            ));
        }
        for row in [ways.entry(way.name).or_default(), at.entry(place.name()).or_default()] {
            row.add(way, &outcome);
        }
        if let (Some(seen), Some(hung)) = (outcome.rival, &outcome.hung) {
            let row = rivals.entry(if place.side { "side thread" } else { "main thread" }).or_default();
            row.runs += 1;
            row.seen += usize::from(seen.is_some());
            row.samples.extend(seen);
            row.guard_samples.extend(outcome.found.as_ref().map(|reported| ms(reported.at - hung.at)));
        }
    }
    progress.finish();
    for way in &WAYS {
        let Some(mut row) = ways.remove(way.name) else {
            continue;
        };
        row.what = way.words.to_owned();
        row.limit_ms = (!matches!(way.class, Class::Ring(_))).then_some(wanted.limit_ms);
        lines.series(Series::new(way.words, by_percent(&mut row.samples)));
        lines.hangs(row.finish());
    }
    reach(wanted.limit_ms as f64, lines);
    for (name, mut row) in at {
        row.what = name;
        lines.place(row.finish());
    }
    for (name, mut row) in rivals {
        row.what = format!("heartbeat from the main loop, hang in a {name}");
        row.watchdog_s = wanted.rival_allows.as_secs_f64();
        row.latency_ms = Latency::of(&mut row.samples);
        row.guard_latency_ms = Latency::of(&mut row.guard_samples);
        lines.rival(row);
    }
    Ok(())
}

/// Kind, thread, ring, function.
fn right(way: &Way, hung: &Hung, reported: &Reported) -> [bool; 4] {
    let event = &reported.event;
    let id = |v: &serde_json::Value| v.as_i64().unwrap_or(0) as i32;
    let cycle: Vec<i32> = event["cycle"].as_array().into_iter().flatten().map(|edge| id(&edge["tid"])).collect();
    let kind = if way.class == Class::Busy { "busy" } else { "blocked" };
    let sorted = |mut tids: Vec<i32>| {
        tids.sort_unstable();
        tids
    };
    let ring = sorted(cycle.clone()) == sorted(hung.ring.clone());
    let frames = |thread: &serde_json::Value| {
        let named = |f: &serde_json::Value| f["function"].as_str().is_some_and(|n| n.starts_with("injected_"));
        thread["frames"].as_array().is_some_and(|all| all.iter().any(named))
    };
    let stacks = event["stacks"].as_array();
    let function = stacks.into_iter().flatten().any(|thread| id(&thread["tid"]) == hung.tid && frames(thread));
    [event["kind"] == kind, names(hung, reported), ring, function]
}

/// Whether a report is about this thread.
fn names(hung: &Hung, reported: &Reported) -> bool {
    let cycle = reported.event["cycle"].as_array();
    reported.event["tid"] == hung.tid || cycle.into_iter().flatten().any(|edge| edge["tid"] == hung.tid)
}

/// Watches until the loop of the thread that is to hang is known. A side thread may have none, and
/// hangs then all the same.
fn warm(guarded: &mut Guarded, pid: i32, place: &Place) -> Result<Vec<Reported>, Failure> {
    let (begun, mut reported) = (Instant::now(), Vec::new());
    let is_known = |guarded: &Guarded| match place.side {
        false => guarded.knows(pid),
        true => threads_named(pid, place.comm).any(|tid| tid != pid && guarded.knows(tid)),
    };
    while begun.elapsed() < WARM || !is_known(guarded) {
        scratch::go_on()?;
        reported.extend(guarded.watch(Duration::from_millis(75))?);
        if begun.elapsed() > WARM_AT_LAST {
            if place.side {
                break;
            }
            let state = state(guarded, pid, pid);
            return Err(Failure::text(format!("the guard does not know the loop of {pid} after a minute: {state}")));
        }
    }
    Ok(reported)
}

/// What a thread does that was not reported to hang, and what the guard reported of itself.
fn state(guarded: &Guarded, pid: i32, tid: i32) -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}")).unwrap_or_default();
    let status = read("status");
    let wanted = ["State:", "TracerPid:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
    let lines: Vec<&str> = status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name))).collect();
    let troubles = guarded.troubles();
    format!(
        "{}; in {}; the guard rested {} times and reported {troubles:?}",
        lines.join(", "),
        read("syscall").trim(),
        guarded.rests()
    )
}

/// Threads of a process whose names begin so.
fn threads_named(pid: i32, comm: &str) -> impl Iterator<Item = i32> {
    let is_one = move |tid: &i32| Status::of_thread(pid, *tid).is_ok_and(|status| status.name().starts_with(comm));
    procfs::ids(format!("/proc/{pid}/task")).into_iter().filter(is_one)
}

/// How often the thread of a process whose name begins so has slept.
fn slept(pid: i32, comm: &str) -> u64 {
    let first = threads_named(pid, comm).next().and_then(|tid| Status::of_thread(pid, tid).ok());
    first.and_then(|status| status.voluntary_switches()).unwrap_or(0)
}

/// CPU time of a thread, nanoseconds; 0 if it is gone.
fn cpu_of(pid: i32, tid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap_or_default();
    text.split(' ').next().and_then(|run| run.parse().ok()).unwrap_or(0)
}

fn ms(ns: i64) -> f64 {
    (ns as f64 / 1e4).round() / 1e2
}

/// Percentile and latency, for the chart.
fn by_percent(samples: &mut [f64]) -> Vec<(f64, f64)> {
    samples.sort_by(f64::total_cmp);
    let count = samples.len();
    samples.iter().enumerate().map(|(nth, ms)| ((nth + 1) as f64 * 100.0 / count as f64, *ms)).collect()
}

impl Row {
    fn add(&mut self, way: &Way, outcome: &Outcome) {
        self.false_alarms += outcome.early.len();
        let Some(hung) = &outcome.hung else {
            self.not_reached += 1;
            return;
        };
        self.runs += 1;
        let Some(reported) = &outcome.found else {
            return;
        };
        self.found += 1;
        let [kind, thread, ring, function] = right(way, hung, reported);
        self.right_kind += usize::from(kind);
        self.right_thread += usize::from(thread);
        self.right_ring += usize::from(ring);
        self.right_function += usize::from(function);
        self.samples.push(ms(reported.at - hung.at));
        self.progress = self.progress.take().or_else(|| reported.event["unit"].as_str().map(str::to_owned));
    }

    fn finish(mut self) -> Row {
        self.latency_ms = Latency::of(&mut self.samples);
        self
    }
}

/// A report may come so long after the limit, ms: two scans, and the stacks.
const AFTER_LIMIT: f64 = 200.0;
/// Of a loop, half of the reports: one scan, and the stacks.
const AFTER_SPIN: f64 = 100.0;
/// Limits with which loops are measured, ms.
const SPIN_LIMITS: [u64; 4] = [200, 500, 1000, 5000];

/// Bounds on what was measured.
fn reach(limit: f64, lines: &mut Lines) {
    let rows = lines.hang_rows();
    let (runs, found) = rows.iter().fold((0, 0), |(runs, found), row| (runs + row.runs, found + row.found));
    let alarms: usize = rows.iter().map(|row| row.false_alarms).sum();
    let share = if runs > 0 { found as f64 * 100.0 / runs as f64 } else { 0.0 };
    let mut all = vec![
        Reach::at_least(format!("injected hangs found, of {runs}"), share, 100.0, "%"),
        Reach::at_most("reports before the hang", alarms as f64, 0.0, "reports"),
    ];
    let pooled = |class: fn(Class) -> bool| {
        let of = |row: &&&Row| WAYS.iter().any(|way| way.words == row.what && class(way.class));
        let mut samples: Vec<f64> = rows.iter().filter(of).flat_map(|row| row.samples.clone()).collect();
        Latency::of(&mut samples)
    };
    let at_limit = limit + AFTER_LIMIT;
    for (what, class, bound) in [
        ("busy", (|class| class == Class::Busy) as fn(Class) -> bool, at_limit),
        ("rings", |class| matches!(class, Class::Ring(_)), 200.0),
        ("other waits", |class| class == Class::Blocked, at_limit),
    ] {
        if let Some(latency) = pooled(class) {
            let what = format!("{what}: hang to report, p50, limit {} s, n={}", limit / 1e3, latency.n);
            all.push(Reach::at_most(what, latency.p50, bound, "ms"));
        }
    }
    lines.reach(all);
}

impl Campaign<'_> {
    /// One run, in a directory of its own.
    fn one(&mut self, place: &Place, way: &Way, rival: Option<Duration>) -> Result<Outcome, Failure> {
        scratch::go_on()?;
        let dir = self.scratch.path("run");
        std::fs::create_dir_all(&dir)?;
        let outcome = self.in_dir(&dir, place, way, rival);
        std::fs::remove_dir_all(&dir)?;
        outcome
    }

    fn in_dir(&mut self, dir: &Path, place: &Place, way: &Way, rival: Option<Duration>) -> Result<Outcome, Failure> {
        let page = dir.join("orders");
        let orders = Orders::new(&page)?;
        let library = self.library.to_string_lossy().into_owned();
        let (program, socket): (Vec<OsString>, _) = match &place.host {
            Host::Redis => (servers::redis(dir, &["--loadmodule", &library]), Some(servers::redis_socket(dir))),
            Host::Nginx => (servers::nginx(dir, &self.www, None)?, Some(servers::nginx_socket(dir))),
            Host::Program(all) => (all.iter().map(Into::into).collect(), None),
        };
        let mut env = vec![("LD_PRELOAD", self.library.as_os_str()), ("ORBIT_INJECT", page.as_os_str())];
        let notify = dir.join("notify");
        let allowed = rival.map_or_else(String::new, |d| d.as_micros().to_string());
        let mut watchdog = None;
        if let Some(allows) = rival {
            watchdog = Some(Watchdog::listen(&notify, allows)?);
            env.push(("NOTIFY_SOCKET", notify.as_os_str()));
            env.push(("WATCHDOG_USEC", allowed.as_ref()));
        }
        let mut guarded = Guarded::start(&program, &env, Some(&self.config))?;
        let stop = AtomicBool::new(false);
        let outcome = std::thread::scope(|s| {
            match (&place.host, &socket) {
                (Host::Redis, Some(socket)) => drop(s.spawn(|| talk::to_redis(socket, &stop))),
                (Host::Nginx, Some(socket)) => drop(s.spawn(|| talk::to_nginx(socket, &stop))),
                _ => {}
            }
            let outcome = self.inject(place, way, &orders, &mut guarded, watchdog.as_ref());
            stop.store(true, Ordering::Relaxed);
            // A server that hangs in accept would hold its client up.
            drop(guarded);
            outcome
        });
        drop(watchdog);
        outcome
    }

    fn inject(
        &mut self,
        place: &Place,
        way: &Way,
        orders: &Orders,
        guarded: &mut Guarded,
        watchdog: Option<&Watchdog>,
    ) -> Result<Outcome, Failure> {
        let step = Duration::from_millis(20);
        let mut early = Vec::new();
        let pid = match place.host {
            // The master does nothing but wait.
            Host::Nginx => guarded.second_process(&mut early)?,
            _ => guarded.pid(),
        };
        orders.meant(pid);
        early.extend(warm(guarded, pid, place)?);
        if place.side && place.rare {
            let begun = Instant::now();
            while slept(pid, place.comm) < SLEPT_RARE && begun.elapsed() < WARM_AT_LAST {
                scratch::go_on()?;
                early.extend(guarded.watch(Duration::from_millis(250))?);
            }
        }
        if let Some(dog) = watchdog {
            // Hangs fall anywhere between two heartbeats.
            let between = self.shuffle.below(dog.allowed_ms() / 2 + 1) as u64;
            early.extend(guarded.watch(Duration::from_millis(between))?);
        }
        let nth = 1 + self.shuffle.below(if place.rare { 2 } else { CALLS }) as i32;
        let Place { function, side, comm, .. } = *place;
        orders.give(&Order { pid, side, comm, function, nth, way: way.name });
        let begun = orbit_rmk::now() as i64;
        let mut reported: Vec<Reported> = Vec::new();
        let hung = loop {
            reported.extend(guarded.watch(step)?);
            if let Some(hung) = orders.hung() {
                break hung;
            }
            scratch::go_on()?;
            if orbit_rmk::now() as i64 - begun > REACHED.as_nanos() as i64 {
                orders.withdraw();
                early.extend(reported);
                let (beside, state) = (Vec::new(), String::new());
                return Ok(Outcome { hung: None, found: None, early, beside, state, rival: None });
            }
        };
        let found = loop {
            if let Some(at) = reported.iter().position(|t| t.at >= hung.at && names(&hung, t)) {
                break Some(reported.remove(at));
            }
            let passed = Duration::from_nanos((orbit_rmk::now() as i64 - hung.at).max(0) as u64);
            let starved = || way.class == Class::Busy && passed < FOUND_AT_LAST && cpu_of(pid, hung.tid) < CPU;
            if passed > FOUND && !starved() {
                break None;
            }
            scratch::go_on()?;
            if let Some(next) = guarded.next(step)? {
                reported.extend(Some(next).filter(Reported::is_hang));
            }
        };
        let state = if found.is_none() { state(guarded, pid, hung.tid) } else { String::new() };
        let rival = match watchdog {
            Some(dog) => Some(dog.wait(hung.at, |span| guarded.watch(span).map(drop))?),
            None => None,
        };
        let (before, mut beside): (Vec<Reported>, Vec<Reported>) = reported.into_iter().partition(|t| t.at < hung.at);
        early.extend(before);
        beside.truncate(BESIDE);
        Ok(Outcome { hung: Some(hung), found, early, beside, state, rival })
    }
}
