//! One run of the paper's experiment (section 4.3): three processes with shares of one CPU, a
//! disturbance at real-time priority, and a service manager deployed in one way.

use super::load::{self, Programs};
use orbit_console::out::Failure;
use orbit_services::{Budget, Dispatch, GrantRequest, Host, Kernel, KernelSpec, Options, Spec, objects};
use serde::Serialize;
use std::time::Duration;

/// How the manager is deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deployment {
    /// There is none.
    None,
    /// A plain process at this real-time priority: the paper's has 96, which is the disturbance's.
    Process(i32),
    /// The service in a thread of its own, in the sandbox.
    Thread,
    /// The service on an agent.
    Agent,
    /// The service in the kernel (BPF); an agent applies what it asks for.
    Kernel,
    /// The service as an upcall in whichever member is current.
    Upcall,
}

impl Deployment {
    /// All of them.
    pub const ALL: [Deployment; 7] = [
        Deployment::None,
        Deployment::Process(96),
        Deployment::Process(99),
        Deployment::Thread,
        Deployment::Agent,
        Deployment::Upcall,
        Deployment::Kernel,
    ];

    /// Whether it is a service of ours.
    pub fn is_service(self) -> bool {
        !matches!(self, Deployment::None | Deployment::Process(_))
    }

    /// For tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Deployment::None => "none",
            Deployment::Process(96) => "process at FIFO 96",
            Deployment::Process(_) => "process at FIFO 99",
            Deployment::Thread => "sandbox thread",
            Deployment::Agent => "agent",
            Deployment::Kernel => "BPF with agent",
            Deployment::Upcall => "upcall",
        }
    }
}

/// The paper's processes: CPU time and period, milliseconds; P1 to P3.
const SHARES: [(u64, u64); 3] = [(40, 400), (100, 500), (60, 200)];
/// The paper's tick.
const TICK: Duration = Duration::from_millis(10);
/// Mean time between bursts, and mean length of one.
const QUIET: Duration = Duration::from_secs(10);
const BURST: Duration = Duration::from_secs(3);
/// P1 to P3 in ascending order of their urgency, that is of their rates: P2 has the longest period.
const BY_URGENCY: [usize; 3] = [1, 0, 2];
/// Priority of a thread while an upcall runs in it: above the disturbance, below agents.
const RAISED: i32 = 98;

/// What is to be run.
#[derive(Clone, Copy)]
pub struct Plan {
    /// All times are the paper's, divided by this.
    pub scale: u32,
    /// How long it is observed.
    pub length: Duration,
    /// The disturbance's: the same for all deployments of a round.
    pub seed: u64,
    /// Where the programs run.
    pub cpu: usize,
}

/// What was seen.
#[derive(Debug, Default, Serialize)]
pub struct Seen {
    /// Deadlines of P1 to P3, and those missed.
    pub deadlines: [u64; 3],
    pub missed: [u64; 3],
    /// Missed by more than a twentieth of the target.
    pub missed_by_much: [u64; 3],
    /// Seconds observed.
    pub seconds: f64,
    /// Shares of P1 to P3 and the disturbance over time: in each interval of `interval_s`.
    pub shares: Vec<[f64; 4]>,
    pub interval_s: f64,
    /// Deadlines missed in each such interval.
    pub missed_over_time: Vec<u64>,
    /// The observer's delay, microseconds, the longest.
    pub observer_late_us: f64,
    /// Of the service: nothing for processes.
    pub service: Option<Service>,
}

/// What the host says of the service after a run.
#[derive(Debug, Serialize)]
pub struct Service {
    pub runs: u64,
    pub upcalls: u64,
    pub aborts: u64,
    pub unpaid: u64,
    pub cpu_us_a_run: f64,
    /// From due to handler, the latest runs, microseconds.
    #[serde(skip)]
    pub delays_us: Vec<f64>,
    /// Ticks: sent, no member, in the kernel, blocked, failed.
    pub ticks: Option<[u64; 5]>,
}

impl Seen {
    /// Deadlines missed a second.
    pub fn missed_a_second(&self) -> f64 {
        self.missed.iter().sum::<u64>() as f64 / self.seconds
    }
}

/// Runs it. Needs root, and one thread.
pub fn run(deployment: Deployment, plan: &Plan) -> Result<Seen, Failure> {
    let shares = SHARES.map(|(target, period)| {
        (target * 1_000_000 / u64::from(plan.scale), period * 1_000_000 / u64::from(plan.scale))
    });
    let tick = TICK / plan.scale;
    let mut host = deployment
        .is_service()
        .then(|| Host::new(Options { cpus: vec![plan.cpu], ..Options::default() }))
        .transpose()
        .map_err(|error| Failure::text(error.to_string()))?;
    let invitation = host.as_ref().map(Host::invitation);
    let mut programs = Programs::default();
    for _ in 0..3 {
        programs.start((plan.cpu, 0), invitation, load::compute)?;
    }
    let (quiet, burst, seed) = (QUIET / plan.scale, BURST / plan.scale, plan.seed);
    programs.start((plan.cpu, 0), invitation, move || load::disturb(seed, quiet, burst))?;
    let threads = programs.pids();
    // By urgency: the manager gives the last one the highest priority.
    let ordered: Vec<(u64, u64)> = BY_URGENCY.iter().map(|&nth| shares[nth]).collect();
    let managed: Vec<i32> = BY_URGENCY.iter().map(|&nth| threads[nth]).chain([threads[3]]).collect();
    for (thread, (target, period)) in threads.iter().zip(shares) {
        load::set_priority(*thread, (80 * target / period) as i32);
    }
    let (mut id, mut kernel) = (None, None);
    if let Some(host) = &mut host {
        for thread in &threads {
            joined(host, *thread)?;
        }
        if deployment == Deployment::Kernel {
            kernel = Some(into_kernel(host, plan.cpu, tick, &ordered, &managed)?);
        } else {
            id = Some(deploy(host, deployment, tick, &ordered, &managed)?);
        }
    }
    if let Deployment::Process(priority) = deployment {
        programs.start((plan.cpu, priority), None, || load::manage(tick, &ordered, &managed))?;
    }
    let mut seen = observe(plan, &shares, &threads);
    if let Some(kernel) = &kernel {
        let account = kernel.account();
        seen.service = Some(Service {
            runs: account.runs,
            upcalls: 0,
            aborts: 0,
            unpaid: account.lost,
            cpu_us_a_run: account.cpu_ns as f64 / 1e3 / account.runs.max(1) as f64,
            delays_us: Vec::new(),
            ticks: None,
        });
    }
    if let (Some(host), Some(id)) = (&mut host, id) {
        let status = host.status(id).map_err(|error| Failure::text(error.to_string()))?;
        let (account, ticks) = (status.account, host.tick_outcomes());
        seen.service = Some(Service {
            runs: account.runs,
            upcalls: account.upcalls,
            aborts: account.aborts(),
            unpaid: account.unpaid,
            cpu_us_a_run: account.cpu_ns as f64 / 1e3 / account.runs.max(1) as f64,
            delays_us: status.delays_ns.iter().map(|ns| f64::from(*ns) / 1e3).collect(),
            ticks: ticks.map(|t| [t.sent, t.no_member, t.in_kernel, t.blocked, t.failed]),
        });
    }
    Ok(seen)
}

/// Waits until a program has joined.
fn joined(host: &mut Host, process: i32) -> Result<(), Failure> {
    let begin = load::now();
    loop {
        match host.add_member(process) {
            Ok(()) => return Ok(()),
            Err(error) if load::now() - begin > 30_000_000_000 => return Err(Failure::text(error.to_string())),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Loads the service manager.
fn deploy(
    host: &mut Host,
    deployment: Deployment,
    tick: Duration,
    shares: &[(u64, u64)],
    threads: &[i32],
) -> Result<orbit_services::ServiceId, Failure> {
    let said = |error: orbit_services::Error| Failure::text(error.to_string());
    let mut grants = Vec::new();
    for thread in &threads[..shares.len()] {
        grants.push(GrantRequest::get("cpu:used", *thread));
        grants.push(GrantRequest::set("cpu:priority", *thread));
    }
    grants.extend(threads[shares.len()..].iter().map(|thread| GrantRequest::set("cpu:priority", *thread)));
    let spec = Spec {
        name: "cpu".to_owned(),
        owner: std::process::id() as i32,
        budget: Budget::new(tick / 10, tick).map_err(said)?,
        period: tick,
        dispatch: match deployment {
            Deployment::Upcall => Dispatch::Upcall,
            Deployment::Thread => Dispatch::Thread,
            _ => Dispatch::Agent,
        },
        raise: matches!(deployment, Deployment::Upcall | Deployment::Thread).then_some(RAISED),
        arguments: arguments(shares),
        grants,
    };
    if deployment == Deployment::Upcall {
        host.start_ticks(tick);
        if let Some(why) = host.no_ticks() {
            return Err(Failure::text(why));
        }
    }
    host.load(&spec, objects::CPU).map_err(said)
}

/// What the service manager is loaded with.
fn arguments(shares: &[(u64, u64)]) -> Vec<u8> {
    shares.iter().flat_map(|(target, period)| [target.to_ne_bytes(), period.to_ne_bytes()]).flatten().collect()
}

/// Loads the service manager into the kernel.
fn into_kernel(
    host: &mut Host,
    cpu: usize,
    period: Duration,
    shares: &[(u64, u64)],
    threads: &[i32],
) -> Result<Kernel, Failure> {
    let said = |error: orbit_services::Error| Failure::text(error.to_string());
    let requests: Vec<_> = threads.iter().map(|thread| GrantRequest::set("cpu:priority", *thread)).collect();
    let grants = host.grant(std::process::id() as i32, &requests).map_err(said)?;
    let (name, arguments) = ("cpu".to_owned(), arguments(shares));
    Kernel::load(KernelSpec { name, period, arguments, grants, cpu, priority: 99 }, objects::CPU_KERNEL).map_err(said)
}

/// Watches the programs from another CPU: reads their CPU clocks at the end of every period.
fn observe(plan: &Plan, shares: &[(u64, u64); 3], threads: &[i32]) -> Seen {
    let clock = |thread: i32| orbit_services::sys::clock(orbit_services::sys::cpu_clock_of(thread));
    let interval = 1_000_000_000 / u64::from(plan.scale);
    let mut seen = Seen { interval_s: interval as f64 / 1e9, ..Seen::default() };
    // The manager has a second, scaled, to settle.
    let begin = load::now() + interval;
    load::sleep_until(begin);
    let end = begin + plan.length.as_nanos() as u64;
    let mut last = [0u64; 3].map(|_| load::now());
    let mut had = [0, 1, 2].map(|nth| clock(threads[nth]));
    let mut next = shares.map(|(_, period)| begin + period);
    let (mut sample_last, mut sample_had) = (load::now(), [0, 1, 2, 3].map(|nth| clock(threads[nth])));
    let (mut sample_next, mut missed_now) = (begin + interval, 0);
    loop {
        let due = next.into_iter().chain([sample_next]).min().unwrap_or(end);
        if due > end {
            break;
        }
        load::sleep_until(due);
        for nth in 0..3 {
            if next[nth] > due {
                continue;
            }
            let (now, used) = (load::now(), clock(threads[nth]));
            seen.observer_late_us = seen.observer_late_us.max((now - due) as f64 / 1e3);
            // The target belongs to the time that passed: the observer is late by different
            // amounts.
            let (target, period) = shares[nth];
            let target = target as f64 * (now - last[nth]) as f64 / period as f64;
            let got = used.saturating_sub(had[nth]) as f64;
            seen.deadlines[nth] += 1;
            seen.missed[nth] += u64::from(got < target.min(shares[nth].0 as f64));
            missed_now += u64::from(got < target.min(shares[nth].0 as f64));
            seen.missed_by_much[nth] += u64::from(got < target * 0.95);
            (last[nth], had[nth], next[nth]) = (now, used, next[nth] + period);
        }
        if sample_next <= due {
            let now = load::now();
            let passed = (now - sample_last).max(1) as f64;
            let used = [0, 1, 2, 3].map(|nth| clock(threads[nth]));
            let mut part = [0.0; 4];
            for (part, (used, had)) in part.iter_mut().zip(used.iter().zip(sample_had)) {
                *part = used.saturating_sub(had) as f64 / passed;
            }
            seen.shares.push(part);
            seen.missed_over_time.push(std::mem::take(&mut missed_now));
            (sample_last, sample_had, sample_next) = (now, used, sample_next + interval);
        }
    }
    seen.seconds = (load::now() - begin) as f64 / 1e9;
    seen
}
