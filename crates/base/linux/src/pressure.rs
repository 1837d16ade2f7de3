//! Pressure stall information: how long tasks waited for memory, CPU or I/O, and a descriptor that
//! reports a stall.

use crate::Support;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Memory: reclaim and pages that come back.
    Memory,
    /// A processor.
    Cpu,
    /// I/O.
    Io,
}

impl Resource {
    /// As the kernel's files are called.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Memory => "memory",
            Resource::Cpu => "cpu",
            Resource::Io => "io",
        }
    }
}

/// The file of a process' control group (version 2), where it has one of its own with such a file;
/// else that of the whole machine.
pub fn file_of(process: i32, resource: Resource) -> PathBuf {
    let machine = Path::new("/proc/pressure").join(resource.name());
    let of_group = || {
        let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
        let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            after.starts_with("cgroup2 ").then(|| before.split(' ').nth(4).map(str::to_owned))?
        })?;
        let file = Path::new(&mount).join(path).join(format!("{}.pressure", resource.name()));
        file.exists().then_some(file)
    };
    of_group().unwrap_or(machine)
}

/// A descriptor with a priority event (`POLLPRI`) whenever tasks stalled for `stall` within
/// `window`, once a window at most.
///
/// # Errors
/// `EINVAL` for a window that is not 500 ms to 10 s, or, without `CAP_SYS_RESOURCE`, no multiple of
/// 2 s; `ENOENT` on kernels without pressure stall information; `EACCES`.
pub fn trigger(file: &Path, stall: Duration, window: Duration) -> io::Result<OwnedFd> {
    let mut opened = OpenOptions::new().read(true).write(true).open(file)?;
    // The kernel wants the final zero.
    let text = format!("some {} {}\0", stall.as_micros(), window.as_micros());
    opened.write_all(text.as_bytes())?;
    Ok(opened.into())
}

/// Time that tasks stalled so far.
///
/// # Errors
/// Those of reading the file; `InvalidData` when it has another form.
pub fn stalled(file: &Path) -> io::Result<Duration> {
    let text = fs::read_to_string(file)?;
    total(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{}: no total", file.display())))
}

/// The total of the line `some`.
fn total(text: &str) -> Option<Duration> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split(' ').find_map(|word| word.strip_prefix("total=")?.parse().ok()).map(Duration::from_micros)
}

/// Whether a trigger can be made here.
pub fn probe() -> Support {
    let file = Path::new("/proc/pressure/memory");
    let tried = trigger(file, Duration::from_secs(2), Duration::from_secs(10));
    Support::from_result("pressure stall triggers", tried, |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_some_is_read() {
        let text = "some avg10=0.00 avg60=0.06 avg300=0.44 total=5946906\nfull avg10=0.00 total=7\n";
        assert_eq!(total(text), Some(Duration::from_micros(5_946_906)));
        assert_eq!(total("full total=7"), None);
    }
}
