//! What a keeper publishes while it runs: `--status`, `--status --json`, Prometheus text; and the
//! stack of a crash among its events.

mod common;

use common::{KEEP, Redis, events, lacks, lacks_tracking, until};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

fn status(json: bool) -> String {
    let mut command = Command::new(KEEP);
    command.arg("--status").args(json.then_some("--json"));
    String::from_utf8(command.output().expect("orbit-keep").stdout).expect("text")
}

#[test]
fn status_metrics_and_stacks() {
    if lacks("redis-server") || lacks_tracking() {
        return;
    }
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("an address").port();
    let redis = Redis::start("figures", &["--every", "100ms", "--metrics", &port.to_string()]);
    redis.crash();
    let row = until("the crash is published", || {
        let all: serde_json::Value = serde_json::from_str(&status(true)).ok()?;
        let rows =
            all["keepers"].as_array()?.iter().flat_map(|k| k["programs"].as_array().cloned().unwrap_or_default());
        rows.into_iter().find(|row| row["pid"] == redis.pid && row["figures"]["deterministic"] == 1)
    });
    assert_eq!((row["name"].as_str(), row["mode"].as_str()), (Some("redis-server"), Some("log")));
    assert_eq!(row["figures"]["transient"], 0);
    assert!(row["figures"]["held_bytes"].as_u64() > Some(1 << 20), "{row}");
    let table = status(false);
    assert!(table.lines().any(|line| line.contains(&redis.pid.to_string()) && line.contains("drop 1")), "{table}");

    let mut http = TcpStream::connect(("127.0.0.1", port)).expect("served");
    http.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
    let mut page = String::new();
    http.read_to_string(&mut page).expect("a page");
    let wanted = format!("orbit_keep_crashes_total{{pid=\"{}\",program=\"redis-server\",rung=\"drop\"}} 1", redis.pid);
    assert!(page.starts_with("HTTP/1.1 200 OK") && page.contains(&wanted), "{page}");

    let stack =
        until("the stack is named", || events(&redis.events_file()).into_iter().find(|e| e["event"] == "stack"));
    let frames = stack["frames"].as_array().expect("frames");
    let is_found = frames.iter().any(|f| f.as_str().is_some_and(|f| f.contains("redis-")));
    assert!(is_found, "frames of the program: {stack}");
}

/// It is neither left out nor taken for none: `watch` would say that its programs are not kept.
#[test]
fn a_keeper_of_another_version_is_named() {
    let own = std::process::id();
    let (listener, _file) = orbit_console::control::listen("keep").expect("no keeper has this process' number");
    // The other test's commands ask it as well: it ends with this process.
    std::thread::spawn(move || {
        for peer in listener.incoming() {
            // A row that lacks what this version needs and has what it does not know.
            let _ = peer.expect("a peer").write_all(br#"[{"pid": 1, "name": "other", "phase": 3}]"#);
        }
    });
    let said = Command::new(KEEP).arg("--status").output().expect("orbit-keep");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(err.contains(&format!("keeper {own} is of another version of orbit")), "{err}");
    assert!(!out.contains("No program"), "{out}");
    let all: serde_json::Value = serde_json::from_str(&status(true)).expect("JSON");
    assert!(all["other_versions"].as_array().is_some_and(|all| all.contains(&own.into())), "{all}");
    let why = orbit_keep::recover(1, 1, "it hangs").expect_err("nobody is known to keep it");
    assert!(why.contains("another version of orbit"), "{why}");
}
