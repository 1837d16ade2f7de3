//! Threads that speak with others have no capabilities, from before their first byte; the rest of
//! the agent has what it was given.

use crate::guard_common::{Dir, PATIENCE, skipped, until};
use crate::running::Agent;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const SETS: [&str; 4] = ["CapInh", "CapPrm", "CapEff", "CapAmb"];

/// What `/proc` says of the agent's threads of this name, a text each.
fn threads(pid: u32, name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a folder").flatten();
    // A thread may end meanwhile.
    let all = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    all.filter(|status| field(status, "Name") == name).collect()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":"));
    value.unwrap_or_else(|| panic!("no {name}: {status}")).trim()
}

fn has_none(status: &str) {
    for set in SETS {
        assert_eq!(field(status, set), "0000000000000000", "{set}: {status}");
    }
    assert_eq!(field(status, "NoNewPrivs"), "1", "{status}");
}

/// The thread of this name that reads half a request, which is sent again once its time is over.
fn serving<T>(pid: u32, name: &str, ask: impl Fn() -> T) -> String {
    let mut asked: Option<(Instant, T)> = None;
    until(name, || {
        if asked.as_ref().is_none_or(|(at, _)| at.elapsed() > Duration::from_secs(1)) {
            asked = Some((Instant::now(), ask()));
        }
        threads(pid, name).pop()
    })
}

#[test]
fn threads_that_speak_with_others_have_no_capabilities() {
    if skipped() {
        return;
    }
    let own = std::fs::read_to_string("/proc/self/status").expect("a file");
    if field(&own, "CapPrm") == "0000000000000000" {
        println!("SKIP: needs capabilities to be given up");
        return;
    }
    let dir = Dir::new("agent-plain");
    let collector = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let at = collector.local_addr().expect("an address");
    let config = format!(
        "[export.prometheus]\nlisten = \"127.0.0.1:0\"\n[export.otlp]\nendpoint = \"http://{at}\"\n\
         [[policy]]\nname = \"p\"\nmatch = {{ command = \"oa-no-such\" }}\n"
    );
    let agent = Agent::start(&dir, &config);
    let pid = agent.pid();
    // Its connection is there, and none of it was answered: it is in its first request.
    let (mut stream, _) = collector.accept().expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.read_exact(&mut [0; 1]).expect("its first byte");
    let sending = threads(pid, "orbit-otlp");
    assert_eq!(sending.len(), 1);
    has_none(&sending[0]);
    for name in ["orbit-http", "orbit-control"] {
        let all = threads(pid, name);
        assert_eq!(all.len(), 1, "{name}");
        has_none(&all[0]);
    }
    let metrics = agent.status()["metrics"].as_str().expect("an address").to_owned();
    let socket = agent.folder.join("run/agent.sock");
    has_none(&serving(pid, "orbit-request", || {
        let mut reader = TcpStream::connect(&metrics).expect("connected");
        reader.write_all(b"GET /metrics HT").expect("sent");
        reader
    }));
    has_none(&serving(pid, "orbit-answer", || {
        let mut asker = UnixStream::connect(&socket).expect("connected");
        asker.write_all(b"stat").expect("sent");
        asker
    }));
    let main = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a file");
    for set in ["CapPrm", "CapEff"] {
        assert_eq!(field(&main, set), field(&own, set), "the agent's first thread keeps what it needs");
    }
}
