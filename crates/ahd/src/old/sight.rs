//! Whether somebody may hold a descriptor where nobody looks.
//!
//! Owns: the doubt about "no other process holds this". A descriptor that is sent over a unix socket (`SCM_RIGHTS`) is held by the socket's queue
//! until it is received, and those of some processes may not be seen. Promises: reads `/proc` only; takes some microseconds
//! a descriptor of the machine, so it is for the last question before a verdict. Refuses: to say which file is on its way; the kernel tells
//! only how many are.

use crate::old::proc::Dir;
use orbit_inspect::Family;
use orbit_linux::procfs::in_first_pid_namespace;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;

/// How far "nobody else holds it" can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sight {
    /// A descriptor is on its way in a socket, or those of a relative of the process cannot be seen: the one in question may be there.
    Doubtful,
    /// Processes that have nothing to do with this one cannot be seen: it would have to be sent to them.
    Strangers,
    /// All descriptors of all processes were seen, and none is on its way.
    Whole,
}

/// What was seen of a process' descriptors.
enum Seen {
    /// All; none is on its way in its sockets.
    All,
    /// One is on its way.
    Sent,
    /// They may not be seen.
    Hidden,
}

/// Looks at the descriptors of all processes, for the sake of these.
pub(crate) fn sight(of: &[i32]) -> Sight {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids: BTreeSet<i32> = names.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    let mut hidden = Vec::new();
    for &p in &pids {
        match seen(p) {
            Seen::All => {}
            Seen::Sent => return Sight::Doubtful,
            Seen::Hidden => hidden.push(p),
        }
    }
    // Those of the namespaces around its own are not to be seen.
    if hidden.is_empty() && in_first_pid_namespace() {
        return Sight::Whole;
    }
    let family = Family::of(pids);
    if hidden.iter().any(|&p| of.iter().any(|&pid| family.related(p, pid))) {
        Sight::Doubtful
    } else {
        Sight::Strangers
    }
}

fn seen(pid: i32) -> Seen {
    // The directory of a process whose first thread has ended tells nothing, and is nobody's.
    let Some(tid) = Dir::open(pid).ok().and_then(|d| {
        let living = |&t: &i32| d.status(t).is_some_and(|s| !matches!(s.state, b'Z' | b'X'));
        d.tids().ok()?.into_iter().find(living)
    }) else {
        return Seen::All;
    };
    let dir = format!("/proc/{pid}/task/{tid}");
    let fds = match fs::read_dir(format!("{dir}/fd")) {
        Ok(fds) => fds,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => return Seen::Hidden,
        Err(_) => return Seen::All,
    };
    let mut all = Seen::All;
    for fd in fds.flatten() {
        match fs::read_link(fd.path()) {
            Ok(to) if to.to_string_lossy().starts_with("socket:") => {}
            // It may have files registered there that are no descriptors any more, and calls that go on while its threads sleep.
            Ok(to) if to.as_os_str() == "anon_inode:[io_uring]" => {
                all = Seen::Hidden;
                continue;
            }
            Err(e) if e.kind() == ErrorKind::PermissionDenied => return Seen::Hidden,
            _ => continue,
        }
        let name = fd.file_name();
        if fs::read_to_string(format!("{dir}/fdinfo/{}", name.to_string_lossy())).is_ok_and(|t| on_their_way(&t) > 0) {
            return Seen::Sent;
        }
    }
    all
}

/// Descriptors that wait in a unix socket to be received, from its `fdinfo`.
fn on_their_way(fdinfo: &str) -> u64 {
    fdinfo.lines().find_map(|l| l.strip_prefix("scm_fds:")?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_socket() {
        assert_eq!(on_their_way("pos:\t0\nflags:\t02\nscm_fds: 3\n"), 3);
        assert_eq!(on_their_way("pos:\t0\nscm_fds: 0\n"), 0);
        assert_eq!(on_their_way("pos:\t0\n"), 0, "no unix socket");
    }
}
