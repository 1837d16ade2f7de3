//! A checkpoint of a stopped program: what was written since the last one, its threads, its
//! mappings, its open files.

use crate::attach::FATAL;
use crate::error::Error;
use crate::files::FileState;
use crate::objects::Objects;
use crate::outside::Outside;
use crate::pages::{Bytes, PAGE, Pool};
use crate::place;
use crate::space::{is_kept, is_reservation};
use crate::staging::{self, Copied, Staging};
use crate::state::{State, ThreadState};
use graft::{Batch, Stopped};
use orbit_linux::maps::{self, Entry};
use orbit_linux::pagemap::Pagemap;
use orbit_linux::ptrace::state::{pending, robust_list};
use orbit_linux::remote_pages;
use orbit_linux::sched::schedule;
use orbit_linux::uffd::Uffd;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `UFFD_USER_MODE_ONLY`: what an ordinary user may have.
const USER_MODE_ONLY: u64 = 1;
/// Written pages from which on a second thread scans, which takes some 40 us to make.
const PAGES_FOR_A_SECOND_SCANNER: usize = 4096;
/// Pages that a checkpoint copies at most where written ones are not tracked.
const MOST_UNTRACKED: usize = 64 << 10;
/// What one table of pages covers.
const TABLE_BYTES: u64 = 2 << 20;
/// Pages of a running program that are copied at a time.
const AHEAD: usize = 256;

/// The tracking of one program's writes. It belongs to its address space: after an exec there is a
/// new one.
pub(crate) struct Tracker {
    /// `None`: a filter forbids it. Then each checkpoint copies all that the program holds.
    uffd: Option<Uffd>,
    pagemap: Pagemap,
    memory: File,
    pid: i32,
    /// Without it the keeper reads all pages itself, which takes longer.
    staging: Option<Staging>,
    /// Memory for calls in the program. Used while it stands still, by one thread.
    batch: Mutex<Option<Batch>>,
    /// Where mappings begin whose content the kernel may drop, and which it does not track: the
    /// C library's state of random numbers, say. They stay as they are.
    droppable: Mutex<BTreeSet<u64>>,
}

/// Written pages of one scan.
pub(crate) enum Scan {
    /// Those written since the last one.
    Written(Vec<u64>),
    /// The mapping was not tracked; these pages are there. It is now.
    Fresh(Vec<u64>),
}

impl Tracker {
    /// Makes the tracking: one injected call.
    pub fn new(stopped: &mut Stopped<'_>) -> Result<Tracker, Error> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64 | USER_MODE_ONLY;
        let uffd = match stopped.call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) {
            Ok(fd) => {
                let ours = stopped.process().duplicate(fd as i32);
                stopped.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
                match ours {
                    Ok(ours) => Some(Uffd::from_fd(ours).map_err(Error::io("setting up write tracking"))?),
                    // A filter of ours that lacks pidfd_getfd.
                    Err(graft::Error::NotPermitted { .. }) => None,
                    Err(error) => return Err(error.into()),
                }
            }
            // That it is this call which is forbidden, and not all of them.
            Err(graft::Error::Filtered { .. }) if stopped.call(libc::SYS_getpid, [0; 6]).is_ok() => None,
            Err(error) => return Err(error.into()),
        };
        let pid = stopped.pid();
        Ok(Tracker {
            uffd,
            pagemap: Pagemap::of(pid).map_err(Error::io("opening the page map of the program"))?,
            memory: File::options()
                .read(true)
                .write(true)
                .open(format!("/proc/{pid}/mem"))
                .map_err(Error::io("opening the memory of the program"))?,
            pid,
            staging: Staging::new(stopped).ok(),
            batch: Mutex::new(None),
            droppable: Mutex::default(),
        })
    }

    /// Memory for many calls in the program, made with the first use, at a checkpoint: every
    /// checkpoint has it mapped. Made again if the program has unmapped it.
    pub fn batch(&self, stopped: &mut Stopped<'_>) -> Result<MutexGuard<'_, Option<Batch>>, Error> {
        let mappings = stopped.mappings()?;
        let is_there = self.has_batch_in(&mappings);
        let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_there {
            *batch = Some(Batch::new(stopped)?);
        }
        Ok(batch)
    }

    /// Whether that memory was made.
    pub fn has_batch(&self) -> bool {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether it was made and is among these mappings.
    pub fn has_batch_in(&self, mappings: &[Entry]) -> bool {
        let batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        batch.as_ref().is_some_and(|batch| batch.is_mapped(mappings))
    }

    /// Pages of the mapping that were written, protected again if `protect`. Pages are protected
    /// before they are copied, so no write is lost.
    pub fn scan(&self, entry: &Entry, protect: bool) -> Result<Scan, Error> {
        let (start, end) = (entry.start as usize, entry.end as usize);
        let Some(uffd) = &self.uffd else { return self.held(entry.start, entry.end).map(Scan::Fresh) };
        let mut ranges = Vec::new();
        match self.pagemap.scan_written(start, end, protect, 0, &mut ranges) {
            Ok(_) => return Ok(Scan::Written(addresses(&ranges))),
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
            Err(e) => return Err(Error::Io("scanning the program's memory", e)),
        }
        if let Err(e) = uffd.register_wp_unchecked(start, end - start) {
            if e.raw_os_error() == Some(libc::EINVAL) && maps::is_droppable(self.pid, entry.start).unwrap_or(false) {
                self.droppable().insert(entry.start);
                return Ok(Scan::Written(Vec::new()));
            }
            return Err(Error::Io("tracking the program's memory", e));
        }
        ranges.clear();
        // Of a private mapping of a file only what the program has written itself is not in the
        // file.
        self.pagemap.scan_anonymous(start, end, &mut ranges).map_err(Error::io("scanning the program's memory"))?;
        self.protect(entry)?;
        Ok(Scan::Fresh(addresses(&ranges)))
    }

    /// Pages of the mapping that were written, protected again; nothing where it is not tracked.
    /// The program may run: what it writes meanwhile is found by the next scan.
    pub fn scan_running(&self, entry: &Entry) -> Vec<u64> {
        if self.copies_all() {
            return Vec::new();
        }
        let mut ranges = Vec::new();
        // Also where it fails half-way, those found are protected and belong to the result.
        let _ = self.pagemap.scan_written(entry.start as usize, entry.end as usize, true, 0, &mut ranges);
        addresses(&ranges)
    }

    /// The mappings whose content is kept.
    pub fn kept<'a>(&self, mappings: &'a [Entry]) -> Vec<&'a Entry> {
        let has_content = |e: &Entry| !is_reservation(e) || self.holds_something(e);
        mappings.iter().filter(|e| is_kept(e) && has_content(e) && !self.is_droppable(e)).collect()
    }

    fn droppable(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.droppable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the mapping was found to be droppable, and still is: another one may be there by
    /// now, which can be tracked.
    fn is_droppable(&self, entry: &Entry) -> bool {
        let (start, len) = (entry.start as usize, (entry.end - entry.start) as usize);
        if !self.droppable().contains(&entry.start) {
            return false;
        }
        let Some(uffd) = &self.uffd else { return false };
        let is_tracked = uffd.register_wp_unchecked(start, len).is_ok();
        if is_tracked {
            // As new to the next scan.
            let _ = uffd.unregister(start, len);
            self.droppable().remove(&entry.start);
        }
        !is_tracked
    }

    /// Pages of a range that hold something.
    pub fn held(&self, start: u64, end: u64) -> Result<Vec<u64>, Error> {
        let mut ranges = Vec::new();
        let scanned = self.pagemap.scan_anonymous(start as usize, end as usize, &mut ranges);
        scanned.map_err(Error::io("scanning the program's memory"))?;
        Ok(addresses(&ranges))
    }

    fn holds_something(&self, entry: &Entry) -> bool {
        let mut ranges = Vec::new();
        let scanned = self.pagemap.scan_anonymous(entry.start as usize, entry.end as usize, &mut ranges);
        scanned.is_ok() && !ranges.is_empty()
    }

    /// Copies pages of the running program; gives back to `pool` those for addresses that are not
    /// mapped any more.
    pub fn read_running(&self, addresses: Vec<u64>, pool: &mut Pool) -> Vec<(u64, Box<Bytes>)> {
        let mut pages = pool.take(addresses.len());
        let mut copied = Vec::with_capacity(addresses.len());
        let mut done = 0;
        while done < addresses.len() {
            let some = &addresses[done..(done + AHEAD).min(addresses.len())];
            let room = &mut pages[done..done + some.len()];
            if self.read(some, room).is_ok() {
                copied.resize(done + some.len(), true);
            } else {
                copied.extend(
                    some.iter().zip(room).map(|(a, page)| self.read(&[*a], std::slice::from_mut(page)).is_ok()),
                );
            }
            done += some.len();
        }
        let all = addresses.into_iter().zip(pages).zip(copied);
        let (kept, gone): (Vec<_>, Vec<_>) = all.partition(|(_, is_copied)| *is_copied);
        pool.give(gone.into_iter().map(|((_, page), _)| page));
        kept.into_iter().map(|(page, _)| page).collect()
    }

    /// Whether written pages are not tracked: each checkpoint copies all.
    pub fn copies_all(&self) -> bool {
        self.uffd.is_none()
    }

    /// From now on only later writes count as such.
    pub fn protect(&self, entry: &Entry) -> Result<(), Error> {
        if self.copies_all() {
            return Ok(());
        }
        self.pagemap
            .scan_written(entry.start as usize, entry.end as usize, true, 0, &mut Vec::new())
            .map(|_| ())
            .map_err(Error::io("protecting the program's memory"))
    }

    /// Copies pages.
    pub fn read(&self, addresses: &[u64], pages: &mut [Box<Bytes>]) -> Result<(), Error> {
        let mut done = 0;
        while done < addresses.len() {
            let into = pages[done..].iter_mut().map(|page| &mut **page);
            done += remote_pages::read(self.pid, &addresses[done..], into)
                .map_err(Error::io("reading the program's memory"))?;
            if done < addresses.len() {
                // Memory that the program itself may not read.
                self.memory
                    .read_exact_at(&mut *pages[done], addresses[done])
                    .map_err(Error::io("reading the program's memory"))?;
                done += 1;
            }
        }
        Ok(())
    }

    /// The pages that [`memory`] has copied; may be done after the pause.
    pub fn collect(&self, copied: Copied, pool: &mut Pool) -> Vec<(u64, Box<Bytes>)> {
        staging::collect(self.staging.as_ref(), copied, pool)
    }

    /// Writes pages, also where the program itself may not write.
    pub fn write(&self, addresses: &[u64], pages: &[&Bytes]) -> Result<(), Error> {
        let mut done = 0;
        while done < addresses.len() {
            let from = pages[done..].iter().copied();
            done += remote_pages::write(self.pid, &addresses[done..], from)
                .map_err(Error::io("writing the program's memory"))?;
            if done < addresses.len() {
                self.memory
                    .write_all_at(pages[done], addresses[done])
                    .map_err(Error::io("writing the program's memory"))?;
                done += 1;
            }
        }
        Ok(())
    }
}

fn addresses(ranges: &[(usize, usize)]) -> Vec<u64> {
    ranges.iter().flat_map(|(start, end)| (*start as u64..*end as u64).step_by(PAGE as usize)).collect()
}

/// What [`memory`] found.
pub(crate) struct Memory {
    pub mappings: Vec<Entry>,
    /// Pages that changed since the last checkpoint: see [`Tracker::collect`].
    pub copied: Copied,
    /// Ranges about which the image knows nothing any more: all of it that is not in `pages` is
    /// gone.
    pub anew: Vec<(u64, u64)>,
}

/// Scans and protects the mappings; `in_halves`: a second thread does one of them.
fn scan_all(tracker: &Tracker, kept: Vec<Entry>, in_halves: bool) -> Result<Vec<(Entry, Scan)>, Error> {
    let scan = |entries: Vec<Entry>| -> Result<Vec<(Entry, Scan)>, Error> {
        entries.into_iter().map(|entry| tracker.scan(&entry, true).map(|scan| (entry, scan))).collect()
    };
    if !in_halves {
        return scan(kept);
    }
    let (low, high) = halves(kept);
    std::thread::scope(|scope| {
        let high = scope.spawn(|| scan(high));
        let mut found = scan(low)?;
        found.extend(high.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        Ok(found)
    })
}

/// Parts of about the same size; a mapping is cut where a table of the kernel's ends.
fn halves(kept: Vec<Entry>) -> (Vec<Entry>, Vec<Entry>) {
    let mut left = kept.iter().map(|entry| entry.end - entry.start).sum::<u64>() / 2;
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for entry in kept {
        let cut = (entry.start + left.min(entry.end - entry.start)) / TABLE_BYTES * TABLE_BYTES;
        left = left.saturating_sub(entry.end - entry.start);
        match cut.clamp(entry.start, entry.end) {
            cut if cut == entry.start && left == 0 => high.push(entry),
            cut if left > 0 || cut == entry.end => low.push(entry),
            cut => {
                low.push(Entry { end: cut, ..entry.clone() });
                high.push(Entry { start: cut, ..entry });
            }
        }
    }
    (low, high)
}

/// Copies what was written since the last checkpoint; `expected`: pages that this may be.
pub(crate) fn memory(
    stopped: &mut Stopped<'_>,
    tracker: &Tracker,
    pool: &mut Pool,
    before: Option<&[Entry]>,
    expected: usize,
) -> Result<Memory, Error> {
    // The first checkpoint has regions that are not the program's: a rollback would map them again.
    let mappings = stopped.lasting_mappings()?;
    let (mut readable, mut hidden) = (Vec::new(), Vec::new());
    let mut anew = Vec::new();
    let kept: Vec<Entry> = tracker.kept(&mappings).into_iter().cloned().collect();
    for (entry, scan) in scan_all(tracker, kept, expected >= PAGES_FOR_A_SECOND_SCANNER)? {
        let changed = if entry.protection & libc::PROT_READ != 0 { &mut readable } else { &mut hidden };
        match scan {
            Scan::Written(mut pages) => changed.append(&mut pages),
            Scan::Fresh(mut pages) => {
                anew.push((entry.start, entry.end));
                changed.append(&mut pages);
            }
        }
    }
    if tracker.copies_all() && readable.len() + hidden.len() > MOST_UNTRACKED {
        return Err(Error::Unkept(format!(
            "userfaultfd is forbidden in it, or pidfd_getfd here, and it holds more than {} MiB, all of which each \
             checkpoint would copy",
            (MOST_UNTRACKED as u64 * PAGE) >> 20
        )));
    }
    if before != Some(&mappings) {
        anew.extend(gaps(&tracker.kept(&mappings)));
    }
    // The first copy is of all memory: the memory for copies is not made that large.
    let staging = tracker.staging.as_ref().filter(|staging| before.is_some() && staging.is_mapped(&mappings));
    let copied = staging::copy(stopped, tracker, staging, (readable, hidden), pool)?;
    Ok(Memory { copied, anew, mappings })
}

/// Ranges of the address space in which nothing is kept.
fn gaps(kept: &[&Entry]) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut from = 0;
    for entry in kept {
        if entry.start > from {
            gaps.push((from, entry.start));
        }
        from = entry.end;
    }
    gaps.push((from, 1 << 56));
    gaps
}

/// Registers and masks of all threads. `logged`: the thread whose calls are logged, the address
/// after its system call instruction, and what makes it ask the log again.
pub(crate) fn threads(stopped: &mut Stopped<'_>, logged: Option<(i32, u64, u64)>) -> Result<Vec<ThreadState>, Error> {
    let mut threads = Vec::new();
    for tid in stopped.tids() {
        let mut thread = stopped.thread(tid)?;
        let mut regs = thread.regs()?;
        let interrupted = thread.interrupted()?.is_some();
        let general = &mut regs.general;
        match logged {
            Some((serving, after, again)) if interrupted && tid == serving && general.rip == after => {
                (general.rax, general.orig_rax) = (again, u64::MAX);
            }
            // From its start: what the kernel remembers of the call is gone by then.
            _ if interrupted => {
                (general.rax, general.orig_rax) = (general.orig_rax, u64::MAX);
                general.rip -= 2;
            }
            _ => {}
        }
        let (mask, rseq) = (thread.signal_mask()?, thread.rseq().unwrap_or(None));
        let robust = robust_list(tid).unwrap_or((0, 0));
        let cleared = cleared_at_end(stopped, tid, regs.general.fs_base);
        let name = place::thread_name(stopped.pid(), tid);
        let (stack, schedule, pending) = (None, None, Vec::new());
        threads.push(ThreadState { tid, mask, rseq, robust, cleared, name, regs, stack, schedule, pending });
    }
    Ok(threads)
}

/// Where glibc keeps a thread's id, from its thread pointer on. It has the kernel clear that word
/// when the thread ends.
const GLIBC_TID: u64 = 0x2d0;

/// The address of that word; 0 if the id is not there, as with another libc.
fn cleared_at_end(stopped: &Stopped<'_>, tid: i32, thread_pointer: u64) -> u64 {
    let address = thread_pointer.wrapping_add(GLIBC_TID);
    let mut word = [0u8; 4];
    match stopped.read(address, &mut word) {
        Ok(()) if i32::from_ne_bytes(word) == tid => address,
        _ => 0,
    }
}

/// Where a program without a log is at a checkpoint: what the kernel holds of it.
pub(crate) struct Kernel<'a> {
    pub batch: &'a mut Batch,
    /// How often the program's side has seen a stack for signals being set; `None`: it has no such
    /// side.
    pub stacks: Option<u32>,
    /// What can be read from outside.
    pub outside: Outside,
    pub files: Vec<FileState>,
    /// The checkpoint before.
    pub before: Option<&'a State>,
}

/// Whether a signal that waits is a crash that has not been delivered yet: after each rollback to a
/// checkpoint that has it, it would be delivered again.
fn is_about_to_kill(info: &[u64; 16], blocked: u64) -> bool {
    FATAL.iter().any(|signal| info[0] as i32 == *signal && blocked >> (signal - 1) & 1 == 0)
}

/// The whole state beside memory; `kernel`: without a log.
pub(crate) fn state(
    stopped: &mut Stopped<'_>,
    mappings: Vec<Entry>,
    logged: Option<(i32, u64, u64)>,
    kernel: Option<Kernel<'_>>,
) -> Result<State, Error> {
    let mut threads = threads(stopped, logged)?;
    let mut state = State { mappings, ..State::default() };
    if let Some(Kernel { batch, stacks, outside, files, before }) = kernel {
        let mut objects = Objects::capture(stopped, batch, outside)?;
        let blocked_by_all = threads.iter().fold(u64::MAX, |all, thread| all & thread.mask);
        objects.pending.retain(|info| !is_about_to_kill(info, blocked_by_all));
        let known = before.filter(|before| stacks.is_some() && before.stacks == stacks);
        for thread in &mut threads {
            let earlier = known.and_then(|known| known.threads.iter().find(|was| was.tid == thread.tid)?.stack);
            thread.stack = match earlier {
                _ if objects.stack.0 == thread.tid => Some(objects.stack.1),
                Some(stack) => Some(stack),
                None => {
                    stopped.thread(thread.tid)?.call(libc::SYS_sigaltstack, [0, batch.room(0), 0, 0, 0, 0])?;
                    Some(std::array::from_fn(|nth| batch.get(nth * 8)))
                }
            };
            thread.schedule = schedule(thread.tid).ok();
            thread.pending = pending(thread.tid, false).unwrap_or_default();
            thread.pending.retain(|info| !is_about_to_kill(info, thread.mask));
        }
        (state.objects, state.stacks, state.files) = (Some(objects), stacks, files);
    }
    state.threads = threads;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_on_its_way_is_no_part_of_a_checkpoint() {
        let info = |signal: i32| std::array::from_fn(|nth| if nth == 0 { signal as u64 } else { 0 });
        assert!(is_about_to_kill(&info(libc::SIGSEGV), 0));
        assert!(!is_about_to_kill(&info(libc::SIGUSR1), 0), "it waits as it did");
        assert!(!is_about_to_kill(&info(libc::SIGABRT), 1 << (libc::SIGABRT - 1)), "the program wants it to wait");
    }

    #[test]
    fn halves_are_all_of_it() {
        let entry = |start: u64, end: u64| Entry {
            start,
            end,
            protection: libc::PROT_READ,
            shared: false,
            offset: 0,
            inode: 0,
            name: String::new(),
        };
        const MIB: u64 = 1 << 20;
        let cases: [&[(u64, u64)]; 5] = [
            &[(0x1000, 0x3000), (64 * MIB, 320 * MIB), (400 * MIB, 401 * MIB)],
            &[(64 * MIB, 65 * MIB), (66 * MIB, 67 * MIB)],
            &[(0x1000, 0x2000)],
            &[],
            &[(2 * MIB, 4 * MIB), (4 * MIB, 6 * MIB), (6 * MIB, 7 * MIB)],
        ];
        for case in cases {
            let all: Vec<Entry> = case.iter().map(|(start, end)| entry(*start, *end)).collect();
            let (low, high) = halves(all.clone());
            let pages = |entries: &[Entry]| -> Vec<u64> {
                entries.iter().flat_map(|e| (e.start..e.end).step_by(PAGE as usize)).collect()
            };
            let both = [pages(&low), pages(&high)].concat();
            assert_eq!(both, pages(&all), "{case:?}");
            let (few, many) = (pages(&low).len().min(pages(&high).len()), both.len());
            assert!(many < 60_000 || few * 5 > many * 2, "{case:?}: {few} of {many}");
        }
    }
}
