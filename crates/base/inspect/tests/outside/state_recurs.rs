//! The state of a thread in a loop that changes nothing recurs; that of a loop which counts, in
//! whatever register, does not.

use crate::common;
use common::{Dir, Running, until};
use orbit_inspect::stacks::Unwinder;
use std::collections::BTreeMap;

/// CPU time of the program's first thread, in nanoseconds.
fn ran(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Captures of the program, and how many of them showed a state that an earlier one had.
fn captures(program: &std::path::Path, way: &str, how_many: usize) -> (usize, usize) {
    let p = Running::program(program, &[way]);
    let mut u = Unwinder::new(p.pid()).unwrap();
    assert!(u.capture(&[p.pid()])[0].state.is_none(), "nobody asked");
    u.states(true);
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    let mut taken = 0;
    let mut had = 0;
    for _ in 0..how_many {
        // Of a thread that did not run in between nothing could have changed.
        until("CPU time", || Some(ran(p.pid())).filter(|&now| now > had + 200_000));
        if let Some(state) = u.capture(&[p.pid()])[0].state {
            *seen.entry(state).or_default() += 1;
            taken += 1;
        }
        had = ran(p.pid());
    }
    println!("{way}: {taken} captures, {} states", seen.len());
    assert!(taken > how_many / 2, "{way}: it could not be stopped");
    (taken, taken - seen.len())
}

#[test]
fn loops() {
    let dir = Dir::new("recurs");
    let program = dir.build("loops.c", &["-O2"]);
    for still in ["still", "flag"] {
        let (_, again) = captures(&program, still, 60);
        assert!(again >= 10, "{still}");
    }
    for moving in ["register", "stack", "vector"] {
        assert_eq!(captures(&program, moving, 60).1, 0, "{moving}");
    }
}
