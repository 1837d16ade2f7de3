//! Processes of a test, and what `/proc` says of any.

use orbit_linux::child::Exit;
use orbit_linux::stat::ticks_per_second;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};

/// A process that is killed and reaped when this is dropped.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Killed {
    /// One that sleeps.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn sleeper() -> Killed {
        Killed(Command::new("sleep").arg("infinity").spawn().expect("sleep"))
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait_for_exit();
    }
}

/// Processes that the first thread of this one has made.
pub fn children(pid: i32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Children of this process, theirs, and so on.
pub fn below(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()) {
            found.push(child);
            found.extend(below(child));
        }
    }
    found
}

/// The fields of `/proc/PID/stat` from the state on; empty if there is no such process.
fn fields(pid: i32) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// `/proc/PID/status`; empty if there is no such process.
pub fn status(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

/// The value of a line of a `status` file; empty if it has no such line.
pub fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map_or("", str::trim)
}

/// Whether it runs: neither gone nor a zombie.
pub fn lives(pid: i32) -> bool {
    fields(pid).first().is_some_and(|state| state != "Z" && state != "X")
}

/// Whether it has ended and nobody has reaped it.
pub fn is_zombie(pid: i32) -> bool {
    fields(pid).first().is_some_and(|state| state == "Z")
}

/// The process that this one is below.
pub fn parent(pid: i32) -> Option<i32> {
    fields(pid).get(1)?.parse().ok()
}

/// When it started, in clock ticks since boot: with the pid it names a process for good.
pub fn started(pid: i32) -> Option<u64> {
    fields(pid).get(19)?.parse().ok()
}

/// What the descriptors of a process refer to, by number.
pub fn descriptors(pid: i32) -> Vec<(i32, PathBuf)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, fs::read_link(entry.path()).ok()?)))
        .collect()
}

/// The mappings of a process that are shared and writable, as `/proc/PID/maps` lists them.
pub fn shared_writable(pid: i32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().filter(|line| line.split_whitespace().nth(1) == Some("rw-s")).map(str::to_owned).collect()
}

/// CPU time of a process and of its children that have ended, seconds.
pub fn own_cpu(pid: i32) -> f64 {
    let a_second = ticks_per_second() as f64;
    let ticks = fields(pid).iter().skip(11).take(4).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>();
    ticks as f64 / a_second
}

/// CPU time of a process, all below it, and all of theirs that have ended, seconds.
pub fn family_cpu(pid: i32) -> f64 {
    let a_second = ticks_per_second() as f64;
    let ticks = |pid: i32| -> u64 {
        // User and system, own and of reaped children.
        fields(pid).iter().skip(11).take(4).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
    };
    (ticks(pid) + below(pid).into_iter().map(ticks).sum::<u64>()) as f64 / a_second
}

/// Sends a signal to a process that this one started, directly or not.
pub fn signal(pid: i32, signal: i32) {
    // One that has exited needs none.
    let _ = orbit_linux::signals::send(pid, signal);
}
