//! What watching costs: CPU a request of a saturated, unmodified server, with and without the guard, in turns on the same process.
//!
//! A round is three measurements in changing order: without, with, and without again for a null control. Before each the
//! load runs for a while, so that the guard has learnt and caches are warm. Compared is what came together: ratios within a
//! round, then their quartiles. The guard's own CPU time in the same window is added to the server's, and shown apart.

use super::Lines;
use super::guarded::{Guarded, cpu_ns};
use super::scratch::{self, Scratch};
use super::servers;
use crate::bench::Progress;
use crate::bench::reach::Reach;
use crate::out::Failure;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Connections of the clients.
const CONNECTIONS: usize = 16;
/// Requests in flight on each, at Redis.
const IN_FLIGHT: usize = 16;

/// One server.
#[derive(Debug, Serialize)]
pub struct Row {
    pub server: &'static str,
    /// Rounds.
    pub n: usize,
    /// CPU nanoseconds a request without the guard, median.
    pub off_ns: f64,
    /// Ratios, as quartile, median, quartile: the server's CPU a request with the guard to without.
    pub server_ratio: [f64; 3],
    /// Between these the true median of `server_ratio` lies, by 95 %. Nothing from fewer than six rounds.
    pub server_median_95: Option<[f64; 2]>,
    /// The same with the guard's own CPU added.
    pub with_guard_ratio: [f64; 3],
    /// Without to without.
    pub null_ratio: [f64; 3],
    /// CPU time of the guard, percent of one CPU, median.
    pub guard_cpu_percent: f64,
}

/// Rounds, and how long each measurement and the load before it last.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub rounds: usize,
    pub warm: Duration,
    pub measured: Duration,
}

/// One measurement.
#[derive(Clone, Copy, Default)]
struct Sample {
    server_ns: f64,
    guard_ns: f64,
    guard_percent: f64,
}

/// What makes requests for a time, and how many.
type Load<'a> = dyn Fn(Duration) -> Result<u64, Failure> + 'a;

/// Measures both servers.
pub fn run(wanted: Wanted, scratch: &Scratch, lines: &mut Lines) -> Result<(), Failure> {
    let dir = scratch.path("cost");
    let www = dir.join("www");
    std::fs::create_dir_all(&www)?;
    std::fs::write(www.join("1k"), [b'x'; 1024])?;
    if scratch::has("nginx") && scratch::has("wrk") {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let place = format!("127.0.0.1:{port}");
        let server = Server::start(&servers::nginx(&dir, &www, Some(&place))?)?;
        servers::wait_ready(&servers::nginx_socket(&dir))?;
        let url = format!("http://{place}/1k");
        one("nginx, 1 KiB files, wrk", &server, &|span| wrk(&url, span), wanted, lines)?;
    } else {
        lines.note("cost: nginx and wrk are needed for the row of nginx".to_owned());
    }
    if scratch::has("redis-server") {
        let server = Server::start(&servers::redis(&dir, &["--appendonly", "no"]))?;
        let socket = servers::redis_socket(&dir);
        servers::wait_ready(&socket)?;
        one("redis, SET and GET, 16 in flight", &server, &|span| redis(&socket, span), wanted, lines)?;
    } else {
        lines.note("cost: redis-server is needed for its row".to_owned());
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn one(name: &'static str, server: &Server, load: &Load<'_>, wanted: Wanted, lines: &mut Lines) -> Result<(), Failure> {
    let progress = Progress::new(wanted.rounds);
    let mut rounds = Vec::new();
    let mut order = [0, 1, 2];
    for nth in 0..wanted.rounds {
        progress.at(nth, &format!("cost: {name}"));
        let mut round = [Sample::default(); 3];
        for which in order {
            round[which] = measure(server, load, which == 1, wanted)?;
        }
        rounds.push(round);
        order.rotate_left(1);
    }
    progress.finish();
    let of = |ratio: &dyn Fn(&[Sample; 3]) -> f64| quartiles(rounds.iter().map(ratio).collect());
    let off = |r: &[Sample; 3]| (r[0].server_ns + r[2].server_ns) / 2.0;
    let row = Row {
        server: name,
        n: rounds.len(),
        off_ns: of(&off)[1].round(),
        server_ratio: of(&|r| r[1].server_ns / off(r)),
        server_median_95: median_95(rounds.iter().map(|r| r[1].server_ns / off(r)).collect()),
        with_guard_ratio: of(&|r| (r[1].server_ns + r[1].guard_ns) / off(r)),
        null_ratio: of(&|r| r[2].server_ns / r[0].server_ns),
        guard_cpu_percent: of(&|r| r[1].guard_percent)[1],
    };
    let over = |ratio: f64| (ratio * 1e4 - 1e4).round() / 100.0;
    let n = row.n;
    let bounds = row.server_median_95.map(|all| all.map(over));
    let bounds = bounds.map_or_else(String::new, |[low, high]| format!(", by 95 % within {low:+} to {high:+} %"));
    let more = format!("{name}: CPU a request more under guard, n={n}{bounds}");
    lines.reach([
        Reach::at_most(more, over(row.server_ratio[1]), 1.0, "%"),
        Reach::at_most(format!("{name}: the same, the guard's own CPU added"), over(row.with_guard_ratio[1]), 1.0, "%"),
    ]);
    lines.cost(row);
    Ok(())
}

/// Lower quartile, median, upper quartile, to a ten-thousandth.
fn quartiles(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = part * figures.len().saturating_sub(1) as f64;
        let (low, high) = (place.floor() as usize, place.ceil() as usize);
        let value = figures.get(low).zip(figures.get(high)).map_or(0.0, |(l, h)| l + (h - l) * place.fract());
        (value * 1e4).round() / 1e4
    };
    [at(0.25), at(0.5), at(0.75)]
}

/// The order statistics that hold the median of what was drawn from by at least 95 %.
fn median_95(mut figures: Vec<f64>) -> Option<[f64; 2]> {
    figures.sort_by(f64::total_cmp);
    if figures.len() < 6 {
        return None;
    }
    // How many of n fall below the median is binomial: the normal approximation, rounded outwards.
    let n = figures.len() as f64;
    let low = ((n - 1.96 * n.sqrt()) / 2.0).floor().max(1.0) as usize;
    Some([figures[low - 1], figures[figures.len() - low]].map(|value| (value * 1e4).round() / 1e4))
}

fn measure(server: &Server, load: &Load<'_>, watched: bool, wanted: Wanted) -> Result<Sample, Failure> {
    scratch::go_on()?;
    let mut guard = if watched { Some(Guarded::join(server.pid())?) } else { None };
    load(wanted.warm)?;
    let own = |guard: &Option<Guarded>| guard.as_ref().map_or(0, Guarded::cpu_ns);
    let (before, own_before, begun) = (server.cpu_ns(), own(&guard), Instant::now());
    let requests = load(wanted.measured)?.max(1) as f64;
    let (after, own_after, took) = (server.cpu_ns(), own(&guard), begun.elapsed());
    if let Some(guard) = &mut guard
        && let Some(told) = guard.watch(Duration::ZERO)?.first()
    {
        return Err(Failure::text(format!("a false alarm while the cost was measured: {}", told.report())));
    }
    let guard_ns = own_after.saturating_sub(own_before) as f64;
    Ok(Sample {
        server_ns: after.saturating_sub(before) as f64 / requests,
        guard_ns: guard_ns / requests,
        guard_percent: guard_ns * 100.0 / took.as_nanos() as f64,
    })
}

/// A server that nobody watches yet.
struct Server(Child);

impl Server {
    fn start(program: &[OsString]) -> Result<Server, Failure> {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let prepare = || {
            orbit_linux::process::set_parent_death_signal(libc::SIGTERM)?;
            // An ordinary user's guard may then join it also where Yama guards processes; elsewhere an error, and no matter.
            // SAFETY: takes numbers only.
            unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
            Ok(())
        };
        // SAFETY: the closure makes two system calls.
        unsafe { command.pre_exec(prepare) };
        Ok(Server(command.spawn()?))
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Of all its processes.
    fn cpu_ns(&self) -> u64 {
        let pid = self.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let workers = children.split_whitespace().filter_map(|n| n.parse().ok()).map(cpu_ns);
        cpu_ns(pid) + workers.sum::<u64>()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: an own child that was not reaped yet. nginx ends its workers when asked to end.
        unsafe { libc::kill(self.pid(), libc::SIGTERM) };
        let end = Instant::now() + Duration::from_secs(5);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// wrk on a URL; takes whole seconds.
fn wrk(url: &str, span: Duration) -> Result<u64, Failure> {
    let seconds = format!("{}s", span.as_secs_f64().ceil());
    let output = Command::new("wrk").args(["-t1", &format!("-c{CONNECTIONS}"), "-d", &seconds, url]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let count = text.lines().find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok());
    count.ok_or_else(|| Failure::text(format!("wrk told no number of requests: {text}")))
}

/// SET and GET on several connections at a time, for so long.
fn redis(socket: &Path, span: Duration) -> Result<u64, Failure> {
    let value = "v".repeat(64);
    let sets = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$64\r\n{value}\r\n").repeat(IN_FLIGHT);
    let gets = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(IN_FLIGHT);
    let batches = [(sets, "+OK\r\n".len() * IN_FLIGHT), (gets, format!("$64\r\n{value}\r\n").len() * IN_FLIGHT)];
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let connection = UnixStream::connect(socket)?;
        connection.set_read_timeout(Some(Duration::from_secs(30)))?;
        connections.push(connection);
    }
    let mut answer = vec![0; batches[1].1.max(batches[0].1)];
    let (begun, mut requests) = (Instant::now(), 0);
    while begun.elapsed() < span {
        for (batch, length) in &batches {
            for connection in &mut connections {
                connection.write_all(batch.as_bytes())?;
            }
            for connection in &mut connections {
                connection.read_exact(&mut answer[..*length])?;
            }
            requests += (CONNECTIONS * IN_FLIGHT) as u64;
        }
    }
    Ok(requests)
}
