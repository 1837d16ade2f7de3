//! What orbits made and left behind: processes that have become the template's children.

use std::time::{Duration, Instant};

use orbit_linux::process;

use crate::names::Clerks;
use crate::own::Own;

/// Between two checks whether what an orbit left has exited.
const STRAY_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Processes that orbits made and left behind: they have become children of the template.
pub(super) fn list_strays(children: &[(i32, Own)], clerks: &Clerks) -> Vec<i32> {
    let Ok(list) = std::fs::read_to_string("/proc/thread-self/children") else { return Vec::new() };
    let all = list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    let are_known =
        |pid: i32| children.iter().any(|(child, _)| *child == pid) || clerks.pids().any(|clerk| clerk == pid);
    all.filter(|pid| !are_known(*pid)).collect()
}

/// Reaps them: for so long as they end by themselves, then kills them.
pub(super) fn end_strays(children: &[(i32, Own)], clerks: &Clerks, grace: Duration) {
    let began = Instant::now();
    for _ in 0..64 {
        let strays = list_strays(children, clerks);
        if strays.is_empty() {
            return;
        }
        for pid in strays {
            // A child of this process that nothing else reaps, so the number is its own until it is
            // reaped.
            while !process::reap_any(pid) {
                if began.elapsed() < grace {
                    std::thread::sleep(STRAY_CHECK_INTERVAL);
                } else {
                    process::kill_child(pid);
                    break;
                }
            }
        }
    }
}
