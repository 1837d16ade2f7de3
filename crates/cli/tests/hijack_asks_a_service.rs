//! A rule asks a service of `orbit service`, wasm or native: its answer is the call's result;
//! without one the call passes or its process is killed, as set.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Waits of a loaded machine.
const PATIENT: &str = "60s";

/// A folder with a host's socket in it. Dropped, the host ends and the folder is gone.
struct Stage {
    folder: PathBuf,
    host: Child,
}

impl Stage {
    fn new(name: &str) -> Stage {
        let folder = std::env::temp_dir().join(format!("orbit-asks-{name}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("files")).expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
        command.args(["service", "run", "--socket"]).arg(folder.join("host.sock")).stdout(Stdio::piped());
        let mut host = command.spawn().expect("a host");
        let mut line = String::new();
        BufReader::new(host.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("services at"), "{line}");
        Stage { folder, host }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("host.sock")
    }

    fn service(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
        let done = command.args(["service", "--socket"]).arg(self.socket()).args(args).output().expect("orbit");
        assert!(done.status.success(), "{args:?}: {}", text(&done));
        text(&done).trim().to_owned()
    }

    /// Loads `tests/native/judge.c` as this class. False where it cannot be compiled for it.
    fn load(&self, class: &str) -> bool {
        let services = Path::new(env!("CARGO_MANIFEST_DIR")).join("../serve/services");
        let object = self.folder.join("judge");
        let mut clang = Command::new(std::env::var_os("CLANG").unwrap_or_else(|| "clang".into()));
        clang.args(["-O2", "-nostdlib", "-ffreestanding", "-I"]).arg(services.join("include")).arg("-o").arg(&object);
        if class == "wasm" {
            clang.args(["--target=wasm32", "-Wl,--no-entry", "-Wl,--allow-undefined"]);
        } else {
            clang.args(["-fPIC", "-shared", "-fno-stack-protector", "-Wl,--hash-style=sysv"]);
            clang.arg(format!("-Wl,-T,{}", services.join("include/orbit_service.ld").display()));
        }
        let done = clang.arg(services.join("tests/native/judge.c")).output().expect("clang");
        if text(&done).contains("unable to execute") {
            println!("SKIP: needs wasm-ld (package lld)");
            return false;
        }
        assert!(done.status.success(), "{}", text(&done));
        let owner = std::process::id().to_string();
        let object = object.to_str().expect("a path");
        self.service(&["load", object, "--class", class, "--owner", &owner, "--budget", "1ms/10ms"]);
        true
    }

    /// Removes files under the executive: their names, and what remained.
    fn remove(&self, files: &[&str], options: &[&str]) -> (Output, Vec<String>) {
        let place = self.folder.join("files");
        // Of the run before.
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place).expect("a folder");
        files.iter().for_each(|file| std::fs::write(place.join(file), "").expect("a file"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
        command.args(["hijack", "--inject", "unlink|unlinkat -> ask service judge", "--services"]).arg(self.socket());
        command.args(options).args(["--", "rm"]).args(files).current_dir(&place).env("LC_ALL", "C");
        let done = command.output().expect("orbit");
        let mut left: Vec<String> = std::fs::read_dir(&place)
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        (done, left)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // SAFETY: an own child, asked to end, so that its agents end too.
        unsafe { libc::kill(self.host.id() as i32, libc::SIGTERM) };
        let _ = self.host.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn decides(class: &str) {
    let stage = Stage::new(class);
    if !stage.load(class) {
        return;
    }
    let (done, left) = stage.remove(&["open", "denied", "answer0"], &["--answer-within", PATIENT]);
    // `answer0` was answered in the call's place: nothing was removed, and rm does not know.
    assert_eq!(left, ["answer0", "denied"], "{}", text(&done));
    let said = text(&done);
    assert!(said.contains("cannot remove 'denied': Permission denied") && !said.contains("'answer0'"), "{said}");
    assert!(said.contains("3 questions, 0 without an answer"), "{said}");

    // Silence, a forged answer, an error that there is not, a handler that never ends: no answer,
    // and the call passes.
    let bad = ["silences", "f", "error", "l"];
    let (done, left) = stage.remove(&bad, &["--answer-within", "300ms"]);
    assert!(left.is_empty() && done.status.success(), "{left:?}: {}", text(&done));
    assert!(text(&done).contains("4 questions, 4 without an answer"), "{}", text(&done));
    assert!(text(&done).contains("no answer: service judge: "), "{}", text(&done));
    for file in bad {
        let (done, left) = stage.remove(&[file], &["--answer-within", "300ms", "--unanswered", "kill"]);
        assert!(left == [file] && done.status.code() == Some(120), "{left:?}: {}", text(&done));
        assert!(text(&done).contains("had no answer"), "{}", text(&done));
    }

    // A service that is gone answers nothing, at once.
    let listed = stage.service(&["ls"]);
    let id = listed.lines().find(|line| line.contains("judge")).and_then(|line| line.split_whitespace().next());
    stage.service(&["revoke", id.expect("its number")]);
    let (done, left) = stage.remove(&["denied"], &["--answer-within", PATIENT]);
    assert!(left.is_empty() && text(&done).contains("1 questions, 1 without an answer"), "{}", text(&done));
    assert!(text(&done).contains("orbit: no answer: ") && text(&done).contains("judge"), "{}", text(&done));
}

#[test]
fn a_wasm_service_decides() {
    decides("wasm");
}

#[test]
fn a_native_service_decides() {
    decides("native");
}

#[test]
fn without_a_host_nothing_is_started() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    command.args(["hijack", "--inject", "unlink* -> ask service judge", "--services", "/nonexistent/host.sock"]);
    let done = command.args(["--", "echo", "ran"]).output().expect("orbit");
    assert!(!done.status.success() && done.stdout.is_empty(), "{}", text(&done));
    assert!(text(&done).contains("orbit service run"), "{}", text(&done));
}
