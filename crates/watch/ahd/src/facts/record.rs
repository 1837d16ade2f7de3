//! One line of a recording: something that was seen, with nothing concluded from it.
//!
//! Owns: [`Record`] and its JSON. Times are seconds since the start of the recording. Promises:
//! what is written reads back equal; fields that a recording of another version lacks have a
//! default. Refuses: any judgement.

use serde::{Deserialize, Serialize};

/// A line of a recording. All of one scan stand before its [`Record::Tick`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "k")]
pub enum Record {
    /// The first line.
    #[serde(rename = "start")]
    Start {
        /// CLOCK_MONOTONIC at the start, seconds.
        t0: f64,
        /// First watched process.
        root: i32,
        /// Its command.
        cmd: String,
        /// Version of the recording: 1 says nothing of when unchanged ends were read again.
        #[serde(default = "first_version")]
        version: u32,
    },
    /// A process was met.
    #[serde(rename = "proc")]
    Process {
        /// When.
        t: f64,
        /// Process.
        p: i32,
        /// Its parent.
        pp: i32,
        /// Its executable.
        exe: String,
        /// Its arguments, at most 160 bytes.
        #[serde(default)]
        cmd: String,
        /// Signals it catches, bit n-1 for signal n.
        #[serde(with = "hex_number")]
        cgt: u64,
        /// Why waits of this process cannot be judged by the holders.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unsure: Vec<Unsure>,
    },
    /// What may have changed of a process.
    #[serde(rename = "sig")]
    Changed {
        /// Process.
        p: i32,
        /// Signals it catches.
        #[serde(with = "hex_number")]
        cgt: u64,
        /// Its parent.
        pp: i32,
        /// As in [`Record::Process`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unsure: Vec<Unsure>,
    },
    /// A thread that ran since the last scan, or is met for the first time.
    #[serde(rename = "s")]
    Thread(Sight),
    /// What a sleeping thread waits for.
    #[serde(rename = "wait")]
    Wait(WaitFacts),
    /// The holders of pipes and sockets, of all processes that can be seen.
    #[serde(rename = "fds")]
    Ends {
        /// When.
        t: f64,
        /// Process, descriptor, link such as `pipe:[17]`, access mode (0 read, 1 write, 2 both).
        f: Vec<(i32, i32, String, u8)>,
        /// Local and remote address as in `/proc/net/tcp`, state, inode (0 if nobody has it yet or
        /// any more).
        tcp: Vec<(String, String, u32, u64)>,
        /// Inodes of two connected unix sockets.
        unix: Vec<(u64, u64)>,
        /// Descriptors are on their way over a unix socket: whoever is about to hold them is not in
        /// the list.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        flying: bool,
        /// Processes whose descriptors could not be read.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        hidden: Vec<i32>,
    },
    /// The same was read again: nothing has changed.
    #[serde(rename = "fds-same")]
    EndsSame {
        /// When.
        t: f64,
    },
    /// Descriptors of a process that have input waiting.
    #[serde(rename = "ready")]
    Ready {
        /// When.
        t: f64,
        /// Process.
        p: i32,
        /// Descriptors.
        fds: Vec<i32>,
    },
    /// TCP sockets of a process.
    #[serde(rename = "conn")]
    Connections {
        /// When.
        t: f64,
        /// Process.
        p: i32,
        /// Each socket.
        c: Vec<Connection>,
    },
    /// What threads of a process do in the sections that its source marks: those inside one, and
    /// those that passed through one.
    #[serde(rename = "marks")]
    Marks {
        /// When.
        t: f64,
        /// Process.
        p: i32,
        /// Names of its sections, by number; empty if they are those known.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        n: Vec<String>,
        /// Each thread in each section.
        c: Vec<Cell>,
        /// Of threads inside sections the one that was entered last, if it was not left.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        l: Vec<(i32, usize)>,
    },
    /// Locks that a runtime's memory says threads wait for: thread, address, holder.
    #[serde(rename = "held")]
    Held {
        /// When.
        t: f64,
        /// Process.
        p: i32,
        /// Whose locks these are.
        by: Runtime,
        /// Each.
        e: Vec<(i32, u64, i32)>,
    },
    /// Goroutines that wait for locks.
    #[serde(rename = "go")]
    Goroutines {
        /// When.
        t: f64,
        /// Process.
        p: i32,
        /// Each.
        e: Vec<Locked>,
    },
    /// Children of a process that have exited and that it has not asked for.
    #[serde(rename = "unreaped")]
    Unreaped {
        /// When.
        t: f64,
        /// Process.
        p: i32,
        /// Each.
        c: Vec<i32>,
    },
    /// What the other side of a connection does, on which a thread waits for an answer.
    #[serde(rename = "back")]
    Back {
        /// When.
        t: f64,
        /// Process.
        p: i32,
        /// Its descriptor.
        fd: i32,
        /// What the other side does.
        s: Back,
        /// Processes that have it.
        q: Vec<i32>,
    },
    /// A thread has ended.
    #[serde(rename = "gone")]
    Gone {
        /// When.
        t: f64,
        /// Process.
        p: i32,
        /// Thread.
        i: i32,
    },
    /// The watcher itself stopped a thread to take its stack: that it runs for a moment is no
    /// progress.
    #[serde(rename = "stop")]
    Stopped {
        /// When.
        t: f64,
        /// Process.
        p: i32,
        /// Thread.
        i: i32,
    },
    /// The end of a scan, at which rules are applied.
    #[serde(rename = "tick")]
    Tick {
        /// When.
        t: f64,
        /// Time the scan took, us.
        #[serde(default)]
        us: u64,
    },
    /// The moment a program says that it hangs; only in recordings made for tests.
    #[serde(rename = "mark")]
    Mark {
        /// When.
        t: f64,
    },
    /// The last line.
    #[serde(rename = "end")]
    End {
        /// When.
        t: f64,
    },
}

/// A thread as one scan saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sight {
    /// When.
    pub t: f64,
    /// Process.
    pub p: i32,
    /// Thread.
    pub i: i32,
    /// CPU time, ns.
    pub run: u64,
    /// Time it could have run but got no CPU, ns.
    pub wt: u64,
    /// Times it was put on a CPU.
    pub sl: u64,
    /// The scheduler's letter.
    pub st: char,
    /// System call it sleeps in; -1 if none.
    pub nr: i64,
    /// Its arguments.
    pub a0: u64,
    /// Second argument.
    pub a1: u64,
    /// Third argument.
    pub a2: u64,
    /// Fourth argument.
    pub a3: u64,
    /// Stack pointer.
    #[serde(default)]
    pub sp: u64,
    /// Where the call was made from.
    pub pc: u64,
    /// Voluntary context switches.
    pub v: u64,
    /// Involuntary ones.
    #[serde(default)]
    pub nv: u64,
    /// Bytes read and written by its calls.
    pub io: (u64, u64, u64, u64),
    /// It runs another program since the last sight.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub exec: u8,
    /// Its name, if it is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// Its id in its own namespace of processes, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ni: Option<i32>,
}

/// What a sleeping thread waits for, as its arguments and memory have it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitFacts {
    /// When.
    pub t: f64,
    /// Process.
    pub p: i32,
    /// Thread.
    pub i: i32,
    /// The call.
    pub nr: i64,
    /// Its arguments.
    pub a: [u64; 6],
    /// Memory from 16 bytes before a futex on, 72 bytes; empty if it would cross a page.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex_bytes")]
    pub w: Option<Vec<u8>>,
    /// Memory from the futex on, where `w` would cross a page.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex_bytes")]
    pub w0: Option<Vec<u8>>,
    /// The time limit in memory, if the call has one.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex_bytes")]
    pub to: Option<Vec<u8>>,
    /// Descriptors in an epoll set, and the events they are watched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ep: Option<Vec<(i32, u32)>>,
    /// The descriptors of a `poll`, as `struct pollfd`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex_bytes")]
    pub pf: Option<Vec<u8>>,
    /// Processes that hold the lock on a file in the way of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lk: Option<Vec<i32>>,
    /// Whether the owner that a lock's memory names is a living thread of a process that is not
    /// watched.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alive: bool,
    /// Whether the socket that it waits at has a time limit of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tl: bool,
}

impl WaitFacts {
    /// The four words at a futex: its own, and what is a mutex' owner, users and kind if it is one.
    pub fn words(&self) -> Option<[u32; 4]> {
        Some([self.word(0)?, self.word(8)?, self.word(12)?, self.word(16)?])
    }

    /// The word at this distance from a futex, if that was read.
    fn word(&self, distance: isize) -> Option<u32> {
        const BEFORE: isize = 16;
        let (bytes, at) = match (&self.w, &self.w0) {
            (Some(w), _) if !w.is_empty() => (w, BEFORE),
            (_, Some(w0)) => (w0, 0),
            _ => return None,
        };
        let at = usize::try_from(at + distance).ok()?;
        Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    }

    /// Whether a wait that looks like one for a lock is at a condition variable of glibc 2.41,
    /// whose word may be any number. Without a time limit that is a wait on the wall clock, as only
    /// a writer's at a glibc rwlock is else. That one's first word, 8 or 12 bytes before, counts
    /// readers above three bits, of which the second says that a writer is there; in a condition
    /// variable the size of a group is there, whose second bit is set while it is changed at most.
    pub fn is_condition_variable(&self) -> bool {
        const ON_WALL_CLOCK: u64 = (libc::FUTEX_WAIT_BITSET | libc::FUTEX_CLOCK_REALTIME) as u64;
        const WRITER: u32 = 2;
        let lock = if self.a[0] & 7 == 0 { -8 } else { -12 };
        let is_lock = |first: u32| first & WRITER != 0 && first >> 3 != 0;
        self.a[1] & !(libc::FUTEX_PRIVATE_FLAG as u64) == ON_WALL_CLOCK
            && self.word(lock).is_some_and(|first| !is_lock(first))
    }

    /// The thread that a mutex' memory names as its owner, if the wait is for one.
    pub fn named_owner(&self) -> Option<i32> {
        let [_, owner, ..] = self.words()?;
        (self.a[2] == 2 && owner != 0).then_some(owner as i32)
    }
}

/// What a thread did in a section: thread, the section's number, count of entries and exits (odd
/// inside), times left by each exit, CPU time of the thread, CPU time of that since the scan
/// before, ns.
pub type Cell = (i32, usize, u32, [u32; 7], u64, u64);

/// A TCP socket: descriptor, own port, peer's port, a [`SocketUse`], ms since data came in, ms
/// since data went out, bytes in, bytes out that were acknowledged, bytes not read yet, state.
pub type Connection = (i32, u16, u16, u8, u32, u32, u64, u64, i64, u8);

/// What the other side of a connection does. Of several processes that have it, the first of this
/// list counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Back {
    /// It runs, or could.
    Works,
    /// It waits for events, of this connection too: it has read what there was.
    Serves,
    /// A thread of it sleeps by the clock.
    Naps,
    /// It sleeps, in something else.
    Waits,
    /// It is not on this machine, or cannot be seen.
    Unknown,
    /// All its threads are stopped.
    Stopped,
}

/// A runtime that keeps locks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// HotSpot's monitors, and locks of `java.util.concurrent`.
    Java,
    /// Python's locks.
    Python,
}

/// A goroutine that waits for a lock of package sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locked {
    /// The goroutine.
    pub g: u64,
    /// Address of the lock.
    pub at: u64,
    /// Whether it is a `sync.RWMutex`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rw: bool,
    /// A count that changes each time the goroutine runs.
    pub n: u8,
    /// Goroutines that wait for another lock, and have the address of this one on their stacks.
    pub by: Vec<u64>,
    /// Whether others have it there, that neither wait for a lock nor for goroutines to be done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub o: bool,
}

/// What a TCP socket is for, in a [`Connection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketUse {
    /// A connection, of which it is not known which side opened it.
    Unclear = 0,
    /// It listens.
    Listens = 1,
    /// A connection that came in: somebody listens on its own port.
    CameIn = 2,
    /// A connection that was opened here: its peer's port is one that somebody listens on.
    Opened = 3,
}

/// Why the threads that could end a wait of a process cannot be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsure {
    /// It has an `io_uring`: the kernel reads and writes for it.
    IoUring,
    /// Another process shares its memory.
    SharedMemory,
    /// It has a timer, which may end a wait by a signal.
    Timer,
}

/// The version that is written now.
pub const VERSION: u32 = 2;

fn first_version() -> u32 {
    1
}

fn is_zero(n: &u8) -> bool {
    *n == 0
}

mod hex_number {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(n: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{n:x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

mod hex_bytes {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
        let text: String = bytes.iter().flatten().map(|b| format!("{b:02x}")).collect();
        to.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
        let text = String::deserialize(from)?;
        let pair = |i| text.get(i..i + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(pair).collect();
        bytes.map(Some).ok_or_else(|| D::Error::custom(format!("no hexadecimal bytes: {text:.40}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_variable_of_glibc_2_41_is_no_writers_wait() {
        // The words from 16 bytes before the futex on.
        let is_one = |addr: u64, op: u64, words: [u32; 9]| {
            let w = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            WaitFacts { a: [addr, op, 2, 0, 0, 0], w: Some(w), ..WaitFacts::default() }.is_condition_variable()
        };
        const WALL: u64 = 9 | 128 | 256;
        // Sizes of the groups and of the first one, waiters and clock, both groups' words.
        assert!(
            is_one(0x1020, WALL, [0, 0, 4, 10, 2, 1, 0, 0, 0]) && is_one(0x1024, WALL, [0, 4, 10, 1, 2, 0, 0, 0, 0])
        );
        // Readers, writers, both phases' words, nothing, the writer.
        let (two_readers, writers) = (2 << 3 | 2, 1);
        assert!(!is_one(0x1008, WALL, [0, 0, two_readers, writers, 2, 1, 0, 0, 0]));
        assert!(!is_one(0x100c, WALL, [0, two_readers, writers, 0, 2, 0, 0, 0, 0]));
        assert!(!is_one(0x1020, 128, [0, 0, 4, 10, 2, 1, 0, 0, 0]), "a mutex");
    }

    #[test]
    fn what_is_written_reads_back() {
        let sight = Sight { t: 1.5, p: 7, i: 8, st: 'S', nr: 202, comm: Some("a\"b".into()), ..Sight::default() };
        let wait = WaitFacts { w: Some(vec![0, 255]), w0: None, ep: Some(vec![(3, 1)]), ..WaitFacts::default() };
        let all = [
            Record::Thread(sight),
            Record::Wait(wait),
            Record::Changed { p: 7, cgt: 0x4002, pp: 1, unsure: vec![Unsure::IoUring] },
            Record::Connections { t: 2.0, p: 7, c: vec![(4, 80, 9, 0, 1, 2, 3, 4, 5, 1)] },
            Record::Tick { t: 2.0, us: 17 },
        ];
        for record in all {
            let line = serde_json::to_string(&record).expect("JSON");
            assert_eq!(serde_json::from_str::<Record>(&line).expect("a record"), record, "{line}");
        }
    }
}
