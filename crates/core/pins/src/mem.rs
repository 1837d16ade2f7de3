//! P_MEM: another process' memory: read, write, its map, which pages were written, and properties
//! of pages.
//!
//! Written pages are found in the best way that the process allows, and the reply says which:
//! *tracked*, if the process registered the range with userfaultfd itself (as Orbit's areas are);
//! *soft-dirty*, where the kernel keeps that bit (one watch a process then, since clearing it
//! concerns the whole process); else *compared*: a hash of each page, which reads all of them each
//! time. A page written with the bytes it had counts as written by the first two, not by the third.

use super::{descriptors::MAX_READ_BYTES, inject, proc};
use orbit_linux::{pagemap::Pagemap, procfs, remote};
use orbit_rmk::{
    Command, Event, Kind, PageProperty, Pin, PinError, PinKind, Probe, Range, Reply, Subscription, lock, now,
};
use std::{
    collections::HashMap,
    fs,
    hash::{DefaultHasher, Hasher},
    os::{fd::AsFd, unix::fs::FileExt},
    sync::{Arc, Mutex},
};

pub(super) const KIND: PinKind = PinKind {
    name: "P_MEM",
    about: "memory of a program: read, write, map, pages written, properties of pages",
    facility: "process_vm_readv and writev, PAGEMAP_SCAN, soft-dirty pages",
    operations: &["MemoryRead", "MemoryWrite", "MemoryMap", "PagesWatch", "PagesCollect", "PagesForget", "PagesSet"],
    events: &[Kind::PagesWritten],
    probe: &|_| match (soft_dirty_kept(), orbit_linux::pagemap::probe().is_yes()) {
        (true, true) => Probe::Full,
        (false, true) => Probe::Fallback(
            "pages written are found by comparing hashes, except where the program tracks them itself (the kernel \
             lacks CONFIG_MEM_SOFT_DIRTY)"
                .into(),
        ),
        _ => Probe::Fallback("pages written are found by comparing hashes (no PAGEMAP_SCAN: Linux 6.7)".into()),
    },
    load: &|_| Ok(Box::new(Mem { watches: HashMap::new(), listeners: Arc::default(), next: 1 })),
};

const PAGE: u64 = 4096;
/// Bytes that one module watches at most: each page of them may cost a hash here, and a check
/// at each collection.
const MAX_WATCHED_BYTES: u64 = 4 << 30;
/// Watches that one module has at most: each may keep a descriptor.
const MAX_WATCHES: usize = 64;

struct Mem {
    watches: HashMap<u64, Watch>,
    listeners: Arc<Mutex<Vec<Arc<Subscription>>>>,
    next: u64,
}

struct Watch {
    user: u64,
    pid: u32,
    start: u64,
    end: u64,
    how: How,
}

enum How {
    Tracked(Pagemap),
    SoftDirty(fs::File),
    Compared(Vec<u64>),
}

impl How {
    fn name(&self) -> &'static str {
        match self {
            How::Tracked(_) => "tracked",
            How::SoftDirty(_) => "soft-dirty",
            How::Compared(_) => "compared",
        }
    }
}

impl Pin for Mem {
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError> {
        match command {
            Command::MemoryRead { pid, address, length } => Ok(Reply::Bytes { bytes: read(*pid, *address, *length)? }),
            Command::MemoryWrite { pid, address, bytes } => write(*pid, *address, bytes).map(|()| Reply::Done),
            Command::MemoryMap { pid } => Ok(Reply::Regions { regions: proc::regions(*pid)? }),
            Command::PagesWatch { pid, start, end } => self.watch(user, *pid, *start, *end),
            Command::PagesCollect { id } => self.collect(user, *id),
            Command::PagesForget { id } => {
                self.mine(user, *id)?;
                self.watches.remove(id);
                Ok(Reply::Done)
            }
            Command::PagesSet { pid, start, length, property } => {
                set(*pid, *start, *length, property).map(|()| Reply::Done)
            }
            _ => Err(PinError::NotMine),
        }
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        lock(&self.listeners).push(subscription.clone());
        Ok(())
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        lock(&self.listeners).retain(|sub| sub.id != subscription.id);
    }

    fn forget(&mut self, user: u64) {
        self.watches.retain(|_, watch| watch.user != user);
    }
}

impl Mem {
    fn mine(&mut self, user: u64, id: u64) -> Result<&mut Watch, PinError> {
        let watch = self.watches.get_mut(&id).filter(|watch| watch.user == user);
        watch.ok_or_else(|| PinError::Refused(format!("this module has no watch {id}")))
    }

    fn watch(&mut self, user: u64, pid: u32, start: u64, end: u64) -> Result<Reply, PinError> {
        if !start.is_multiple_of(PAGE) || !end.is_multiple_of(PAGE) || start >= end {
            return Err(PinError::Refused(format!(
                "range {start:#x} to {end:#x} is not made of whole pages of {PAGE} bytes"
            )));
        }
        let own = self.watches.values().filter(|watch| watch.user == user);
        let (count, watched) =
            own.fold((0, 0), |(count, watched), watch| (count + 1, watched + (watch.end - watch.start)));
        if count >= MAX_WATCHES {
            return Err(PinError::Refused(format!("{count} watches, {MAX_WATCHES} at most: forget one")));
        }
        if end - start > MAX_WATCHED_BYTES - watched {
            return Err(PinError::Refused(format!(
                "watching {} bytes, where {watched} of the {MAX_WATCHED_BYTES} that a module may watch are watched: \
                 forget a \
                 watch, or watch less",
                end - start
            )));
        }
        let soft_taken = self.watches.values().any(|watch| watch.pid == pid && matches!(watch.how, How::SoftDirty(_)));
        let how = if let Some(map) = tracked(pid, start, end) {
            How::Tracked(map)
        } else if soft_dirty_kept() && !soft_taken {
            clear_soft_dirty(pid)?;
            let entries = fs::File::open(format!("/proc/{pid}/pagemap"));
            How::SoftDirty(entries.map_err(|error| PinError::of(format!("page map of process {pid}"), error))?)
        } else {
            How::Compared(hashes(pid, start, end)?)
        };
        let (id, method) = (self.next, how.name().to_string());
        self.next += 1;
        self.watches.insert(id, Watch { user, pid, start, end, how });
        Ok(Reply::Watch { id, method })
    }

    fn collect(&mut self, user: u64, id: u64) -> Result<Reply, PinError> {
        let watch = self.mine(user, id)?;
        let (pid, start, end) = (watch.pid, watch.start, watch.end);
        let mut ranges = Vec::new();
        let mut add = |from: u64, to: u64| match ranges.last_mut() {
            Some(Range { end, .. }) if *end == from => *end = to,
            _ => ranges.push(Range { start: from, end: to }),
        };
        match &mut watch.how {
            How::Tracked(map) => {
                let mut found = Vec::new();
                let scanned = map.scan_written(start as usize, end as usize, true, 0, &mut found);
                scanned.map_err(|error| PinError::of(format!("written pages of process {pid}"), error))?;
                found.iter().for_each(|(from, to)| add(*from as u64, *to as u64));
            }
            How::SoftDirty(entries) => {
                let mut bytes = vec![0; ((end - start) / PAGE * 8) as usize];
                let got = entries.read_exact_at(&mut bytes, start / PAGE * 8);
                got.map_err(|error| PinError::of(format!("page map of process {pid}"), error))?;
                clear_soft_dirty(pid)?;
                for (n, entry) in bytes.as_chunks::<8>().0.iter().enumerate() {
                    if u64::from_ne_bytes(*entry) >> 55 & 1 == 1 {
                        add(start + n as u64 * PAGE, start + (n as u64 + 1) * PAGE);
                    }
                }
            }
            How::Compared(old) => {
                let new = hashes(pid, start, end)?;
                for (n, _) in old.iter().zip(&new).enumerate().filter(|(_, (was, is))| was != is) {
                    add(start + n as u64 * PAGE, start + (n as u64 + 1) * PAGE);
                }
                *old = new;
            }
        }
        for sub in lock(&self.listeners).iter().filter(|sub| sub.client == user) {
            for range in &ranges {
                let mut event = Event::new(Kind::PagesWritten, now());
                event.pid = pid;
                event.values = [id, range.start, range.end, 0];
                sub.offer(event);
            }
        }
        Ok(Reply::Ranges { ranges })
    }
}

/// The page map of a process that tracks writes to the range itself, with every page of it
/// protected anew.
fn tracked(pid: u32, start: u64, end: u64) -> Option<Pagemap> {
    // Flag "uw" of a region: registered with userfaultfd for write protection.
    let smaps = procfs::text(format!("/proc/{pid}/smaps")).ok()?;
    let (mut at, mut inside) = (start, false);
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if inside && !flags.split_whitespace().any(|flag| flag == "uw") {
                return None;
            }
        } else if let Some((from, to)) = line.split_whitespace().next().and_then(|range| range.split_once('-')) {
            let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else { continue };
            inside = from <= at && at < to && at < end;
            if inside {
                at = to;
            }
        }
    }
    let map = Pagemap::of(pid as i32).ok().filter(|map| at >= end && map.has_scan())?;
    map.scan_written(start as usize, end as usize, true, 0, &mut Vec::new()).ok()?;
    Some(map)
}

/// Whether this kernel keeps the soft-dirty bit: the bit of a page just written here says so.
fn soft_dirty_kept() -> bool {
    let word = Box::new(std::sync::atomic::AtomicU64::new(0));
    word.store(1, std::sync::atomic::Ordering::SeqCst);
    let mut entry = [0; 8];
    let at = word.as_ptr() as u64 / PAGE * 8;
    let read = fs::File::open("/proc/self/pagemap").and_then(|map| map.read_exact_at(&mut entry, at));
    read.is_ok() && u64::from_ne_bytes(entry) >> 55 & 1 == 1
}

fn clear_soft_dirty(pid: u32) -> Result<(), PinError> {
    let cleared = fs::write(format!("/proc/{pid}/clear_refs"), "4");
    cleared.map_err(|error| PinError::of(format!("clearing the written marks of process {pid}"), error))
}

fn hashes(pid: u32, start: u64, end: u64) -> Result<Vec<u64>, PinError> {
    let mut all = Vec::with_capacity(((end - start) / PAGE) as usize);
    const PART: u64 = 1 << 20;
    for from in (start..end).step_by(PART as usize) {
        let length = PART.min(end - from);
        let bytes = read(pid, from, length)?;
        if bytes.len() as u64 != length {
            return Err(PinError::Refused(format!(
                "page {:#x} of process {pid} cannot be read",
                from + bytes.len() as u64 / PAGE * PAGE
            )));
        }
        for page in bytes.chunks(PAGE as usize) {
            let mut hasher = DefaultHasher::new();
            hasher.write(page);
            all.push(hasher.finish());
        }
    }
    Ok(all)
}

/// Reads as much as can be read from the beginning of the range.
fn read(pid: u32, address: u64, length: u64) -> Result<Vec<u8>, PinError> {
    if length > MAX_READ_BYTES {
        return Err(PinError::Refused(format!(
            "{length} bytes in one command, {MAX_READ_BYTES} at most: read in parts"
        )));
    }
    let mut bytes = vec![0u8; length as usize];
    let n = remote::read(pid as i32, address, &mut bytes)
        .map_err(|error| PinError::of(format!("reading {length} bytes at {address:#x} of process {pid}"), error))?;
    bytes.truncate(n);
    Ok(bytes)
}

fn write(pid: u32, address: u64, bytes: &[u8]) -> Result<(), PinError> {
    let what = || format!("writing {} bytes at {address:#x} of process {pid}", bytes.len());
    // By any of its threads' ids too: those the kernel takes for the process.
    if fs::exists(format!("/proc/self/task/{pid}")).unwrap_or(true) {
        return Err(PinError::Refused(format!("{}: that is the core's own", what())));
    }
    remote::write(pid as i32, address, bytes).map_err(|error| PinError::of(what(), error))
}

fn set(pid: u32, start: u64, length: u64, property: &PageProperty) -> Result<(), PinError> {
    let advice = match property {
        PageProperty::Cold => libc::MADV_COLD,
        PageProperty::PageOut => libc::MADV_PAGEOUT,
        PageProperty::WillNeed => libc::MADV_WILLNEED,
        PageProperty::ReadOnly => return inject::protect(pid, start, length, libc::PROT_READ),
        PageProperty::ReadWrite => return inject::protect(pid, start, length, libc::PROT_READ | libc::PROT_WRITE),
        PageProperty::NoAccess => return inject::protect(pid, start, length, libc::PROT_NONE),
    };
    let what = || format!("setting {property:?} for {length} bytes at {start:#x} of process {pid}");
    let process = orbit_linux::pidfd::open(pid as i32).map_err(|error| PinError::of(what(), error))?;
    match remote::advise(process.as_fd(), start, length, advice) {
        Ok(n) if n == length => Ok(()),
        Ok(n) => Err(PinError::Refused(format!("{}: done for {n} bytes only", what()))),
        Err(error) => Err(PinError::of(what(), error)),
    }
}
