//! What the kernel says of a process or thread in lines: `/proc/PID/status`.
//!
//! Every field is optional: kernels lack some, and a process that ends meanwhile loses most.
//! Parsing never panics, whatever the text.

use crate::procfs;
use std::io;

/// The text of such a file, and its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status(String);

impl Status {
    /// Reads that of a process, or of a thread by its own number.
    ///
    /// # Errors
    /// `ENOENT`, or `ESRCH` when it ends meanwhile, if there is none.
    pub fn of(pid: i32) -> io::Result<Status> {
        procfs::text(format!("/proc/{pid}/status")).map(Status)
    }

    /// Reads that of a thread of a process.
    ///
    /// # Errors
    /// `ENOENT`, or `ESRCH` when it ends meanwhile, if there is none.
    pub fn of_thread(pid: i32, tid: i32) -> io::Result<Status> {
        procfs::record(format!("/proc/{pid}/task/{tid}/status")).map(Status)
    }

    /// Reads that of the calling process, by the calling thread (see [`procfs::own`]).
    ///
    /// # Errors
    /// `ENOENT` where `/proc` is not mounted.
    pub fn own() -> io::Result<Status> {
        procfs::own_text("status").map(Status)
    }

    /// Takes the text of such a file.
    pub fn parse(text: impl Into<String>) -> Status {
        Status(text.into())
    }

    /// What stands after `name:`, without spaces around it. The first line of that name counts.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.field(name)?.split_ascii_whitespace().next()?.parse().ok()
    }

    fn bits(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.field(name)?, 16).ok()
    }

    /// The thread's name, escaped as the kernel does; empty if there is none.
    pub fn name(&self) -> &str {
        self.field("Name").unwrap_or_default()
    }

    /// Whether the thread has ended, or the text is none of a living thread.
    pub fn has_ended(&self) -> bool {
        matches!(self.state(), None | Some('Z' | 'X'))
    }

    /// The thread's id in its own pid namespace.
    pub fn innermost_id(&self) -> Option<i32> {
        self.field("NSpid")?.split_ascii_whitespace().next_back()?.parse().ok()
    }

    /// The scheduler's letter.
    pub fn state(&self) -> Option<char> {
        self.field("State")?.chars().next()
    }

    /// The process that the thread belongs to.
    pub fn process(&self) -> Option<i32> {
        self.number("Tgid")
    }

    /// The parent process; 0 if that is outside of the reader's pid namespace.
    pub fn parent(&self) -> Option<i32> {
        self.number("PPid")
    }

    /// The thread that traces it; 0 if none does, or it cannot be seen from here.
    pub fn tracer(&self) -> Option<i32> {
        self.number("TracerPid")
    }

    /// Whether another thread traces it, as a debugger does.
    pub fn is_traced(&self) -> bool {
        self.tracer().is_some_and(|tracer| tracer != 0)
    }

    /// The effective user.
    pub fn effective_user(&self) -> Option<u32> {
        self.field("Uid")?.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    /// The numbers of the process, from the reader's pid namespace to its own.
    pub fn nested_pids(&self) -> Vec<u32> {
        let numbers = self.field("NSpid").unwrap_or_default().split_ascii_whitespace();
        numbers.map_while(|number| number.parse().ok()).collect()
    }

    /// Threads of the process.
    pub fn threads(&self) -> Option<usize> {
        self.number("Threads")
    }

    /// Resident anonymous memory, bytes.
    pub fn resident_anonymous(&self) -> Option<u64> {
        self.number::<u64>("RssAnon").map(|kib| kib.saturating_mul(1024))
    }

    /// Signals that wait for the thread, or for the process: bit n-1 for signal n.
    pub fn pending_signals(&self) -> u64 {
        self.bits("SigPnd").unwrap_or(0) | self.bits("ShdPnd").unwrap_or(0)
    }

    /// Signals that the thread blocks.
    pub fn blocked_signals(&self) -> Option<u64> {
        self.bits("SigBlk")
    }

    /// Signals that the process ignores.
    pub fn ignored_signals(&self) -> Option<u64> {
        self.bits("SigIgn")
    }

    /// Signals that the process has a handler for.
    pub fn caught_signals(&self) -> Option<u64> {
        self.bits("SigCgt")
    }

    /// Whether the thread has this capability in force, by its number in `linux/capability.h`.
    pub fn has_capability(&self, number: u32) -> bool {
        self.bits("CapEff").is_some_and(|set| set >> number.min(63) & 1 == 1)
    }

    /// Whether a seccomp filter, or strict mode, is in force.
    pub fn is_filtered(&self) -> bool {
        self.field("Seccomp").is_some_and(|mode| mode != "0")
    }

    /// How often the thread gave its CPU up by itself.
    pub fn voluntary_switches(&self) -> Option<u64> {
        self.number("voluntary_ctxt_switches")
    }

    /// How often the thread was taken off its CPU.
    pub fn involuntary_switches(&self) -> Option<u64> {
        self.number("nonvoluntary_ctxt_switches")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Name:\ta State: b\nState:\tS (sleeping)\nTgid:\t7\nPid:\t9\nPPid:\t1\n\
        TracerPid:\t3\nUid:\t1\t2\t3\t4\n\
        NSpid:\t900\t9\nRssAnon:\t     128 kB\nThreads:\t2\nSigPnd:\t0000000000000001\nShdPnd:\t0000000000000100\n\
        SigBlk:\t0000000000010000\nSigIgn:\t0000000000001000\nSigCgt:\t0000000180000002\nCapEff:\t0000000000200000\n\
        Seccomp:\t2\n\
        voluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t3\n";

    #[test]
    fn fields_are_what_they_say() {
        let status = Status::parse(TEXT);
        assert_eq!(
            (status.state(), status.process(), status.parent(), status.tracer()),
            (Some('S'), Some(7), Some(1), Some(3))
        );
        assert_eq!((status.effective_user(), status.nested_pids(), status.threads()), (Some(2), vec![900, 9], Some(2)));
        assert_eq!((status.resident_anonymous(), status.voluntary_switches()), (Some(128 << 10), Some(150)));
        assert_eq!((status.name(), status.innermost_id(), status.has_ended()), ("a State: b", Some(9), false));
        assert_eq!(status.involuntary_switches(), Some(3));
        assert_eq!((status.pending_signals(), status.blocked_signals()), (0x101, Some(0x10000)));
        assert_eq!((status.ignored_signals(), status.caught_signals()), (Some(0x1000), Some(0x1_8000_0002)));
        assert!(status.has_capability(21) && !status.has_capability(38) && status.is_filtered());
    }

    #[test]
    fn what_is_not_there_is_none() {
        for text in ["", "State", "State:", "Tgid:\tx\nTracerPid:\nCapEff:\tz\nUid:\t1"] {
            let status = Status::parse(text);
            assert_eq!(
                (status.state(), status.process(), status.tracer(), status.effective_user()),
                (None, None, None, None)
            );
            assert!(!status.has_capability(21) && !status.is_filtered() && status.nested_pids().is_empty(), "{text:?}");
            assert!(status.has_ended() && status.name().is_empty() && status.innermost_id().is_none(), "{text:?}");
        }
        assert!(Status::of(i32::MAX).is_err());
        assert_eq!(Status::own().expect("/proc").process(), Some(std::process::id() as i32));
    }
}
