//! Hangs injected into a real server under load, at several places and in several ways: all found,
//! of the right kind. The first report above a guess is right.
//!
//! `ORBIT_TEST_FULL=1` takes ten times as many places. Prints how long each took from hang to
//! report.

use orbit_ahd::{Config, Event, Hang, Kind};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The monotonic clock as the injected library reads it.
fn now() -> i64 {
    // SAFETY: all-zero bytes are a valid timespec.
    let mut t: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

/// Asks the server again and again until asked to stop.
fn client(port: u16, stop: &AtomicBool) {
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        let Some(c) = &mut connection else {
            connection = TcpStream::connect(("127.0.0.1", port)).ok();
            if let Some(c) = &connection {
                c.set_read_timeout(Some(Duration::from_millis(50))).expect("a limit");
            }
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let mut answer = [0; 64];
        if c.write_all(b"SET a 1\r\n").is_err() {
            connection = None;
            continue;
        }
        // A server that hangs does not answer: then the next request goes out all the same.
        let _ = c.read(&mut answer);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends the client when the watch of it ends, by a panic too.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls from when the server's loop is learnt to the one that hangs.
const WARM: usize = 500;

/// Time to learn it and for these calls, and from the hang to its report: a machine that gives a
/// process the tenth of a CPU is slow in both.
const WARM_UP: Duration = Duration::from_secs(300);
const REPORT: Duration = Duration::from_secs(120);

/// One hang: the report and the time from the hang to it. A guess that is not `right` is printed,
/// and the next report awaited.
fn inject(
    library: &Path,
    dir: &Path,
    inject: &str,
    right: &dyn Fn(&Hang) -> Result<(), String>,
) -> Option<(Box<Hang>, Duration)> {
    let port = free_port();
    let at = dir.join("at");
    let _ = std::fs::remove_file(&at);
    let go = dir.join("go");
    std::fs::write(&go, [0]).expect("written");
    let server = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--dir"])
        .arg(dir)
        .env("LD_PRELOAD", library)
        .env("ORBIT_INJECT", inject)
        .env("ORBIT_INJECT_AT", &at)
        .env("ORBIT_INJECT_GO", &go)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server");
    let mut server = Server(server);
    let mut ahd = orbit_ahd::Watcher::new(Config { limit: Duration::from_secs(1), ..Config::default() });
    ahd.add(server.0.id() as i32).expect("the server");
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let _stops = Stops(&stop);
        s.spawn(|| client(port, &stop));
        let mut start = Instant::now();
        let (mut found, mut hangs) = (None, false);
        while found.is_none() && start.elapsed() < if hangs { REPORT } else { WARM_UP } {
            if !hangs && at.exists() {
                (start, hangs) = (Instant::now(), true);
            }
            std::thread::sleep(ahd.pause());
            for event in ahd.tick() {
                if matches!(event, Event::Learnt { tid, .. } if tid == server.0.id() as i32) {
                    // In place: the server has it mapped.
                    let file = std::fs::OpenOptions::new().write(true).open(&go);
                    file.and_then(|file| file.write_at(&[1], 0)).expect("written");
                }
                if let Event::Hang(hang) = event {
                    // On a loaded machine a server may be late by itself: a guess is no alarm.
                    if !at.exists() && hang.sure == orbit_inspect::Sure::Guess {
                        continue;
                    }
                    if hang.sure == orbit_inspect::Sure::Guess
                        && let Err(wrong) = right(&hang)
                    {
                        println!("{inject}: a guess: {wrong}");
                        continue;
                    }
                    let reported = now();
                    let since: i64 = std::fs::read_to_string(&at)
                        .ok()
                        .and_then(|t| t.trim().parse().ok())
                        .unwrap_or_else(|| panic!("{inject}: a false alarm: {hang:#?}"));
                    found = Some((hang, Duration::from_nanos((reported - since).max(0) as u64)));
                }
            }
            assert!(server.0.try_wait().expect("wait").is_none(), "{inject}: the server has ended");
        }
        assert!(
            hangs,
            "{inject}: the server's loop is not learnt, or it did not make {WARM} calls, within {WARM_UP:?}"
        );
        found
    })
}

#[test]
fn hangs_of_a_server() {
    for needed in ["cc", "redis-server"] {
        if Command::new(needed).arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIP: needs {needed}");
            return;
        }
    }
    let dir = Dir(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("inject-{}", std::process::id())));
    std::fs::create_dir_all(&dir.0).expect("a directory");
    let library = dir.0.join("inject.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/c/inject.c");
    let built = Command::new("cc")
        .args(["-O1", "-g", "-shared", "-fPIC", "-pthread", "-o"])
        .arg(&library)
        .arg(source)
        .arg("-ldl")
        .status()
        .expect("cc");
    assert!(built.success());
    let places = if std::env::var_os("ORBIT_TEST_FULL").is_some() { 10 } else { 1 };
    let mut took: Vec<(&str, Duration)> = Vec::new();
    for place in 0..places {
        for (i, way) in ["spin", "self", "ring2", "ring5", "pipe"].into_iter().enumerate() {
            let function = ["read", "write", "epoll_wait"][(i + place) % 3];
            let what = format!("{function}:{}:{way}", WARM + 37 * place + i);
            let ring = match way {
                "self" => 1,
                "ring2" => 2,
                "ring5" => 5,
                _ => 0,
            };
            let kind = if way == "spin" { Kind::Busy } else { Kind::Blocked };
            let named =
                |f: &orbit_inspect::stacks::Frame| f.function.as_deref().is_some_and(|n| n.starts_with("injected_"));
            let right = |hang: &Hang| {
                let shows_place = hang.threads.iter().any(|t| t.stack.iter().any(named));
                match (hang.kind == kind, hang.cycle.len() == ring, shows_place) {
                    (true, true, true) => Ok(()),
                    is => Err(format!("kind, length of the ring, place in a stack are right: {is:?}; {hang:#?}")),
                }
            };
            let (hang, latency) =
                inject(&library, &dir.0, &what, &right).unwrap_or_else(|| panic!("{what}: not found"));
            println!("{what}: after {latency:?}: {}", hang.why);
            right(&hang).unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
            took.push((way, latency));
        }
    }
    for way in ["spin", "self", "ring2", "ring5", "pipe"] {
        let mut of: Vec<Duration> = took.iter().filter(|t| t.0 == way).map(|t| t.1).collect();
        of.sort();
        println!(
            "{way}: {} of {} found, median {:?}, longest {:?}",
            of.len(),
            of.len(),
            of[of.len() / 2],
            of[of.len() - 1]
        );
    }
}
