//! Apache with prefork: the paper's Table 9, and its row of Table 8.

use super::super::stats::Samples;
use super::super::{Bench, Progress};
use super::cost::{Folder, Server, has, more, row_8};
use super::kept::{self, failed};
use super::{Own, Results};
use orbit_console::out::Failure;
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MODULES: &str = "/usr/lib/apache2/modules";
/// How long Apache is loaded for its row of Table 8: several checkpoints.
const TABLE_8: Duration = Duration::from_secs(5);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How it is kept: not at all (Apache restarts the child), by a log with a checkpoint a second, in
/// request mode.
const WAYS: [Option<&[&str]>; 3] = [
    None,
    Some(&["--log", "--log-size", "64M", "--family"]),
    Some(&["--log", "--log-size", "64M", "--family", "--requests", "--allow-repeats"]),
];

/// Table 9: a child that crashes, restarted by Apache or put back, and what that costs; and
/// Apache's row of Table 8.
pub fn apache(rounds: usize, results: &mut Results, bench: &mut Bench) -> Result<(), Failure> {
    if !has("apache2", bench) || !has("ab", bench) {
        return Ok(());
    }
    let mut gaps = WAYS.map(|_| Samples::default());
    let mut recoveries = WAYS.map(|_| Samples::default());
    let mut times = WAYS.map(|_| Vec::new());
    let progress = Progress::new(rounds * WAYS.len());
    for round in 0..rounds {
        for (nth, way) in WAYS.into_iter().enumerate() {
            progress.at(round * WAYS.len() + nth, "apache");
            let folder = Folder::new("apache")?;
            let server = Apache::start(&folder.0, way)?;
            // Both begin with pages that were written before.
            server.load("1000")?;
            times[nth].push(server.load("8000")?);
            gaps[nth].add_figure(server.crash()?);
            drop(server);
            let put_back = events(&folder.0).into_iter().filter(|event| event["event"] == "recovered");
            recoveries[nth].extend(&put_back.filter_map(|event| event["ms"].as_f64()).collect::<Vec<_>>());
        }
    }
    progress.finish();
    let [restart, log, ours] = gaps.each_ref().map(Samples::summary);
    let rivals = [("log mode", log), ("restart", restart)];
    results.add("Table 9: Apache, from a crash to the next answer", "ms", ours, &rivals, None, Own::default());
    let [_, log, ours] = recoveries.each_ref().map(Samples::summary);
    let paper = json!({"paper_ms": {"simple restart": 42.02, "dump": 4.05, "custom": 4.07}});
    let own = Own { columns: Some(paper), ..Own::default() };
    let name = "Table 9: Apache, recovery in request mode";
    results.add(name, "ms", ours, &[("log mode", log), ("restart", restart)], Some(4.0), own);
    let log = more(&times[1], &times[0]).summary();
    let ours = more(&times[2], &times[0]).summary();
    results.add("Table 9: Apache, cost of request mode", "%", ours, &[("log mode", log)], None, Own::default());
    let folder = Folder::new("apache")?;
    let server = Apache::start(&folder.0, Some(&["--family", "--every", "1s"]))?;
    let (child, since) = (server.child, Instant::now());
    while since.elapsed() < TABLE_8 {
        server.load("1000")?;
    }
    drop(server);
    match kept::of_process(&events(&folder.0), child) {
        Some(figures) => {
            row_8("Apache", &figures, json!({"n": 321, "p": 32, "overall_ms": 1.12, "dump_ms": 3.10}), results)
        }
        None => Ok(()),
    }
}

/// What the keeper has written.
fn events(folder: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(folder.join("events")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

struct Apache {
    /// Ended before the folder is read.
    _server: Server,
    port: u16,
    child: i32,
}

impl Apache {
    /// Starts one with a single child, kept with these options, if any; waits until it answers and
    /// is kept.
    fn start(folder: &Path, options: Option<&[&str]>) -> Result<Apache, Failure> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let at = folder.display();
        fs::create_dir_all(folder.join("www"))?;
        fs::write(folder.join("www/index.html"), "a page\n".repeat(100))?;
        let settings = format!(
            "ServerRoot {at}\nPidFile {at}/pid\nErrorLog {at}/error.log\nListen 127.0.0.1:{port}\nServerName bench\n\
             LoadModule mpm_prefork_module {MODULES}/mod_mpm_prefork.so\n\
             LoadModule authz_core_module {MODULES}/mod_authz_core.so\n\
             StartServers 1\nMinSpareServers 1\nMaxSpareServers 1\nMaxRequestWorkers 1\nDocumentRoot {at}/www\n\
             User www-data\nGroup www-data\nMutex file:{at} default\n"
        );
        fs::write(folder.join("httpd.conf"), settings)?;
        let mut command = Command::new("/usr/sbin/apache2");
        if let Some(options) = options {
            command = Command::new(crate::orbit_command()?);
            command.args(["keep", "--quiet"]).args(options).arg("--events");
            command.arg(folder.join("events")).args(["--", "/usr/sbin/apache2"]);
        }
        command.args(["-D", "FOREGROUND", "-f"]).arg(folder.join("httpd.conf"));
        // At its end it sends a signal to its whole process group.
        let server = Server(command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        let begun = || fs::read_to_string(folder.join("pid")).ok()?.trim().parse().ok();
        let parent: i32 = until("apache2 has begun", begun)?;
        let child = until("apache2 has a child", || {
            let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
            text.split_whitespace().next()?.parse::<i32>().ok()
        })?;
        let apache = Apache { _server: server, port, child };
        until("apache2 answers", || apache.ask())?;
        if options.is_some() {
            until("its child is kept", || {
                events(folder).into_iter().find(|event| event["event"] == "kept" && event["pid"] == child)
            })?;
        }
        Ok(apache)
    }

    /// One request; `None` without a good answer.
    fn ask(&self) -> Option<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(())
    }

    /// Seconds of so many requests.
    fn load(&self, requests: &str) -> Result<f64, Failure> {
        let since = Instant::now();
        let url = format!("http://127.0.0.1:{}/index.html", self.port);
        let done = Command::new("ab").args(["-q", "-n", requests, "-c", "1", &url]).stdout(Stdio::null()).status()?;
        match done.success() {
            true => Ok(since.elapsed().as_secs_f64()),
            false => Err(failed("ab failed")),
        }
    }

    /// Sends the child the signal of a crash; returns the time to the next answer in ms.
    fn crash(&self) -> Result<f64, Failure> {
        let since = Instant::now();
        // The only child of our own server, which waits for it.
        orbit_linux::signals::send(self.child, libc::SIGSEGV)?;
        until("an answer after a crash", || self.ask())?;
        Ok(since.elapsed().as_secs_f64() * 1e3)
    }
}

/// Waits until there is something.
fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = done() {
            return Ok(value);
        }
        if Instant::now() > end {
            return Err(failed(&format!("not within {PATIENCE:?}: {what}")));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}
