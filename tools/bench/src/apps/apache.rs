//! Apache's load balancer and the lock watchdog: in orbits, beside byrequests and beside a server
//! without the module.

use super::lines::lines;
use super::paper::{Figure, Task};
use super::table::{self, Own, Row, Rows, number, snapshot_of};
use super::turns::{self, Done, Figures};
use crate::reach::{Reach, ratio};
use crate::stats::{Shuffle, Summary, median};
use crate::{Bench, Progress};
use orbit_apache::{Backend, Client, Server, Setup};
use orbit_console::out::Failure;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: usize = 4;
const BACKENDS: u32 = 3;
const WITHOUT_WATCHDOG: &str = "OrbitLockLimit 0";

pub fn run(bench: &mut Bench, quick: bool) -> Result<Rows, Failure> {
    let (rounds, seconds) = if quick { (8, 1.0) } else { (15, 4.0) };
    let progress = Progress::new(3 * rounds);
    let backends: Vec<Backend> = (0..BACKENDS).map(|nth| Backend::start(&format!("backend {nth}"))).collect();
    let mut rows = balancer(bench, &progress, &backends, "all requests proxied", 1, 0, (rounds, seconds))?;
    rows.extend(balancer(bench, &progress, &backends, "a tenth proxied", 10, rounds, (rounds, seconds))?);
    rows.extend(watchdog(bench, &progress, 2 * rounds, (rounds, seconds))?);
    let of = OWN.repeats(Task::T2, Figure::Lines);
    rows.extend(lines("apache").map(|lines| number("lines of the port, t2 and t3", "lines", lines, of)));
    progress.finish();
    bench.note("CPU time: of the server with its orbits; clients and backends are the bench's".to_owned());
    Ok(rows)
}

const OWN: Own = Own::new("apache", CLIENTS);

fn server(setup: &Setup) -> Result<Server, Failure> {
    Server::start(setup).ok_or_else(|| Failure::text("Apache 2.4 is missing: scripts/packages.sh ports"))
}

fn balanced(backends: &[Backend], method: &str, line: &str) -> Setup {
    let members: Vec<(u16, u32)> = backends.iter().map(|backend| (backend.port(), 1)).collect();
    let has_module = method == "orbit";
    let setup = Setup { has_module, has_preload: false, ..Setup::default() }.balance(method, &members);
    if has_module { setup.line(line) } else { setup }
}

/// A run of the clients. Every `proxied`-th request goes to a backend.
fn load(server: &Server, proxied: u64, seconds: f64) -> Result<Done, Failure> {
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let (before, began) = (server.cpu(), Instant::now());
    let good = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS as u64)
            .map(|nth| {
                let (stop, served) = (&stop, &served);
                scope.spawn(move || -> std::io::Result<bool> {
                    let mut client = Client::open(server.port())?;
                    let mut good = true;
                    for request in nth.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let path = if proxied > 0 && request % proxied == 0 { "/app/x" } else { "/page" };
                        good &= client.get(path)?.status == 200;
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(good)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().all(|client| matches!(client.join(), Ok(Ok(true))))
    });
    if !good {
        return Err(Failure::text(format!("a request failed:\n{}", server.log())));
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(Done { requests: served.into_inner() as f64, seconds, cpu_seconds: server.cpu() - before })
}

/// What servers that took turns came to.
struct Compared {
    /// Requests a second and CPU time a request, a server each.
    figures: Vec<[Option<Summary>; 2]>,
    /// What the task `name` of the first server did: calls, and pages that they sent, in so many
    /// seconds.
    calls: i64,
    pages: i64,
    seconds: f64,
    /// Resident memory of the first server's child.
    resident: f64,
}

/// Throughput and CPU time of several servers, which take turns; of the first also the calls of its
/// task `name`.
fn compare(
    setups: &[&Setup],
    name: &str,
    progress: &Progress,
    at: usize,
    what: &str,
    proxied: u64,
    (rounds, seconds): (usize, f64),
) -> Result<Compared, Failure> {
    let mut figures: Vec<Figures> = setups.iter().map(|_| Figures::default()).collect();
    let mut shuffle = Shuffle::new(7);
    let (mut calls, mut pages, mut counted_for, mut resident) = (0, 0, 0.0, 0.0);
    for round in 0..rounds {
        progress.at(at + round, what);
        let servers = setups.iter().map(|setup| server(setup)).collect::<Result<Vec<_>, _>>()?;
        for server in &servers {
            load(server, proxied, seconds / 8.0)?;
        }
        let counters = || [format!("{name}_calls"), format!("{name}_pages")].map(|of| servers[0].state(&of));
        let (before, began) = (counters(), Instant::now());
        turns::round(&servers, &mut figures, &mut shuffle, seconds, |server, seconds| load(server, proxied, seconds))?;
        counted_for += began.elapsed().as_secs_f64();
        let after = counters();
        calls += after[0] - before[0];
        pages += after[1] - before[1];
        resident = table::resident_kib(servers[0].state("child_pid") as i32);
    }
    let figures = figures.iter().map(Figures::summaries).collect();
    Ok(Compared { figures, calls, pages, seconds: counted_for, resident })
}

/// Bounds of throughput and of CPU time a request, ours and stock's.
fn bounds(what: &str, ours: &[Option<Summary>; 2], stock: &[Option<Summary>; 2]) -> ([Reach; 1], [Reach; 1]) {
    let part = |nth: usize| ratio(median(ours[nth]), median(stock[nth]));
    (
        [Reach::at_least(format!("throughput, {what}, of stock"), part(0), 0.95, "times")],
        [Reach::at_most(format!("CPU time a request, {what}, of stock"), part(1), 1.05, "times")],
    )
}

fn balancer(
    bench: &mut Bench,
    progress: &Progress,
    backends: &[Backend],
    what: &str,
    proxied: u64,
    at: usize,
    run: (usize, f64),
) -> Result<Vec<Row>, Failure> {
    let stock = balanced(backends, "byrequests", "");
    let waits = format!("{WITHOUT_WATCHDOG}\nOrbitWait On");
    let setups = [
        &balanced(backends, "orbit", WITHOUT_WATCHDOG),
        &stock,
        &stock,
        &balanced(backends, "orbit", &waits),
    ];
    let compared = compare(&setups, "balancer", progress, at, what, proxied, run)?;
    let figures = &compared.figures;
    let (rate, cpu) = bounds(what, &figures[0], &figures[1]);
    let rivals = |nth: usize| {
        let names = ["byrequests", "byrequests, another server", "orbit, each request waits"];
        [0, 1, 2].map(|of| (names[of], figures[of + 1][nth]))
    };
    // The paper's load proxies a tenth.
    let of = |figure| if proxied == 10 { OWN.repeats(Task::T2, figure) } else { OWN };
    let row = |name: &str, unit, nth: usize, bounds: &[Reach], figure| {
        table::row(&format!("balancer, {what}: {name}"), unit, figures[0][nth], &rivals(nth), bounds, of(figure))
    };
    let mut rows = vec![
        row("throughput", "requests/s", 0, &rate, Figure::Throughput),
        row("CPU time a request", "us", 1, &cpu, Figure::CpuTime),
    ];
    if proxied == 10 {
        // A request makes the calls: each server has its share of the time.
        let busy = compared.seconds / setups.len() as f64;
        rows.extend(calls(&compared, "balancer", Task::T2, busy));
    }
    bench.reach(rate.into_iter().chain(cpu));
    Ok(rows)
}

/// Table 4 and table 6: calls a second, and what a call sends, of a task.
fn calls(compared: &Compared, name: &str, task: Task, seconds: f64) -> Vec<Row> {
    let kib = 4.0 * compared.pages as f64 / compared.calls.max(1) as f64;
    let rate = compared.calls as f64 / seconds;
    let rate = number(&format!("{name}: calls"), "calls/s", rate, OWN.repeats(task, Figure::Calls));
    [rate].into_iter().chain(snapshot_of(name, kib, compared.resident, OWN, task)).collect()
}

fn watchdog(bench: &mut Bench, progress: &Progress, at: usize, run: (usize, f64)) -> Result<Vec<Row>, Failure> {
    let what = "pages of 1 KB";
    let stock = Setup { has_module: false, ..Setup::default() };
    let compared = compare(&[&Setup::default(), &stock, &stock], "watchdog", progress, at, what, 0, run)?;
    let figures = &compared.figures;
    let (rate, cpu) = bounds(what, &figures[0], &figures[1]);
    let row = |name: &str, unit, nth: usize, bounds: &[Reach], figure| {
        let rivals = [("none", figures[1][nth]), ("none, another server", figures[2][nth])];
        let own = OWN.repeats(Task::T3, figure);
        table::row(&format!("watchdog, {what}: {name}"), unit, figures[0][nth], &rivals, bounds, own)
    };
    let mut rows = vec![
        row("throughput", "requests/s", 0, &rate, Figure::Throughput),
        row("CPU time a request", "us", 1, &cpu, Figure::CpuTime),
    ];
    rows.extend(calls(&compared, "watchdog", Task::T3, compared.seconds));
    bench.reach(rate.into_iter().chain(cpu));
    Ok(rows)
}
