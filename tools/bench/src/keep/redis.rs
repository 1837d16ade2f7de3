//! What keeping costs Redis with a log: a kept server and a bare one are asked in turns.
//!
//! Both run all the time, so that each has its memory and its first checkpoints behind it. A turn
//! is too short for the machine to change much in it, and the order changes from pair to pair.

use super::super::stats::{Samples, median};
use super::super::{Bench, Progress};
use super::cost::{Folder, Server, has};
use super::kept::failed;
use super::{Own, Results};
use orbit_console::out::Failure;
use orbit_linux::sched;
use serde_json::json;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Requests of a turn: most of a second.
const REQUESTS: u32 = 60_000;
/// Requests before the first turn: the log has been gone through once, and is in memory.
const WARM_UP: u32 = 300_000;
/// How long a server may take to begin.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that is asked.
struct Redis {
    /// Ended before the folder goes.
    server: Server,
    pid: i32,
    socket: PathBuf,
    _folder: Folder,
}

/// What a turn has taken: seconds; microseconds of the server's processor a request.
struct Turn {
    seconds: f64,
    cpu_us: f64,
}

/// Redis in log mode, a checkpoint a second, `pairs` turns of each.
pub fn cost(pairs: usize, results: &mut Results, bench: &mut Bench) -> Result<(), Failure> {
    if !has("redis-server", bench) || !has("redis-benchmark", bench) {
        return Ok(());
    }
    let servers = [Redis::start(false)?, Redis::start(true)?];
    for server in &servers {
        server.ask(WARM_UP)?;
    }
    let (mut more, mut cpu_more) = (Samples::default(), Samples::default());
    let mut cpu = [Samples::default(), Samples::default()];
    let progress = Progress::new(pairs);
    let keeper = || cpu_seconds(servers[1].server.0.id() as i32);
    let (mut keeper_cpu, mut kept_seconds) = (0.0, 0.0);
    for pair in 0..pairs {
        progress.at(pair, "redis");
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        let mut turns = [None, None];
        for nth in order {
            let before = keeper();
            let turn = servers[nth].ask(REQUESTS)?;
            if nth == 1 {
                keeper_cpu += keeper() - before;
                kept_seconds += turn.seconds;
            }
            cpu[nth].add_figure(turn.cpu_us);
            turns[nth] = Some(turn);
        }
        if let [Some(bare), Some(kept)] = turns {
            more.add_figure((kept.seconds / bare.seconds - 1.0) * 100.0);
            cpu_more.add_figure((kept.cpu_us / bare.cpu_us - 1.0) * 100.0);
        }
    }
    progress.finish();
    let of = |samples: &Samples| median(samples.summary());
    let columns = json!({
        "requests_a_turn": REQUESTS, "server_cpu_us_a_request": of(&cpu[1]), "bare_cpu_us_a_request": of(&cpu[0]),
        "keeper_cpu_percent": 100.0 * keeper_cpu / kept_seconds,
    });
    let own = || Own { columns: Some(columns.clone()), ..Own::default() };
    results.add("cost for Redis with --log, every 1 s", "%", more.summary(), &[], Some(3.0), own());
    results.add("the same, as processor time of the server", "%", cpu_more.summary(), &[], None, own());
    Ok(())
}

impl Redis {
    fn start(is_kept: bool) -> Result<Redis, Failure> {
        let folder = Folder::new(if is_kept { "redis-kept" } else { "redis-bare" })?;
        let (socket, pid_file) = (folder.0.join("socket"), folder.0.join("pid"));
        let mut command = Command::new(if is_kept { crate::orbit_command()? } else { "redis-server".into() });
        if is_kept {
            command.args(["keep", "--quiet", "--log", "--", "redis-server"]);
        }
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
        command.arg("--pidfile").arg(&pid_file).arg("--dir").arg(&folder.0);
        let server = Server(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let (Some(pid), Ok(_)) = (number(&pid_file), UnixStream::connect(&socket)) {
                return Ok(Redis { server, pid, socket, _folder: folder });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(failed("redis-server does not listen"))
    }

    /// A run of redis-benchmark.
    fn ask(&self, requests: u32) -> Result<Turn, Failure> {
        let cpu = || sched::schedstat(self.pid, self.pid).map(|stat| stat.run_ns as f64 / 1e3);
        let (before, since) = (cpu()?, Instant::now());
        let done = Command::new("redis-benchmark")
            .arg("-s")
            .arg(&self.socket)
            .args(["-q", "-t", "incr", "-c", "20", "-n", &requests.to_string()])
            .stdout(Stdio::null())
            .status()?;
        if !done.success() {
            return Err(failed("redis-benchmark failed"));
        }
        let seconds = since.elapsed().as_secs_f64();
        Ok(Turn { seconds, cpu_us: (cpu()? - before) / f64::from(requests) })
    }
}

fn number(file: &Path) -> Option<i32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Processor time that a process has used, threads that have ended included, in seconds; 0 if it is
/// gone.
fn cpu_seconds(pid: i32) -> f64 {
    let text = orbit_linux::procfs::text(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    // utime and stime are fields 14 and 15 of the file; state is the third. In hundredths of a
    // second.
    let ticks = after_name.split_whitespace().skip(11).take(2);
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
