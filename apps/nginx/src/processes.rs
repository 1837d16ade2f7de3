//! What `/proc` says of processes.

use std::fs;
use std::path::Path;

/// The fields of `/proc/PID/stat` from the state on; empty if there is no such process.
fn fields(pid: i32) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Processes of a group, zombies too, and those that have something of this directory mapped:
/// orbits have a group of their own.
pub(crate) fn of_server(group: i32, directory: &Path) -> Vec<i32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let directory = format!("{}/", directory.display());
    let is_its = |pid: &i32| {
        fields(*pid).get(2).is_some_and(|number| *number == group.to_string())
            || fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(&directory))
    };
    all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()).filter(is_its).collect()
}

/// When it started, in clock ticks since boot: with the pid it names a process for good.
pub fn started(pid: i32) -> Option<u64> {
    fields(pid).get(19)?.parse().ok()
}

/// Whether the process that started then has ended and been reaped.
pub fn is_gone((pid, since): (i32, Option<u64>)) -> bool {
    started(pid) != since
}

/// Its title, as `ps` shows it.
pub fn title(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
}

/// CPU time that these processes, and children that they have reaped, have used, seconds.
pub fn cpu_seconds(pids: &[i32]) -> f64 {
    let a_second = orbit_linux::stat::ticks_per_second() as f64;
    let ticks =
        |pid: &i32| -> u64 { fields(*pid).iter().skip(11).take(4).filter_map(|ticks| ticks.parse::<u64>().ok()).sum() };
    pids.iter().map(ticks).sum::<u64>() as f64 / a_second
}
