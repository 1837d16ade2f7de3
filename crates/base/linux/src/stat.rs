//! What the kernel says of a process or thread in one line: `/proc/PID/stat`.
//!
//! The name in it may hold any byte, brackets and line ends too: fields are counted after its last
//! bracket. Parsing never panics, whatever the text.

use crate::procfs;
use std::io;
use std::ops::Range;

/// Flag of a process that is exiting (`PF_EXITING`).
const EXITING: u64 = 4;
/// Flag of a thread of the kernel (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x20_0000;

/// The fields that this project uses, by the numbers of `proc_pid_stat(5)`. Addresses are 0 where
/// the reader has no right to trace the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The thread's name, at most 15 bytes of it (2).
    pub name: String,
    /// The scheduler's letter: `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I` (3).
    pub state: char,
    /// The parent process (4).
    pub parent: i32,
    /// The process group (5).
    pub group: i32,
    /// The session (6).
    pub session: i32,
    /// `PF_*` (9).
    pub flags: u64,
    /// CPU time in user mode, clock ticks (14).
    pub user_ticks: u64,
    /// CPU time in the kernel, clock ticks (15).
    pub system_ticks: u64,
    /// When it was started, clock ticks since the machine's start: distinguishes it from a later
    /// process of the same number (22).
    pub started_ticks: u64,
    /// Where its code is (26, 27).
    pub code: Range<u64>,
    /// Where its stack begins (28).
    pub stack: u64,
    /// Where its arguments are (48, 49).
    pub arguments: Range<u64>,
    /// Where its environment begins (50).
    pub environment: u64,
}

impl Stat {
    /// Reads that of a process: its first thread's state and name, the times of all its threads.
    ///
    /// # Errors
    /// `ENOENT`, or `ESRCH` when it ends meanwhile, if there is none; `InvalidData` for a text that
    /// is not understood.
    pub fn of(pid: i32) -> io::Result<Stat> {
        read(&format!("/proc/{pid}/stat"))
    }

    /// Reads that of a thread.
    ///
    /// # Errors
    /// As [`Stat::of`].
    pub fn of_thread(pid: i32, tid: i32) -> io::Result<Stat> {
        read(&format!("/proc/{pid}/task/{tid}/stat"))
    }

    /// Reads that of the calling thread, which has the process' parent and addresses; where that is
    /// not available, the process'.
    ///
    /// # Errors
    /// As [`Stat::of`].
    pub fn own() -> io::Result<Stat> {
        procfs::own("stat", read)
    }

    /// Parses such a line; `None` if it is none.
    pub fn parse(text: &str) -> Option<Stat> {
        let (before, after) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let signed = |number: usize| fields.get(number - 3)?.parse::<i32>().ok();
        Some(Stat {
            name: before.split_once('(')?.1.to_owned(),
            state: fields.first()?.chars().next()?,
            parent: signed(4)?,
            group: signed(5)?,
            session: signed(6)?,
            flags: field(9)?,
            user_ticks: field(14)?,
            system_ticks: field(15)?,
            started_ticks: field(22)?,
            code: field(26)?..field(27)?,
            stack: field(28)?,
            arguments: field(48)?..field(49)?,
            environment: field(50)?,
        })
    }

    /// Whether it has ended and only waits to be reaped, or is gone.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether it runs nothing of its program any more.
    pub fn is_exiting(&self) -> bool {
        self.flags & EXITING != 0
    }

    /// Whether it is a thread of the kernel, which has no program.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }

    /// CPU time in user mode and in the kernel, ns. Counted in clock ticks, so a multiple of 10 ms
    /// on most machines.
    pub fn cpu_ns(&self) -> u64 {
        (self.user_ticks + self.system_ticks).saturating_mul(1_000_000_000 / ticks_per_second())
    }
}

/// Clock ticks a second, 1 at least.
pub fn ticks_per_second() -> u64 {
    // SAFETY: asks for a number.
    (unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).max(1) as u64
}

fn read(path: &str) -> io::Result<Stat> {
    Stat::parse(&procfs::text(path)?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{path} is no line of a stat file")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_any_characters() {
        let rest: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let stat = Stat::parse(&format!("7 (a) R 1 (b\n) S {}\n", rest.join(" "))).expect("a line");
        let expected = Stat {
            name: "a) R 1 (b\n".to_owned(),
            state: 'S',
            parent: 4,
            group: 5,
            session: 6,
            flags: 9,
            user_ticks: 14,
            system_ticks: 15,
            started_ticks: 22,
            code: 26..27,
            stack: 28,
            arguments: 48..49,
            environment: 50,
        };
        assert_eq!(stat, expected);
    }

    #[test]
    fn what_is_no_such_line_is_none() {
        for text in ["", ")", "7 (a)", "7 (a) S 1 2", "7 (a) S x y z"] {
            assert_eq!(Stat::parse(text), None, "{text:?}");
        }
        assert_eq!(Stat::of(i32::MAX).map_err(|e| e.kind()), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn ones_own_is_true() {
        let stat = Stat::own().expect("/proc");
        assert_eq!(stat.parent, std::os::unix::process::parent_id() as i32);
        assert!(stat.state == 'R' && !stat.has_ended() && !stat.is_kernel_thread() && !stat.is_exiting(), "{stat:?}");
        let function = ones_own_is_true as *const () as u64;
        assert!(stat.code.contains(&function) || stat.code.is_empty(), "{:x?} has {function:x}", stat.code);
        assert!(stat.started_ticks >= Stat::of(std::process::id() as i32).expect("/proc").started_ticks);
    }
}
