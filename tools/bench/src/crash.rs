//! `orbit bench crash`: how long nobody is answered after a crash, under load: Redis by
//! `DEBUG SEGFAULT`, an nginx worker by a fault that comes once; under `orbit keep --log`, and
//! restarted (Redis by a supervisor that waits for it, nginx' worker by its master).
//!
//! Three clients ask without pause, each on a connection that stays open. A figure is the longest
//! time without any good answer, from the crash on. The kept server and the restarted one take
//! turns, crash by crash.

use super::plot::{Chart, Series};
use super::reach::Reach;
use super::row::Measured;
use super::stats::{Samples, median};
use super::{Bench, Common, Progress};
use orbit_console::out::{self, Align, Failure, PLAIN, Table};
use orbit_linux::child::Exit;
use orbit_linux::signals;
use serde::Serialize;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// Measures the time from a crash to the next good answer under load: Redis and nginx, kept and
/// restarted.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

const CLIENTS: usize = 3;
/// How long a server may take to begin, or to answer again.
const PATIENCE: Duration = Duration::from_secs(30);
/// From a crash to when its gap is read, at least.
const SETTLE: Duration = Duration::from_millis(400);
/// Good answers before the next crash.
const ANSWERS: u64 = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    Redis,
    Nginx,
}

/// What a row has beside the shared fields.
#[derive(Serialize)]
struct Own {
    program: &'static str,
    /// Errors that clients saw, in all crashes: a kept Redis closes only the connection that asked
    /// for the crash.
    errors: u64,
    errors_restarted: u64,
}

pub fn run(args: &Args) -> out::Done {
    let mut bench = Bench::start("crash", &args.common)?;
    let crashes = if args.common.quick { 10 } else { 100 };
    let programs = [("Redis", Program::Redis, 10.0), ("nginx", Program::Nginx, 5.0)];
    let progress = Progress::new(programs.len() * crashes);
    let mut rows = Vec::new();
    let mut table = Table::new(&[
        ("CRASH TO THE NEXT GOOD ANSWER", Align::Left),
        ("KEPT P50, ms", Align::Right),
        ("P99", Align::Right),
        ("RESTARTED P50", Align::Right),
        ("P99", Align::Right),
        ("ERRORS", Align::Right),
        ("RESTARTED", Align::Right),
    ]);
    let mut series = Vec::new();
    for (nth, (name, program, limit)) in programs.into_iter().enumerate() {
        let (kept, plain) = (Server::start(program, true)?, Server::start(program, false)?);
        let mut gaps = [Samples::default(), Samples::default()];
        for crash in 0..crashes {
            progress.at(nth * crashes + crash, name);
            for (server, gaps) in [&kept, &plain].into_iter().zip(&mut gaps) {
                gaps.add_figure(server.crash()?);
            }
        }
        let [ours, restarted] = gaps.each_ref().map(Samples::summary);
        let p99 = |summary: Option<super::stats::Summary>| summary.map_or(f64::NAN, |s| s.p99);
        let errors = [&kept, &plain].map(|server| server.load.errors.load(SeqCst));
        let cells = [
            name.to_owned(),
            format!("{:.1}", median(ours)),
            format!("{:.1}", p99(ours)),
            format!("{:.1}", median(restarted)),
            format!("{:.1}", p99(restarted)),
            errors[0].to_string(),
            errors[1].to_string(),
        ];
        table.row(cells.map(|cell| (cell, PLAIN)).into());
        let bounds = [
            Reach::at_most(format!("{name}: p50"), median(ours), limit, "ms"),
            Reach::at_most(format!("{name}: p99"), p99(ours), 100.0, "ms"),
        ];
        let own = Own { program: name, errors: errors[0], errors_restarted: errors[1] };
        let row = Measured::new(format!("crash to the next good answer, {name}"), "ms", own).ours(ours);
        rows.push(row.rival("restart", restarted).reach(&bounds));
        bench.reach(bounds);
        for (label, gaps) in [("kept", &gaps[0]), ("restarted", &gaps[1])] {
            let mut sorted = gaps.figures().to_vec();
            sorted.sort_by(f64::total_cmp);
            let share = |n: usize| 100.0 * (n + 1) as f64 / sorted.len() as f64;
            let points = sorted.iter().enumerate().map(|(n, gap)| (share(n), *gap)).collect();
            series.push(Series::new(&format!("{name}, {label}"), points));
        }
    }
    progress.finish();
    let chart = Chart {
        title: "Crash to the next good answer".to_owned(),
        x: "percent of crashes".to_owned(),
        y: "ms".to_owned(),
        series,
    };
    bench.finish(&args.common, &rows, &table, chart)
}

/// What the clients have seen.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    good: AtomicU64,
    last_good: AtomicU64,
    gap: AtomicU64,
    errors: AtomicU64,
}

/// A server under load.
struct Server {
    program: Program,
    folder: PathBuf,
    is_kept: bool,
    /// The keeper, or the server itself.
    child: std::sync::Mutex<Child>,
    load: std::sync::Arc<Load>,
    clients: Vec<thread::JoinHandle<()>>,
}

fn failed(what: impl std::fmt::Display) -> Failure {
    Failure::text(format!("bench crash: {what}"))
}

/// Waits until `done` answers something.
fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let end = Instant::now() + PATIENCE;
    loop {
        match done() {
            Some(value) => return Ok(value),
            None if Instant::now() > end => return Err(failed(format!("not within {PATIENCE:?}: {what}"))),
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}

impl Server {
    fn start(program: Program, is_kept: bool) -> Result<Server, Failure> {
        let name = format!("orbit-bench-crash-{}-{}-{is_kept}", std::process::id(), program as u8);
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder)?;
        let child = std::sync::Mutex::new(spawn(program, &folder, is_kept)?);
        let load = std::sync::Arc::new(Load::default());
        let mut server = Server { program, folder, is_kept, child, load, clients: Vec::new() };
        until("the server answers", || server.connect().ok())?;
        if is_kept {
            let wanted = if program == Program::Nginx { 2 } else { 1 };
            let events = server.folder.join("events");
            let kept = || fs::read_to_string(&events).unwrap_or_default().matches("\"kept\"").count();
            // nginx' master never waits for input, so its first checkpoint is taken late: the
            // worker's is what counts.
            until("the server is kept", || (kept() + 1 >= wanted).then_some(()))?;
        }
        let since = Instant::now();
        for nth in 0..CLIENTS {
            let (load, socket) = (std::sync::Arc::clone(&server.load), server.folder.join("socket"));
            server.clients.push(thread::spawn(move || ask(&load, &socket, program, nth, since)));
        }
        Ok(server)
    }

    fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(self.folder.join("socket"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// The process that crashes: Redis, or nginx' worker.
    fn pid(&self) -> Result<i32, Failure> {
        let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let number = |text: &str| text.trim().parse::<i32>().ok();
        until("a process", || {
            let pid = number(&text(self.folder.join("pid")))?;
            match self.program {
                Program::Redis => Some(pid),
                Program::Nginx => {
                    let children = text(format!("/proc/{pid}/task/{pid}/children").into());
                    number(children.split_whitespace().next()?)
                }
            }
        })
    }

    /// Crashes it once; returns the longest time in ms for which no client was answered.
    fn crash(&self) -> Result<f64, Failure> {
        let answered = |more: u64| {
            let at = self.load.good.load(SeqCst);
            until("clients are answered", || (self.load.good.load(SeqCst) >= at + more).then_some(()))
        };
        answered(ANSWERS)?;
        let pid = self.pid()?;
        self.load.gap.store(0, SeqCst);
        let since = Instant::now();
        match self.program {
            Program::Redis => {
                let mut poison = self.connect()?;
                poison.write_all(b"*2\r\n$5\r\nDEBUG\r\n$8\r\nSEGFAULT\r\n")?;
                let mut child = self.child.lock().map_err(|_| failed("a panic"))?;
                if !self.is_kept {
                    child.wait_for_exit()?;
                    let _ = fs::remove_file(self.folder.join("pid"));
                    *child = spawn(self.program, &self.folder, false)?;
                }
                // Its end is the end of this connection.
                let _ = poison.read(&mut [0; 64]);
            }
            Program::Nginx => {
                // The worker of a server of our own, found just before.
                signals::send(pid, libc::SIGSEGV)?;
            }
        }
        thread::sleep(SETTLE.saturating_sub(since.elapsed()));
        answered(ANSWERS)?;
        Ok(self.load.gap.load(SeqCst) as f64 / 1e6)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.load.stop.store(true, SeqCst);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
        let Ok(child) = self.child.get_mut() else { return };
        let main = fs::read_to_string(self.folder.join("pid")).ok().and_then(|text| text.trim().parse::<i32>().ok());
        if let Some(main) = main {
            // A server of our own that has not been waited for: its keeper or this process does.
            let _ = signals::send(main, libc::SIGTERM);
        }
        let end = Instant::now() + PATIENCE;
        while child.exited().ok().flatten().is_none() && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait_for_exit();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(program: Program, folder: &Path, is_kept: bool) -> Result<Child, Failure> {
    let at = folder.display();
    let command = match program {
        Program::Redis => {
            let settings = format!(
                "port 0\nunixsocket {at}/socket\nsave \"\"\nappendonly no\ndir {at}\npidfile \
                 {at}/pid\nenable-debug-command yes\n\
                 logfile {at}/log\ndaemonize no\n"
            );
            fs::write(folder.join("conf"), settings)?;
            vec!["redis-server".to_owned(), format!("{at}/conf")]
        }
        Program::Nginx => {
            let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
            let folders: String = folders.iter().map(|of| format!("{of}_temp_path {at}/{of};\n")).collect();
            let settings = format!(
                "daemon off;\nworker_processes 1;\nerror_log {at}/log;\npid {at}/pid;\nevents \
                 {{ worker_connections 256; }}\nhttp {{\n\
                 access_log off;\nkeepalive_requests 100000000;\n{folders}server \
                 {{ listen unix:{at}/socket; location / {{ return 200 \"$arg_x\\n\"; }} }}\n}}\n"
            );
            fs::write(folder.join("conf"), settings)?;
            let nginx = if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" };
            vec![nginx.to_owned(), "-c".into(), format!("{at}/conf"), "-e".into(), format!("{at}/log")]
        }
    };
    let mut run = match is_kept {
        true => {
            let mut keeper = Command::new(crate::orbit_command()?);
            keeper.args(["keep", "--quiet", "--log", "--family", "--events"]).arg(folder.join("events")).arg("--");
            keeper.arg(&command[0]);
            keeper
        }
        false => Command::new(&command[0]),
    };
    let quiet = run.args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.spawn().map_err(|error| failed(format!("{}: {error}", command[0])))
}

/// A client: asks until it is stopped, on a new connection after an error.
fn ask(load: &Load, socket: &Path, program: Program, nth: usize, since: Instant) {
    let question = match program {
        Program::Redis => format!("*2\r\n$4\r\nINCR\r\n$2\r\nk{nth}\r\n"),
        Program::Nginx => format!("GET /?x={nth} HTTP/1.1\r\nHost: x\r\n\r\n"),
    };
    let is_answer = |text: &[u8]| match program {
        Program::Redis => text.starts_with(b":") && text.ends_with(b"\r\n"),
        Program::Nginx => text.starts_with(b"HTTP/1.1 200") && text.ends_with(format!("{nth}\n").as_bytes()),
    };
    while !load.stop.load(SeqCst) {
        let Ok(mut stream) = UnixStream::connect(socket) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let _ = stream.set_read_timeout(Some(PATIENCE));
        while !load.stop.load(SeqCst) {
            let mut text = Vec::new();
            let mut part = [0; 1024];
            let is_good = stream.write_all(question.as_bytes()).is_ok()
                && loop {
                    match stream.read(&mut part) {
                        Ok(n @ 1..) => text.extend_from_slice(&part[..n]),
                        Ok(_) | Err(_) => break false,
                    }
                    if is_answer(&text) {
                        break true;
                    }
                };
            if !is_good {
                load.errors.fetch_add(1, SeqCst);
                break;
            }
            let now = since.elapsed().as_nanos() as u64;
            let before = load.last_good.swap(now, SeqCst);
            load.gap.fetch_max(now.saturating_sub(before), SeqCst);
            load.good.fetch_add(1, SeqCst);
        }
    }
}
