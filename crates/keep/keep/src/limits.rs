//! What of a program is not rolled back, in sentences that are said when it begins to be kept.

use orbit_linux::maps::Entry;
use orbit_linux::procfs;
use orbit_linux::trial;

/// What is checked: see [`sentences`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// What its descriptors are, as `/proc/PID/fd` has it.
    pub descriptors: Vec<String>,
    pub mappings: Vec<Entry>,
    /// Its text of `/proc/PID/status`.
    pub status: String,
    /// POSIX timers that it has.
    pub timers: usize,
    /// Whether it has used System V message queues, or its user has System V semaphores.
    pub has_system_v: bool,
    /// Whether its calls are logged.
    pub has_log: bool,
}

impl Facts {
    /// Of a process.
    pub fn of(pid: i32, mappings: Vec<Entry>, has_log: bool) -> Facts {
        let text = |file: &str| procfs::text(format!("/proc/{pid}/{file}")).unwrap_or_default();
        Facts {
            descriptors: procfs::descriptors(pid).into_iter().map(|(_, what)| what).collect(),
            mappings,
            status: text("status"),
            timers: text("timers").lines().filter(|line| line.starts_with("ID:")).count(),
            has_system_v: uses_system_v(pid, &text("status")),
            has_log,
        }
    }
}

/// Whether a seccomp filter on the keeper, which the program inherits, leaves it what it needs; the
/// error says what is to be allowed.
pub(crate) fn forbidden_here() -> Result<(), String> {
    const NEEDED: [(i64, &str); 4] = [
        (libc::SYS_ptrace, "ptrace"),
        (libc::SYS_process_vm_readv, "process_vm_readv"),
        (libc::SYS_process_vm_writev, "process_vm_writev"),
        (libc::SYS_pidfd_open, "pidfd_open"),
    ];
    if !trial::is_filtered() {
        return Ok(());
    }
    let lacking = NEEDED.iter().filter(|(number, _)| !trial::passes(*number, [u64::MAX; 6]));
    let names: Vec<&str> = lacking.map(|(_, name)| *name).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(format!(
        "a seccomp filter forbids {}: no program can be kept under it; allow these calls (Docker: --security-opt \
         seccomp=PROFILE, systemd: SystemCallFilter=)",
        names.join(", ")
    ))
}

/// Signals for which the process has a handler, bit 0 for signal 1.
pub(crate) fn caught_signals(pid: i32) -> u64 {
    let status = procfs::text(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    // Of a process that is gone nothing is known.
    caught.unwrap_or(u64::MAX)
}

/// Message queues name the last process that sent or received; of semaphores only the owner is
/// known.
fn uses_system_v(pid: i32, status: &str) -> bool {
    let rows = |kind: &str| {
        let text = procfs::text(format!("/proc/{pid}/root/proc/sysvipc/{kind}")).unwrap_or_default();
        text.lines()
            .skip(1)
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect::<Vec<Vec<String>>>()
    };
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1)).unwrap_or_default();
    let pid = pid.to_string();
    // key msqid perms cbytes qnum lspid lrpid …; key semid perms nsems uid …
    rows("msg").iter().any(|row| row.get(5) == Some(&pid) || row.get(6) == Some(&pid))
        || rows("sem").iter().any(|row| row.get(4).is_some_and(|owner| owner == user))
}

/// One sentence for each kind of thing that a rollback does not bring back.
pub(crate) fn sentences(facts: &Facts) -> Vec<String> {
    let mut out = Vec::new();
    let count = |what: &str| facts.descriptors.iter().filter(|d| d.starts_with(what)).count();
    let shared: Vec<&str> = facts
        .mappings
        .iter()
        .filter(|e| e.shared && e.protection & libc::PROT_WRITE != 0 && !e.name.starts_with("/memfd:orbit-keep"))
        .map(|e| if e.name.is_empty() { "anonymous" } else { e.name.as_str() })
        .collect();
    if let Some(first) = shared.first() {
        let more = if shared.len() > 1 { format!(" and {} more", shared.len() - 1) } else { String::new() };
        out.push(format!("its shared memory ({first}{more}) is not rolled back"));
    }
    if count("anon_inode:[io_uring]") > 0 {
        out.push("it uses io_uring: what goes through a ring is neither logged nor rolled back".into());
    }
    if count("anon_inode:[userfaultfd]") > 0 {
        out.push("it has a userfaultfd of its own: memory that it has registered there cannot be tracked".into());
    }
    if facts.status.lines().any(|line| line.starts_with("Seccomp:") && line.trim_end().ends_with('2')) {
        out.push("it has a seccomp filter: a filter that denies the keeper's calls in it ends recovery".into());
    }
    if facts.timers > 0 && facts.has_log {
        out.push(format!(
            "its {} POSIX timers are not rolled back: one that has fired does not fire again",
            facts.timers
        ));
    }
    if facts.has_system_v {
        out.push("System V semaphores and message queues of its user are not rolled back".into());
    }
    if facts.has_log {
        let threads = facts.status.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse::<u32>().ok());
        if let Some(others) = threads.map(|all| all.saturating_sub(1)).filter(|others| *others > 0) {
            out.push(format!(
                "only the calls of its first thread are logged, not those of {others} others: once one of these has \
                 read what a client sent, a crash ends it"
            ));
        }
        return out;
    }
    let sockets = count("socket:");
    if sockets > 0 {
        out.push(format!(
            "it has {sockets} sockets, which are not rolled back: what it has read from them is not \
            read again without --log"
        ));
    }
    let pipes = count("pipe:");
    // Its standard streams may be pipes: more than three are its own.
    if pipes > 3 {
        out.push(format!(
            "it has {pipes} ends of pipes: what it has read from another process is not read again (pipes of its own \
             are rolled back)"
        ));
    }
    let queues = facts.descriptors.iter().filter(|d| d.starts_with("/dev/mqueue/")).count();
    if queues > 0 {
        out.push(format!("its {queues} message queues are not rolled back"));
    }
    let kinds = ["inotify", "fanotify", "perf_event", "bpf"];
    for kind in kinds {
        let n = facts.descriptors.iter().filter(|d| d.starts_with("anon_inode:") && d.contains(kind)).count();
        if n > 0 {
            out.push(format!("the state of its {n} {kind} descriptors is not rolled back"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(descriptors: &[&str]) -> Facts {
        Facts { descriptors: descriptors.iter().map(|d| (*d).to_owned()).collect(), ..Facts::default() }
    }

    #[test]
    fn a_plain_program_needs_no_sentence() {
        assert!(sentences(&facts(&["/dev/null", "/tmp/x", "pipe:[1]"])).is_empty());
    }

    #[test]
    fn each_kind_has_a_sentence() {
        let all = ["anon_inode:[io_uring]", "anon_inode:[userfaultfd]", "socket:[7]", "anon_inode:inotify"];
        let mut facts = facts(&all);
        facts.status = "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n".into();
        facts.timers = 2;
        let shared = Entry {
            start: 0,
            end: 4096,
            protection: libc::PROT_WRITE,
            shared: true,
            offset: 0,
            inode: 5,
            name: "/dev/shm/x".into(),
        };
        facts.mappings = vec![shared];
        let text = sentences(&facts).join("\n");
        for word in ["io_uring", "userfaultfd of its own", "1 sockets", "inotify", "seccomp", "/dev/shm/x"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!text.contains("timers"), "they are rolled back");
        facts.has_log = true;
        assert!(sentences(&facts).join("\n").contains("2 POSIX timers"), "a log does not bring them back");
        assert!(!sentences(&facts).join("\n").contains("sockets"), "with a log input is fed again");
        facts.status = "Name:\tx\nThreads:\t5\n".into();
        assert!(sentences(&facts).join("\n").contains("of 4 others"), "they are not logged");
    }
}
