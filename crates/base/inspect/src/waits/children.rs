//! Children that have exited.

use orbit_linux::procfs;
use orbit_linux::stat::Stat;

/// Children of a process that have exited and were not asked for their status, sorted. None where
/// the kernel lists no thread's children. Blocks for a file for each thread and each child.
pub fn unreaped(pid: i32) -> Vec<i32> {
    let of = |tid: i32| procfs::text(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let lists: Vec<String> = procfs::ids(format!("/proc/{pid}/task")).into_iter().map(of).collect();
    let children = lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|child| child.parse().ok());
    let mut found: Vec<i32> = children.filter(|child| Stat::of(*child).is_ok_and(|stat| stat.state == 'Z')).collect();
    found.sort_unstable();
    found
}
