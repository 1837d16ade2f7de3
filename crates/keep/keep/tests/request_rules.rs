//! Request mode by a file of rules: children that take a request at a time. A request that kills is
//! dropped and its client sees the end of its connection; no other client sees anything, the
//! children stay the same, and what they hold (a lock between them, the connection to a backend) is
//! as it was.

mod common;

use common::{KEEP, PATIENCE, Scratch, count, events, lacks, lacks_tracking, until};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PREFORK: &str = r#"processes = "children"
mutexes = ["fcntl"]

[begins]
calls = ["lock"]

[input]
calls = ["read"]
on = "accepted"

[reply]
calls = ["write"]
on = "accepted"

[ends]
calls = ["close"]
on = "accepted"
"#;

/// gunicorn's workers try `accept` before they wait for a connection.
const GUNICORN: &str = r#"processes = "children"

[begins]
calls = ["accept"]

[input]
calls = ["recv"]
on = "accepted"

[ends]
calls = ["close", "shutdown"]
on = "accepted"
"#;

/// A child for each connection: its request begins with the first read.
const FORKING: &str = r#"processes = "children"

[begins]
calls = ["recv"]
on = "accepted"

[input]
calls = ["recv"]
on = "accepted"

[ends]
calls = ["close", "shutdown"]
on = "accepted"
"#;

struct Kept {
    keeper: Child,
    scratch: Scratch,
}

impl Kept {
    fn start(scratch: Scratch, rules: &str, command: &[&str]) -> Kept {
        fs::write(scratch.join("rules.toml"), rules).expect("written");
        let keeper = Command::new(KEEP)
            .args(["--log", "--log-size", "16M", "--family", "--allow-repeats", "--requests"])
            .arg(scratch.join("rules.toml"))
            .arg("--events")
            .arg(scratch.join("events"))
            .arg("--")
            .args(command)
            .process_group(0)
            .stdout(Stdio::null())
            .spawn()
            .expect("orbit-keep");
        Kept { keeper, scratch }
    }

    fn file(&self) -> std::path::PathBuf {
        self.scratch.join("events")
    }

    fn connect(&self) -> UnixStream {
        let stream = until("it listens", || UnixStream::connect(self.scratch.join("socket")).ok());
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    }

    /// One request on a connection of its own; all of the answer.
    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    /// The body of the answer to a request by HTTP.
    fn get(&self, path: &str) -> String {
        let answer = self.ask(&format!("GET {path} HTTP/1.0\r\n\r\n"));
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }

    fn rungs(&self, rung: &str) -> usize {
        events(&self.file()).iter().filter(|e| e["event"] == "recovered" && e["rung"] == rung).count()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.keeper.try_wait().ok().flatten().is_none() {
            // SAFETY: the process group that this test has made for its own child, which has not
            // been waited for.
            unsafe { libc::kill(-(self.keeper.id() as i32), libc::SIGKILL) };
        }
        let _ = self.keeper.wait();
    }
}

fn compiled(scratch: &Scratch, name: &str) -> String {
    let (program, source) = (scratch.join(name), format!("{}/tests/c/{name}.c", env!("CARGO_MANIFEST_DIR")));
    assert!(
        Command::new("cc").args(["-D_GNU_SOURCE", "-O1", &source, "-o"]).arg(&program).status().expect("cc").success()
    );
    program.to_string_lossy().into_owned()
}

#[test]
fn a_prefork_server_with_a_lock_and_a_backend() {
    const CHILDREN: usize = 2;
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("rules-prefork");
    let (program, folder) = (compiled(&scratch, "prefork"), scratch.0.to_string_lossy().into_owned());
    let mut kept = Kept::start(scratch, PREFORK, &[&program, &folder, &CHILDREN.to_string()]);
    let mut pids = std::collections::BTreeSet::new();
    let (mut poison, mut late) = (0, 0);
    // Its first requests count as well: a child that has no checkpoint yet waits for one.
    for round in 0..60 {
        for word in [format!("{round}"), format!("{round}-more")] {
            let answer = kept.ask(&format!("{word}\n"));
            let (pid, text) = answer.split_once(' ').unwrap_or_default();
            assert_eq!(text, format!("got {word}\n"), "{answer:?}");
            pids.insert(pid.to_owned());
        }
        if round % 3 == 0 {
            assert_eq!(kept.ask("poison\n"), "", "its connection ends");
            poison += 1;
        }
        if round % 3 == 1 {
            let answer = kept.ask("late\n");
            assert!(answer.ends_with(" got late\n"), "it was answered before the crash: {answer:?}");
            late += 1;
        }
    }
    assert!(pids.len() <= CHILDREN, "the same children: {pids:?}");
    until("all crashes are dealt with", || {
        (kept.rungs("newest") >= late && kept.rungs("drop") >= poison).then_some(())
    });
    for _ in 0..CHILDREN {
        assert!(kept.ask("stop\n").ends_with("got stop\n"));
    }
    let status = until("it exits", || kept.keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7 * CHILDREN as i32), "each child ended of itself, none by a signal");
    assert_eq!(kept.rungs("drop"), poison, "each poison is dropped, and nothing else");
    assert_eq!(kept.rungs("newest"), late, "what has ended is put back once and not replayed");
    assert_eq!(count(&kept.file(), "diverged"), 0, "each replay kept to the log's order");
}

#[test]
fn gunicorn() {
    if !Path::new("/usr/bin/gunicorn").exists() {
        println!("SKIP: needs gunicorn");
        return;
    }
    if lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("rules-gunicorn");
    let (socket, folder) =
        (format!("unix:{}", scratch.join("socket").display()), format!("{}/tests/c", env!("CARGO_MANIFEST_DIR")));
    let own = scratch.join("pid").to_string_lossy().into_owned();
    let command =
        ["/usr/bin/gunicorn", "--workers", "2", "--pid", &own, "--bind", &socket, "--chdir", &folder, "wsgi:app"];
    let mut kept = Kept::start(scratch, GUNICORN, &command);
    let mut pids = std::collections::BTreeSet::new();
    for round in 0..40 {
        let path = format!("/{round}");
        let body = kept.get(&path);
        assert!(body.ends_with(&format!(" {path}")), "{body:?}");
        pids.extend(body.split_once(' ').map(|(pid, _)| pid.to_owned()));
        if round % 4 == 0 {
            assert_eq!(kept.get("/poison"), "", "its connection ends");
        }
    }
    assert!(pids.len() <= 2, "the same workers: {pids:?}");
    // Its client sees the end before the event is written.
    until("each poison is dropped", || (kept.rungs("drop") >= 10).then_some(()));
    assert_eq!(kept.rungs("drop"), 10, "and nothing else");
    // Not the least number of all events: numbers of processes wrap around.
    let master: i32 = until("it has written its number", || fs::read_to_string(&own).ok()?.trim().parse().ok());
    let is_its = |e: &serde_json::Value| e["event"] == "kept" && e["pid"] == master;
    // Its workers may have answered all of this before its own first checkpoint.
    until("the program itself is kept", || events(&kept.file()).iter().any(is_its).then_some(()));
    // SAFETY: the first process under our own keeper, which has not been waited for.
    unsafe { libc::kill(master, libc::SIGTERM) };
    assert_eq!(until("it exits", || kept.keeper.try_wait().expect("a child")).code(), Some(0), "its own status");
}

#[test]
fn a_child_for_each_connection() {
    if !Path::new("/usr/bin/python3").exists() {
        println!("SKIP: needs python3");
        return;
    }
    if lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("rules-forking");
    let (socket, script) = (
        scratch.join("socket").to_string_lossy().into_owned(),
        format!("{}/tests/c/forking_server.py", env!("CARGO_MANIFEST_DIR")),
    );
    let kept = Kept::start(scratch, FORKING, &["/usr/bin/python3", &script, &socket]);
    for round in 0..20 {
        let path = format!("/{round}");
        assert_eq!(kept.get(&path), path);
        if round % 4 == 0 {
            assert_eq!(kept.get("/poison"), "", "its connection ends");
        }
    }
    until("each poison is dropped", || (kept.rungs("drop") == 5).then_some(()));
    let killed = |e: &serde_json::Value| e["event"] == "exited" && e["status"].as_u64().is_some_and(|s| s >= 128);
    assert!(!events(&kept.file()).iter().any(killed), "no child dies of a signal");
}

#[test]
fn a_mistake_in_the_file_is_named() {
    let scratch = Scratch::new("rules-mistake");
    let file = scratch.join("rules.toml");
    fs::write(&file, "[begins]\ncalls = [\"acept\"]\n").expect("written");
    let options = ["--log", "--allow-repeats", "--requests"];
    let run = Command::new(KEEP).args(options).arg(&file).args(["--", "true"]).output().expect("runs");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        !run.status.success() && said.contains("line 2: begins.calls: \"acept\" is none of accept, poll"),
        "{said}"
    );
    fs::write(&file, PREFORK).expect("written");
    let run = Command::new(KEEP).args(options).arg(&file).args(["--", "true"]).output().expect("runs");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.code() == Some(125) && said.contains("--family"), "{said}");
}
