//! A rollback of a stopped program: mappings, then memory, then threads.
//!
//! The thread that crashed is the last to get its registers: if the keeper is killed before that,
//! this thread is still in the handler, sees that the keeper is gone, and the program dies of its
//! own crash.

use crate::beside::Beside;
use crate::capture::{Scan, Tracker};
use crate::error::Error;
use crate::files::{self, FileState};
use crate::history::History;
use crate::objects::queue_change;
use crate::outside::Outside;
use crate::pages::{Bytes, PAGE};
use crate::place;
use crate::space::{Change, changes, is_kept, is_reservation};
use crate::state::{State, ThreadState};
use graft::{Batch, NewThread, Protection, Source, Stopped};
use orbit_linux::maps::{self, Entry};
use orbit_linux::ptrace::state::{Dispatch, pending, robust_list};
use orbit_linux::sched::set_schedule;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

/// Ranges up to this many are dropped by calls in the program; with more, pages of zeros are
/// written.
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
    /// Descriptors opened since, and closed.
    pub descriptors_closed: usize,
    /// Descriptors closed since, and opened again.
    pub descriptors_opened: usize,
    /// Signal actions, timers and settings that were set again.
    pub objects: usize,
    /// Connections that had moved since, and were reset or are closed.
    pub connections_reset: usize,
    /// Outputs since to files open for appending, which are cut, and to stderr.
    pub appended: u64,
    /// Handlers of signals that had run since.
    pub signals_handled: u64,
    /// Files open for appending that were not cut, for other processes append to them too.
    pub files_not_cut: usize,
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
    let mappings = stopped.mappings()?;
    let holds = |e: &Entry| !is_reservation(e) || !image.within(e.start, e.end).is_empty();
    let mut kept: Vec<Entry> = tracker.kept(&mappings).into_iter().cloned().collect();
    // Also what holds nothing now and has held something.
    kept.extend(mappings.iter().filter(|e| is_kept(e) && is_reservation(e) && holds(e)).cloned());
    kept.sort_by_key(|e| e.start);
    kept.dedup();
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

/// What the program runs again must not give out the same random numbers: memory that it can do
/// without by its own declaration, as random states have it, is zero from here on.
fn forget_secrets(stopped: &Stopped<'_>, tracker: &Tracker) -> Result<(), Error> {
    let ranges = maps::not_to_be_repeated(stopped.pid());
    for (start, end) in ranges.map_err(Error::io("reading the mappings of the program"))? {
        let pages = tracker.held(start, end)?;
        tracker.write(&pages, &vec![&ZEROS; pages.len()])?;
    }
    Ok(())
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

/// A thread that began to live since registers for restartable sequences again, which fails if it
/// is registered.
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
            "thread {} ({}) has ended since the checkpoint; making it again with its number needs \
             CAP_CHECKPOINT_RESTORE in the program",
            was.tid, was.name
        )),
        error => error.into(),
    })
}

/// Stack for signals, schedule, name, list of robust mutexes of a thread, and signals that wait for
/// it, as far as they differ. To be done once it has its registers: the kernel changes no stack
/// that the thread stands on.
fn thread_objects(
    stopped: &mut Stopped<'_>,
    batch: &Batch,
    was: &ThreadState,
    sets_stack: bool,
    done: &mut Restored,
) -> Result<(), Error> {
    const ON_IT: u64 = libc::SS_ONSTACK as u64;
    let pid = stopped.pid();
    if let Some(schedule) = &was.schedule
        && let Err(error) = set_schedule(was.tid, schedule)
    {
        done.left.push(format!("the schedule of thread {}: {error}", was.tid));
    }
    if let Some([start, flags, len]) = was.stack.filter(|_| sets_stack) {
        batch.put(0, &[start, flags & !ON_IT, len]);
        let set = stopped.thread(was.tid)?.call(libc::SYS_sigaltstack, [batch.room(0), 0, 0, 0, 0, 0]);
        if set.is_err() {
            done.left.push(format!("the stack for signals of thread {} is not as it was", was.tid));
        }
    }
    if place::thread_name(pid, was.tid) != was.name {
        let mut name = [0u8; 16];
        let kept = was.name.len().min(15);
        name[..kept].copy_from_slice(&was.name.as_bytes()[..kept]);
        let words = [0, 8].map(|at| u64::from_ne_bytes(name[at..at + 8].try_into().unwrap_or_default()));
        batch.put(0, &words);
        stopped.thread(was.tid)?.call(libc::SYS_prctl, [libc::PR_SET_NAME as u64, batch.room(0), 0, 0, 0, 0])?;
    }
    if robust_list(was.tid).is_ok_and(|now| now != was.robust && was.robust.0 != 0) {
        stopped.thread(was.tid)?.call(libc::SYS_set_robust_list, [was.robust.0, was.robust.1, 0, 0, 0, 0])?;
    }
    let now = pending(was.tid, false).unwrap_or_default();
    if now == was.pending {
        return Ok(());
    }
    let mut thread = stopped.thread(was.tid)?;
    let [process, own] = [thread.call(libc::SYS_getpid, [0; 6])?, thread.call(libc::SYS_gettid, [0; 6])?];
    let change = queue_change(&was.pending, &now, process);
    for signal in change.taken {
        batch.put(0, &[1 << (signal - 1), 0, 0]);
        thread.call(libc::SYS_rt_sigtimedwait, [batch.room(0), 0, batch.room(8), 8, 0, 0])?;
    }
    for info in change.queued {
        batch.put(0, &info);
        let signal = info[0] & 0xffff_ffff;
        thread.call(libc::SYS_rt_tgsigqueueinfo, [process, own, signal, batch.room(0), 0, 0])?;
    }
    Ok(())
}

/// How a rollback ends.
pub(crate) struct Last<'a, F> {
    /// The thread whose registers come last.
    pub crashed: i32,
    /// Stacks for signals that were set up to now.
    pub stacks: Option<u32>,
    /// What cannot be put back is an error.
    pub is_exact: bool,
    /// A replay follows, and proves that the program does again what it has done since.
    pub is_proven: bool,
    /// Connections by TCP that were closed since, by their numbers.
    pub closed: &'a [i32],
    /// With a log: the serving thread, and how it is confined while it replays.
    pub confined: Option<(i32, Dispatch)>,
    /// Runs before that thread gets its registers.
    pub work: F,
}

/// Rolls back to the newest checkpoint of `history`. `differ`: pages that newer checkpoints,
/// forgotten now, had otherwise. `outside`: without a log.
pub(crate) fn all(
    stopped: &mut Stopped<'_>,
    tracker: &Tracker,
    history: &History<State>,
    differ: Vec<u64>,
    outside: Option<&Beside<'_, (Outside, Vec<FileState>)>>,
    last: Last<'_, impl FnOnce()>,
) -> Result<Restored, Error> {
    let Last { crashed, stacks, is_exact, is_proven, closed, confined, work: last } = last;
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
    let mut batch = if state.objects.is_some() { Some(tracker.batch(stopped)?) } else { None };
    // Mappings and the batch were made with descriptors of the program: from here on they are its
    // own.
    outside.into_iter().for_each(Beside::start);
    memory(stopped, tracker, history, differ, &mut done)?;
    if !is_proven {
        forget_secrets(stopped, tracker)?;
    }
    if let (Some(Some(batch)), Some(objects), Some(outside)) =
        (batch.as_deref_mut().map(Option::as_mut), &state.objects, outside)
    {
        let (outside, files) = outside.result();
        files::restore(stopped, batch, &state.files, files, closed, &mut done)?;
        if !is_exact {
            done.left.extend(files::not_rolled_back(&state.files));
        }
        objects.restore(stopped, batch, outside, &mut done)?;
    }
    for was in state.threads.iter().filter(|t| !now.contains(&t.tid)) {
        make(stopped, was)?;
        done.threads_made += 1;
    }
    for was in state.threads.iter().filter(|t| now.contains(&t.tid)) {
        sequences(stopped, was)?;
    }
    // Of threads that were made again, and where some thread has set one since.
    let sets_stack = |tid| !now.contains(&tid) || stacks.is_none() || stacks != state.stacks;
    let (mine, others): (Vec<_>, Vec<_>) = state.threads.iter().partition(|t| t.tid == crashed);
    for was in others {
        let mut thread = stopped.thread(was.tid)?;
        thread.set_regs(&was.regs)?;
        thread.set_signal_mask(was.mask)?;
        if let Some(Some(batch)) = batch.as_deref() {
            thread_objects(stopped, batch, was, sets_stack(was.tid), &mut done)?;
        }
    }
    if let Some(left) = done.left.first().filter(|_| is_exact) {
        return Err(Error::Unkept(left.clone()));
    }
    if let Some((tid, dispatch)) = confined {
        let set = stopped.thread(tid)?.set_dispatch(Some(dispatch));
        set.map_err(|error| Error::Unkept(format!("a replay cannot be confined: {error}")))?;
    }
    last();
    for was in mine {
        let mut thread = stopped.thread(was.tid)?;
        thread.set_signal_mask(was.mask)?;
        thread.set_regs(&was.regs)?;
        if let Some(Some(batch)) = batch.as_deref()
            && let Err(error) = thread_objects(stopped, batch, was, sets_stack(was.tid), &mut done)
        {
            // It has its registers: there is no way back.
            done.left.push(format!("thread {}: {error}", was.tid));
        }
    }
    Ok(done)
}
