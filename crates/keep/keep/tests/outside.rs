//! Servers that nobody here has written, killed by signals under load: no client sees an error,
//! nothing is done twice.

mod common;

use common::campaign::{Client, Kind, Server, run};
use common::nginx::Requests;
use common::{KEEP, PATIENCE, Scratch, count, events, lacks_tracking, until};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const CRASHES: usize = 8;

/// A kept server on a unix socket.
struct Kept {
    keeper: Child,
    pid: i32,
    scratch: Scratch,
    events: PathBuf,
    connect: fn(&Kept, UnixStream, usize) -> Box<dyn Client + '_>,
    /// Answers of a kind that a test counts.
    counted: AtomicU64,
}

impl Kept {
    /// `command` is made of the folder; its socket is `socket` there.
    fn start(
        name: &str,
        command: impl Fn(&Path) -> Vec<String>,
        connect: fn(&Kept, UnixStream, usize) -> Box<dyn Client + '_>,
    ) -> Option<Kept> {
        let scratch = Scratch::new(name);
        let command = command(&scratch.0);
        if lacks_tracking() {
            return None;
        }
        let is_there = ["/usr/sbin", "/usr/bin"].iter().any(|folder| Path::new(folder).join(&command[0]).exists());
        if !is_there {
            println!("SKIP: needs {}", command[0]);
            return None;
        }
        let events_file = scratch.join("events");
        let keeper = Command::new(KEEP)
            .args(["--log", "--every", "500ms", "--events"])
            .arg(&events_file)
            .arg("--")
            .args(&command)
            .stdout(Stdio::null())
            .spawn()
            .expect("orbit-keep");
        until("it is kept", || (count(&events_file, "kept") > 0).then_some(()));
        let pid = events(&events_file).iter().find(|e| e["event"] == "kept").and_then(|e| e["pid"].as_i64());
        let pid = pid.expect("a number") as i32;
        Some(Kept { keeper, pid, scratch, events: events_file, connect, counted: AtomicU64::new(0) })
    }

    fn stream(&self) -> Option<UnixStream> {
        let stream = UnixStream::connect(self.scratch.join("socket")).ok()?;
        stream.set_read_timeout(Some(PATIENCE / 3)).ok()?;
        Some(stream)
    }
}

impl Server for Kept {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn connect(&self, nth: usize) -> Option<Box<dyn Client + '_>> {
        Some((self.connect)(self, self.stream()?, nth))
    }

    fn poison(&self) -> Box<dyn std::any::Any> {
        unreachable!("it is killed by signals")
    }

    fn events(&self) -> &Path {
        &self.events
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: an own child's child that lives until its keeper, waited for below, has reaped
        // it.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let end = std::time::Instant::now() + PATIENCE;
        while self.keeper.try_wait().ok().flatten().is_none() && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

fn check(kept: &Kept) {
    let outcome = run(kept, Kind::Killed, CRASHES, 3, orbit_testing::Random::from_environment());
    println!("{}", outcome.text());
    assert!(outcome.errors.is_empty(), "{}", outcome.text());
    assert!(Path::new(&format!("/proc/{}", kept.pid)).exists(), "the same process");
}

fn requests(_: &Kept, stream: UnixStream, nth: usize) -> Box<dyn Client + '_> {
    Box::new(Requests::new(stream, format!("client{nth}")))
}

fn jobs(kept: &Kept, stream: UnixStream, _: usize) -> Box<dyn Client + '_> {
    Box::new(Jobs { kept, stream: BufReader::new(stream), last: 0 })
}

#[test]
fn haproxy_answers_each_request() {
    let command = |folder: &Path| {
        let settings = format!(
            "global\n nbthread 1\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect \
             5s\nfrontend f\n \
             bind unix@{}/socket\n http-request return status 200 content-type text/plain lf-string \"%[query]\"\n",
            folder.display()
        );
        fs::write(folder.join("haproxy.cfg"), settings).expect("written");
        vec!["haproxy".into(), "-db".into(), "-q".into(), "-f".into(), folder.join("haproxy.cfg").display().to_string()]
    };
    let Some(kept) = Kept::start("haproxy", command, requests) else { return };
    check(&kept);
}

/// Puts jobs; each is answered with a number of its own.
struct Jobs<'a> {
    kept: &'a Kept,
    stream: BufReader<UnixStream>,
    last: u64,
}

impl Client for Jobs<'_> {
    fn ask(&mut self) -> Result<(), String> {
        let mut line = String::new();
        self.stream.get_mut().write_all(b"put 0 0 60 5\r\nhello\r\n").map_err(|e| e.to_string())?;
        self.stream.read_line(&mut line).map_err(|e| e.to_string())?;
        let number = line.trim().strip_prefix("INSERTED ").and_then(|n| n.parse().ok());
        let last = std::mem::replace(&mut self.last, number.unwrap_or(0));
        if self.last <= last {
            return Err(format!("after job {last}: {line:?}"));
        }
        self.kept.counted.fetch_add(1, SeqCst);
        Ok(())
    }
}

#[test]
fn beanstalkd_has_each_job_once() {
    let command = |folder: &Path| vec!["beanstalkd".into(), "-l".into(), format!("unix:{}/socket", folder.display())];
    let Some(kept) = Kept::start("beanstalkd", command, jobs) else { return };
    check(&kept);
    let mut stream = BufReader::new(kept.stream().expect("it listens"));
    stream.get_mut().write_all(b"stats\r\n").expect("sent");
    let jobs = until("its statistics", || {
        let mut line = String::new();
        stream.read_line(&mut line).expect("read");
        line.trim().strip_prefix("total-jobs: ").map(|n| n.parse::<u64>().expect("a number"))
    });
    assert_eq!(jobs, kept.counted.load(SeqCst), "each job once");
}
