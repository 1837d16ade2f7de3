//! The weight of a process and the most CPU time that it may use, by the files of its control
//! group: version 2, or the cpu controller of version 1. A user may set them where the group was
//! delegated, without any privilege.
//!
//! They are about all processes of the group. The root group has neither. Where there is no group
//! that may be written, a weight becomes the niceness of the process's main thread that has the
//! nearest one; a maximum is rejected.

use crate::sys::{self, Text};

/// `-EOPNOTSUPP`: the process has no control group that limits it.
const NO_GROUP: i64 = -95;
/// `-EACCES`, `-EPERM`, `-EROFS`: the group's files are not this user's.
const NOT_OURS: [i64; 3] = [-13, -1, -30];

/// The weight of each niceness from -20 to 19, as the kernel has it; from 12 on up to two more, so
/// that no two have the same and each can be put back.
const WEIGHTS: [i64; 40] = [
    8674, 6939, 5551, 4441, 3553, 2842, 2274, 1819, 1455, 1164, 931, 745, 596, 477, 381, 305, 244, 195, 156, 125, 100,
    80, 64, 51, 41, 33, 26, 21, 17, 13, 11, 9, 8, 7, 6, 5, 4, 3, 2, 1,
];

/// Where the files of a process's group are, and of which version they are.
struct Group {
    folder: Text,
    is_first: bool,
}

impl Group {
    /// `-ESRCH`; `-EOPNOTSUPP` where there is none but the root group.
    fn of(process: i32) -> Result<Group, i64> {
        let text = sys::contents(&sys::of_process(process, b"cgroup"))?;
        find(text.bytes()).ok_or(NO_GROUP)
    }

    fn file(&self, second: &[u8], first: &[u8]) -> Text {
        let mut path = self.folder;
        path.push(b"/");
        path.push(if self.is_first { first } else { second });
        path
    }
}

/// The group that limits CPU time, from the lines of `/proc/PID/cgroup`.
fn find(lines: &[u8]) -> Option<Group> {
    for line in lines.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let is_first = controllers.split(|byte| *byte == b',').any(|name| name == b"cpu");
        if !is_first && (number != b"0" || !controllers.is_empty()) || path == b"/" {
            continue;
        }
        let mut folder = Text::default();
        folder.push(if is_first { b"/sys/fs/cgroup/cpu" } else { b"/sys/fs/cgroup" });
        folder.push(path);
        let group = Group { folder, is_first };
        // The second version's line is there without its controllers too.
        if sys::exists(&group.file(b"cpu.weight", b"cpu.shares")) {
            return Some(group);
        }
    }
    None
}

/// Weight of a process: 1 to 10,000; 100 is usual.
///
/// # Errors
/// `-errno`: `-ESRCH` when it is gone.
pub fn weight(process: i32) -> Result<i64, i64> {
    match Group::of(process) {
        Ok(group) => {
            let weight = number(sys::contents(&group.file(b"cpu.weight", b"cpu.shares"))?.bytes());
            // A thousand and twenty-four shares are a weight of 100.
            Ok(if group.is_first { (weight * 100 / 1024).clamp(1, 10_000) } else { weight })
        }
        Err(NO_GROUP) => weight_of_nice(process),
        Err(error) => Err(error),
    }
}

fn weight_of_nice(process: i32) -> Result<i64, i64> {
    let nice = sys::nice(process).map_err(|error| error as i64)?;
    Ok(WEIGHTS.get((nice + 20) as usize).copied().unwrap_or(100))
}

/// Sets it.
///
/// # Errors
/// `-errno`: `-ESRCH` when it is gone.
pub fn set_weight(process: i32, weight: i64) -> Result<(), i64> {
    let weight = weight.clamp(1, 10_000);
    let written = Group::of(process).and_then(|group| {
        let value = if group.is_first { (weight * 1024 / 100).max(2) } else { weight };
        sys::write_text(&group.file(b"cpu.weight", b"cpu.shares"), &decimal(value, b""))
    });
    match written {
        Err(error) if error == NO_GROUP || NOT_OURS.contains(&error) => {
            let nearest = WEIGHTS.iter().enumerate().min_by_key(|(_, of_nice)| (**of_nice - weight).abs());
            let nice = nearest.map_or(0, |(nth, _)| nth as i32 - 20);
            let answer = sys::set_nice(process, nice);
            if answer < 0 { Err(answer as i64) } else { Ok(()) }
        }
        other => other,
    }
}

/// The most CPU time of a process, percent of one CPU; 0: as much as there is.
///
/// # Errors
/// `-errno`: `-ESRCH` when it is gone, `-EOPNOTSUPP` where no control group limits it.
pub fn max(process: i32) -> Result<i64, i64> {
    let group = Group::of(process)?;
    let text = sys::contents(&group.file(b"cpu.max", b"cpu.cfs_quota_us"))?;
    let is_unlimited = text.bytes().starts_with(b"max") || text.bytes().starts_with(b"-1");
    if is_unlimited {
        return Ok(0);
    }
    let period = if group.is_first {
        number(sys::contents(&group.file(b"", b"cpu.cfs_period_us"))?.bytes())
    } else {
        text.bytes().split(|byte| *byte == b' ').nth(1).map_or(100_000, number)
    };
    Ok((number(text.bytes()) * 100 / period.max(1)).max(1))
}

/// Sets it: within periods of 100 ms.
///
/// # Errors
/// `-errno`: `-ESRCH` when it is gone, `-EOPNOTSUPP` where no control group limits it, `-EACCES`
/// where this user may not.
pub fn set_max(process: i32, percent: i64) -> Result<(), i64> {
    let group = Group::of(process)?;
    let quota = percent.clamp(0, 1_000_000) * 1000;
    if group.is_first {
        sys::write_text(&group.file(b"", b"cpu.cfs_period_us"), &decimal(100_000, b""))?;
        let mut unlimited = Text::default();
        unlimited.push(b"-1");
        let text = if quota == 0 { unlimited } else { decimal(quota, b"") };
        return sys::write_text(&group.file(b"", b"cpu.cfs_quota_us"), &text);
    }
    let mut text = Text::default();
    if quota == 0 {
        text.push(b"max 100000");
    } else {
        text = decimal(quota, b" 100000");
    }
    sys::write_text(&group.file(b"cpu.max", b""), &text)
}

/// Whether a weight of this process would be set by its control group, and not by its niceness.
pub fn has_group(process: i32) -> bool {
    Group::of(process).is_ok_and(|group| sys::is_writable(&group.file(b"cpu.weight", b"cpu.shares")))
}

/// The number that a text begins with.
fn number(text: &[u8]) -> i64 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0i64, |sum, digit| sum.wrapping_mul(10).wrapping_add(i64::from(*digit - b'0')))
}

/// A number of at least 0 in decimal, and what follows it.
fn decimal(number: i64, rest: &[u8]) -> Text {
    let mut digits = [0u8; 20];
    let (mut left, mut n) = (number.unsigned_abs(), 0);
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
        n += 1;
        if left == 0 {
            break;
        }
    }
    let mut text = Text::default();
    for digit in digits.iter().skip(20 - n) {
        text.push(core::slice::from_ref(digit));
    }
    text.push(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::{decimal, find, number, set_weight, weight, weight_of_nice};

    #[test]
    fn numbers_are_written_and_read() {
        for n in [0, 7, 10, 1024, i64::MAX] {
            assert_eq!(number(decimal(n, b" 100000").bytes()), n);
        }
        assert_eq!(decimal(50_000, b" 100000").bytes(), b"50000 100000");
    }

    #[test]
    fn the_root_group_and_broken_lines_are_no_group() {
        for lines in [&b"0::/"[..], b"1:cpu:/\n0::/", b"", b"::::", b"1:cpu", b"0::/nowhere/at/all", b"2:cpuset:/x"] {
            assert!(find(lines).is_none(), "{lines:?}");
        }
    }

    #[test]
    fn without_a_group_a_weight_is_a_niceness() {
        let me = crate::sys::process();
        if super::Group::of(me).is_ok() {
            // The test of the manager covers such a process.
            return;
        }
        assert_eq!(weight(me), weight_of_nice(me));
        let before = weight(me).expect("own weight");
        // One may always be nicer: another weight of the table.
        set_weight(me, before * 8 / 10).expect("a lower weight");
        assert!(weight(me).expect("own weight") < before);
        assert_eq!(weight(i32::MAX), Err(-3));
    }
}
