//! Where cores and keepers are asked: files of this user alone, which go with their owner; those of
//! one that was killed go with the next command that asks.

mod guard_common;
use guard_common::{Dir, Owned, skipped, until};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// `orbit` with this as the user's folder for sockets.
fn orbit(runtime: &Path) -> Command {
    let mut orbit = Command::new(env!("CARGO_BIN_EXE_orbit"));
    orbit.env("XDG_RUNTIME_DIR", runtime);
    orbit
}

fn runtime(dir: &Dir) -> PathBuf {
    let path = dir.0.join("runtime");
    std::fs::DirBuilder::new().mode(0o700).create(&path).expect("made");
    path
}

fn start(runtime: &Path, words: &[&str]) -> Owned {
    let command = orbit(runtime).args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Owned(command.expect("orbit"))
}

/// The names in the folder of sockets, sorted.
fn names(runtime: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(runtime.join("orbit")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).expect("there").mode() & 0o777
}

#[test]
fn a_cores_socket_is_a_file_that_goes_with_it() {
    if skipped() {
        return;
    }
    let dir = Dir::new("control-core");
    let runtime = runtime(&dir);
    let mut watch = start(&runtime, &["watch", "--", "sleep", "1000"]);
    let name = format!("core-{}.sock", watch.0.id());
    until("the socket", || (names(&runtime) == [name.clone()]).then_some(()));
    assert_eq!((mode(&runtime.join("orbit")), mode(&runtime.join("orbit").join(&name))), (0o700, 0o600));
    let listed = |runtime: &Path| {
        let said = orbit(runtime).args(["modules", "--json"]).output().expect("orbit");
        let list: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
        list["cores"].as_array().expect("a list").iter().any(|core| core["core"] == watch.0.id())
    };
    assert!(listed(&runtime));
    assert!(!listed(Path::new("/nonexistent")), "it is nowhere else");
    guard_common::signal(watch.0.id() as i32, libc::SIGTERM);
    until("its end", || watch.0.try_wait().expect("a child"));
    assert!(!runtime.join("orbit").exists(), "{:?}", names(&runtime));
}

#[test]
fn what_a_killed_keeper_leaves_goes_with_the_next_question() {
    if skipped() {
        return;
    }
    let dir = Dir::new("control-keep");
    let runtime = runtime(&dir);
    let program = dir.0.join("kept");
    orbit_testing::copy_of_program("/bin/sleep".as_ref(), &program);
    let program = program.to_str().expect("text");
    // Of this keeper: others of the same user may run.
    let status = |keeper: u32| {
        let said = orbit(&runtime).args(["keep", "--status", "--json"]).output().expect("orbit");
        let all: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
        all["keepers"].as_array().expect("keepers").iter().find(|each| each["keeper"] == keeper).cloned()
    };
    for is_killed in [false, true] {
        let seconds = if is_killed { "1000" } else { "3" };
        let mut keeper = start(&runtime, &["keep", "--", program, seconds]);
        let id = keeper.0.id();
        let both = [format!("keep-{id}.sock"), format!("keep-orders-{id}.sock")];
        until("the sockets", || (names(&runtime) == both).then_some(()));
        let kept = until("the keeper's answer, or its end", || {
            let pid = status(id).and_then(|own| own["programs"][0]["pid"].as_i64());
            pid.map(Some).or_else(|| keeper.0.try_wait().expect("a child").map(|_| None))
        });
        let Some(kept) = kept else {
            println!("SKIP: needs what orbit keep needs (orbit doctor)");
            return;
        };
        if is_killed {
            keeper.0.kill().expect("killed");
            keeper.0.wait().expect("reaped");
            // The keeper was its parent.
            guard_common::signal(kept as i32, libc::SIGKILL);
            assert_eq!(names(&runtime), both);
            assert_eq!(status(id), None);
        } else {
            until("its end", || keeper.0.try_wait().expect("a child"));
        }
        assert!(!runtime.join("orbit").exists(), "{:?}", names(&runtime));
    }
}
