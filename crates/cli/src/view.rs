//! The orbits of running programs as `ps` and `top` show them: two samples of the status pages make
//! rates.

use orbit::status::{self, Latency, OrbitStatus, Program};
use serde::Serialize;
use std::time::{Duration, Instant};

/// One sample of all programs.
pub struct Sample {
    at: Instant,
    programs: Vec<Program>,
}

impl Sample {
    /// Takes a sample. Reads `/proc`: some milliseconds. Programs that do nothing with the
    /// library's pages but only read, as this one, have no orbits and are left out.
    pub fn now(pid: Option<i32>) -> Sample {
        let at = Instant::now();
        let mut programs = match pid {
            Some(pid) => status::find_process(pid).into_iter().collect(),
            None => status::find_all(),
        };
        programs.retain(|program| !program.orbits.is_empty());
        Sample { at, programs }
    }

    fn find(&self, program: &Program, orbit: &OrbitStatus) -> Option<&OrbitStatus> {
        let same = |p: &&Program| p.pid == program.pid && p.started_ns == program.started_ns;
        let before = self.programs.iter().find(same)?;
        before.orbits.iter().find(|o| o.name == orbit.name && o.created_ns == orbit.created_ns)
    }

    /// What there is now, with rates since an earlier sample, or since each orbit's creation if
    /// there was none.
    pub fn since(&self, earlier: Option<&Sample>) -> Vec<ProgramView> {
        let programs = self.programs.iter().map(|program| ProgramView {
            pid: program.pid,
            program: program.comm.clone(),
            unseen: program.unseen,
            orbits: program.orbits.iter().map(|orbit| self.orbit(program, orbit, earlier)).collect(),
        });
        programs.collect()
    }

    fn orbit(&self, program: &Program, orbit: &OrbitStatus, earlier: Option<&Sample>) -> OrbitView {
        let before = earlier.and_then(|sample| Some((sample.find(program, orbit)?, self.at - sample.at)));
        let nothing = (0, 0, 0, age(orbit));
        let (calls, pages, cpu_ns, passed) = before.map_or(nothing, |(before, passed)| {
            // A new process of the orbit begins with no CPU time used.
            let cpu = if before.pid == orbit.pid { before.cpu_ns } else { 0 };
            (before.calls, before.pages_total, cpu, passed)
        });
        let seconds = passed.as_secs_f64().max(1e-6);
        let calls_now = orbit.calls.saturating_sub(calls);
        let pages_now = orbit.pages_total.saturating_sub(pages);
        // Figures of this interval if there were calls in it; else those of all time, which stay
        // readable when idle.
        let (pages_per_call, latency) = match before {
            Some((before, _)) if calls_now > 0 => {
                let recent = orbit.latency.since(&before.latency);
                let latency = if recent.calls() > 0 { recent } else { orbit.latency.clone() };
                (pages_now as f64 / calls_now as f64, latency)
            }
            _ => (orbit.pages_total as f64 / orbit.calls.max(1) as f64, orbit.latency.clone()),
        };
        let page_size = orbit.bytes_total.checked_div(orbit.pages_total).unwrap_or(0);
        OrbitView {
            name: orbit.name.clone(),
            pid: orbit.pid,
            state: orbit.state.name(),
            age_s: age(orbit).as_secs_f64(),
            calls: orbit.calls,
            calls_per_s: calls_now as f64 / seconds,
            queue: orbit.queue,
            pages_per_call,
            bytes_per_call: pages_per_call * page_size as f64,
            bytes_total: orbit.bytes_total,
            p50_us: quantile(&latency, 0.5),
            p99_us: quantile(&latency, 0.99),
            crashes: orbit.crashes,
            restarts: orbit.restarts,
            timeouts: orbit.timeouts,
            lost: orbit.lost,
            cpu_percent: orbit.cpu_ns.saturating_sub(cpu_ns) as f64 / 1e7 / seconds,
            memory_bytes: orbit.memory,
        }
    }
}

fn age(orbit: &OrbitStatus) -> Duration {
    let created = std::time::UNIX_EPOCH + Duration::from_nanos(orbit.created_ns);
    created.elapsed().unwrap_or_default()
}

fn quantile(latency: &Latency, part: f64) -> Option<f64> {
    latency.quantile_ns(part).map(|ns| ns as f64 / 1e3)
}

/// A program with orbits.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramView {
    pub pid: i32,
    pub program: String,
    /// Orbits that could not be shown: a program's page holds 256.
    pub unseen: u32,
    pub orbits: Vec<OrbitView>,
}

/// One orbit; rates are those of the last interval.
#[derive(Clone, Debug, Serialize)]
pub struct OrbitView {
    pub name: String,
    /// 0: it has no process now.
    pub pid: i32,
    pub state: &'static str,
    pub age_s: f64,
    /// Since the orbit was created.
    pub calls: u64,
    pub calls_per_s: f64,
    /// Calls waiting or running.
    pub queue: u64,
    /// Of snapshots.
    pub pages_per_call: f64,
    pub bytes_per_call: f64,
    pub bytes_total: u64,
    /// From hand-over to result; none before the first result.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub crashes: u64,
    pub restarts: u64,
    pub timeouts: u64,
    /// Calls that ended without a result.
    pub lost: u64,
    /// Of one CPU.
    pub cpu_percent: f64,
    /// Memory of its own.
    pub memory_bytes: u64,
}
