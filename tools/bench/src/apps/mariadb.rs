//! InnoDB's deadlock detector: in an orbit, InnoDB's own, none. The load is sysbench's, as in the
//! paper.

use super::lines::lines;
use super::paper::{Figure, Task};
use super::table::{self, Own, Row, Rows, number, snapshot};
use crate::reach::{Reach, ratio};
use crate::stats::{Samples, Shuffle, Summary, median};
use crate::{Bench, Progress};
use orbit_console::out::Failure;
use orbit_mariadb::{Detector, Ring, Server};
use std::process::Command;
use std::time::Instant;

const CLIENTS: usize = 16;
/// Rows of the table.
const TABLE_ROWS: usize = 100_000;
/// Rows that transactions use, and what that comes to: with few they wait for each other, and many
/// deadlock.
const LOADS: [(usize, &str); 2] = [(TABLE_ROWS, "100,000 rows"), (2000, "2,000 rows, many deadlocks")];

pub fn run(bench: &mut Bench, quick: bool) -> Result<Rows, Failure> {
    let (rounds, seconds) = if quick { (5, 2) } else { (15, 5) };
    let progress = Progress::new(3 * rounds);
    let servers = [
        server(Detector::Orbit, &[])?,
        server(Detector::Own, &[])?,
        server(Detector::None, &["--innodb-lock-wait-timeout=1"])?,
    ];
    let mut rows = Vec::new();
    for (nth, used) in LOADS.into_iter().enumerate() {
        rows.extend(throughput(bench, &progress, &servers, used, nth * rounds, (rounds, seconds))?);
    }
    rows.extend(time_to_break(&progress, &servers, rounds));
    let kib = servers[0].state("snapshot_bytes") as f64 / 1024.0;
    rows.extend(snapshot("last call", kib, servers[0].pid(), OWN, Task::T1));
    let of = OWN.repeats(Task::T1, Figure::Lines);
    rows.extend(lines("mariadb").map(|lines| number("lines of the port", "lines", lines, of)));
    progress.finish();
    bench.note("sysbench oltp_read_write; without a detector a deadlock lasts for its timeout, 1 s".to_owned());
    Ok(rows)
}

const OWN: Own = Own::new("mariadb", CLIENTS);

fn row(
    measure: &str,
    unit: &'static str,
    ours: Option<Summary>,
    rivals: &[(&'static str, Option<Summary>)],
    bounds: &[Reach],
) -> Row {
    table::row(measure, unit, ours, rivals, bounds, OWN)
}

fn server(detector: Detector, options: &[&str]) -> Result<Server, Failure> {
    let server = Server::start(detector, options)
        .ok_or_else(|| Failure::text("MariaDB 10.11 is missing: scripts/packages.sh ports"))?;
    sysbench(&server, TABLE_ROWS, &["prepare"])?;
    Ok(server)
}

fn sysbench(server: &Server, rows: usize, words: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new("sysbench");
    command.args(["oltp_read_write", "--db-driver=mysql", "--mysql-user=root", "--mysql-db=test", "--tables=1"]);
    command.arg(format!("--mysql-socket={}", server.directory().join("s").display()));
    let done = command.arg(format!("--table-size={rows}")).args(words).output()?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() {
        return Ok(said);
    }
    Err(Failure::text(format!("sysbench: {said}{}", String::from_utf8_lossy(&done.stderr))))
}

/// Transactions a second, CPU microseconds a transaction, deadlocks and timeouts a second.
fn load(server: &Server, rows: usize, seconds: usize) -> Result<[f64; 3], Failure> {
    let before = server.cpu();
    let (threads, time) = (format!("--threads={CLIENTS}"), format!("--time={seconds}"));
    let said = sysbench(server, rows, &[&threads, &time, "--mysql-ignore-errors=1205,1213", "run"])?;
    let number = |label: &str, nth: usize| -> Option<f64> {
        let line = said.lines().find_map(|line| line.trim().strip_prefix(label))?;
        line.split_whitespace().nth(nth)?.trim_start_matches('(').parse().ok()
    };
    let (Some(count), Some(rate), Some(ignored)) =
        (number("transactions:", 0), number("transactions:", 1), number("ignored errors:", 1))
    else {
        return Err(Failure::text(format!("sysbench said: {said}")));
    };
    Ok([rate, (server.cpu() - before) * 1e6 / count.max(1.0), ignored])
}

fn throughput(
    bench: &mut Bench,
    progress: &Progress,
    servers: &[Server; 3],
    (table_rows, what): (usize, &str),
    at: usize,
    (rounds, seconds): (usize, usize),
) -> Result<Vec<Row>, Failure> {
    let mut figures: [[Samples; 3]; 3] = Default::default();
    let mut shuffle = Shuffle::new(9);
    for server in servers {
        load(server, table_rows, 1)?;
    }
    let (mut calls, mut size) = (Samples::default(), Samples::default());
    for round in 0..rounds {
        progress.at(at + round, what);
        let mut order = [0, 1, 2];
        shuffle.shuffle(&mut order);
        for nth in order {
            let (before, began) = (if nth == 0 { servers[0].state("calls") } else { 0 }, Instant::now());
            for (samples, figure) in figures[nth].iter_mut().zip(load(&servers[nth], table_rows, seconds)?) {
                samples.add_figure(figure);
            }
            if nth == 0 {
                calls.add_figure((servers[0].state("calls") - before) as f64 / began.elapsed().as_secs_f64());
                size.add_figure(servers[0].state("snapshot_bytes") as f64);
            }
        }
    }
    let [ours, own, none] = figures.map(|of| of.map(|samples| samples.summary()));
    let part = |nth: usize| ratio(median(ours[nth]), median(own[nth]));
    let tps = [Reach::at_least(format!("throughput, {what}, of InnoDB's own detector"), part(0), 0.95, "times")];
    let cpu = [Reach::at_most(format!("CPU time a transaction, {what}, of InnoDB's own"), part(1), 1.05, "times")];
    let rivals = |nth: usize| [("InnoDB's own", own[nth]), ("none", none[nth])];
    // Figure 12 is about the task, not about how soon victims are found: the load without
    // deadlocks. Calls: with them.
    let is_figure = table_rows == TABLE_ROWS;
    let of = |figure| if is_figure == (figure != Figure::Calls) { OWN.repeats(Task::T1, figure) } else { OWN };
    let of_figure = |name: &str, unit, nth: usize, bounds: &[Reach], figure| {
        table::row(&format!("{name}, {what}"), unit, ours[nth], &rivals(nth), bounds, of(figure))
    };
    let rows = vec![
        of_figure("throughput", "transactions/s", 0, &tps, Figure::Throughput),
        of_figure("CPU time a transaction", "us", 1, &cpu, Figure::CpuTime),
        row(&format!("deadlocks and timeouts, {what}"), "1/s", ours[2], &rivals(2), &[]),
        table::row(&format!("calls of the task, {what}"), "calls/s", calls.summary(), &[], &[], of(Figure::Calls)),
        row(&format!("snapshot of a call, {what}"), "bytes", size.summary(), &[], &[]),
    ];
    bench.reach(tps.into_iter().chain(cpu));
    Ok(rows)
}

/// From the wait that closes a deadlock until a session is freed.
fn time_to_break(progress: &Progress, servers: &[Server; 3], rounds: usize) -> Vec<Row> {
    let mut times: [Samples; 2] = Default::default();
    for round in 0..rounds {
        progress.at(2 * rounds + round, "time to break a deadlock");
        for (server, samples) in servers.iter().zip(&mut times) {
            let mut ring = Ring::new(server, &[1, 2], 0);
            let closed = ring.close(server);
            ring.wait_for_victim();
            samples.add_figure(closed.elapsed().as_secs_f64() * 1e3);
            ring.finish();
        }
    }
    let [ours, own] = times.map(|samples| samples.summary());
    vec![row("deadlock of two broken", "ms", ours, &[("InnoDB's own", own)], &[])]
}
