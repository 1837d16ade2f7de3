//! The host that compiles modules answers the commands of `orbit service`, and ends as that does.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

#[path = "../../services/tests/common/mod.rs"]
mod common;

use common::{Folder, Killed, until, wasm};

fn command(socket: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orbit-service-wasmtime"))
        .arg("--socket")
        .arg(socket)
        .args(args)
        .output()
        .expect("the program")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_host_runs_long_handlers_aborts_runaways_and_ends() {
    let (Some(long), Some(wild)) = (wasm("long"), wasm("wild")) else { return };
    let folder = Folder::new("service-wasmtime");
    let socket = folder.join("host.sock");
    let cpu = common::cpu().to_string();
    let mut host = Killed(
        Command::new(env!("CARGO_BIN_EXE_orbit-service-wasmtime"))
            .arg("--socket")
            .arg(&socket)
            .args(["run", "--cpu", &cpu])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a host"),
    );
    let mut line = String::new();
    BufReader::new(host.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("services at"), "{line}");

    let owner = Killed::sleeper();
    let pid = owner.pid().to_string();
    let load = |name: &str, module: &[u8], arguments: &str| {
        let file = folder.join(name);
        std::fs::write(&file, module).expect("a module");
        let file = file.to_str().expect("a path");
        let options = ["--owner", &pid, "--budget", "20ms/100ms", "--memory", "1M", "--arguments", arguments];
        let done = command(&socket, &[&["load", file], &options[..]].concat());
        assert!(done.status.success(), "{}", said(&done));
        said(&done).trim().to_owned()
    };
    let (counted, spins) = (load("long.wasm", &long, ""), load("wild.wasm", &wild, "s"));
    let post = |id: &str| assert!(command(&socket, &["post", id, "5"]).status.success());
    let row = |id: &str| {
        let list = said(&command(&socket, &["ls"]));
        list.lines().find(|line| line.split_whitespace().next() == Some(id)).unwrap_or_default().to_owned()
    };
    let column = |id: &str, nth: usize| row(id).split_whitespace().nth(nth).unwrap_or_default().to_owned();
    post(&counted);
    until("the handler runs", || column(&counted, 5) == "1");
    post(&spins);
    until("the runaway is aborted", || row(&spins).split_whitespace().any(|word| word == "1"));
    for _ in 0..30 {
        if row(&spins).contains("revoked") {
            break;
        }
        command(&socket, &["post", &spins, "5"]);
        std::thread::sleep(std::time::Duration::from_millis(150));
    }
    until("a runaway that is aborted again and again is revoked", || row(&spins).contains("revoked"));
    post(&counted);
    until("its neighbour runs on", || column(&counted, 5) == "2");

    orbit_linux::signals::send(host.pid(), libc::SIGTERM).expect("sent");
    assert!(host.0.wait().expect("ended").success());
    assert!(!socket.exists());
}
