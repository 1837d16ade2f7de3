//! An ordinary user learns which capability is missing, and hangs in sections by name are found
//! all the same.

mod guard_common;
use guard_common::{Dir, PATIENCE, skipped};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const NOBODY: u32 = 65534;

/// A guard that is ended with its program.
struct Running(Child, std::path::PathBuf);

impl Drop for Running {
    fn drop(&mut self) {
        for e in events(&self.1).iter().filter(|e| e["event"] == "joined") {
            guard_common::signal(e["pid"].as_i64().expect("a pid") as i32, libc::SIGKILL);
        }
        let start = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && start.elapsed().as_secs() < 5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn events(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let read = |l| serde_json::from_str(l).expect("JSON");
    whole.lines().map(|l| orbit_testing::described("watch-events", read(l))).collect()
}

fn wait_for(file: &Path, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let all = events(file);
        if let Some(e) = all.iter().find(|e| is(e)) {
            return e.clone();
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {all:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn an_ordinary_user() {
    // SAFETY: plain call.
    if skipped() || unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root, to become an ordinary user");
        return;
    }
    let dir = Dir::new("named-user");
    let built = dir.0.join("named");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../watch/named/tests/live/c/named.c");
    let cc = Command::new("cc").args(["-O2", "-g", "-pthread", "-o"]).arg(&built).arg(source).status();
    assert!(cc.expect("cc").success());
    // Where an ordinary user may read and write.
    let place = std::env::temp_dir().join(format!("orbit-guard-user-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory");
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o777)).expect("a directory for all");
    let (orbit, program, file) = (place.join("orbit"), place.join("named"), place.join("events.jsonl"));
    orbit_testing::copy_of_program(env!("CARGO_BIN_EXE_orbit").as_ref(), &orbit);
    orbit_testing::copy_of_program(built.as_ref(), &program);
    let config = place.join("guard.toml");
    std::fs::write(&config, "limit_ms = 1000\n").expect("a file");
    let mut guard = Command::new(&orbit);
    guard.args(["watch", "--section", "request=request", "--config"]).arg(&config).arg("--events").arg(&file);
    guard.arg("--").arg(&program).args(["spin", "10"]);
    guard.uid(NOBODY).gid(NOBODY).current_dir("/").stderr(Stdio::null());
    let running = Running(guard.spawn().expect("orbit"), file.clone());
    let needs = |e: &Value| e["text"].as_str().is_some_and(|t| t.contains("CAP_BPF and CAP_PERFMON"));
    let trouble = wait_for(&file, "no capability is named", needs);
    println!("{}", trouble["text"]);
    let hang = wait_for(&file, "the hang is not found", |e| e["event"] == "hang");
    println!("{}", hang["why"]);
    drop(running);
    let _ = std::fs::remove_dir_all(&place);
    assert_eq!((&hang["kind"], &hang["section"]), (&"busy".into(), &"request".into()), "{hang:#}");
}
