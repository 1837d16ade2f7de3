//! Whoever opens many conversations with a core and says nothing costs it 64 threads at most, for
//! two seconds, and then it answers again.

mod guard_common;
use guard_common::{Owned, until};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);
/// As many as a core holds at a time.
const MOST: usize = 64;
const MORE: usize = 20;

fn answering(pid: u32) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "orbit-answer").count()
}

#[test]
fn a_core_holds_sixty_four_conversations_and_no_more() {
    let guard = Command::new(env!("CARGO_BIN_EXE_orbit"))
        .args(["watch", "--", "sleep", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let guard = Owned(guard.expect("orbit runs"));
    let pid = guard.0.id();
    let connect = || orbit_console::control::connect("core", pid as i32).ok();
    let mut silent = vec![until("the core listens", connect)];
    silent.resize_with(MOST + MORE, || until("one more is let in", connect));
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        assert!(answering(pid) <= MOST, "{} conversations", answering(pid));
        std::thread::sleep(Duration::from_millis(10));
    }
    let list = || {
        let output =
            Command::new(env!("CARGO_BIN_EXE_orbit")).args(["modules", "--json"]).output().expect("orbit runs");
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        list["cores"].as_array()?.iter().find(|core| core["core"] == pid).map(|_| ())
    };
    until("it answers again, though nobody hung up", list);
    for stream in &mut silent {
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        assert_eq!(stream.read(&mut [0]).expect("the end"), 0, "silence is not answered");
    }
    until("no thread is left", || (answering(pid) == 0).then_some(()));
}
