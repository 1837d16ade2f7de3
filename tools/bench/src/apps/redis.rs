//! Redis' slow log: in the orbit, in Redis' own thread (the unsafe task), and without one.

use super::lines::lines;
use super::paper::{Figure, Task};
use super::table::{Own, Row, Rows, number, row, snapshot};
use super::ycsb::{CLIENTS, load};
use crate::reach::{Reach, ratio};
use crate::stats::{Samples, Shuffle, median};
use crate::{Bench, Progress};
use orbit_console::out::Failure;
use orbit_redis_rdb::Server;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const OWN: Own = Own::new("redis", CLIENTS);
const KEYS: usize = 20_000;
const VALUE: usize = 1000;
/// Each so many commands one is noted, beside those that are slow: some hundred calls a second, as
/// in Table 4.
const EVERY: &str = "500";
/// The ways: in the orbit, in Redis' own thread, without the module's log.
const WAYS: [&str; 3] = ["orbit", "inside", "off"];

/// Figures of one way, each a sample a round.
#[derive(Default)]
struct Figures {
    requests: Samples,
    cpu: Samples,
    calls: Samples,
}

pub fn run(bench: &mut Bench, quick: bool) -> Result<Rows, Failure> {
    let (rounds, seconds) = if quick { (4, 1) } else { (15, 4) };
    let progress = Progress::new(rounds);
    let module = build()?;
    let servers = [server(&module, WAYS[0])?, server(&module, WAYS[1])?, server(&module, WAYS[2])?];
    let mut figures: [Figures; 3] = Default::default();
    let mut shuffle = Shuffle::new(6);
    let time = Duration::from_secs(seconds);
    for server in &servers {
        load(server, KEYS, VALUE, time / 4)?;
    }
    let before = (count(&servers[0], "orbit_calls"), count(&servers[0], "orbit_pages"));
    for round in 0..rounds {
        progress.at(round, "slow log");
        let mut order = [0, 1, 2];
        shuffle.shuffle(&mut order);
        for nth in order {
            once(&servers[nth], nth == 0, time, &mut figures[nth])?;
        }
    }
    progress.finish();
    let calls = (count(&servers[0], "orbit_calls") - before.0).max(1.0);
    let pages = (count(&servers[0], "orbit_pages") - before.1) / calls;
    let rate = figures[0].calls.summary();
    let [ours, inside, off] = figures.map(|of| [of.requests.summary(), of.cpu.summary()]);
    let part = |nth: usize| ratio(median(ours[nth]), median(inside[nth]));
    let reach = [
        Reach::at_least("slow log: throughput, of the task in Redis' thread", part(0), 0.95, "times"),
        Reach::at_most("slow log: CPU time a request, of the task in Redis' thread", part(1), 1.05, "times"),
    ];
    let rivals = |nth: usize| [("in Redis' thread", inside[nth]), ("none", off[nth])];
    let of = |figure| OWN.repeats(Task::T6, figure);
    let mut rows: Vec<Row> = vec![
        row("slow log: throughput", "requests/s", ours[0], &rivals(0), &reach[..1], of(Figure::Throughput)),
        row("slow log: CPU time a request", "us", ours[1], &rivals(1), &reach[1..], of(Figure::CpuTime)),
        row("slow log: calls", "calls/s", rate, &[], &[], of(Figure::Calls)),
    ];
    rows.extend(snapshot("slow log", 4.0 * pages, servers[0].pid(), OWN, Task::T6));
    rows.extend(lines("redis").map(|lines| number("slow log: lines of the port", "lines", lines, of(Figure::Lines))));
    bench.reach(reach);
    bench.note(format!(
        "slow log: 95 % GET, 5 % SET of {VALUE} bytes; each {EVERY}th command is noted as if it were slow"
    ));
    Ok(rows)
}

/// Builds the module with cargo, as its README says.
fn build() -> Result<PathBuf, Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "-p", "orbit-redis"]).current_dir(&root);
    let done = cargo.output().map_err(|error| Failure::text(format!("cargo: {error}")))?;
    if !done.status.success() {
        return Err(Failure::text(format!("orbit-redis: {}", String::from_utf8_lossy(&done.stderr))));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(std::fs::canonicalize(target.join("release/liborbit_redis.so"))?)
}

fn server(module: &Path, way: &str) -> Result<Server, Failure> {
    let arguments = ["mode", way, "threshold", "10000", "every", EVERY];
    let server = Server::start_module(module, if way == "off" { &arguments[..2] } else { &arguments });
    let server = server.ok_or_else(|| Failure::text("Redis 7.0 is missing: scripts/packages.sh bench"))?;
    let said = server.run(&format!("DEBUG POPULATE {KEYS} key {VALUE}"));
    if said == "OK" { Ok(server) } else { Err(Failure::text(format!("DEBUG POPULATE: {said}"))) }
}

/// A number of ORBIT.INFO.
fn count(server: &Server, name: &str) -> f64 {
    server.number("ORBIT.INFO", name) as f64
}

/// CPU time of the server, and of its orbit where it has one, microseconds.
fn cpu_us(server: &Server, has_orbit: bool) -> f64 {
    let orbit = if has_orbit { server.number("ORBIT.INFO", "orbit_pid") as i32 } else { 0 };
    [server.pid(), orbit].into_iter().filter(|pid| *pid > 0).map(super::table::cpu_us).sum()
}

fn once(server: &Server, has_orbit: bool, time: Duration, figures: &mut Figures) -> Result<(), Failure> {
    let (cpu, began) = (cpu_us(server, has_orbit), Instant::now());
    let calls = if has_orbit { count(server, "orbit_calls") } else { 0.0 };
    let rate = load(server, KEYS, VALUE, time)?;
    let took = began.elapsed().as_secs_f64();
    figures.requests.add_figure(rate);
    figures.cpu.add_figure((cpu_us(server, has_orbit) - cpu) / (rate * took).max(1.0));
    if has_orbit {
        figures.calls.add_figure((count(server, "orbit_calls") - calls) / took);
    }
    Ok(())
}
