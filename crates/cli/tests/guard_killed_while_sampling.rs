//! A guard that is killed while it holds a thread of the program leaves it running, traced by
//! nobody.

mod guard_common;
use guard_common::{Dir, Guard, PATIENCE, build, signal, skipped};
use std::time::{Duration, Instant};

fn status(pid: i32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    text.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default().trim_start_matches([':', '\t']).to_owned()
}

fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Most guards that are tried until one is killed in time; the short run tries the fewest.
fn most() -> u64 {
    if std::env::var_os("ORBIT_TEST_FULL").is_some() { 16 } else { 4 }
}

/// How long a guard may take until it holds the program: it samples again for each second of CPU.
const UNTIL_HELD: Duration = Duration::from_secs(5);

#[test]
fn the_program_goes_on() {
    if skipped() {
        return;
    }
    let dir = Dir::new("killed-sampling");
    let program = build(&dir, "hangs.c");
    let mut held = 0;
    let mut rounds = 0;
    while rounds < 4 || held == 0 && rounds < most() {
        let mut guard = Guard::start(&dir, &[], &[program.to_str().expect("a path"), "spin"]);
        let pid = guard.leave_loop();
        // It samples the spinning thread for some 40 ms now, and again for each second of CPU.
        let start = Instant::now();
        while status(pid, "TracerPid") == "0" && start.elapsed() < UNTIL_HELD {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(rounds % 4));
        rounds += 1;
        held += i32::from(status(pid, "TracerPid") != "0");
        signal(guard.id(), libc::SIGKILL);
        until("the program to be let go", || status(pid, "TracerPid") == "0");
        until("it to run", || status(pid, "State").starts_with('R'));
        let run = || {
            let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
            text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
        };
        let before = run();
        until("it to get on", || run() > before + 20_000_000);
        signal(pid, libc::SIGKILL);
    }
    if held == 0 {
        println!("SKIP: needs a guard that is killed while it holds the program; {rounds} were not");
    }
}
