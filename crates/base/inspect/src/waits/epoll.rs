//! What an epoll instance watches, and input for which it does not fire.

use super::Wait;
use crate::procfs;
use orbit_linux::descriptors::cached;
use orbit_linux::{pidfd, poll};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Descriptors of one instance that are asked for input.
pub const MAX_DESCRIPTORS_ASKED: usize = 64;
/// Bytes of what the kernel says of an instance.
const MAX_TEXT: u64 = 64 << 20;

/// A descriptor that an instance watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    fd: i32,
    events: u32,
    ino: u64,
}

impl Target {
    /// Whether input may lie there without that it fires: it fires once for what comes, or once
    /// until it is armed again.
    fn may_keep_silent(&self) -> bool {
        let reads = self.events & libc::EPOLLIN as u32 != 0;
        let once = self.events & libc::EPOLLONESHOT as u32 != 0;
        reads && self.events & libc::EPOLLET as u32 != 0 || once && !reads
    }
}

/// The wait of a thread for an instance.
pub(super) fn wait(pid: i32, tid: i32, fd: i32, timed: bool) -> Wait {
    let text = procfs::text(&format!("/proc/{pid}/task/{tid}/fdinfo/{fd}"), MAX_TEXT).unwrap_or_default();
    let fds = text.lines().filter(|line| line.starts_with("tfd:")).count();
    Wait::Epoll { fds, timed, unread: unread(pid, tid, &targets(&text)) }
}

fn targets(text: &str) -> Vec<Target> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let fd = words.next()?.parse().ok()?;
        let rest: Vec<&str> = words.collect();
        let after = |name: &str| rest.iter().position(|word| *word == name).and_then(|at| rest.get(at + 1).copied());
        let events = u32::from_str_radix(after("events:")?, 16).ok()?;
        let ino = rest.iter().find_map(|word| u64::from_str_radix(word.strip_prefix("ino:")?, 16).ok())?;
        Some(Target { fd, events, ino })
    };
    text.lines().filter_map(line).collect()
}

/// Of the descriptors that may keep silent those that have input.
fn unread(pid: i32, tid: i32, all: &[Target]) -> Vec<i32> {
    let silent: Vec<&Target> =
        all.iter().filter(|target| target.may_keep_silent()).take(MAX_DESCRIPTORS_ASKED).collect();
    let Some(process) = (!silent.is_empty()).then(|| pidfd::open(pid).ok()).flatten() else { return Vec::new() };
    let has_input = |target: &&&Target| {
        // The number may be another file's by now.
        let is_same =
            cached(&format!("/proc/{pid}/task/{tid}/fd/{}", target.fd)).is_some_and(|f| f.stx_ino == target.ino);
        let Some(copy) = is_same.then(|| pidfd::duplicate(process.as_fd(), target.fd).ok()).flatten() else {
            return false;
        };
        let mut polled = [libc::pollfd { fd: copy.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        poll::poll(&mut polled, Some(Duration::ZERO)).is_ok_and(|n| n > 0) && polled[0].revents & libc::POLLIN != 0
    };
    silent.iter().filter(has_input).map(|target| target.fd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_keep_silent() {
        let text = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\n\
                    tfd:        5 events: 80000001 data:                5  pos:0 ino:4e2 sdev:9\n\
                    tfd:        6 events:       19 data:                6  pos:0 ino:4e3 sdev:9\n\
                    tfd:        7 events: 40000000 data:                7  pos:0 ino:4e4 sdev:9\n\
                    tfd: rubbish\n";
        let all = targets(text);
        assert_eq!(all[0], Target { fd: 5, events: 0x8000_0001, ino: 0x4e2 });
        let silent: Vec<bool> = all.iter().map(Target::may_keep_silent).collect();
        assert_eq!(silent, [true, false, true]);
    }
}
