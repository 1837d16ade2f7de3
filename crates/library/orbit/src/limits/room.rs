//! The room that is left around main: in the control groups it is in, and on the machine.
//!
//! An orbit shares main's groups. When one of them is out of memory, the kernel kills a process of
//! it, and main is usually the largest. So no orbit is let come that far. Each has a limit below
//! the room there is when its process begins; a copy is made only where there is room for it; and
//! where main and its orbits together come close all the same, the orbit that holds the most is
//! ended.

use std::time::Duration;

use orbit_linux::cgroup::Enclosing;
use orbit_linux::{map, procfs};

use super::MIN_MEMORY;
use crate::error::{Error, Kind, Result};

/// What stays free of a group's room beside an orbit at its limit: a quarter, at least this.
const MIN_RESERVE: u64 = 4 << 20;
/// Copies smaller than this are made without a question.
const MIN_CHECKED: u64 = 1 << 20;
/// From here on the machine's memory is asked for as well: that takes the kernel 50 us.
const MIN_CHECKED_ON_MACHINE: u64 = 64 << 20;
/// With less than this left in a group, the largest orbit is ended.
pub(crate) const LEAST_LEFT: u64 = 3 << 20;
/// Bytes that a task may fill in a nanosecond, at most: how soon to check again.
const FILLED_IN_NS: u64 = 4;
/// Shortest time between two checks.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(4);
/// Longest time between two checks while a task runs.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The control groups around main that have a limit. They are found once, when the library is set
/// up: no thread of the library's opens files later that main, closing all it has, would take for
/// its own. How much a group allows is read whenever it matters.
pub(crate) struct Room(Vec<Enclosing>);

impl Room {
    pub fn new() -> Room {
        Room(Enclosing::all())
    }

    /// Bytes left in the group that has the least; `None` where no group has a limit.
    pub fn left(&self) -> Option<u64> {
        self.0.iter().filter_map(Enclosing::room).min()
    }

    /// An error if a copy of so many bytes, of what `what` says, might bring the kernel to kill
    /// main for want of memory.
    pub fn check(&self, bytes: u64, what: impl Fn() -> String) -> Result<()> {
        if bytes < MIN_CHECKED {
            return Ok(());
        }
        let refuse = |left: u64, whose: &str| {
            let what = what();
            let why = format!(
                "{what} takes up to {bytes} bytes, and {whose} has {left} left: the kernel might kill this program; \
                 allow it more memory, or use smaller areas"
            );
            Err(Error::new(Kind::Limit, why))
        };
        if let Some(left) = self.left().filter(|left| left.saturating_sub(reserve(*left)) < bytes) {
            return refuse(left, "its control group");
        }
        if bytes >= MIN_CHECKED_ON_MACHINE
            && let Some(left) = left_on_machine().filter(|left| left.saturating_sub(reserve(*left)) < bytes)
        {
            return refuse(left, "the machine");
        }
        Ok(())
    }
}

/// How soon to check again where so many bytes are left.
pub(crate) fn check_again_after(left: u64) -> Duration {
    Duration::from_nanos(left / FILLED_IN_NS).clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)
}

/// The limit of an orbit where a group has so many bytes left.
pub(super) fn below(left: u64) -> u64 {
    left.saturating_sub(reserve(left)).max(MIN_MEMORY)
}

fn reserve(left: u64) -> u64 {
    (left / 4).max(MIN_RESERVE)
}

/// The limit of a process that works for a moment beside orbits at theirs: half of that.
pub(super) fn beside(left: u64) -> u64 {
    left / 8
}

/// Memory of the machine that can be used without swapping.
fn left_on_machine() -> Option<u64> {
    let text = procfs::text("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Bytes of memory that are a process' own; 0 if that cannot be read.
pub(crate) fn own_memory_of(pid: i32) -> u64 {
    let text = procfs::text(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = text.split(' ').skip(1).filter_map(|pages| pages.parse::<u64>().ok());
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * map::page_size() as u64
}
