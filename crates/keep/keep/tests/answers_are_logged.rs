//! With a log: what a program has asked the kernel, or has changed of itself, it has learned and
//! changed once. After a recovery it holds what it held, whatever has become of files, clocks and
//! timers since; what cannot be shown to be the same ends it with its true status.

mod common;

use common::{KEEP, Scratch, count, events, lacks, lacks_tracking, until};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

struct Server {
    keeper: Child,
    client: UnixStream,
    scratch: Scratch,
    pid: i32,
}

fn start(name: &str) -> Option<Server> {
    if lacks("cc") || lacks_tracking() {
        return None;
    }
    let scratch = Scratch::new(&format!("asks-{name}"));
    let (program, log) = (scratch.join("asks"), scratch.join("events"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/asks.c");
    let compiled = Command::new("cc").args(["-O1", "-D_GNU_SOURCE", "-pthread", source, "-o"]).arg(&program).status();
    assert!(compiled.expect("cc").success());
    fs::create_dir_all(scratch.join("below/below")).expect("folders");
    fs::write(scratch.join("number"), "1234\n").expect("written");
    symlink("abc", scratch.join("link")).expect("a link");
    let mut command = Command::new(KEEP);
    command.args(["--log", "--every", "60s", "--events"]).arg(&log).arg("--").args([&program, &scratch.0]);
    let keeper = command.spawn().expect("orbit-keep");
    let client = until("it listens", || UnixStream::connect(scratch.join("socket")).ok());
    client.set_read_timeout(Some(common::PATIENCE)).expect("set");
    let kept = until("it is kept", || events(&log).into_iter().find(|e| e["event"] == "kept"));
    let pid = kept["pid"].as_i64().expect("a number") as i32;
    Some(Server { keeper, client, scratch, pid })
}

impl Server {
    fn at(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    fn ask(&mut self, commands: &str) {
        for command in commands.bytes() {
            let mut answer = [0];
            self.client.write_all(&[command]).expect("sent");
            self.client.read_exact(&mut answer).expect("answered");
            assert_eq!(answer, *b"k");
        }
    }

    /// All that it has learned; nothing if it is gone.
    fn learned(&mut self) -> String {
        let mut all = String::new();
        let mut byte = [0];
        let sent = self.client.write_all(b"?").is_ok();
        while sent && self.client.read(&mut byte).is_ok_and(|read| read == 1) && byte != *b"\n" {
            all.push(char::from(byte[0]));
        }
        all
    }

    /// From now on files, room and clocks are others.
    fn change_outside(&self) {
        fs::write(self.at("number"), "999999\n").expect("written");
        fs::write(self.at("below/new"), vec![1; 1 << 20]).expect("written");
        fs::remove_file(self.at("link")).expect("removed");
        symlink("abcdefgh", self.at("link")).expect("a link");
        sleep(Duration::from_millis(1100));
    }

    fn kill(&self) {
        // SAFETY: a child of an own child that lives until that one has reaped it.
        unsafe { libc::kill(self.pid, libc::SIGSEGV) };
    }

    fn was_proven(&self) {
        let log = self.at("events");
        until("that is reported", || (count(&log, "recovered") == 1).then_some(()));
        assert_eq!(count(&log, "gave-up"), 0);
    }

    fn ends(mut self) {
        drop(self.client);
        let status = until("it ends", || self.keeper.try_wait().expect("a child"));
        assert_eq!(status.code(), Some(7), "its own status");
    }

    fn ends_by_its_crash(mut self) {
        let since = Instant::now();
        let status = until("it ends", || self.keeper.try_wait().expect("a child"));
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "its true status");
        let log = self.at("events");
        assert_eq!((count(&log, "gave-up"), count(&log, "recovered")), (1, 0));
        let tried = count(&log, "attempt");
        assert!(tried <= 8, "each rung is tried once: {tried} attempts in {:?}", since.elapsed());
    }
}

#[test]
fn what_it_has_learned_stays() {
    let Some(mut server) = start("learned") else { return };
    server.ask("iqlxrvuzpe");
    server.change_outside();
    let before = server.learned();
    server.kill();
    assert_eq!(server.learned(), before);
    server.was_proven();
    server.ends();
}

#[test]
fn what_it_changed_of_itself_is_changed_once() {
    let Some(mut server) = start("changed") else { return };
    // The mask is asked for twice, and there is one folder to go down to from each.
    server.ask("mmc");
    let before = server.learned();
    server.kill();
    assert_eq!(server.learned(), before);
    server.ask("c");
    assert_ne!(server.learned(), before, "it is in the first folder below, which has another one");
    server.was_proven();
    server.ends();
}

#[test]
fn timers_expire_once() {
    let Some(mut server) = start("timers") else { return };
    server.ask("wtf");
    sleep(Duration::from_millis(1200));
    server.ask("g");
    let before = server.learned();
    for what in [b'a', b't', b'g'] {
        assert_eq!(before.split(' ').nth(usize::from(what - b'a')), Some("1"), "{before}");
    }
    server.kill();
    assert_eq!(server.learned(), before);
    // Whatever was set again would have expired by now.
    sleep(Duration::from_millis(1200));
    server.ask("g");
    assert_eq!(server.learned(), before);
    server.was_proven();
    server.ends();
}

#[test]
fn a_file_that_has_changed_is_not_read_again() {
    for what in ["s", "d"] {
        let Some(mut server) = start(&format!("changed-{what}")) else { return };
        server.ask(what);
        server.change_outside();
        server.kill();
        assert_eq!(server.learned(), "");
        server.ends_by_its_crash();
    }
}

#[test]
fn a_file_that_has_not_changed_is_read_again() {
    let Some(mut server) = start("unchanged") else { return };
    server.ask("sd");
    let before = server.learned();
    server.kill();
    assert_eq!(server.learned(), before);
    server.was_proven();
    server.ends();
}

#[test]
fn a_signal_that_waits_is_not_sent_again() {
    let Some(mut server) = start("waits") else { return };
    server.ask("bb");
    server.kill();
    server.ends_by_its_crash();
}
