//! A rollback of a stopped program: mappings, then memory, then threads.
//!
//! The thread that crashed is the last to get its registers: if the keeper is killed before that, this thread is still in the handler, sees that
//! the keeper is gone, and the program dies of its own crash.

use crate::capture::{Scan, Tracker};
use crate::error::Error;
use crate::history::History;
use crate::pages::{Bytes, PAGE};
use crate::space::{Change, changes, is_kept};
use crate::state::{State, ThreadState};
use graft::{NewThread, Protection, Source, Stopped};
use orbit_linux::maps::Entry;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

/// Ranges up to this many are dropped by calls in the program; with more, pages of zeros are written.
const DROPPED_BY_CALLS: usize = 64;
const ZEROS: Bytes = [0; PAGE as usize];

/// What a rollback did.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Restored {
    /// Pages written back.
    pub pages: usize,
    /// Pages that are again what their mapping holds by itself.
    pub dropped: usize,
    /// Changes of mappings.
    pub mappings: usize,
    /// Threads that were made since, and ended.
    pub threads_ended: usize,
    /// Threads that had ended since, and were made again.
    pub threads_made: usize,
    /// What could not be put back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

/// Makes the mappings those of the checkpoint.
fn mappings(stopped: &mut Stopped<'_>, then: &[Entry], done: &mut Restored) -> Result<(), Error> {
    let (changes, lost) = changes(&stopped.mappings()?, then);
    for entry in lost {
        done.left.push(format!("the shared mapping of {:?} at {:#x} is gone", entry.name, entry.start));
    }
    done.mappings = changes.len();
    for change in changes {
        match change {
            Change::Break(end) => drop(stopped.call(libc::SYS_brk, [end, 0, 0, 0, 0, 0])?),
            Change::Unmap { start, end } => drop(stopped.call(libc::SYS_munmap, [start, end - start, 0, 0, 0, 0])?),
            Change::Protect { start, end, protection } => {
                stopped.call(libc::SYS_mprotect, [start, end - start, protection as u64, 0, 0, 0])?;
            }
            Change::Map { start, end, like } => map(stopped, start, end, &like, done)?,
        }
    }
    Ok(())
}

fn map(stopped: &mut Stopped<'_>, start: u64, end: u64, like: &Entry, done: &mut Restored) -> Result<(), Error> {
    let file = match like.inode {
        0 => None,
        inode => {
            let same = File::open(&like.name).ok().filter(|f| f.metadata().is_ok_and(|m| m.ino() == inode));
            if same.is_none() {
                done.left.push(format!("{:?} cannot be mapped at {start:#x} again: it is another file now", like.name));
            }
            same
        }
    };
    match file {
        Some(file) => {
            let source = Source::File { file: file.as_fd(), offset: like.offset + (start - like.start), shared: false };
            let region = stopped.map(Some(start), end - start, protection(like.protection), source)?;
            stopped.leave(region)?;
        }
        None => {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            stopped.call(libc::SYS_mmap, [start, end - start, like.protection as u64, flags as u64, u64::MAX, 0])?;
        }
    }
    Ok(())
}

fn protection(bits: i32) -> Protection {
    match (bits & libc::PROT_WRITE != 0, bits & libc::PROT_EXEC != 0, bits & libc::PROT_READ != 0) {
        (true, true, _) => Protection::READ_WRITE_EXECUTE,
        (true, false, _) => Protection::READ_WRITE,
        (false, true, _) => Protection::READ_EXECUTE,
        (false, false, true) => Protection::READ,
        (false, false, false) => Protection::NONE,
    }
}

/// Puts back the pages written since the newest checkpoint, and those at the addresses `differ`.
fn memory(
    stopped: &mut Stopped<'_>,
    tracker: &Tracker,
    history: &History<State>,
    differ: Vec<u64>,
    done: &mut Restored,
) -> Result<(), Error> {
    let image = history.image();
    let kept: Vec<Entry> = stopped.mappings()?.into_iter().filter(is_kept).collect();
    let mut wanted = BTreeSet::new();
    for entry in &kept {
        match tracker.scan(entry, false)? {
            Scan::Written(pages) => wanted.extend(pages),
            Scan::Fresh(pages) => {
                wanted.extend(pages);
                wanted.extend(image.within(entry.start, entry.end));
            }
        }
    }
    let is_in = |address: u64| {
        let i = kept.partition_point(|e| e.end <= address);
        kept.get(i).is_some_and(|e| e.start <= address)
    };
    wanted.extend(differ.into_iter().filter(|address| is_in(*address)));
    let (held, gone): (Vec<u64>, Vec<u64>) = wanted.into_iter().partition(|address| image.get(*address).is_some());
    let pages: Vec<&Bytes> = held.iter().filter_map(|address| image.get(*address)).collect();
    tracker.write(&held, &pages)?;
    done.pages = held.len();
    done.dropped = gone.len();
    drop_pages(stopped, tracker, &kept, &gone)?;
    kept.iter().try_for_each(|entry| tracker.protect(entry))
}

/// Makes pages again what their mapping holds by itself.
fn drop_pages(stopped: &mut Stopped<'_>, tracker: &Tracker, kept: &[Entry], pages: &[u64]) -> Result<(), Error> {
    let mut ranges: Vec<(u64, u64, bool)> = Vec::new();
    for &page in pages {
        let entry = &kept[kept.partition_point(|e| e.end <= page).min(kept.len() - 1)];
        let is_file = entry.inode != 0;
        match ranges.last_mut() {
            Some((start, end, of_file)) if *end == page && *of_file == is_file && *start >= entry.start => *end += PAGE,
            _ => ranges.push((page, page + PAGE, is_file)),
        }
    }
    let by_calls = ranges.len() <= DROPPED_BY_CALLS;
    for (start, end, is_file) in ranges {
        if by_calls || is_file {
            stopped.call(libc::SYS_madvise, [start, end - start, libc::MADV_DONTNEED as u64, 0, 0, 0])?;
        } else {
            let addresses: Vec<u64> = (start..end).step_by(PAGE as usize).collect();
            tracker.write(&addresses, &vec![&ZEROS; addresses.len()])?;
        }
    }
    Ok(())
}

/// Offsets, and lengths of files that are appended to.
fn files(stopped: &Stopped<'_>, state: &State, done: &mut Restored) {
    for was in &state.files {
        let Ok(fd) = stopped.process().duplicate(was.fd) else {
            done.left.push(format!("descriptor {} was closed since", was.fd));
            continue;
        };
        let file = File::from(fd);
        let Some(now) = file.metadata().ok().filter(|now| was.is(now)) else {
            done.left.push(format!("descriptor {} is another file now", was.fd));
            continue;
        };
        let placed = (&file).seek(SeekFrom::Start(was.offset)).map(|_| ());
        let cut = match was.length {
            Some(length) if now.len() > length => file.set_len(length),
            _ => Ok(()),
        };
        if let Err(error) = placed.and(cut) {
            done.left.push(format!("descriptor {}: {error}", was.fd));
        }
    }
}

/// A thread that began to live since registers for restartable sequences again, which fails if it is registered.
fn sequences(stopped: &mut Stopped<'_>, was: &ThreadState) -> Result<(), Error> {
    const UNREGISTER: u64 = 1;
    let mut thread = stopped.thread(was.tid)?;
    let (now, then) = (thread.rseq().unwrap_or(None), was.rseq);
    if now == then {
        return Ok(());
    }
    if let Some(rseq) = now {
        thread.call(libc::SYS_rseq, [rseq.address, rseq.size.into(), UNREGISTER, rseq.signature.into(), 0, 0])?;
    }
    if let Some(rseq) = then {
        thread.call(libc::SYS_rseq, [rseq.address, rseq.size.into(), 0, rseq.signature.into(), 0, 0])?;
    }
    Ok(())
}

/// Makes a thread again that has ended since.
fn make(stopped: &mut Stopped<'_>, was: &ThreadState) -> Result<(), Error> {
    let new = NewThread {
        tid: was.tid,
        regs: &was.regs,
        mask: was.mask,
        cleared: was.cleared,
        robust: was.robust,
        rseq: was.rseq,
        name: &was.name,
    };
    stopped.make_thread(&new).map_err(|error| match error {
        graft::Error::Call { errno: libc::EPERM, .. } => Error::Unkept(format!(
            "thread {} ({}) has ended since the checkpoint; making it again with its number needs CAP_CHECKPOINT_RESTORE in the program",
            was.tid, was.name
        )),
        error => error.into(),
    })
}

/// Rolls back to the newest checkpoint of `history`. `differ`: pages that newer checkpoints, forgotten now, had otherwise. `crashed`: the thread whose registers
/// come last; `last` runs before them.
pub(crate) fn all(
    stopped: &mut Stopped<'_>,
    tracker: &Tracker,
    history: &History<State>,
    differ: Vec<u64>,
    crashed: i32,
    last: impl FnOnce(),
) -> Result<Restored, Error> {
    let mut done = Restored::default();
    let Some(checkpoint) = history.newest() else { return Err(Error::Unkept("there is no checkpoint".into())) };
    let state = &checkpoint.state;
    let now: BTreeSet<i32> = stopped.tids().into_iter().collect();
    let then: BTreeSet<i32> = state.threads.iter().map(|t| t.tid).collect();
    // Before memory is put back: the kernel writes to it when they end.
    for tid in now.difference(&then) {
        stopped.end_thread(*tid)?;
        done.threads_ended += 1;
    }
    mappings(stopped, &state.mappings, &mut done)?;
    memory(stopped, tracker, history, differ, &mut done)?;
    files(stopped, state, &mut done);
    for was in state.threads.iter().filter(|t| !now.contains(&t.tid)) {
        make(stopped, was)?;
        done.threads_made += 1;
    }
    for was in state.threads.iter().filter(|t| now.contains(&t.tid)) {
        sequences(stopped, was)?;
    }
    let (mine, others): (Vec<_>, Vec<_>) = state.threads.iter().partition(|t| t.tid == crashed);
    for was in others {
        let mut thread = stopped.thread(was.tid)?;
        thread.set_regs(&was.regs)?;
        thread.set_signal_mask(was.mask)?;
    }
    last();
    for was in mine {
        let mut thread = stopped.thread(was.tid)?;
        thread.set_signal_mask(was.mask)?;
        thread.set_regs(&was.regs)?;
    }
    Ok(done)
}
