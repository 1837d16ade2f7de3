//! What watching costs: CPU a request of a saturated, unmodified server, with and without the
//! guard, in turns on the same process.
//!
//! A neighbour on the same core of a shared host makes the same work cost half as much again, for
//! parts of a second or for seconds. So the turns are short: the guard has joined and learnt
//! before, and is stopped where the server is to be without it. A round is four slices, with,
//! without, without, with: what changes steadily falls out of their ratio, and the two in the
//! middle are the null control. Most rounds lie between the neighbour's comings and goings, and the
//! median of the rounds' ratios is theirs. The guard's own CPU time in a slice is added to the
//! server's, and shown apart. When it continues it scans at once a server it has not seen for a
//! while: it examines it rather too often than too seldom.

pub(super) mod load;

use orbit_linux::child::Exit;
use self::load::Clients;
use super::Lines;
use super::guarded::{Guarded, cpu_ns};
use super::scratch::{self, Scratch};
use super::servers;
use crate::Progress;
use crate::reach::Reach;
use orbit_console::out::Failure;
use serde::Serialize;
use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Length of a slice: some five scans of the guard, and one or two examinations of a saturated
/// thread.
const SLICE: Duration = Duration::from_millis(400);
/// The load before, for the guard to learn.
const WARM: Duration = Duration::from_secs(5);
/// A request may use so much more CPU under guard, percent.
const MAX_MORE_CPU_PERCENT: f64 = 0.3;
/// After so many rounds another guard joins.
const EACH: usize = 25;

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
    /// Between these the true median of `server_ratio` lies, by 95 %. Nothing from fewer than six
    /// rounds.
    pub server_median_95: Option<[f64; 2]>,
    /// The same with the guard's own CPU added.
    pub with_guard_ratio: [f64; 3],
    /// Without to without.
    pub null_ratio: [f64; 3],
    /// CPU time of the guard, percent of one CPU, median.
    pub guard_cpu_percent: f64,
}

/// One slice.
#[derive(Clone, Copy, Default)]
struct Slice {
    server_ns: f64,
    guard_ns: f64,
    guard_percent: f64,
}

/// With, without, without, with.
type Round = [Slice; 4];

/// Measures both servers.
pub fn run(rounds: usize, scratch: &Scratch, lines: &mut Lines) -> Result<(), Failure> {
    let dir = scratch.path("cost");
    let www = dir.join("www");
    std::fs::create_dir_all(&www)?;
    std::fs::write(www.join("1k"), [b'x'; 1024])?;
    if scratch::has("nginx") {
        let place = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let server = Server::start(&servers::nginx(&dir, &www, Some(&place.to_string()))?)?;
        servers::wait_ready(&servers::nginx_socket(&dir))?;
        one("nginx, 1 KiB files", &server, &mut Clients::of_nginx(place, "/1k")?, rounds, lines)?;
    } else {
        lines.note("cost: nginx is needed for its row".to_owned());
    }
    if scratch::has("redis-server") {
        let server = Server::start(&servers::redis(&dir, &["--appendonly", "no"]))?;
        let socket = servers::redis_socket(&dir);
        servers::wait_ready(&socket)?;
        one("redis, SET and GET, 16 in flight", &server, &mut Clients::of_redis(&socket)?, rounds, lines)?;
    } else {
        lines.note("cost: redis-server is needed for its row".to_owned());
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn one(
    name: &'static str,
    server: &Server,
    load: &mut Clients,
    wanted: usize,
    lines: &mut Lines,
) -> Result<(), Failure> {
    let progress = Progress::new(wanted);
    let mut rounds = Vec::new();
    while rounds.len() < wanted {
        let mut guard = Guarded::join(server.pid())?;
        load.ask(WARM)?;
        for _ in 0..EACH.min(wanted - rounds.len()) {
            progress.at(rounds.len(), &format!("cost: {name}"));
            rounds.push(round(server, load, &guard)?);
        }
        if let Some(reported) = guard.watch(Duration::ZERO)?.first() {
            return Err(Failure::text(format!("a false alarm while the cost was measured: {}", reported.report())));
        }
    }
    progress.finish();
    let row = row(name, &rounds);
    let over = |ratio: f64| (ratio * 1e4 - 1e4).round() / 100.0;
    let n = row.n;
    let bounds = row.server_median_95.map(|all| all.map(over));
    let bounds = bounds.map_or_else(String::new, |[low, high]| format!(", by 95 % within {low:+} to {high:+} %"));
    let more = format!("{name}: CPU a request more under guard, n={n}{bounds}");
    lines.reach([
        Reach::at_most(more, over(row.server_ratio[1]), MAX_MORE_CPU_PERCENT, "%"),
        Reach::at_most(format!("{name}: the same, the guard's own CPU added"), over(row.with_guard_ratio[1]), 1.0, "%"),
    ]);
    lines.cost(row);
    Ok(())
}

fn round(server: &Server, load: &mut Clients, guard: &Guarded) -> Result<Round, Failure> {
    scratch::go_on()?;
    let before = slice(server, load, guard)?;
    let paused = guard.pause(&server.processes())?;
    let without = [slice(server, load, guard)?, slice(server, load, guard)?];
    drop(paused);
    Ok([before, without[0], without[1], slice(server, load, guard)?])
}

fn slice(server: &Server, load: &mut Clients, guard: &Guarded) -> Result<Slice, Failure> {
    let (before, own_before, begun) = (server.cpu_ns(), guard.cpu_ns(), Instant::now());
    let requests = load.ask(SLICE)?.max(1) as f64;
    let (after, own_after, took) = (server.cpu_ns(), guard.cpu_ns(), begun.elapsed());
    let guard_ns = own_after.saturating_sub(own_before) as f64;
    Ok(Slice {
        server_ns: after.saturating_sub(before) as f64 / requests,
        guard_ns: guard_ns / requests,
        guard_percent: guard_ns * 100.0 / took.as_nanos() as f64,
    })
}

fn row(server: &'static str, rounds: &[Round]) -> Row {
    let of = |ratio: &dyn Fn(&Round) -> f64| quartiles(rounds.iter().map(ratio).collect());
    let off = |[_, a, b, _]: &Round| (a.server_ns + b.server_ns) / 2.0;
    let on = |[a, _, _, b]: &Round| (a.server_ns + b.server_ns) / 2.0;
    let guard = |[a, _, _, b]: &Round| (a.guard_ns + b.guard_ns) / 2.0;
    Row {
        server,
        n: rounds.len(),
        off_ns: of(&off)[1].round(),
        server_ratio: of(&|r| on(r) / off(r)),
        server_median_95: median_95(rounds.iter().map(|r| on(r) / off(r)).collect()),
        with_guard_ratio: of(&|r| (on(r) + guard(r)) / off(r)),
        null_ratio: of(&|[_, a, b, _]| b.server_ns / a.server_ns),
        guard_cpu_percent: of(&|[a, _, _, b]| (a.guard_percent + b.guard_percent) / 2.0)[1],
    }
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

/// A server that nobody watches yet.
struct Server(Child);

impl Server {
    fn start(program: &[OsString]) -> Result<Server, Failure> {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let prepare = || {
            orbit_linux::process::set_parent_death_signal(libc::SIGTERM)?;
            // An ordinary user's watch may then join it also where Yama guards processes; elsewhere
            // an error, and no matter.
            let _ = orbit_linux::ptrace::allow_all_tracers();
            Ok(())
        };
        // SAFETY: the closure makes two system calls.
        unsafe { command.pre_exec(prepare) };
        Ok(Server(command.spawn()?))
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// The process that was started, and its workers.
    fn processes(&self) -> Vec<i32> {
        let pid = self.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let workers = children.split_whitespace().filter_map(|n| n.parse().ok());
        std::iter::once(pid).chain(workers).collect()
    }

    fn cpu_ns(&self) -> u64 {
        self.processes().into_iter().map(cpu_ns).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An own child that was not reaped yet. nginx ends its workers when asked to end.
        let _ = orbit_linux::signals::send(self.pid(), libc::SIGTERM);
        let end = Instant::now() + Duration::from_secs(5);
        while matches!(self.0.exited(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait_for_exit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guard_adds_is_seen_through_a_noisy_host() {
        // With a neighbour, which comes and goes each eleventh slice, the same work costs more.
        let neighbour = |nth: usize| if (nth / 11).is_multiple_of(2) { 500.0 } else { 860.0 };
        let with =
            |nth: usize, over: f64| Slice { server_ns: neighbour(nth) * over, guard_ns: 5.0, guard_percent: 0.5 };
        let round = |nth: usize| [with(nth, 1.04), with(nth + 1, 1.0), with(nth + 2, 1.0), with(nth + 3, 1.04)];
        let rounds: Vec<Round> = (0..40).map(|nth| round(nth * 4)).collect();
        let row = row("test", &rounds);
        assert_eq!((row.n, row.server_ratio[1], row.null_ratio[1]), (40, 1.04, 1.0), "{row:?}");
        assert!((1.045..=1.05).contains(&row.with_guard_ratio[1]), "{row:?}");
        assert_eq!(row.server_median_95, Some([1.04, 1.04]), "{row:?}");
    }
}
