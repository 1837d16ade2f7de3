//! What the kernel holds for the whole program and shows in `/proc`: timers, limits, rights and the
//! like. Needs no tracer.

use orbit_linux::{procfs, rlimit};
use std::collections::BTreeSet;

/// POSIX timers that are kept at most.
const MOST_TIMERS: usize = 256;
/// With many threads reading their children would take long; they rarely fork.
const MOST_PARENTS: usize = 32;

/// A POSIX timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    pub id: u64,
    pub clock: u64,
    pub signal: u64,
    pub value: u64,
    /// `SIGEV_…`, and the thread that it is for.
    pub notify: u64,
    pub thread: u64,
    /// Interval and remaining time, in seconds and nanoseconds.
    pub time: [u64; 4],
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outside {
    /// Their times are not in `/proc`.
    pub timers: Vec<Timer>,
    pub umask: u64,
    pub folder: String,
    pub root: String,
    /// Users, groups and capabilities, as `/proc` has them.
    pub rights: String,
    pub limits: [(u64, u64); rlimit::KINDS],
    pub children: BTreeSet<i32>,
}

impl Outside {
    /// Reads it.
    pub fn read(pid: i32) -> Outside {
        let status = procfs::text(format!("/proc/{pid}/status")).unwrap_or_default();
        let rights = ["Uid:", "Gid:", "Groups:", "CapPrm:", "CapEff:", "NoNewPrivs:", "Seccomp:"]
            .map(|name| field(&status, name));
        let spaces = ["mnt", "net", "uts", "ipc", "user", "cgroup"].map(|kind| link(pid, &format!("ns/{kind}")));
        Outside {
            timers: listed(&procfs::text(format!("/proc/{pid}/timers")).unwrap_or_default()),
            umask: u64::from_str_radix(field(&status, "Umask:"), 8).unwrap_or(0),
            folder: link(pid, "cwd"),
            root: link(pid, "root"),
            rights: format!("{} {}", rights.join(" "), spaces.join(" ")),
            limits: rlimit::all(pid).unwrap_or([(u64::MAX, u64::MAX); rlimit::KINDS]),
            children: children(pid),
        }
    }
}

/// The children of its threads.
fn children(pid: i32) -> BTreeSet<i32> {
    let of = |tid: i32| procfs::text(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let texts: Vec<String> = procfs::ids(format!("/proc/{pid}/task")).into_iter().take(MOST_PARENTS).map(of).collect();
    texts.iter().flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok())).collect()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).map_or("", str::trim)
}

fn link(pid: i32, name: &str) -> String {
    std::fs::read_link(format!("/proc/{pid}/{name}"))
        .map(|path| path.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// The timers of `/proc/PID/timers`.
fn listed(text: &str) -> Vec<Timer> {
    let mut timers: Vec<Timer> = Vec::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        if name == "ID" {
            let id = value.parse().unwrap_or(0);
            timers.push(Timer { id, clock: 0, signal: 0, value: 0, notify: 1, thread: 0, time: [0; 4] });
        }
        let Some(timer) = timers.last_mut() else { continue };
        match name {
            "signal" => {
                let (signal, at) = value.split_once('/').unwrap_or((value, "0"));
                timer.signal = signal.parse().unwrap_or(0);
                timer.value = u64::from_str_radix(at.trim_start_matches("0x"), 16).unwrap_or(0);
            }
            // signal/pid.4711, none/pid.4711, signal/tid.4712
            "notify" => {
                let (kind, thread) = value.split_once('/').unwrap_or((value, ""));
                let kind = match kind {
                    "none" => libc::SIGEV_NONE,
                    "thread" => libc::SIGEV_THREAD,
                    _ => libc::SIGEV_SIGNAL,
                };
                let tid = thread.strip_prefix("tid.").and_then(|tid| tid.parse().ok());
                timer.notify = if tid.is_some() { libc::SIGEV_THREAD_ID as u64 } else { kind as u64 };
                timer.thread = tid.unwrap_or(0);
            }
            "ClockID" => timer.clock = value.parse::<i64>().unwrap_or(0) as u64,
            _ => {}
        }
    }
    timers.truncate(MOST_TIMERS);
    timers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_as_the_kernel_lists_them() {
        let text = "ID: 3\nsignal: 34/00007ffd0000abcd\nnotify: signal/tid.4712\nClockID: 1\n\
                    ID: 4\nsignal: 14/0000000000000000\nnotify: none/pid.4711\nClockID: 0\n";
        let timers = listed(text);
        assert_eq!((timers[0].id, timers[0].signal, timers[0].value), (3, 34, 0x7ffd_0000_abcd));
        assert_eq!((timers[0].notify, timers[0].thread, timers[0].clock), (4, 4712, 1));
        assert_eq!((timers[1].id, timers[1].notify), (4, 1));
    }
}
