//! Taking stacks ends no call of a program: what it waits for ends as if it had not been inspected.

use crate::common;
use common::Dir;
use orbit_inspect::stacks::{How, Unwinder};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn calls_with_a_time_limit() {
    let dir = Dir::new("stop-calls");
    let program = dir.build("calls.c", &["-O1", "-g"]);
    let mut child = Command::new(program).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let mut unwinder = Unwinder::new(child.id() as i32).expect("it runs");
    let (mut stopped, mut asleep, mut samples) = (0, 0, 0);
    while let Ok(None) = child.try_wait() {
        let stacks = unwinder.capture(&[]);
        let often = |how| stacks.iter().filter(|s| s.comm == "often" && s.how == how).count();
        stopped += often(How::Stopped);
        asleep += often(How::Asleep);
        samples += 1;
    }
    println!("{samples} samples; the busy thread was stopped in {stopped} of them, and seen asleep in {asleep}");
    // Without a clock of its own it is not seen in its own code for long enough to be stopped.
    assert!(samples > 20 && stopped + asleep > 0, "{samples} samples, {stopped} stops");
    let ends: Vec<String> = lines.collect();
    let right = [
        "epoll: done",
        "socket: EAGAIN",
        "semaphore: EAGAIN",
        "signal: EAGAIN",
        "poll: done",
        "sleep: done",
        "often: 0 broken of many",
    ];
    assert_eq!(ends, right);
}
