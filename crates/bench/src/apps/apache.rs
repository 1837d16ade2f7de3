//! Apache's load balancer and the lock watchdog: in orbits, beside byrequests and beside a server
//! without the module.

use super::lines::lines;
use super::paper::{Figure, Task};
use super::table::{self, Own, Row, Rows, number, snapshot};
use crate::reach::{Reach, ratio};
use crate::stats::{Samples, Shuffle, Summary, median};
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

/// Requests a second and CPU microseconds a request of a run of the clients. Every `proxied`-th
/// request goes to a backend.
fn load(server: &Server, proxied: u64, seconds: f64) -> Result<(f64, f64), Failure> {
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
    let (took, count) = (began.elapsed().as_secs_f64(), served.into_inner().max(1) as f64);
    Ok((count / took, (server.cpu() - before) * 1e6 / count))
}

/// Throughput and CPU time of several servers, which take turns.
fn compare(
    servers: &[Server],
    progress: &Progress,
    at: usize,
    what: &str,
    proxied: u64,
    (rounds, seconds): (usize, f64),
) -> Result<Vec<[Option<Summary>; 2]>, Failure> {
    let mut figures: Vec<[Samples; 2]> = servers.iter().map(|_| Default::default()).collect();
    let mut shuffle = Shuffle::new(7);
    for server in servers {
        load(server, proxied, seconds / 4.0)?;
    }
    for round in 0..rounds {
        progress.at(at + round, what);
        let mut order: Vec<usize> = (0..servers.len()).collect();
        shuffle.shuffle(&mut order);
        for nth in order {
            let (rate, cpu) = load(&servers[nth], proxied, seconds)?;
            figures[nth][0].add_figure(rate);
            figures[nth][1].add_figure(cpu);
        }
    }
    Ok(figures.iter().map(|of| [of[0].summary(), of[1].summary()]).collect())
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
    let servers = [
        server(&balanced(backends, "orbit", WITHOUT_WATCHDOG))?,
        server(&balanced(backends, "byrequests", ""))?,
        server(&balanced(backends, "orbit", &format!("{WITHOUT_WATCHDOG}\nOrbitWait On")))?,
    ];
    let before = (servers[0].state("balancer_calls"), servers[0].state("balancer_pages"), Instant::now());
    let figures = compare(&servers, progress, at, what, proxied, run)?;
    let (rate, cpu) = bounds(what, &figures[0], &figures[1]);
    let rivals = |nth: usize| [("byrequests", figures[1][nth]), ("orbit, each request waits", figures[2][nth])];
    // The paper's load proxies a tenth.
    let of = |figure| if proxied == 10 { OWN.repeats(Task::T2, figure) } else { OWN };
    let row = |name: &str, unit, nth: usize, bounds: &[Reach], figure| {
        table::row(&format!("balancer, {what}: {name}"), unit, figures[0][nth], &rivals(nth), bounds, of(figure))
    };
    let mut rows = vec![
        row("throughput", "requests/s", 0, &rate, Figure::Throughput),
        row("CPU time a request", "us", 1, &cpu, Figure::CpuTime),
    ];
    // Each server has a third of the time.
    let busy = before.2.elapsed().as_secs_f64() / servers.len() as f64;
    if proxied == 10 {
        rows.extend(calls(&servers[0], "balancer", Task::T2, (before.0, before.1), busy));
    }
    bench.reach(rate.into_iter().chain(cpu));
    Ok(rows)
}

/// Table 4 and table 6: calls a second, and what a call sends, of a task.
fn calls(server: &Server, name: &str, task: Task, before: (i64, i64), seconds: f64) -> Vec<Row> {
    let calls = server.state(&format!("{name}_calls")) - before.0;
    let pages = server.state(&format!("{name}_pages")) - before.1;
    let kib = 4.0 * pages as f64 / calls.max(1) as f64;
    let rate = number(&format!("{name}: calls"), "calls/s", calls as f64 / seconds, OWN.repeats(task, Figure::Calls));
    let child = server.state("child_pid") as i32;
    [rate].into_iter().chain(snapshot(name, kib, child, OWN, task)).collect()
}

fn watchdog(bench: &mut Bench, progress: &Progress, at: usize, run: (usize, f64)) -> Result<Vec<Row>, Failure> {
    let what = "pages of 1 KB";
    let stock = Setup { has_module: false, ..Setup::default() };
    let servers = [server(&Setup::default())?, server(&stock)?];
    let before = (servers[0].state("watchdog_calls"), servers[0].state("watchdog_pages"), Instant::now());
    let figures = compare(&servers, progress, at, what, 0, run)?;
    let (rate, cpu) = bounds(what, &figures[0], &figures[1]);
    let row = |name: &str, unit, nth: usize, bounds: &[Reach], figure| {
        let rival = [("none", figures[1][nth])];
        let own = OWN.repeats(Task::T3, figure);
        table::row(&format!("watchdog, {what}: {name}"), unit, figures[0][nth], &rival, bounds, own)
    };
    let mut rows = vec![
        row("throughput", "requests/s", 0, &rate, Figure::Throughput),
        row("CPU time a request", "us", 1, &cpu, Figure::CpuTime),
    ];
    let took = before.2.elapsed().as_secs_f64();
    rows.extend(calls(&servers[0], "watchdog", Task::T3, (before.0, before.1), took));
    bench.reach(rate.into_iter().chain(cpu));
    Ok(rows)
}
