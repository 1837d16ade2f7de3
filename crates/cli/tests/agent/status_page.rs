//! The status page of a running agent: what it shows of services, hangs and programs that are kept,
//! to whom, and that names which others chose stay text.

use crate::guard_common::browser::{in_a_browser, is_well_formed};
use crate::guard_common::{Dir, Owned, PATIENCE, signal, skipped, until};
use crate::running::{Agent, program, start, well};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Head and body of what is at this path, by a connection.
fn get(mut stream: impl Read + Write, path: &str) -> (String, String) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    (head.to_owned(), body.to_owned())
}

fn tcp(agent: &Agent) -> TcpStream {
    TcpStream::connect(agent.status()["page"].as_str().expect("an address")).expect("connected")
}

/// The page once it has all these parts; fails with the last one.
fn page_with(agent: &Agent, parts: &[&str]) -> String {
    let start = Instant::now();
    loop {
        let body = get(tcp(agent), "/").1;
        if parts.iter().all(|part| body.contains(part)) {
            return body;
        }
        assert!(start.elapsed() < PATIENCE, "no {parts:?}: {body}\n{}", agent.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn json(agent: &Agent) -> Value {
    serde_json::from_str(&get(tcp(agent), "/status.json").1).expect("JSON")
}

#[test]
fn a_hang_is_shown_with_its_picture_and_its_stacks() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-page");
    let bin = program(&dir, "oa-page-ring");
    let config = "[page]\nlisten = \"127.0.0.1:0\"\n[[policy]]\nname = \"rings\"\n\
                  match = { command = \"oa-page-ring\" }\n[[policy]]\nname = \"labelled\"\n\
                  match = { command = \"oa-page-well\", labels = { a = \"b\" } }\n";
    let agent = Agent::start(&dir, config);
    let (head, body) = get(tcp(&agent), "/");
    assert!(head.contains("\r\nContent-Security-Policy: default-src 'none';"), "{head}");
    for part in ["None is known.", "The agent's own cost", "Policy labelled is unusable"] {
        assert!(body.contains(part), "{part}: {body}");
    }
    let unwatched = start(&well(&dir, "oa-page-well"), "1000", None);
    let child = start(&bin, "ring2", None);
    let shown = page_with(&agent, &["class=\"Thread Ring\"", "labels and workload need the list"]);
    let own = child.0.id();
    for part in [
        "class=\"Lock Ring\"",
        "held by",
        "deadlock: thread",
        "<th>certainty</th><td>certain</td>",
        "<th>done</th><td>reported</td>",
        "class=\"state-hangs\">hangs (1)<",
        "pthread_mutex_lock",
        "data-copy=\"report-0\"",
        &format!("of process {own}</td>"),
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let file = dir.file("page.html", &shown);
    is_well_formed(&file);
    let status = json(&agent);
    let hang = &status["hangs"][0];
    assert_eq!([&hang["sure"], &hang["policy"], &hang["kind"]], ["certain", "rings", "blocked"]);
    assert_eq!(hang["pid"], own);
    assert!(hang["since"].as_str() <= hang["at"].as_str() && hang["since"].is_string(), "{hang}");
    assert!(hang["hang"]["stacks"][0]["frames"].as_array().is_some_and(|frames| !frames.is_empty()), "{hang}");
    assert!(status["agent"]["resident_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{status}");
    for figure in ["cpu_seconds", "cpu_percent", "scan_seconds", "scan_mean_seconds"] {
        assert!(status["agent"][figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {status}");
    }
    if let Some(browser) = in_a_browser(&dir, &format!("http://{}/", status["page"].as_str().expect("an address"))) {
        assert!(browser.text.contains("held by") && browser.is_red, "{}", browser.text);
        // Its script has run, so the policy lets it.
        assert!(browser.text.contains("<button type=\"button\" data-copy=\"report-0\">"), "{}", browser.text);
        assert!(!browser.said.contains("Content Security Policy"), "{}", browser.said);
    }
    drop(child);
    drop(unwatched);
    until("the end of the hang", || {
        let status = json(&agent);
        let past = &status["past"][0];
        (status["hangs"].as_array()?.is_empty() && past["pid"] == own).then_some(())
    });
    assert!(get(tcp(&agent), "/").1.contains("its process has ended"));
}

#[test]
fn names_that_others_chose_are_text() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-page-hostile");
    // Of the 15 bytes that a process' name may have.
    let bin = program(&dir, "oa<b>&'\"<i>x");
    let config = "[page]\nlisten = \"127.0.0.1:0\"\n[[policy]]\nname = \"p\"\nmatch = { command = \"oa<b>*\" }\n";
    let agent = Agent::start(&dir, config);
    let mut command = Command::new(&bin);
    command.arg0("</pre><script>alert(1)</script>\u{202e}\u{1b}]0;x\u{7}]]>").arg("ring2").stdout(Stdio::null());
    let _child = Owned(command.spawn().expect("started"));
    let shown = page_with(&agent, &["class=\"Thread Ring\""]);
    assert!(shown.contains("oa&lt;b&gt;&amp;&#39;&quot;&lt;i&gt;x"), "{shown}");
    assert!(shown.contains("&lt;script&gt;alert(1)"), "the command line is shown: {shown}");
    assert!(!shown.contains("<b>") && !shown.contains("<i>") && !shown.contains(['\u{202e}', '\u{1b}', '\u{7}']));
    assert_eq!(shown.matches("<script").count(), 1, "{shown}");
    is_well_formed(&dir.file("page.html", &shown));
    assert_eq!(json(&agent)["hangs"][0]["hang"]["comm"], "oa<b>&'\"<i>x");
}

#[test]
fn at_a_file_the_group_alone_reads_it_and_there_is_none_without_a_word() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-page-file");
    let socket = dir.0.join("page.sock");
    let config = "[[policy]]\nname = \"p\"\nmatch = { command = \"oa-no-such\" }\n[export.prometheus]\n\
                  listen = \"127.0.0.1:0\"\n";
    let without = Agent::start(&dir, config);
    assert!(without.status()["page"].is_null());
    let mut stream = TcpStream::connect(without.status()["metrics"].as_str().expect("an address")).expect("connected");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    assert!(without.end().success());
    let agent = Agent::start(&dir, &format!("[page]\nlisten = {socket:?}\n{config}"));
    let mode = std::fs::metadata(&socket).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let stream = UnixStream::connect(&socket).expect("connected");
    assert!(get(stream, "/").1.contains("<h2>Services</h2>"));
    dir.file("agent.toml", &format!("[page]\nlisten = \"127.0.0.1:0\"\n{config}"));
    agent.hang_up();
    until("the rejection", || agent.log().contains("page.listen changes with a restart only").then_some(()));
    assert!(agent.end().success());
    assert!(!socket.exists());
}

#[test]
fn programs_that_are_kept_are_listed() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-page-kept");
    let bin = well(&dir, "oa-page-kept");
    let config = "[page]\nlisten = \"127.0.0.1:0\"\n[[policy]]\nname = \"p\"\nmatch = { command = \"oa-page-kept\" }\n";
    let agent = Agent::start(&dir, config);
    let mut keep = Command::new(env!("CARGO_BIN_EXE_orbit"));
    keep.args(["keep", "--"]).arg(&bin).arg("1000").stdin(Stdio::null()).stdout(Stdio::null());
    let mut keeper = Owned(keep.spawn().expect("orbit keep"));
    let row = until("the kept program", || {
        let status = json(&agent);
        status["kept"]
            .as_array()?
            .iter()
            .find(|row| row["name"].as_str().is_some_and(|n| n.contains("oa-page-kept")))
            .cloned()
    });
    assert_eq!([&row["crashes"], &row["put_back"]], [0, 0], "{row}");
    assert!(get(tcp(&agent), "/").1.contains("oa-page-kept"));
    // Its keeper ends with it.
    signal(row["pid"].as_i64().expect("a process") as i32, libc::SIGTERM);
    until("the keeper's end", || keeper.0.try_wait().expect("a child"));
}
