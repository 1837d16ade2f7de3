//! `--report`: a page for each hang, for its owner alone and well-formed, which is there before
//! anything is done about the hang. `after=` acts on a guess that lasts; `--core` has a core
//! written first.

use crate::guard_common;
use guard_common::{Dir, Guard, skipped, until};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Healthy for 300 rounds, then an endless loop, which no rule takes for more than a guess.
const SPINS: &str = r#"
#include <poll.h>
#include <unistd.h>
int main(void) {
    int ends[2];
    char x;
    if (pipe(ends)) return 1;
    for (int i = 0; i < 300; i++) {
        struct pollfd p = {ends[0], POLLIN, 0};
        if (fork() == 0) { usleep(10000); (void)!write(ends[1], "x", 1); _exit(0); }
        poll(&p, 1, -1);
        (void)!read(ends[0], &x, 1);
    }
    for (volatile unsigned long i = 0;; i++) {}
}
"#;

const RING: &str = r#"
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
__attribute__((noinline)) void takes_it_twice(void) { pthread_mutex_lock(&one); pthread_mutex_lock(&one); }
int main(void) { sleep(1); takes_it_twice(); }
"#;

fn built(dir: &Dir, name: &str, text: &str) -> String {
    let source = dir.file(&format!("{name}.c"), text);
    let program = dir.0.join(name);
    let status = Command::new("cc").args(["-O1", "-g", "-pthread", "-o"]).arg(&program).arg(source).status();
    assert!(status.expect("cc").success());
    program.to_str().expect("a path").to_owned()
}

/// The page that an action names.
fn page(did: &str) -> Option<PathBuf> {
    did.strip_prefix("wrote ").map(PathBuf::from)
}

/// Waits for the next action with this text.
fn action(guard: &mut Guard, text: &str) -> String {
    loop {
        let did = guard.next("action")["did"].as_str().expect("words").to_owned();
        if did.contains(text) {
            return did;
        }
    }
}

fn is_well_formed(path: &Path) {
    let parse = "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])";
    match Command::new("python3").args(["-c", parse]).arg(path).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => println!("SKIP: needs python3"),
    }
}

#[test]
fn a_page_for_each_hang() {
    if skipped() {
        return;
    }
    let dir = Dir::new("pages");
    let ring = built(&dir, "ring", RING);
    let pages = dir.0.join("pages");
    let mut guard = Guard::start(&dir, &["--report", pages.to_str().expect("a path")], &[&ring]);
    assert_eq!(guard.next("hang")["sure"], "certain");
    let path = page(&action(&mut guard, "wrote ")).expect("a page");
    assert_eq!(path.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&path).expect("a page");
    // The sentence of the report, the ring in red, and the stack that the report took.
    for part in ["which it holds itself", "Lock Ring", "Thread Ring", "class=\"red\"", "takes_it_twice", "(certain)"] {
        assert!(text.contains(part), "no {part}: {text}");
    }
    assert!(!text.contains("<script"), "{text}");
    is_well_formed(&path);
}

#[test]
fn a_guess_that_lasts_is_acted_on_after_its_page_and_its_core() {
    if skipped() {
        return;
    }
    let dir = Dir::new("lasts");
    let spins = built(&dir, "spins", SPINS);
    let pages = dir.0.join("pages");
    let mut orbit = Command::new(env!("CARGO_BIN_EXE_orbit"));
    // A core goes to the program's folder, where the kernel's pattern names none.
    orbit.current_dir(&dir.0);
    let options = ["--limit", "1s", "--on-hang", "after=4s:restart", "--core", "--report"];
    let options: Vec<&str> = options.into_iter().chain(pages.to_str()).collect();
    let mut guard = Guard::start_by(&dir, orbit, &options, &[&spins], Stdio::null());
    let hang = guard.next("hang");
    assert_eq!(hang["sure"], "guess", "{hang:#}");
    let path = page(&action(&mut guard, "wrote ")).expect("a page");
    assert!(std::fs::read_to_string(path).expect("a page").contains("Thread Busy"));
    let did = action(&mut guard, "core");
    action(&mut guard, "killed the program and started it again");
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").expect("a pattern");
    if did.contains("its core went to") && !pattern.starts_with(['/', '|']) {
        let is_core = |name: String| name.starts_with("core");
        let found = std::fs::read_dir(&dir.0).expect("a folder").flatten();
        assert!(found.into_iter().any(|entry| is_core(entry.file_name().to_string_lossy().into_owned())), "{did}");
    }
}

#[test]
fn what_cannot_be_written_to_is_said_before_the_program_starts() {
    let dir = Dir::new("no-pages");
    let (file, started) = (dir.file("file", ""), dir.0.join("started"));
    for option in ["--report", "--health"] {
        let below = file.join("x");
        let output = Command::new(env!("CARGO_BIN_EXE_orbit"))
            .args(["watch", option])
            .arg(&below)
            .args(["--", "touch"])
            .arg(&started)
            .output()
            .expect("orbit");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(125) && said.contains(option), "{said}");
        assert!(!started.exists());
    }
}

#[test]
fn others_can_list_no_folder_of_pages_and_read_no_events() {
    let dir = Dir::new("listable");
    let watch = |folder: &Path| {
        Command::new("sh")
            .args(["-c", "umask 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_orbit"), "watch", "--report"])
            .arg(folder)
            .arg("--events")
            .arg(dir.0.join("events"))
            .args(["--", "true"])
            .output()
            .expect("sh")
    };
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    let made = dir.0.join("made");
    assert!(watch(&made).status.success());
    assert_eq!((mode(&made), mode(&dir.0.join("events"))), (0o700, 0o600));
    let listable = dir.0.join("listable");
    std::fs::create_dir(&listable).expect("a folder");
    std::fs::set_permissions(&listable, PermissionsExt::from_mode(0o755)).expect("an own folder");
    let output = watch(&listable);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(125) && said.contains("all users can list it"), "{said}");
}

#[test]
fn a_limit_that_is_too_low_is_named_and_nothing_starts() {
    let dir = Dir::new("limits");
    let started = dir.0.join("started");
    for (limit, said) in [("-s 64", "the stack is limited to 64 KiB"), ("-n 12", "12 descriptors are allowed")] {
        let script = format!("ulimit {limit}; exec \"$0\" watch -- touch \"$1\"");
        let mut command = Command::new("sh");
        let output = command.args(["-c", &script, env!("CARGO_BIN_EXE_orbit")]).arg(&started).output().expect("sh");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(125) && text.contains(said), "{limit}: {output:?}");
        assert!(!started.exists());
    }
}

/// Reads a page by HTTP: the status, and the answer.
fn get(address: &str) -> Option<(u16, serde_json::Value)> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).ok()?))
}

#[test]
fn health_by_file_and_by_http() {
    if skipped() {
        return;
    }
    let dir = Dir::new("health");
    let go = dir.0.join("go");
    let ring = RING.replace("sleep(1);", "while (access(GO, F_OK) != 0) usleep(20000);");
    let ring = format!("#define GO {:?}\n{ring}", go.to_str().expect("a path"));
    let ring = built(&dir, "ring", &ring);
    let file = dir.0.join("health.json");
    let options = ["--health-listen", "127.0.0.1:0", "--health", file.to_str().expect("a path")];
    let mut guard = Guard::start(&dir, &options, &[&ring]);
    let did = action(&mut guard, "answers at http://");
    let address = did.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    let read = || -> Option<serde_json::Value> { serde_json::from_str(&std::fs::read_to_string(&file).ok()?).ok() };
    let healthy = until("it is healthy", || read().filter(|seen| seen["pid"] != 0));
    assert!(healthy["state"] == "healthy" && healthy["hung_since"].is_null(), "{healthy:#}");
    let (status, answer) = get(&address).expect("an answer");
    assert!(status == 200 && answer["state"] == "healthy", "{answer:#}");
    // One that says nothing delays others, and no more.
    let silent = std::net::TcpStream::connect(&address).expect("a connection");
    std::fs::write(&go, "").expect("a file");
    let hung = until("it hangs", || read().filter(|seen| seen["state"] == "hung"));
    assert!(hung["hangs"][0]["sure"] == "certain" && hung["hung_since"].is_string(), "{hung:#}");
    assert!(hung["last_progress"].as_str() <= hung["hung_since"].as_str(), "{hung:#}");
    let (status, answer) = until("it answers", || get(&address));
    assert!(status == 503 && answer["state"] == "hung", "{answer:#}");
    drop(silent);
    let program = hung["pid"].as_i64().expect("a process") as i32;
    guard_common::signal(program, libc::SIGKILL);
    guard.ended();
    assert!(!file.exists());
}
