//! Main in a control group with a limit of memory outlives tasks that leak without a limit of their
//! own, and copies for which the group has no room: the group's own OOM killer never runs.

mod common;
mod limits_common;

use std::ffi::{c_long, c_void};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use common::eventually;
use limits_common::{bytes, needs_group, number, oom_kills};
use orbit::{Area, Kind, Limits, Orbit, Outcome, Restart};
use orbit_linux::cgroup::Group;

const GROUP: u64 = 160 << 20;
/// Of main's own, beside which the group has room for a small task and for no large one.
const BALLAST: usize = 100 << 20;
const CASE: &str = "ORBIT_TEST_ROOM";

/// Fills memory until there is none, or a MiB.
unsafe extern "C" fn leak(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes one i64.
    let leaks = unsafe { *args.cast::<i64>() } != 0;
    loop {
        // SAFETY: the memory was just given, if it was; without a check, as in a task with a bug.
        unsafe { libc::memset(std::hint::black_box(libc::malloc(1 << 20)), 1, 1 << 20) };
        if !leaks {
            return 7;
        }
    }
}

fn call(orbit: &Orbit, areas: &[&Area], leaks: i64) -> orbit::Result<Outcome> {
    let mut answer = None;
    eventually(|| {
        let asked = orbit.call(areas, &bytes([leaks]));
        let is_down = matches!(&asked, Err(e) if e.kind() == Kind::Down);
        answer = Some(asked);
        !is_down
    });
    answer.expect("asked at least once")
}

/// What main does in its group, in this case.
fn live(case: &str) {
    // Until it is in the group.
    std::io::stdin().read_exact(&mut [0]).expect("a word from the test");
    if case.contains("first-to-die") {
        std::fs::write("/proc/self/oom_score_adj", "1000").expect("its own score");
    }
    if case.contains("ordinary") {
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::setgid(65534) + libc::setuid(65534) }, 0, "an ordinary user");
    }
    let ballast = std::hint::black_box(vec![1u8; BALLAST]);
    let limits = if case.contains("asks-for-more") { Limits::new().memory(1 << 30) } else { Limits::new() };
    let orbit = Orbit::builder("leak").entry(leak).restart(Restart::Always).limits(limits).build().expect("orbit");
    println!("held: {}", orbit.limits_held());
    let small = Area::new(1 << 20).expect("area");
    for _ in 0..3 {
        assert_eq!(call(&orbit, &[&small], 0).expect("call"), Outcome::Returned(7));
        assert_eq!(call(&orbit, &[&small], 1).expect("call"), Outcome::OutOfMemory);
    }
    let large = Area::builder("large").size(32 << 20).limit(32 << 20).build().expect("area");
    let object = large.alloc(30 << 20, 4096).expect("room in the area");
    // SAFETY: so many bytes were allocated.
    unsafe { object.as_ptr().write_bytes(1, 30 << 20) };
    let refused = call(&orbit, &[&large], 0).expect_err("no room for a copy");
    assert!(refused.kind() == Kind::Limit && refused.to_string().contains("its control group has"), "{refused}");
    assert_eq!(call(&orbit, &[&small], 0).expect("call"), Outcome::Returned(7));
    println!("main lives with {} bytes", ballast.len());
}

#[test]
fn main_outlives_tasks_that_leak() {
    if let Ok(case) = std::env::var(CASE) {
        return live(&case);
    }
    if needs_group("memory").is_none() {
        return;
    }
    for case in ["plain", "first-to-die", "asks-for-more", "ordinary", "ordinary first-to-die"] {
        let name = format!("room-test-{}-{}", std::process::id(), case.len());
        let group = Group::create(&name).expect("a group");
        group.set_memory(GROUP).expect("its limit");
        let mut main = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "main_outlives_tasks_that_leak", "--nocapture"])
            .env(CASE, case)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("main");
        group.add(main.id() as i32).expect("main in its group");
        main.stdin.take().expect("a pipe").write_all(b"\n").expect("a word to main");
        let output = main.wait_with_output().expect("main's end");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("main lives"), "{case}: {}\n{said}", output.status);
        println!("{case}: {}", said.lines().find(|line| line.contains("held: ")).unwrap_or_default());
        let by_what = if case.contains("ordinary") { "by RLIMIT_DATA" } else { "by control group" };
        assert!(said.contains(by_what), "{case}: {said}");
        // Version 1 counts the kills of a group that lies in this one at that group alone.
        assert_eq!(group.dirs().first().map(|dir| own_kills(dir)), Some(0), "{case}: the group's killer ran");
        assert!(eventually(|| group.remove().is_ok()), "{case}: nothing is left in the group");
    }
}

/// How many processes were killed for the limit of this very group.
fn own_kills(dir: &std::path::Path) -> u64 {
    let local = std::fs::read_to_string(dir.join("memory.events.local")).ok();
    let local = local.and_then(|text| Some(number(text.lines().find_map(|line| line.strip_prefix("oom_kill "))?)));
    local.unwrap_or_else(|| oom_kills(dir))
}
