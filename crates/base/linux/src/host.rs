//! What the host says about itself in files: user, rights, container, mounts, switches. Read, never
//! written.

use crate::status::Status;
use std::fs;

/// The effective user.
pub fn user() -> u32 {
    // SAFETY: reads a number.
    unsafe { libc::geteuid() }
}

/// The real user and group.
pub fn real_user_and_group() -> (u32, u32) {
    // SAFETY: reads numbers.
    unsafe { (libc::getuid(), libc::getgid()) }
}

/// Whether pages may be swapped out; also where that is not known.
pub fn has_swap() -> bool {
    // SAFETY: an all-zero sysinfo is valid, and the call only writes it.
    unsafe {
        let mut info: libc::sysinfo = std::mem::zeroed();
        libc::sysinfo(&raw mut info) != 0 || info.totalswap != 0
    }
}

/// A file's text without the line end; `None` if it cannot be read.
pub fn text(path: &str) -> Option<String> {
    crate::procfs::text(path).ok().map(|text| text.trim_end().to_owned())
}

/// Whether this process has a capability, by its number in `linux/capability.h`.
pub fn has_capability(number: u32) -> bool {
    Status::own().is_ok_and(|status| status.has_capability(number))
}

/// Whether a seccomp filter holds this process.
pub fn is_filtered() -> bool {
    Status::own().is_ok_and(|status| status.is_filtered())
}

/// The kind of container that this process is in, as far as it shows.
pub fn container() -> Option<String> {
    if fs::exists("/.dockerenv").unwrap_or(false) {
        return Some("docker (/.dockerenv)".to_owned());
    }
    if fs::exists("/run/.containerenv").unwrap_or(false) {
        return Some("podman (/run/.containerenv)".to_owned());
    }
    if let Some(kind) = text("/run/systemd/container").or_else(|| std::env::var("container").ok()) {
        return Some(kind);
    }
    if let Some(groups) = text("/proc/1/cgroup")
        && let Some(kind) = ["docker", "kubepods", "lxc", "containerd"].into_iter().find(|kind| groups.contains(kind))
    {
        return Some(format!("{kind} (/proc/1/cgroup)"));
    }
    let nested = Status::own().is_ok_and(|status| status.nested_pids().len() > 1);
    nested.then(|| "a process namespace of its own".to_owned())
}

/// Options of the mount of `/proc` that hide processes from their neighbours; empty if all is open.
pub fn proc_restrictions() -> Option<Vec<String>> {
    let mounts = text("/proc/self/mountinfo")?;
    // 36 35 98:0 /root /mount-point options ... - type source super-options; the last mount there
    // is the one seen.
    let line = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc"))?;
    let options = line.rsplit(' ').next().unwrap_or("");
    let hides = |option: &&str| {
        (option.starts_with("hidepid=") && !["hidepid=0", "hidepid=off"].contains(option))
            || option.starts_with("subset=")
    };
    Some(options.split(',').filter(hides).map(str::to_owned).collect())
}

/// The choice in brackets of a file as `always [madvise] never`.
pub fn chosen(path: &str) -> Option<String> {
    let text = text(path)?;
    let choice = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))?;
    Some(choice.to_owned())
}
