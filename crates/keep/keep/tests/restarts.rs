//! `--restart`: a program that died is started again, finds its port free, and is not started again
//! once it was asked to end or has exited by itself.

mod common;

use common::{KEEP, Scratch, count, events, until};
use orbit_testing::{below, children, free_port, has, lives, signal, times};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A keeper that restarts its program; both have ended with it.
struct Kept {
    keeper: Child,
    scratch: Scratch,
}

impl Kept {
    /// `command` gets the folder.
    fn start(name: &str, command: impl Fn(&Scratch) -> Vec<String>) -> Kept {
        let scratch = Scratch::new(name);
        let keeper = Command::new(KEEP)
            .args(["--restart", "--events"])
            .arg(scratch.join("events"))
            .arg("--")
            .args(command(&scratch))
            .stdout(Stdio::null())
            .spawn()
            .expect("orbit-keep");
        Kept { keeper, scratch }
    }

    fn restarts(&self) -> usize {
        count(&self.scratch.join("events"), "restart")
    }

    /// The program's process, once it runs as `name`.
    fn program(&self, name: &str) -> i32 {
        until("the program runs", || {
            let runs =
                |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
            children(self.keeper.id() as i32).into_iter().find(runs)
        })
    }

    /// Has the program asked to end; returns how the keeper ended.
    fn ask_to_end(&mut self) -> ExitStatus {
        signal(self.keeper.id() as i32, libc::SIGTERM);
        self.ended()
    }

    fn ended(&mut self) -> ExitStatus {
        until("the keeper ends", || self.keeper.try_wait().expect("an own child"))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.keeper.try_wait().ok().flatten().is_none() {
            let below = below(self.keeper.id() as i32);
            let _ = self.keeper.kill();
            let _ = self.keeper.wait();
            below.into_iter().for_each(|pid| signal(pid, libc::SIGKILL));
        }
    }
}

/// What the server answers, if it does.
fn answer(port: u16, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut bytes = [0; 64];
    let len = stream.read(&mut bytes).ok().filter(|len| *len > 0)?;
    Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

/// Kills the program of this name again and again: each next one serves.
fn serves_after_each_death(kept: &mut Kept, name: &str, serves: impl Fn() -> bool) {
    let deaths = times(5, 100);
    until("it serves", || serves().then_some(()));
    for nth in 1..=deaths {
        let pid = kept.program(name);
        signal(pid, libc::SIGKILL);
        until("it died", || (!lives(pid)).then_some(()));
        until("it is started again", || (kept.restarts() == nth).then_some(()));
        until("it serves again", || serves().then_some(()));
    }
    let ended = kept.ask_to_end();
    assert_eq!((ended.code(), kept.restarts()), (Some(0), deaths), "the end that was asked for is the program's own");
}

#[test]
fn redis_has_its_port_again() {
    if !has("redis-server") {
        return;
    }
    let port = free_port();
    let mut kept = Kept::start("restart-redis", |scratch| {
        let folder = scratch.0.display().to_string();
        let port = port.to_string();
        ["redis-server", "--port", &port, "--save", "", "--dir", &folder].map(str::to_owned).into()
    });
    serves_after_each_death(&mut kept, "redis-server", || answer(port, "PING\r\n").is_some_and(|a| a == "+PONG\r\n"));
}

#[test]
fn workers_of_a_dead_nginx_do_not_hold_its_port() {
    if !has("nginx") {
        return;
    }
    let port = free_port();
    let mut kept = Kept::start("restart-nginx", |scratch| {
        let at = scratch.0.display();
        let folders: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|of| format!("  {of}_temp_path {at}/{of};\n"))
            .collect();
        let settings = format!(
            "daemon off;\nworker_processes 2;\nerror_log {at}/error.log;\npid {at}/pid;\nevents {{}}\nhttp {{\n  \
             access_log off;\n{folders}  server {{ listen 127.0.0.1:{port}; location / {{ return 200 ok; }} }}\n}}\n"
        );
        fs::write(scratch.join("nginx.conf"), settings).expect("written");
        vec!["nginx".into(), "-c".into(), scratch.join("nginx.conf").display().to_string()]
    });
    let serves = || answer(port, "GET / HTTP/1.0\r\n\r\n").is_some_and(|answer| answer.contains("200 OK"));
    serves_after_each_death(&mut kept, "nginx", serves);
}

/// A shell script that counts its starts in the file `starts`.
fn script(scratch: &Scratch, then: &str) -> Vec<String> {
    let starts = scratch.join("starts").display().to_string();
    ["sh".into(), "-c".into(), format!("echo >> {starts}; {then}")].into()
}

fn starts(kept: &Kept) -> usize {
    fs::read_to_string(kept.scratch.join("starts")).unwrap_or_default().lines().count()
}

#[test]
fn one_that_dies_at_once_is_started_less_and_less_often() {
    let mut kept = Kept::start("restart-abort", |scratch| script(scratch, "kill -ABRT $$"));
    until("it was started thrice", || (starts(&kept) >= 3).then_some(()));
    let ended = kept.ask_to_end();
    // The request to end is passed on to a program that runs.
    let ends = [Some(libc::SIGABRT), Some(libc::SIGTERM)];
    assert!(ends.contains(&ended.signal()), "its last end is the keeper's, not {ended:?}");
    let file = kept.scratch.join("events");
    let pauses: Vec<f64> =
        events(&file).iter().filter(|e| e["event"] == "restart").filter_map(|e| e["pause_ms"].as_f64()).collect();
    let doubled: Vec<f64> = (0..pauses.len()).map(|nth| 100.0 * f64::from(1 << nth)).collect();
    assert_eq!(pauses, doubled);
    let known = starts(&kept);
    assert!(known == pauses.len() || known == pauses.len() + 1, "{known} starts, pauses {pauses:?}");
}

#[test]
fn one_that_was_asked_to_end_or_exits_by_itself_is_not_started_again() {
    let mut exits = Kept::start("restart-exit", |scratch| script(scratch, "exit 3"));
    assert_eq!((exits.ended().code(), starts(&exits)), (Some(3), 1));
    let crashes = "trap 'kill -SEGV $$' TERM; echo >> ready; while :; do sleep 0.1; done";
    let mut asked = Kept::start("restart-asked", |scratch| {
        script(scratch, &crashes.replace("ready", &scratch.join("ready").display().to_string()))
    });
    until("its handler is set", || asked.scratch.join("ready").exists().then_some(()));
    let ended = asked.ask_to_end();
    assert_eq!((ended.signal(), starts(&asked)), (Some(libc::SIGSEGV), 1), "it dies where it was asked to end");
}

#[test]
fn what_it_has_made_is_gone_before_its_next_start() {
    let left = "setsid sleep 1000 & echo $! > pid; kill -ABRT $$";
    let mut kept = Kept::start("restart-left", |scratch| {
        let pid = scratch.join("pid").display().to_string();
        let then = format!("test -e {pid} && {{ kill -0 $(cat {pid}) && echo > {pid}.lives; exec sleep 1000; }}; ");
        script(scratch, &(then + &left.replace("> pid", &format!("> {pid}"))))
    });
    until("it was started again", || (starts(&kept) == 2).then_some(()));
    kept.program("sleep");
    assert!(!kept.scratch.join("pid.lives").exists(), "a process of its first run still lived");
    assert_eq!(kept.ask_to_end().signal(), Some(libc::SIGTERM));
    assert_eq!(kept.restarts(), 1);
}
