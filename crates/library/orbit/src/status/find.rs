//! The reader's side of the status page: finds the pages of running programs and takes copies of
//! them.
//!
//! Pages belong to other programs, perhaps to other users: sizes, numbers and names are checked,
//! names are cleaned of control characters, and a page that changes while it is read is read again.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use orbit_linux::procfs;
use orbit_linux::stat::Stat;
use orbit_linux::status::Status;

use crate::channel::{UP_NAME, Up};

use super::{BUCKETS, FILE_NAME, Header, Latency, MAGIC, NAME_BYTES, Page, SLOTS, Slot, State, VERSION};

/// A running program that has orbits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its process number, as seen from here.
    pub pid: i32,
    /// Its name, as in `ps -o comm`.
    pub comm: String,
    /// When it set up the library, nanoseconds since 1970.
    pub started_ns: u64,
    /// Its orbits, those included that are down.
    pub orbits: Vec<OrbitStatus>,
    /// Orbits that the page had no room for, over the life of the program.
    pub unseen: u32,
}

/// One sample of one orbit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrbitStatus {
    /// Its name.
    pub name: String,
    /// Its process number, as the program sees it; 0: it has none now.
    pub pid: i32,
    /// What it is doing.
    pub state: State,
    /// When it was created, nanoseconds since 1970.
    pub created_ns: u64,
    /// Calls handed over since then.
    pub calls: u64,
    /// Calls waiting or running.
    pub queue: u64,
    /// Pages copied for snapshots.
    pub pages_total: u64,
    /// The same in bytes.
    pub bytes_total: u64,
    /// Pages copied for the last snapshot.
    pub pages_last: u64,
    /// Times its process ended by itself.
    pub crashes: u64,
    /// Times it was started again.
    pub restarts: u64,
    /// Calls that ran out of time.
    pub timeouts: u64,
    /// Calls that ended without a result, those included.
    pub lost: u64,
    /// CPU time of its process, nanoseconds; 0 if that cannot be seen from here.
    pub cpu_ns: u64,
    /// Memory that is its own (anonymous pages), bytes; 0 if that cannot be seen from here.
    pub memory: u64,
    /// How long calls took, from hand-over to result.
    pub latency: Latency,
}

impl OrbitStatus {
    /// The time that half of the calls stayed within, microseconds; 0 without calls.
    pub fn p50_us(&self) -> f64 {
        self.quantile_us(0.5)
    }

    /// The time that 99 of 100 calls stayed within, microseconds; 0 without calls.
    pub fn p99_us(&self) -> f64 {
        self.quantile_us(0.99)
    }

    /// Main counts the end of a call when it collects it. How many have ended by the orbit's own
    /// count, modulo 2^32, shows those that were not collected.
    fn ended_so_far(&mut self, completed: u32) {
        let waiting = (self.calls as u32).wrapping_sub(completed);
        self.queue = self.queue.min(u64::from(waiting));
        if self.queue == 0 && self.state == State::Running {
            self.state = State::Idle;
        }
    }

    fn quantile_us(&self, part: f64) -> f64 {
        self.latency.quantile_ns(part).map_or(0.0, |ns| ns as f64 / 1000.0)
    }
}

/// All programs with orbits whose descriptors this user may see: one's own, everybody's for root.
/// Ordered by process number. Reads `/proc`; takes some milliseconds for some hundred processes.
pub fn find_all() -> Vec<Program> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut pids: Vec<i32> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids.into_iter().filter_map(find_process).collect()
}

/// The orbits of one process, if it has set up the library and may be read. A child that
/// merely inherited its parent's descriptors has none.
pub fn find_process(pid: i32) -> Option<Program> {
    let own_number = innermost_pid(pid)?;
    // After a fork and a new start of the library there may be two: the parent's and one's own.
    // After a shutdown and a new start there are two of one's own while a handle of the time before
    // is held.
    let mut pages = memory_files(pid, FILE_NAME, size_of::<Page>())?.filter_map(|f| read_page(&f, pid, own_number));
    let first = pages.next()?;
    Some(pages.fold(first, |mut program, more| {
        program.started_ns = program.started_ns.max(more.started_ns);
        program.unseen += more.unseen;
        program.orbits.extend(more.orbits);
        program
    }))
}

/// The memory files of this name and length that a process has open.
fn memory_files(pid: i32, name: &str, len: usize) -> Option<impl Iterator<Item = File>> {
    let link = format!("/memfd:{name} (deleted)");
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    Some(fds.flatten().filter_map(move |fd| {
        if fs::read_link(fd.path()).ok()?.as_os_str() != &link[..] {
            return None;
        }
        // Not blocking, should the descriptor be replaced by a pipe between the reading of its name
        // and now.
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(fd.path()).ok()?;
        let about = file.metadata().ok()?;
        (about.is_file() && about.size() == len as u64).then_some(file)
    }))
}

/// The number by which a process knows itself: another one than ours if it lives in a container.
fn innermost_pid(pid: i32) -> Option<u32> {
    u32::try_from(Status::of(pid).ok()?.innermost_id()?).ok()
}

fn read_page(file: &File, pid: i32, own_number: u32) -> Option<Program> {
    let header = Bytes::read(file, 0, size_of::<Header>())?;
    let known = header.u64(std::mem::offset_of!(Header, magic)) == MAGIC
        && header.u32(std::mem::offset_of!(Header, version)) == VERSION
        && header.u32(std::mem::offset_of!(Header, pid)) == own_number;
    if !known {
        return None;
    }
    let page_size = header.u64(std::mem::offset_of!(Header, page_size));
    let slots = (header.u32(std::mem::offset_of!(Header, slots_used)) as usize).min(SLOTS);
    let same_numbers = own_number as i32 == pid;
    let orbits = (0..slots).filter_map(|index| {
        let mut orbit = read_slot(file, index, page_size)?;
        if same_numbers && orbit.pid > 0 {
            (orbit.cpu_ns, orbit.memory) = usage(orbit.pid);
            if let Some(completed) = completed(orbit.pid) {
                orbit.ended_so_far(completed);
            }
        }
        Some(orbit)
    });
    let orbits = orbits.collect();
    let comm = procfs::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(Program {
        pid,
        comm: clean(comm.trim_end().as_bytes()),
        started_ns: header.u64(std::mem::offset_of!(Header, started_ns)),
        orbits,
        unseen: header.u32(std::mem::offset_of!(Header, unseen)),
    })
}

fn read_slot(file: &File, index: usize, page_size: u64) -> Option<OrbitStatus> {
    let at = std::mem::offset_of!(Page, slots) + index * size_of::<Slot>();
    let sequence = std::mem::offset_of!(Slot, sequence);
    for _ in 0..100 {
        let before = Bytes::read(file, at + sequence, 4)?.u32(0);
        let slot = Bytes::read(file, at, size_of::<Slot>())?;
        let after = Bytes::read(file, at + sequence, 4)?.u32(0);
        if before == after && before % 2 == 0 {
            return slot_status(&slot, page_size);
        }
        std::thread::yield_now();
    }
    None
}

fn slot_status(slot: &Bytes, page_size: u64) -> Option<OrbitStatus> {
    if slot.u32(std::mem::offset_of!(Slot, in_use)) != 1 {
        return None;
    }
    let name = std::mem::offset_of!(Slot, name);
    let name = &slot.0[name..name + NAME_BYTES];
    let name = &name[..name.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES)];
    let mut counts = Box::new([0; BUCKETS]);
    for (bucket, count) in counts.iter_mut().enumerate() {
        *count = slot.u64(std::mem::offset_of!(Slot, latency) + bucket * 8);
    }
    let latency = Latency { counts };
    let calls = slot.u64(std::mem::offset_of!(Slot, calls));
    let lost = slot.u64(std::mem::offset_of!(Slot, lost));
    let pages_total = slot.u64(std::mem::offset_of!(Slot, pages_total));
    // The queue was this long at the last call; since then it can only have become shorter.
    let pending = calls.saturating_sub(latency.calls()).saturating_sub(lost);
    let queue = slot.u64(std::mem::offset_of!(Slot, queue)).min(pending);
    let state = match State::from_word(slot.u32(std::mem::offset_of!(Slot, state)))? {
        State::Idle if queue > 0 => State::Running,
        State::Running if queue == 0 => State::Idle,
        state => state,
    };
    Some(OrbitStatus {
        name: clean(name),
        pid: i32::try_from(slot.u32(std::mem::offset_of!(Slot, pid))).unwrap_or(0),
        state,
        created_ns: slot.u64(std::mem::offset_of!(Slot, created_ns)),
        calls,
        queue,
        pages_total,
        bytes_total: pages_total.saturating_mul(page_size),
        pages_last: slot.u64(std::mem::offset_of!(Slot, pages_last)),
        crashes: slot.u64(std::mem::offset_of!(Slot, crashes)),
        restarts: slot.u64(std::mem::offset_of!(Slot, restarts)),
        timeouts: slot.u64(std::mem::offset_of!(Slot, timeouts)),
        lost,
        cpu_ns: 0,
        memory: 0,
        latency,
    })
}

/// The calls that an orbit has completed since it was created, as it counts them itself.
fn completed(pid: i32) -> Option<u32> {
    let file = memory_files(pid, UP_NAME, size_of::<Up>())?.next()?;
    Some(Bytes::read(&file, std::mem::offset_of!(Up, completed), 4)?.u32(0))
}

/// CPU time in nanoseconds and anonymous memory in bytes of a process.
fn usage(pid: i32) -> (u64, u64) {
    let cpu_ns = Stat::of(pid).map_or(0, |stat| stat.cpu_ns());
    let memory = Status::of(pid).ok().and_then(|status| status.resident_anonymous());
    (cpu_ns, memory.unwrap_or(0))
}

/// Text from another program, fit for a terminal: what cannot be seen is.
fn clean(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() || is_unseen(c) { '?' } else { c }).collect()
}

/// Whether a character has no form of its own but changes the form or place of others, or
/// ends a line: Unicode's format characters (those of a script that are drawn aside) and separators
/// of lines and paragraphs.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// A copy of a part of a page.
struct Bytes(Vec<u8>);

impl Bytes {
    fn read(file: &File, at: usize, len: usize) -> Option<Bytes> {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at as u64).ok()?;
        Some(Bytes(bytes))
    }

    fn u32(&self, at: usize) -> u32 {
        self.0[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn u64(&self, at: usize) -> u64 {
        self.0[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
}
