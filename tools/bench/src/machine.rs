//! The machine a bench ran on, and how quiet it was meanwhile.

use serde::Serialize;
use std::fs;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What is recorded with every result.
#[derive(Debug, Serialize)]
pub struct Machine {
    pub cpus: usize,
    pub cpu_model: String,
    pub kernel: String,
    pub virtual_machine: bool,
    pub memory_bytes: u64,
    pub huge_pages: String,
    /// Seconds since 1970.
    pub started: u64,
    pub seconds: f64,
    /// CPU time that the hypervisor gave to others during the run, percent of all CPUs' time.
    pub steal_percent: f64,
    /// CPU time that somebody used during the run, this bench included.
    pub busy_percent: f64,
    /// Load averages over one minute.
    pub load_before: f64,
    pub load_after: f64,
}

/// A run that has begun.
pub struct Watch {
    since: Instant,
    started: u64,
    load: f64,
    ticks: Ticks,
}

/// Of all CPUs since boot.
#[derive(Clone, Copy, Default)]
struct Ticks {
    all: u64,
    idle: u64,
    steal: u64,
}

impl Ticks {
    fn now() -> Ticks {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        // cpu user nice system idle iowait irq softirq steal guest guest_nice; guest is in user
        // already.
        let words: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        let word = |at: usize| words.get(at).copied().unwrap_or(0);
        Ticks { all: words.iter().sum(), idle: word(3) + word(4), steal: word(7) }
    }
}

impl Watch {
    /// Begins to watch.
    pub fn start() -> Watch {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Watch { since: Instant::now(), started, load: load(), ticks: Ticks::now() }
    }

    /// What the run was like.
    pub fn finish(&self) -> Machine {
        let now = Ticks::now();
        let all = now.all.saturating_sub(self.ticks.all).max(1) as f64;
        let part = |after: u64, before: u64| (after.saturating_sub(before) as f64 / all * 1e4).round() / 1e2;
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: field("model name").unwrap_or_default(),
            kernel: orbit_linux::uname::kernel().to_string(),
            virtual_machine: field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_bytes: meminfo("MemTotal"),
            huge_pages: fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            started: self.started,
            seconds: (self.since.elapsed().as_secs_f64() * 1e2).round() / 1e2,
            steal_percent: part(now.steal, self.ticks.steal),
            busy_percent: (100.0 - part(now.idle, self.ticks.idle)).clamp(0.0, 100.0),
            load_before: self.load,
            load_after: load(),
        }
    }
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// A line of `/proc/meminfo` in bytes; 0 if there is none.
fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    kib * 1024
}

/// Memory that can be used without swapping, bytes.
pub fn memory_available() -> u64 {
    meminfo("MemAvailable")
}

/// Resident memory of this process, bytes.
pub fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    pages * orbit_linux::map::page_size() as u64
}
