//! Taking stacks cuts no call short that has moved a part of its bytes, and the stacks of threads
//! in such calls are reported all the same.

use crate::common;
use common::Dir;
use orbit_inspect::Error;
use orbit_inspect::stacks::{How, Unwinder};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Stacks taken of each thread, and for how long at least and at most.
const STACKS: u32 = 5;
const LEAST: Duration = Duration::from_secs(3);
const MOST: Duration = Duration::from_secs(60);

/// Threads of `parts.c`, and the functions that make their calls.
const CALLS: [(&str, &str); 5] = [
    ("pipe", "writes_to_a_pipe"),
    ("socket", "writes_to_a_socket"),
    ("all", "receives_all"),
    ("urandom", "reads_random_bytes"),
    ("getrandom", "gets_random_bytes"),
];

#[test]
fn calls_that_move_much() {
    let dir = Dir::new("stop-parts");
    let program = dir.build("parts.c", &["-O1", "-g"]);
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    // One on its way into its call may still be stopped as it enters it: each is inside by then.
    std::thread::sleep(Duration::from_millis(500));
    let mut unwinder = Unwinder::new(child.id() as i32).expect("it runs");
    let mut counts: BTreeMap<&str, [u32; 4]> = BTreeMap::new();
    let start = Instant::now();
    let few = |counts: &BTreeMap<&str, [u32; 4]>| {
        CALLS.iter().any(|(name, _)| counts.get(name).is_none_or(|how| how.iter().sum::<u32>() < STACKS))
    };
    while start.elapsed() < LEAST || few(&counts) && start.elapsed() < MOST {
        for stack in unwinder.capture(&[]) {
            let Some((name, function)) = CALLS.into_iter().find(|(name, _)| *name == stack.comm) else {
                continue;
            };
            let whole = stack.frames.iter().any(|f| f.function.as_deref() == Some(function));
            match stack.how {
                How::Asleep if whole => counts.entry(name).or_default()[0] += 1,
                How::Inside if whole => counts.entry(name).or_default()[1] += 1,
                How::Stopped if whole => counts.entry(name).or_default()[2] += 1,
                _ if matches!(stack.error, Some(Error::InKernel { .. })) => counts.entry(name).or_default()[3] += 1,
                _ => {}
            }
        }
    }
    println!("stacks of threads asleep, inside the kernel, stopped; not available inside the kernel: {counts:?}");
    drop(child.stdin.take());
    let ends: Vec<String> = lines.collect();
    assert_eq!(ends, CALLS.map(|(name, _)| format!("{name}: 0 short")));
    assert!(child.wait().expect("the program").success());
    for (name, _) in CALLS {
        let ([asleep, inside, _, hidden], runs) =
            (counts.get(name).copied().unwrap_or_default(), name.ends_with("random"));
        if runs && inside == 0 && hidden > 0 {
            println!(
                "SKIP: needs CAP_PERFMON, or kernel.perf_event_paranoid below 2, for the stacks of threads inside \
                 the kernel"
            );
        } else {
            assert!(if runs { inside } else { asleep } > 0, "{name}: {counts:?}");
        }
    }
}
