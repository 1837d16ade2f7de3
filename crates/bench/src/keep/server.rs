//! Apache with prefork: the paper's Table 9, and its row of Table 8.

use super::super::stats::Samples;
use super::super::{Bench, Progress};
use super::cost::{Folder, Server, has, more};
use super::kept::failed;
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
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Table 9: a child that crashes, restarted by Apache or put back; and the throughput.
pub fn apache(rounds: usize, results: &mut Results, bench: &mut Bench) -> Result<(), Failure> {
    if !has("apache2", bench) || !has("ab", bench) {
        return Ok(());
    }
    let mut recoveries = [Samples::default(), Samples::default()];
    let mut times = [Vec::new(), Vec::new()];
    let mut keepers = Samples::default();
    let progress = Progress::new(rounds * 2);
    for round in 0..rounds {
        for (nth, is_kept) in [false, true].into_iter().enumerate() {
            progress.at(round * 2 + nth, "apache");
            let folder = Folder::new("apache")?;
            let server = Apache::start(&folder.0, is_kept)?;
            times[nth].push(server.load()?);
            recoveries[nth].add_figure(server.crash()?);
            drop(server);
            let text = fs::read_to_string(folder.0.join("events")).unwrap_or_default();
            let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            let put_back = events.filter(|event| event["event"] == "recovered");
            keepers.extend(&put_back.filter_map(|event| event["ms"].as_f64()).collect::<Vec<_>>());
        }
    }
    progress.finish();
    let [restart, ours] = recoveries.each_ref().map(Samples::summary);
    let paper = json!({"paper_ms": {"simple restart": 42.02, "dump": 4.05, "custom": 4.07}});
    let own = Own { columns: Some(paper), ..Own::default() };
    results.add("Table 9: Apache, from a crash to the next answer", "ms", ours, &[("restart", restart)], None, own);
    let name = "Table 9: Apache, recovery";
    results.add(name, "ms", keepers.summary(), &[("restart", restart)], Some(4.0), Own::default());
    let cost = more(&times[1], &times[0]).summary();
    results.add("Table 9: Apache, cost with --log, every 1 s", "%", cost, &[], None, Own::default());
    Ok(())
}

struct Apache {
    /// Ended before the folder is read.
    _server: Server,
    port: u16,
    child: i32,
}

impl Apache {
    /// Starts one with a single child, and waits until it answers and, if so, is kept.
    fn start(folder: &Path, is_kept: bool) -> Result<Apache, Failure> {
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
        let mut command = Command::new(if is_kept { std::env::current_exe()? } else { "/usr/sbin/apache2".into() });
        if is_kept {
            command.args(["keep", "--quiet", "--log", "--log-size", "64M", "--family", "--events"]);
            command.arg(folder.join("events")).args(["--", "/usr/sbin/apache2"]);
        }
        command.args(["-D", "FOREGROUND", "-f"]).arg(folder.join("httpd.conf"));
        // At its end it sends a signal to its whole process group.
        let server = Server(command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        let parent: i32 = until("apache2 has begun", || fs::read_to_string(folder.join("pid")).ok()?.trim().parse().ok())?;
        let child = until("apache2 has a child", || {
            let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
            text.split_whitespace().next()?.parse::<i32>().ok()
        })?;
        let apache = Apache { _server: server, port, child };
        until("apache2 answers", || apache.ask())?;
        if is_kept {
            until("its child is kept", || {
                let text = fs::read_to_string(folder.join("events")).ok()?;
                let mut events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
                events.find(|event| event["event"] == "kept" && event["pid"] == child)
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

    /// Seconds of a load.
    fn load(&self) -> Result<f64, Failure> {
        let since = Instant::now();
        let url = format!("http://127.0.0.1:{}/index.html", self.port);
        let done = Command::new("ab").args(["-q", "-n", "4000", "-c", "1", &url]).stdout(Stdio::null()).status()?;
        match done.success() {
            true => Ok(since.elapsed().as_secs_f64()),
            false => Err(failed("ab failed")),
        }
    }

    /// Sends the child the signal of a crash; returns the time to the next answer in ms.
    fn crash(&self) -> Result<f64, Failure> {
        let since = Instant::now();
        // SAFETY: the only child of our own server, which waits for it.
        unsafe { libc::kill(self.child, libc::SIGSEGV) };
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
