//! The shared memory of a kept program: made here, mapped by both. Every value that the program
//! writes is read once and checked here.

use crate::error::Error;
use crate::layout::{
    AGAIN, Both, CrashState, FAMILY, FAMILY_COMES, Handlers, MAGIC, Mode, NOWHERE, News, Orders, PAGE, Rule, VERSION,
};
use crate::log::{FIRST_LOG, LogEntry, grown};
use crate::marks::made_in_a_replay;
use crate::rules::{Calls, Rules};
use orbit_linux::map::{Mapping, populate_write};
use orbit_linux::ptrace::state::Dispatch;
use orbit_linux::{clock, futex, memfd};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Stack of the first thread for signals; it lies in the shared memory, so that a rollback does not
/// touch it.
pub(crate) const MAIN_STACK_BYTES: usize = 256 << 10;
/// All stacks for signals: 512 threads have one of 32 KiB, see `side/side.h`.
pub(crate) const STACK_BYTES: usize = MAIN_STACK_BYTES + 512 * (32 << 10);
/// Size of an entry's head, see `struct keep_entry`.
const ENTRY_BYTES: u64 = 40;
/// Bytes of the log whose memory is made before the program comes there: more than it fills while
/// the keeper sleeps.
const AHEAD: u64 = 4 << 20;
/// Entries of the log that are read to judge one drop.
const MOST_ENTRIES: usize = 100_000;
/// And how much of it at least.
const LEAST_PREPARED: u64 = 256 << 10;

/// A crash as its thread reported it. Nothing of it is checked but that the position lies in the
/// log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CrashReport {
    pub signal: i32,
    pub code: i32,
    pub tid: i32,
    pub address: u64,
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// Where the log ended when the crash began; only in log mode.
    pub head: u64,
    /// Registers in DWARF's order.
    pub regs: [u64; 17],
}

impl CrashReport {
    /// In place of a signal: the thread hangs.
    pub const HANG: i32 = -1;

    /// The process that sent the signal, where it was sent: the address is its number then.
    pub fn sender(&self) -> Option<i32> {
        // The user's number is in the upper half.
        matches!(self.code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL).then_some(self.address as i32)
    }
}

/// What the log held at a moment when the program stood still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogState {
    /// End of the log.
    pub head: u64,
    /// The last input, if there was one.
    pub last_input: Option<u64>,
    /// Depth of logged calls of the serving thread.
    pub busy: u32,
    /// When that was, as the kernel dates files: ns of the real-time clock.
    pub at: u64,
}

/// What replays have done since the program began. Its own words: for reports only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Calls answered from the log.
    pub calls: u64,
    /// Outputs to sockets that differed from what was sent.
    pub mismatched: u64,
    /// Outputs to files and pipes that differed.
    pub other_lines: u64,
}

/// The shared memory. May be used from any thread.
pub(crate) struct Shared {
    file: File,
    map: Mapping,
    /// What the log may grow to, in bytes.
    log_space: u64,
    /// All of it, where there is a log: only to have its memory made.
    whole: Option<Mapping>,
    /// Bytes of the log whose memory was made.
    prepared: AtomicU64,
    /// Where in the log the newest replay began.
    replayed_from: AtomicU64,
}

impl Shared {
    /// Makes one with a log that may grow to `log_space` bytes (a power of two of at least 1 MiB;
    /// 0: none).
    pub fn new(log_space: u64, handlers: Handlers) -> io::Result<Shared> {
        let len = 3 * PAGE + STACK_BYTES + log_space as usize;
        let fd = memfd::create("orbit-keep", len, true)?;
        memfd::seal_size(fd.as_fd())?;
        let map = Mapping::shared(fd.as_fd(), 3 * PAGE, true, true)?;
        let whole = if log_space == 0 { None } else { Some(Mapping::shared(fd.as_fd(), len, true, false)?) };
        let (prepared, replayed_from) = (AtomicU64::new(0), AtomicU64::new(0));
        let shared = Shared { file: File::from(fd), map, log_space, whole, prepared, replayed_from };
        let orders = shared.orders();
        orders.log_space.store(log_space, SeqCst);
        orders.log_bytes.store(log_space.min(FIRST_LOG), SeqCst);
        orders.stack_bytes.store(STACK_BYTES as u64, SeqCst);
        orders.version.store(VERSION, SeqCst);
        orders.handlers.store(handlers as u32, SeqCst);
        orders.keeper_pid.store(std::process::id(), SeqCst);
        orders.drop_at.store(NOWHERE, SeqCst);
        for (to, bits) in orders.inside.iter().zip(made_in_a_replay()) {
            to.store(bits, SeqCst);
        }
        shared.both().last_input.store(NOWHERE, SeqCst);
        orders.magic.store(MAGIC, SeqCst);
        Ok(shared)
    }

    /// One for a child of a program that has one like this.
    pub fn for_child(&self) -> io::Result<Shared> {
        let handlers = match self.orders().handlers.load(SeqCst) {
            1 => Handlers::First,
            2 => Handlers::Last,
            _ => Handlers::Auto,
        };
        Shared::new(self.log_space, handlers)
    }

    /// Children of the child that takes this memory will be kept, once it is known.
    pub fn expect_family(&self) {
        self.orders().family.store(FAMILY_COMES, SeqCst);
    }

    /// Children of the program are kept, with this memory.
    pub fn set_spare(&self, nth: usize, spare: &Shared) {
        self.orders().spares[nth].store(spare.fd() as u32, SeqCst);
        self.orders().family.store(FAMILY, SeqCst);
    }

    /// Another spare was taken and replaced.
    pub fn count_adopted(&self) {
        self.orders().adopted.fetch_add(1, SeqCst);
    }

    /// No child is kept from now on.
    pub fn end_family(&self) {
        self.orders().family.store(0, SeqCst);
    }

    /// Spares that the program has taken for children.
    pub fn claimed(&self) -> u32 {
        self.news().claimed.load(SeqCst)
    }

    /// Children that are not kept.
    pub fn unkept_children(&self) -> u32 {
        self.news().children.load(SeqCst)
    }

    /// The child that has taken this memory: its own word, checked by what it has mapped.
    pub fn taken_by(&self) -> Option<i32> {
        let pid = self.news().pid.load(SeqCst) as i32;
        let mapped = orbit_linux::maps::of(pid).ok().filter(|_| pid > 0)?;
        (self.is_ready() && self.is_mapped(&mapped)).then_some(pid)
    }

    /// The file: the three pages, the handler's stack, the log.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The memory was mapped into a running program, which has no library that would say so.
    pub fn attach(&self, pid: i32) {
        self.orders().pid.store(pid as u32, SeqCst);
        self.news().serving.store(pid as u32, SeqCst);
        self.news().ready.store(1, SeqCst);
    }

    /// Checkpoints that the program has asked for.
    pub fn wishes(&self) -> u32 {
        self.news().wishes.load(SeqCst)
    }

    /// A checkpoint was taken after that many wishes.
    pub fn grant(&self, wishes: u32) {
        self.orders().granted.store(wishes, SeqCst);
        futex::wake(&self.orders().granted, i32::MAX);
    }

    /// The file's number in this process: the program opens it through `/proc`.
    pub fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    pub fn orders(&self) -> &Orders {
        // SAFETY: the first page of a live shared mapping, which starts on a page; atomics allow
        // other writers.
        unsafe { &*self.map.as_ptr().cast() }
    }

    fn news(&self) -> &News {
        // SAFETY: as above, the second page.
        unsafe { &*self.map.as_ptr().add(PAGE).cast() }
    }

    fn both(&self) -> &Both {
        // SAFETY: as above, the third page.
        unsafe { &*self.map.as_ptr().add(2 * PAGE).cast() }
    }

    pub fn has_log(&self) -> bool {
        self.log_space != 0
    }

    /// Whether this memory is among a program's mappings: not after it has executed another
    /// program.
    pub fn is_mapped(&self, mappings: &[orbit_linux::maps::Entry]) -> bool {
        let inode = self.file.metadata().map_or(0, |file| file.ino());
        mappings.iter().any(|entry| entry.inode == inode && entry.name.starts_with("/memfd:orbit-keep"))
    }

    /// Programs that have begun in the process: another number than before means that it has
    /// executed one.
    pub fn images(&self) -> u32 {
        self.news().images.load(SeqCst)
    }

    /// Whether the library has been set up in the program.
    pub fn is_ready(&self) -> bool {
        self.news().ready.load(SeqCst) == 1
    }

    /// Whether the serving thread has waited for input: its start is over.
    pub fn has_waited(&self) -> bool {
        self.news().has_waited.load(SeqCst) == 1
    }

    /// The count that grows when the program wants the keeper.
    pub fn bell(&self) -> u32 {
        self.news().bell.load(SeqCst)
    }

    /// Sleeps until the bell is no longer `seen`, at most `timeout`.
    pub fn wait_bell(&self, seen: u32, timeout: std::time::Duration) {
        let _ = futex::wait(&self.news().bell, seen, Some(timeout));
    }

    /// Wakes whoever sleeps in [`Shared::wait_bell`].
    pub fn wake_bell(&self) {
        futex::wake(&self.news().bell, i32::MAX);
    }

    /// The thread whose calls are logged.
    pub fn serving(&self) -> i32 {
        self.news().serving.load(SeqCst) as i32
    }

    /// How often the program's side has seen a stack for signals being set; `None` if it has no
    /// such side.
    pub fn stacks(&self) -> Option<u32> {
        (self.news().syscall_ip.load(SeqCst) != 0).then(|| self.news().stacks.load(SeqCst))
    }

    /// Address after the system call instruction of logged calls.
    pub fn after_syscall(&self) -> u64 {
        self.news().syscall_ip.load(SeqCst).wrapping_add(2)
    }

    pub fn busy(&self) -> u32 {
        self.news().busy.load(SeqCst)
    }

    pub fn is_parked(&self) -> bool {
        self.news().parked.load(SeqCst) == 1
    }

    /// Asks the serving thread to park at the next safe point.
    pub fn ask(&self) {
        self.orders().ask.store(1, SeqCst);
    }

    /// Lets it go on.
    pub fn release(&self) {
        self.orders().ask.store(0, SeqCst);
        futex::wake(&self.orders().ask, i32::MAX);
    }

    /// Thread and stack pointer of a handler of the program for a fatal signal that has not
    /// returned.
    pub fn dying(&self) -> Option<(i32, u64)> {
        let news = self.news();
        let sp = news.dying_sp.load(SeqCst);
        (sp != 0).then(|| (news.dying_tid.load(SeqCst) as i32, sp))
    }

    /// The crash that waits, if one does.
    pub fn crash(&self) -> Option<CrashReport> {
        let crash = &self.both().crash;
        (crash.state.load(SeqCst) == CrashState::Crashed as u32).then(|| CrashReport {
            signal: crash.signal.load(SeqCst) as i32,
            code: crash.code.load(SeqCst),
            tid: crash.tid.load(SeqCst) as i32,
            address: crash.address.load(SeqCst),
            ip: crash.ip.load(SeqCst),
            sp: crash.sp.load(SeqCst),
            bp: crash.bp.load(SeqCst),
            head: crash.head.load(SeqCst),
            regs: std::array::from_fn(|nth| crash.regs[nth].load(SeqCst)),
        })
    }

    /// The rules of request mode. `serves`: whether this process serves requests; its children may.
    pub fn set_rules(&self, rules: &Rules, serves: bool) {
        let orders = self.orders();
        let put = |to: &Rule, calls: Calls| {
            to.calls.store(calls.calls, SeqCst);
            to.on.store(calls.on, SeqCst);
        };
        put(&orders.input, rules.input);
        put(&orders.reply, rules.reply);
        put(&orders.ends, rules.ends);
        orders.begins_on.store(rules.begins.on, SeqCst);
        orders.locks.store(rules.locks, SeqCst);
        orders.rules.store(1, SeqCst);
        orders.moments.store(if serves { rules.begins.calls } else { 0 }, SeqCst);
        // It grows with checkpoints, of which there is one for life.
        orders.log_bytes.store(self.log_space, SeqCst);
    }

    /// It serves no requests: it leaves request mode.
    pub fn serves_nothing(&self) {
        self.orders().moments.store(0, SeqCst);
    }

    /// Whether there is a checkpoint of the program: without one its first request waits.
    pub fn set_kept(&self, is_kept: bool) {
        let kept = &self.orders().kept;
        kept.store(is_kept.into(), SeqCst);
        futex::wake(kept, i32::MAX);
    }

    /// Whether a request has ended and the next has not begun: nothing is to be replayed.
    pub fn is_between(&self) -> bool {
        self.has_moments() && self.news().between.load(SeqCst) == 1
    }

    /// How often the program's side has seen that waits for input fail again and again, and with
    /// which error number the last time.
    pub fn failed_waits(&self) -> (u32, i32) {
        let news = self.news();
        (news.failed_waits.load(SeqCst), news.failed_errno.load(SeqCst).wrapping_neg())
    }

    /// Inputs from sockets that other threads than the serving one have read.
    pub fn others_read(&self) -> u64 {
        self.news().others_read.load(SeqCst)
    }

    /// Where the log ends.
    pub fn log_head(&self) -> u64 {
        self.both().head.load(SeqCst)
    }

    /// Whether the program is in request mode.
    pub fn has_moments(&self) -> bool {
        self.orders().moments.load(SeqCst) != 0
    }

    /// Whether the serving thread waits for a request, and whether it ever has.
    pub fn at_moment(&self) -> (bool, bool) {
        (self.news().at_moment.load(SeqCst) == 1, self.news().moment_count.load(SeqCst) != 0)
    }

    /// Where the log stood when the serving thread last came to wait for a request, as far as that
    /// makes sense.
    pub fn moment(&self) -> u64 {
        let (moment, oldest) = (self.news().moment.load(SeqCst), self.orders().oldest.load(SeqCst));
        let head = self.both().head.load(SeqCst);
        if moment.is_multiple_of(8) && (oldest..=head).contains(&moment) { moment } else { oldest }
    }

    /// Has allocations padded and zeroed, and frees delayed, or not any more.
    pub fn change_environment(&self, is_changed: bool) {
        self.orders().environment.store(is_changed.into(), SeqCst);
    }

    /// Whether the replay that is reported about has come to the end of the log; else it has left
    /// its order.
    pub fn has_replay_ended(&self) -> bool {
        const ENDED: i32 = 1;
        self.both().crash.code.load(SeqCst) == ENDED
    }

    /// The descriptor of the last output that differed in a replay.
    pub fn differing(&self) -> i32 {
        self.news().mismatch_fd.load(SeqCst)
    }

    /// How the serving thread is confined in a replay: only calls of the program's side pass.
    pub fn confinement(&self) -> Dispatch {
        let news = self.news();
        let (start, end) = (news.text.load(SeqCst), news.text_end.load(SeqCst));
        Dispatch { start, len: end.saturating_sub(start), selector: news.confined.load(SeqCst) }
    }

    /// Whether the kernel confines it now.
    pub fn set_confined(&self, is_confined: bool) {
        let both = self.both();
        both.is_confined.store(is_confined.into(), SeqCst);
        both.confined.store(is_confined.into(), SeqCst);
    }

    /// Where the kernel has the handler for fatal signals, if the program's side has set it.
    pub fn handler(&self) -> Option<u64> {
        Some(self.news().handler.load(SeqCst)).filter(|at| *at != 0)
    }

    /// The signal that the program dies of if it is given up in a replay.
    pub fn set_signal(&self, signal: i32) {
        let signal = if signal > 0 { signal } else { libc::SIGABRT };
        self.orders().signal.store(signal as u32, SeqCst);
    }

    /// Lets the thread continue whose replay is proven.
    pub fn accept(&self) {
        let state = &self.both().crash.state;
        state.store(CrashState::Accept as u32, SeqCst);
        futex::wake(state, i32::MAX);
    }

    /// The call that left the log's order, and the one that the log has there: number and
    /// descriptor.
    pub fn divergence(&self) -> [(u32, i32); 2] {
        let news = self.news();
        [
            (news.asked_nr.load(SeqCst), news.asked_fd.load(SeqCst)),
            (news.logged_nr.load(SeqCst), news.logged_fd.load(SeqCst)),
        ]
    }

    /// Lets the thread that crashed die of its signal.
    pub fn give_up(&self) {
        let state = &self.both().crash.state;
        state.store(CrashState::GiveUp as u32, SeqCst);
        futex::wake(state, i32::MAX);
    }

    fn mode(&self) -> u32 {
        self.both().mode.load(SeqCst)
    }

    pub fn is_replaying(&self) -> bool {
        self.mode() == Mode::Replay as u32
    }

    /// What the log holds; the program stands still. Positions that make no sense are an error: the
    /// log is of no use then.
    pub fn log_state(&self) -> Result<LogState, Error> {
        let (both, oldest) = (self.both(), self.orders().oldest.load(SeqCst));
        let head = both.head.load(SeqCst);
        let input = both.last_input.load(SeqCst);
        let busy = self.busy();
        if head < oldest || head - oldest > self.log_bytes() || !head.is_multiple_of(8) || busy > 64 {
            return Err(Error::Unkept(format!(
                "the log ends at {head}, which is not within {} bytes from {oldest} on: the program has written over \
                 it",
                self.log_bytes()
            )));
        }
        let at = clock::ns_of(libc::CLOCK_REALTIME_COARSE).unwrap_or(0);
        Ok(LogState { head, last_input: (input < head).then_some(input), busy, at })
    }

    /// Bytes of the log after this position.
    pub fn log_used_since(&self, position: u64) -> u64 {
        self.both().head.load(SeqCst).saturating_sub(position).min(self.log_bytes())
    }

    /// Has the memory made that the log comes to next in its first round, so that the program does
    /// not wait for it to be cleared: as much as it has used so far, up to [`AHEAD`].
    pub fn prepare_log(&self) {
        let Some(whole) = &self.whole else { return };
        // Whatever the program has written there: within the log.
        let head = self.both().head.load(SeqCst).min(self.log_bytes());
        let end = (head + head.min(AHEAD)).min(self.log_bytes()) / LEAST_PREPARED * LEAST_PREPARED;
        let done = self.prepared.load(SeqCst).max(head / LEAST_PREPARED * LEAST_PREPARED);
        if end > done {
            let front = (3 * PAGE + STACK_BYTES) as u64;
            // Without memory, or on an old kernel, the program's own writes make it, or fail.
            let _ = populate_write(whole.addr() + (front + done) as usize, (end - done) as usize);
            self.prepared.store(end, SeqCst);
        }
    }

    /// Whether calls are logged or answered from the log.
    pub fn is_logging(&self) -> bool {
        self.mode() != Mode::Off as u32
    }

    /// Size of the log now.
    pub fn log_bytes(&self) -> u64 {
        self.orders().log_bytes.load(SeqCst)
    }

    /// Whether a call waits for room in the log.
    pub fn is_log_wanted(&self) -> bool {
        self.news().wanted.load(SeqCst) != 0
    }

    /// Has the log grow if a checkpoint comes late in it: `used` bytes after the one before; or if
    /// a call waits for half of it. Whether it did: then nothing before this
    /// checkpoint is found in it any more. The program stands still at a safe point.
    pub fn grow_log(&self, used: u64) -> bool {
        let (now, wanted) = (self.log_bytes(), self.news().wanted.load(SeqCst));
        let size = grown(now, self.log_space, used.max(wanted));
        self.orders().log_bytes.store(size, SeqCst);
        size != now
    }

    /// Calls are logged from here on; what a replay has left over is forgotten. The program stands
    /// still at a safe point.
    pub fn record(&self) {
        let both = self.both();
        both.tail_at.store(0, SeqCst);
        both.tail_end.store(0, SeqCst);
        both.mode.store(Mode::Record as u32, SeqCst);
    }

    /// The log before this position is not needed any more.
    pub fn set_oldest(&self, oldest: u64) {
        self.orders().oldest.store(oldest, SeqCst);
    }

    /// How far the program's history reaches at a crash: in a replay to the end of the log, else to
    /// where the crash began. Cuts off what the program's own crash handlers have logged.
    pub fn cut_at_crash(&self, crash: &CrashReport) -> Result<LogState, Error> {
        let mut log = self.log_state()?;
        // Another thread may have crashed while this one continued: what it did is part of the
        // history.
        let is_serving = crash.tid == self.serving();
        if is_serving
            && !self.is_replaying()
            && crash.head >= self.orders().oldest.load(SeqCst)
            && crash.head <= log.head
        {
            log.head = crash.head;
            self.both().head.store(log.head, SeqCst);
        }
        log.last_input = log.last_input.filter(|input| *input < log.head);
        Ok(log)
    }

    /// Prepares a replay from a checkpoint, at which the log was `log`, without the input at
    /// `drop_at`, after a crash at `known_ip`. The program stands still.
    pub fn replay_from(&self, log: &LogState, drop_at: Option<u64>, known_ip: u64) {
        let (orders, both, news) = (self.orders(), self.both(), self.news());
        orders.replay.fetch_add(1, SeqCst);
        orders.drop_at.store(drop_at.unwrap_or(NOWHERE), SeqCst);
        orders.known_ip.store(known_ip, SeqCst);
        // A request is replayed with the files that there are now.
        orders.since.store(if self.has_moments() { NOWHERE } else { log.at }, SeqCst);
        both.cursor.store(log.head, SeqCst);
        self.replayed_from.store(log.head, SeqCst);
        both.last_input.store(log.last_input.unwrap_or(NOWHERE), SeqCst);
        if self.has_moments() {
            // What was before is over, if nothing is replayed.
            news.moment.store(log.head, SeqCst);
            news.between.store(0, SeqCst);
        }
        news.busy.store(log.busy, SeqCst);
        news.parked.store(0, SeqCst);
        news.dying_sp.store(0, SeqCst);
        news.is_last.store(0, SeqCst);
        both.mode.store(if self.has_log() { Mode::Replay } else { Mode::Off } as u32, SeqCst);
    }

    /// The crash is dealt with. The last thing of a rollback before the thread continues.
    pub fn clear_crash(&self) {
        self.both().crash.state.store(CrashState::None as u32, SeqCst);
    }

    /// What replays have done up to now.
    pub fn replay_counts(&self) -> Counts {
        let news = self.news();
        Counts {
            calls: news.replayed.load(SeqCst),
            mismatched: news.mismatched.load(SeqCst),
            other_lines: news.other_lines.load(SeqCst),
        }
    }

    /// How often logging stopped because the log was full.
    pub fn log_lost(&self) -> u32 {
        self.news().log_lost.load(SeqCst)
    }

    /// The head of the log's entry at this position.
    fn entry_at(&self, position: u64) -> Option<LogEntry> {
        let front = (3 * PAGE + STACK_BYTES) as u64;
        let mut head = [0u8; ENTRY_BYTES as usize];
        // An entry at the end of what is used now continues behind it; only at the end of the space
        // it continues at the begin.
        let at = position % self.log_bytes();
        let first = (self.log_space - at).min(ENTRY_BYTES) as usize;
        self.file.read_exact_at(&mut head[..first], front + at).ok()?;
        self.file.read_exact_at(&mut head[first..], front).ok()?;
        let word = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap_or_default());
        let bytes = word(16) & 0xffff_ffff;
        let next = position + ENTRY_BYTES + bytes.min(self.log_space / 4).next_multiple_of(8);
        Some(LogEntry { nr: word(0) as u32, fd: (word(0) >> 32) as i32, ret: word(8), hash: word(24), next })
    }

    /// Descriptor and length of the input at this position of the log.
    pub fn input_at(&self, position: u64) -> Option<(i32, u64)> {
        let entry = self.entry_at(position).filter(|_| self.has_log())?;
        Some((entry.fd, entry.ret))
    }

    /// From where to where in the log the replay has come that is under way.
    pub fn replayed(&self) -> Option<(u64, u64)> {
        let cursor = || self.both().cursor.load(SeqCst);
        self.is_replaying().then(|| (self.replayed_from.load(SeqCst), cursor()))
    }

    /// Whether the program has done nothing outside since it has read the input at this position:
    /// from there to the end of the log it has only asked, and no replay has met anything else.
    /// Else the input cannot be dropped.
    pub fn has_only_asked_since(&self, input: u64) -> bool {
        if self.news().outside_at.load(SeqCst) > input {
            return false;
        }
        let head = self.both().head.load(SeqCst);
        let Some(mut at) = self.entry_at(input).map(|entry| entry.next) else { return false };
        for _ in 0..MOST_ENTRIES {
            if at >= head {
                return true;
            }
            match self.entry_at(at) {
                Some(entry) if entry.only_asks() => at = entry.next,
                _ => return false,
            }
        }
        false
    }

    /// The value that makes a logged call ask again.
    pub fn again(&self) -> u64 {
        AGAIN as u64
    }
}
