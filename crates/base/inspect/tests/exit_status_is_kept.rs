//! A child of this process that ends while its stacks are taken keeps its exit status for whoever
//! waits for it.

mod common;
use common::Dir;
use orbit_inspect::stacks::Unwinder;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn no_status_is_lost() {
    let dir = Dir::new("exit-status");
    let program = dir.build("ends.c", &["-O2", "-static"]);
    let rounds = orbit_testing::times(400, 3000) as i32;
    let (mut captures, mut during) = (0u32, 0u32);
    for round in 0..rounds {
        let code = round % 100 + 1;
        let mut child = Command::new(&program).arg(code.to_string()).stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id() as i32;
        let start = Instant::now();
        let status = loop {
            let Ok(mut u) = Unwinder::new(pid) else {
                break child.wait().unwrap();
            };
            captures += 1;
            during += u32::from(u.capture(&[pid]).iter().any(|s| s.error.is_some()));
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => assert!(start.elapsed() < Duration::from_secs(30), "round {round}: it does not end"),
                Err(e) => panic!("round {round}: the status is lost: {e}"),
            }
        };
        assert_eq!(status.code(), Some(code), "round {round}");
    }
    println!("{rounds} programs, {captures} captures, {during} of programs that were ending");
    assert!(during > 0, "none ended during a capture");
}
