//! In a container: as an ordinary user, under a filter that forbids userfaultfd among others, as
//! Docker's default profile does, a Redis is put back and nothing is lost. Under one that forbids
//! tracing the start is refused, and it is said what to allow.

mod common;

use common::{Client, KEEP, Scratch, count, events, lacks, until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const NOBODY: u32 = 65534;

/// True, and says so, where no filter can be made or no user be left.
fn lacks_containers() -> bool {
    if let orbit_linux::Support::No(why) = orbit_linux::seccomp::probe() {
        println!("SKIP: needs {why}");
        return true;
    }
    // SAFETY: a call without arguments that cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("SKIP: needs root, to become another user");
    }
    !is_root
}

/// The keeper, where every user can execute it.
fn for_all(scratch: &Scratch) -> PathBuf {
    let keeper = scratch.join("orbit-keep");
    orbit_testing::copy_of_program(KEEP.as_ref(), &keeper);
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o777)).expect("own file");
    fs::set_permissions(&keeper, fs::Permissions::from_mode(0o755)).expect("own file");
    keeper
}

/// Has the command run as an ordinary user under a filter.
fn contain(command: &mut Command, filter: fn() -> std::io::Result<()>) {
    command.uid(NOBODY).gid(NOBODY);
    // SAFETY: it makes system calls, and small memory in a child of this one thread's fork.
    unsafe { command.pre_exec(filter) };
}

struct Kept(Child, i32);

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: a child of an own child that lives until that one has reaped it.
        unsafe { libc::kill(self.1, libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

#[test]
fn redis_is_put_back_under_a_filter() {
    if lacks("redis-server") || lacks_containers() {
        return;
    }
    let scratch = Scratch::new("contained");
    let (file, socket) = (scratch.join("events"), scratch.join("socket"));
    let mut command = Command::new(for_all(&scratch));
    command.args(["--log", "--every", "300ms", "--events"]).arg(&file);
    command.args(["--", "redis-server", "--port", "0", "--save", "", "--dir"]).arg(&scratch.0);
    command.arg("--unixsocket").arg(&socket).arg("--logfile").arg(scratch.join("log")).stdout(Stdio::null());
    command.args(["--enable-debug-command", "yes", "--crash-memcheck-enabled", "no"]);
    contain(&mut command, orbit_linux::seccomp::install_docker_like);
    let keeper = command.spawn().expect("orbit-keep");
    let kept = until("it is kept", || events(&file).into_iter().find(|e| e["event"] == "kept"));
    let kept = Kept(keeper, kept["pid"].as_i64().expect("a number") as i32);
    let connect = || Client::of(until("it listens", || UnixStream::connect(&socket).ok()));
    let mut client = connect();
    for round in 0..3u64 {
        for nth in 1..=100 {
            client.increment("key", round * 100 + nth);
        }
        // SAFETY: a child of an own child that lives until that one has reaped it.
        unsafe { libc::kill(kept.1, libc::SIGSEGV) };
        until("it is put back", || (count(&file, "recovered") as u64 > round).then_some(()));
    }
    assert!(connect().call(&["DEBUG", "SEGFAULT"]).is_err(), "the client that asks for the crash sees its end");
    client.increment("key", 301);
    let all = events(&file);
    assert!(all.iter().any(|e| e["event"] == "warning" && e["text"].to_string().contains("userfaultfd")), "{all:?}");
    assert_eq!(count(&file, "gave-up"), 0);
}

#[test]
fn a_filter_that_forbids_tracing_refuses_the_start() {
    if lacks_containers() {
        return;
    }
    let scratch = Scratch::new("contained-not");
    let mut command = Command::new(for_all(&scratch));
    command.args(["--", "touch"]).arg(scratch.join("ran"));
    contain(&mut command, || orbit_linux::seccomp::install_without(&["ptrace"]));
    let output = command.output().expect("orbit-keep");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("forbids ptrace") && said.contains("SystemCallFilter"), "{said}");
    assert!(!scratch.join("ran").exists(), "it was not started");
}
