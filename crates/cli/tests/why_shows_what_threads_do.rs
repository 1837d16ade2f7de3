//! `orbit why PID`: rings of locks with their holders, the processes at the other end of a pipe,
//! threads that use CPU, equal stacks once.

mod guard_common;
use guard_common::{Dir, Owned, build, skipped, until};
use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn why(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orbit")).arg("why").args(arguments).output().expect("orbit why")
}

fn json(pid: u32) -> Value {
    let output = why(&["--json", &pid.to_string()]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn start(program: &str, arguments: &[&str]) -> Owned {
    Owned(Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a program"))
}

#[test]
fn a_deadlock_with_its_holders() {
    if skipped() {
        return;
    }
    let dir = Dir::new("why-ring");
    let program = build(&dir, "hangs.c");
    let child = start(program.to_str().expect("a path"), &["ring2"]);
    let seen = until("the deadlock", || Some(json(child.0.id())).filter(|seen| seen["deadlocks"][0].is_object()));
    let threads = seen["threads"].as_array().expect("threads");
    let stuck: Vec<&Value> = threads.iter().filter(|thread| thread["in_deadlock"] == true).collect();
    assert_eq!(stuck.len(), 2, "{seen:#}");
    assert_eq!(
        (&stuck[0]["holder"]["tid"], &stuck[1]["holder"]["tid"]),
        (&stuck[1]["tid"], &stuck[0]["tid"]),
        "{seen:#}"
    );
    assert!(stuck.iter().all(|thread| thread["frames"][0]["module"].is_string()), "{seen:#}");
    assert!(seen["command"].as_str().is_some_and(|command| command.ends_with("ring2")), "{seen:#}");
    let text = why(&[&child.0.id().to_string()]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("deadlock: ") && text.contains("held by thread"), "{text}");
}

#[test]
fn the_other_end_of_a_pipe() {
    if skipped() {
        return;
    }
    // This test holds the other end of its input.
    let child = start("cat", &[]);
    let own = u64::from(std::process::id());
    let seen = until("it waits", || Some(json(child.0.id())).filter(|seen| seen["threads"][0]["peers"][0].is_object()));
    let peers = seen["threads"][0]["peers"].as_array().expect("peers");
    assert!(peers.iter().any(|peer| peer["pid"] == own && peer["command"].is_string()), "{seen:#}");
    assert!(seen["threads"][0]["waits_for"].as_str().is_some_and(|wait| wait.contains("pipe")), "{seen:#}");
}

#[test]
fn a_thread_that_uses_a_cpu() {
    if skipped() {
        return;
    }
    let child = start("sh", &["-c", "while :; do :; done"]);
    let seen = until("it runs", || Some(json(child.0.id())).filter(|seen| seen["threads"][0]["waits_for"].is_null()));
    assert!(seen["threads"][0]["cpu"].as_f64().is_some_and(|cpu| cpu > 0.0), "{seen:#}");
    assert!(seen["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{seen:#}");
}

#[test]
fn what_is_not_there() {
    let output = why(&["999999999"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("999999999"), "{output:?}");
}

/// Waits until `orbit why` of a Python program says this.
fn python_until(text: &str, wanted: &[&str]) {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIP: needs python3");
        return;
    }
    let child = start("python3", &["-c", text]);
    until("what it waits for", || {
        let output = why(&[&child.0.id().to_string()]);
        let seen = String::from_utf8_lossy(&output.stdout).into_owned();
        wanted.iter().all(|part| seen.contains(part)).then_some(())
    });
}

#[test]
fn a_fifo_that_nobody_opens() {
    if skipped() {
        return;
    }
    let dir = Dir::new("why-fifo");
    let fifo = dir.0.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    // The kernel says to root only where it waits, on some machines.
    let child = start("sh", &["-c", &format!("exec cat <{}", fifo.display())]);
    let wchan = || std::fs::read_to_string(format!("/proc/{}/wchan", child.0.id())).unwrap_or_default();
    let place = until("the open", || Some(wchan()).filter(|place| !place.is_empty()));
    if place == "0" && why(&[&child.0.id().to_string()]).status.success() && wchan() == "0" {
        println!("SKIP: needs /proc/PID/wchan");
        return;
    }
    let text = format!("a process to open the FIFO {} for writing", fifo.display());
    until("the FIFO", || {
        let output = why(&[&child.0.id().to_string()]);
        String::from_utf8_lossy(&output.stdout).contains(&text).then_some(())
    });
}

#[test]
fn children_that_nobody_asked_for() {
    if skipped() {
        return;
    }
    let text = "import os, signal\nif os.fork() == 0: os._exit(0)\nsignal.pause()";
    python_until(text, &["has exited, and the process has not asked for its status", "waits for a signal"]);
}

#[test]
fn input_for_which_epoll_does_not_fire() {
    if skipped() {
        return;
    }
    let text = "\
import select, socket
a, b = socket.socketpair()
e = select.epoll()
e.register(a, select.EPOLLIN | select.EPOLLET)
b.send(b'x')
e.poll()
e.poll()
";
    python_until(text, &["epoll of 1 descriptors; it does not fire for input that is there at descriptor"]);
}

#[test]
fn pythons_global_lock_by_name() {
    if skipped() {
        return;
    }
    // A sum is one operation of the interpreter, which keeps the lock for as long.
    let text = "\
import threading
threading.Thread(target=lambda: sum(range(10 ** 14))).start()
while True: pass
";
    python_until(text, &["waits for Python's global lock (GIL)"]);
}
