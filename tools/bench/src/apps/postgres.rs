//! PostgreSQL's deadlock detector: in an orbit, the server's own, none; and in a fork for each run
//! (the paper's figure 13).

use super::lines::lines;
use super::paper::{Figure, Task};
use super::table::{self, Own, Row, Rows, number, snapshot};
use crate::reach::{Reach, ratio};
use crate::stats::{Samples, Shuffle, Summary, median};
use crate::{Bench, Progress};
use orbit_console::out::Failure;
use orbit_postgres::deadlock::{Ring, is_waiting, prepare};
use orbit_postgres::{Cluster, Session, family_cpu};
use std::time::{Duration, Instant};

/// Eight rows that all clients update: most transactions wait for a lock. One row each, so none
/// deadlocks.
const CONTENDED: &str = "\\set r random(0, 7)\nUPDATE ring SET v = v + 1 WHERE id = :r;\n";
/// Four rows, each held for some time: at any time most clients wait.
const HELD: &str = "\\set r random(0, 3)\nBEGIN;\nUPDATE ring SET v = v + 1 WHERE id = :r;\n\\sleep 2 ms\nCOMMIT;\n";
const CLIENTS: usize = 8;
/// Figure 14: numbers of clients beside which the detector runs.
const CLIENTS_OF_CALLS: [usize; 3] = [4, CLIENTS, 16];

pub fn run(bench: &mut Bench, quick: bool) -> Result<Rows, Failure> {
    let (rounds, seconds) = if quick { (3, 2) } else { (15, 4) };
    let progress = Progress::new((2 + CLIENTS_OF_CALLS.len()) * rounds);
    let mut rows = throughput(bench, &progress, rounds, seconds)?;
    rows.extend(time_to_break(bench, &progress, rounds)?);
    rows.extend(calls(bench, &progress, rounds, seconds)?);
    let of = OWN.repeats(Task::T1, Figure::Lines);
    rows.extend(lines("postgres").map(|lines| number("lines of the port", "lines", lines, of)));
    progress.finish();
    Ok(rows)
}

/// A row of this part.
fn row(
    measure: &str,
    unit: &'static str,
    ours: Option<Summary>,
    rivals: &[(&'static str, Option<Summary>)],
    bounds: &[Reach],
) -> Row {
    table::row(measure, unit, ours, rivals, bounds, OWN)
}

const OWN: Own = Own::new("postgres", CLIENTS);

/// A server, ready; an error where PostgreSQL is missing.
fn server(stock: bool, settings: &str) -> Result<Cluster, Failure> {
    let cluster = if stock { Cluster::start_stock(settings) } else { Cluster::start(settings) };
    let cluster = cluster.ok_or_else(|| Failure::text("PostgreSQL 15 is missing: scripts/packages.sh ports"))?;
    prepare(&cluster);
    for (name, script) in [("contended.sql", CONTENDED), ("held.sql", HELD)] {
        std::fs::write(cluster.directory().join(name), script)?;
    }
    Ok(cluster)
}

/// Transactions a second and CPU microseconds a transaction of one run of pgbench.
fn load(cluster: &Cluster, script: &str, clients: usize, seconds: usize) -> Result<(f64, f64), Failure> {
    let before = family_cpu(cluster.postmaster_pid());
    let mut pgbench = cluster.client("pgbench");
    pgbench.args(["-n", "-c"]).arg(clients.to_string()).arg("-T").arg(seconds.to_string());
    let done = pgbench.args(["-f", script, "postgres"]).output()?;
    let said = String::from_utf8_lossy(&done.stdout);
    let number = |label: &str| -> Option<f64> {
        said.lines().find_map(|line| line.strip_prefix(label)?.split_whitespace().next()?.parse().ok())
    };
    let (count, tps) = (number("number of transactions actually processed: "), number("tps = "));
    let (Some(count), Some(tps)) = (count, tps) else {
        return Err(Failure::text(format!("pgbench: {said}{}", String::from_utf8_lossy(&done.stderr))));
    };
    Ok((tps, (family_cpu(cluster.postmaster_pid()) - before) * 1e6 / count.max(1.0)))
}

/// Throughput and CPU time with the three detectors.
fn throughput(bench: &mut Bench, progress: &Progress, rounds: usize, seconds: usize) -> Result<Vec<Row>, Failure> {
    let servers = [server(false, "")?, server(true, "deadlock_timeout = 1s")?, server(true, "deadlock_timeout = 1h")?];
    let mut figures: [(Samples, Samples); 3] = Default::default();
    let mut shuffle = Shuffle::new(1);
    // A round that does not count: files and caches.
    for cluster in &servers {
        load(cluster, "contended.sql", CLIENTS, 1)?;
    }
    for round in 0..rounds {
        progress.at(round, "throughput");
        let mut order = [0, 1, 2];
        shuffle.shuffle(&mut order);
        for nth in order {
            let (tps, cpu) = load(&servers[nth], "contended.sql", CLIENTS, seconds)?;
            figures[nth].0.add_figure(tps);
            figures[nth].1.add_figure(cpu);
        }
    }
    let [(ours, our_cpu), (own, own_cpu), (none, no_cpu)] = &figures;
    let [ours, our_cpu, own, own_cpu, none, no_cpu] = [ours, our_cpu, own, own_cpu, none, no_cpu].map(Samples::summary);
    let part = |a, b| ratio(median(a), median(b));
    let tps =
        [Reach::at_least("throughput with the orbit, of the server's own detector", part(ours, own), 0.95, "times")];
    let cpu =
        [Reach::at_most("CPU time a transaction, of the server's own detector", part(our_cpu, own_cpu), 1.05, "times")];
    let of = |measure, unit, ours, [own, none]: [Option<Summary>; 2], bounds: &[Reach], figure| {
        let rivals = [("server's own", own), ("none", none)];
        table::row(measure, unit, ours, &rivals, bounds, OWN.repeats(Task::T1, figure))
    };
    let rows = vec![
        of("throughput, contended", "transactions/s", ours, [own, none], &tps, Figure::Throughput),
        of("CPU time a transaction, contended", "us", our_cpu, [own_cpu, no_cpu], &cpu, Figure::CpuTime),
    ];
    bench.reach(tps.into_iter().chain(cpu));
    Ok(rows)
}

/// From the wait that closes a deadlock until a session learns of it.
fn time_to_break(bench: &mut Bench, progress: &Progress, rounds: usize) -> Result<Vec<Row>, Failure> {
    let servers = [server(false, "")?, server(true, "deadlock_timeout = 1s")?];
    let mut times = [Samples::default(), Samples::default()];
    for round in 0..rounds {
        progress.at(rounds + round, "time to break a deadlock");
        // The server's own takes a second each time.
        for (nth, many) in [(0, 5), (1, 1)] {
            for _ in 0..many {
                let mut ring = Ring::new(&servers[nth], 2, 0);
                let began = Instant::now();
                ring.close(&servers[nth]);
                let first_waited = began.elapsed();
                ring.wait_for_victim();
                // The first session's wait is part of making the deadlock.
                times[nth].add_figure((began.elapsed() - first_waited).as_secs_f64() * 1e3);
                ring.finish();
            }
        }
    }
    let [ours, own] = times.map(|samples| samples.summary());
    let bounds =
        [Reach::at_most("deadlock broken, of the server's own time", ratio(median(ours), median(own)), 0.1, "times")];
    let rows = vec![row("deadlock of two broken", "ms", ours, &[("server's own, deadlock_timeout 1 s", own)], &bounds)];
    bench.reach(bounds);
    Ok(rows)
}

/// Two sessions that wait for a third: with them there is always something to search.
struct Waiters(#[expect(dead_code, reason = "held for their locks")] [Session; 3]);

impl Waiters {
    fn begin(cluster: &Cluster) -> Waiters {
        let mut sessions = [cluster.session(), cluster.session(), cluster.session()];
        sessions[0].run("BEGIN");
        sessions[0].run("UPDATE ring SET v = v WHERE id IN (80, 81)");
        for (nth, session) in sessions[1..].iter_mut().enumerate() {
            session.send(&format!("UPDATE ring SET v = v WHERE id = {}", 80 + nth));
            let pid = session.pid();
            orbit_postgres::wait_until("a session waits", || is_waiting(cluster, pid));
        }
        Waiters(sessions)
    }
}

/// Of a run with scans each millisecond: microseconds from call to result, worker's CPU
/// microseconds a call, calls a second, transactions a second.
fn calls_of(cluster: &Cluster, clients: usize, seconds: usize, times: &mut Samples) -> Result<[f64; 3], Failure> {
    let worker = cluster.state("worker_pid") as i32;
    let (cpu, calls, began) = (family_cpu(worker), cluster.state("calls"), Instant::now());
    let mut tps = Ok((0.0, 0.0));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| load(cluster, "held.sql", clients, seconds));
        let mut last = 0;
        while !running.is_finished() {
            let state = cluster.query("SELECT calls, last_call_us FROM orbit_deadlock");
            let mut words = state.split('|').filter_map(|word| word.parse::<i64>().ok());
            if let (Some(calls), Some(us)) = (words.next(), words.next())
                && calls != last
            {
                last = calls;
                times.add_figure(us as f64);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        tps = running.join().unwrap_or_else(|_| Err(Failure::text("pgbench could not be run")));
    });
    let count = (cluster.state("calls") - calls).max(1) as f64;
    let took = began.elapsed().as_secs_f64();
    Ok([(family_cpu(worker) - cpu) * 1e6 / count, count / took, tps?.0])
}

/// The detector in an orbit, asynchronously and synchronously, and in a fork for each run.
fn calls(bench: &mut Bench, progress: &Progress, rounds: usize, seconds: usize) -> Result<Vec<Row>, Failure> {
    let each_ms = "orbit_deadlock.interval = 1ms";
    let servers = [
        server(false, each_ms)?,
        server(false, &format!("{each_ms}\norbit_deadlock.wait_for_call = on"))?,
        server(false, &format!("{each_ms}\norbit_deadlock.run_in = fork"))?,
    ];
    let _waiters: Vec<Waiters> = servers.iter().map(Waiters::begin).collect();
    let mut rows = Vec::new();
    for (at, clients) in CLIENTS_OF_CALLS.into_iter().enumerate() {
        let mut times: [Samples; 3] = Default::default();
        let mut figures: [[Samples; 3]; 3] = Default::default();
        let mut shuffle = Shuffle::new(2);
        for round in 0..rounds {
            progress.at((2 + at) * rounds + round, &format!("calls beside {clients} clients"));
            let mut order = [0, 1, 2];
            shuffle.shuffle(&mut order);
            for nth in order {
                let figures_of = calls_of(&servers[nth], clients, seconds, &mut times[nth])?;
                for (samples, figure) in figures[nth].iter_mut().zip(figures_of) {
                    samples.add_figure(figure);
                }
            }
        }
        rows.extend(rows_of_calls(bench, clients, &times, &figures));
    }
    let kib = servers[0].state("snapshot_bytes") as f64 / 1024.0;
    rows.extend(snapshot("last call", kib, servers[0].postmaster_pid(), OWN, Task::T1));
    bench.note("CPU time for each run holds the scans of the lock table, and idle ones".to_owned());
    Ok(rows)
}

/// Rows for one number of clients. Of times and figures the first are asynchronous, then
/// synchronous, then by fork.
fn rows_of_calls(bench: &mut Bench, clients: usize, times: &[Samples; 3], figures: &[[Samples; 3]; 3]) -> Vec<Row> {
    let [asynchronous, sync, fork] = figures.each_ref().map(|of| of.each_ref().map(Samples::summary));
    let [async_time, sync_time, fork_time] = times.each_ref().map(Samples::summary);
    let part = |a, b| ratio(median(a), median(b));
    let what = format!("time of a run by fork, of the orbit's, {clients} clients");
    let time = [Reach::at_least(what, part(fork_time, sync_time), 10.0, "times")];
    let row =
        |measure: &str, unit, [ours, other, fork]: [Option<Summary>; 3], bounds: &[Reach], figure: Option<Figure>| {
            let own = Own::new("postgres", clients);
            let own = figure.map_or(own, |figure| own.repeats(Task::T1, figure));
            let rivals = [("orbit, asynchronous", other), ("fork for each run", fork)];
            table::row(&format!("{measure}, {clients} clients"), unit, ours, &rivals, bounds, own)
        };
    let of = |nth: usize| [sync[nth], asynchronous[nth], fork[nth]];
    let all = [sync_time, async_time, fork_time];
    let calls = (clients == CLIENTS).then_some(Figure::Calls);
    let rows = vec![
        row("a run of the detector, until its result", "us", all, &time, Some(Figure::Clients)),
        row("CPU time of the worker's family for each run", "us", of(0), &[], None),
        row("runs, a scan each ms", "calls/s", of(1), &[], calls),
        row("throughput beside them, locks held 2 ms", "transactions/s", of(2), &[], Some(Figure::Fork)),
    ];
    bench.reach(time);
    rows
}
