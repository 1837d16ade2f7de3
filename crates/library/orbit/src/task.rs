//! The orbit's own side: a process with one loop, which takes the next call, brings its replicas to
//! the state of that call, runs the function, reports, and drops what the function wrote to its
//! replicas.
//!
//! Nothing here runs in main. What goes wrong here ends the orbit, with the reason in the black
//! box, never main.

use std::ffi::{c_long, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use orbit_linux::pagemap::Pagemap;
use orbit_linux::{descriptors, eventfd, futex, map, process, socket, stdio, stream};

use crate::area::born;
use crate::channel::{
    ASKED, CANCELLED, COPIER_DONE, COPIER_NONE, COPIER_WAITED_FOR, DownView, ENDED_NO_IMAGE, ENDED_RETURNED,
    ENDED_SKIPPED, INLINE_ARGS, PUSH_BYTES, SLOTS, Slot, UpSide,
};
use crate::clock::now_ns;
use crate::error::{Error, Kind, Result};
use crate::generation::generation;
use crate::left_threads::OwnThreads;
use crate::limits::LimitsWire;
use crate::log::{self, Record};
use crate::own::{self, Own};
use crate::page::PAGE_BYTES;
use crate::side::{Entry, Init};
use crate::units::{Address, Bytes};
use crate::wire::{Attach, BATCH, Lines, PUSH_HEADER, PUSH_PIECE, Passed};
use crate::{blackbox, border, limits, side};

/// The orbit of this process, once it is one.
static SELF: OnceLock<&'static Shared> = OnceLock::new();

struct Replica {
    area: u32,
    number: u32,
    base: usize,
    len: usize,
    fd: Own,
    /// It is the area's own memory: pages of the log are laid over it for one call.
    shared: bool,
}

/// What the loop and any thread of the task that pushes use together.
struct Shared {
    down: DownView,
    up: UpSide,
    event: Own,
    /// The call that runs.
    current: AtomicU32,
    pushing: Mutex<()>,
}

struct Task {
    shared: &'static Shared,
    socket: Own,
    replicas: Vec<Replica>,
    pagemap: Option<Own<Pagemap>>,
    limits: LimitsWire,
    entry: usize,
    store: *mut c_void,
    /// Functions take the arguments first and the store second.
    args_first: bool,
    /// Calls done: the number of the next one.
    done: u32,
    /// Usual time from the end of one call to the next call's arrival, microseconds.
    usual_gap_us: u64,
    /// Page faults of this process when the replicas were last free of its own writes; `None`: that
    /// is not known.
    faults: Option<u64>,
}

/// The life of an orbit from the moment it is cloned.
pub(crate) fn live(mut socket: Own) -> ! {
    side::enter_orbit();
    let _ = process::set_parent_death_signal(libc::SIGKILL);
    own::close_all_but(&socket.number().map_or_else(Vec::new, |number| vec![number]));
    let _ = process::set_name(c"orbit-spare");
    // Nothing slow before main has this process in hand: it waits for that, maybe for this very
    // CPU.
    let mut channel = receive_channel(&socket);
    // A spare has done the slow part when it gets its identity.
    let prepared = blackbox::prepare().and_then(|()| {
        stdio::end_without_earlier_handlers().map_err(|error| Error::system("handler for the task's exit", error))
    });
    let pagemap = Pagemap::own().ok().and_then(|pagemap| Own::over(pagemap.map_fd(own::up)).ok());
    let identity = loop {
        if let Some(identity) = channel.0.wait_for_identity() {
            break identity;
        }
        channel = receive_channel(&socket);
    };
    let (down, up, mut event) = channel;
    // The supervisor has one spare less and one orbit more.
    let _ = event.fd().map(eventfd::signal);
    // SAFETY: the black box lies in memory that stays mapped as long as this process lives.
    unsafe {
        blackbox::install(std::ptr::addr_of!(up.black_box).cast_mut(), limits::probe_bytes(&identity.limits));
    }
    if let Ok(name) = std::ffi::CStr::from_bytes_until_nul(&identity.name) {
        let _ = process::set_name(name);
    }
    if let Err(e) = prepared.and_then(|()| limits::apply_inside(&identity.limits, 0)) {
        panic!("starting an orbit: {e}");
    }
    up.limited.store(1, Ordering::SeqCst);
    if let Err(e) = take_passed(&mut socket, &mut event, identity.passed) {
        panic!("starting an orbit: taking the descriptors that main passes on: {e}");
    }
    let shared: &'static Shared = Box::leak(Box::new(Shared {
        down,
        up,
        event,
        current: AtomicU32::new(identity.start_at),
        pushing: Mutex::new(()),
    }));
    let _ = SELF.set(shared);
    let mut task = Task {
        shared,
        socket,
        replicas: Vec::new(),
        pagemap,
        limits: identity.limits,
        entry: identity.entry,
        store: std::ptr::null_mut(),
        args_first: identity.args_first != 0,
        done: identity.start_at,
        usual_gap_us: 10_000,
        faults: None,
    };
    task.attach(identity.attachments);
    if identity.init != 0 {
        blackbox::note_in_task(true);
        // SAFETY: main gave the address of a function of type Init that this process has (its
        // template was checked).
        task.store = unsafe { border::begin(std::mem::transmute::<usize, Init>(identity.init)) };
        blackbox::note_in_task(false);
    }
    let own_threads = OwnThreads::now();
    shared.up.ready.store(1, Ordering::Release);
    loop {
        if task.next_call(&own_threads) {
            task.leave_no_thread(&own_threads);
        }
    }
}

/// The channel that main sends. Without one this process is of no use: it ends, and main sees that.
fn receive_channel(socket: &Own) -> (DownView, UpSide, Own) {
    let (lines, mut fds) = match socket.fd().and_then(|socket| receive::<Lines>(socket, 1)) {
        Ok(Some((lines, fds))) => (lines, fds.into_iter()),
        // Main let go of this process.
        Ok(None) => process::end(0),
        Err(_) => process::end(1),
    };
    if let (Some(lines), Some(down), Some(up), Some(event)) = (lines.first(), fds.next(), fds.next(), fds.next())
        && let (Ok(down), Ok(up), Ok(event)) = (DownView::map(down, lines.log_bytes), UpSide::map(up), Own::new(event))
    {
        return (down, up, event);
    }
    process::end(1)
}

/// Puts the descriptors that main passes on where main has them.
fn take_passed(socket: &mut Own, event: &mut Own, count: u32) -> io::Result<()> {
    let mut left = count as usize;
    while left > 0 {
        // Main is gone or has let go; nothing is left to do.
        let Some((passed, fds)) = receive::<Passed>(socket.fd()?, BATCH)? else { process::end(0) };
        left = left.saturating_sub(passed.len());
        // Out of the way of where they go.
        let above = passed.iter().map(|one| one.number as RawFd + 1).max().unwrap_or(0);
        let fds: Vec<OwnedFd> = fds.into_iter().map(|fd| descriptors::move_up(fd, above)).collect();
        if fds.iter().any(|fd| passed.iter().any(|one| one.number as RawFd == fd.as_raw_fd())) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        for (Passed { number, inherited }, fd) in passed.into_iter().zip(fds) {
            let number = number as RawFd;
            socket.leave(number)?;
            event.leave(number)?;
            descriptors::put_at(fd.as_fd(), number, inherited != 0)?;
        }
    }
    Ok(())
}

/// The next message: up to `most` records of this type, and their descriptors; `None` when main has
/// let go.
fn receive<T: Copy>(socket: BorrowedFd<'_>, most: usize) -> io::Result<Option<(Vec<T>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0u8; most * size_of::<T>()];
    let mut fds = Vec::new();
    let n = match socket::receive(socket, &mut bytes, &mut fds, false) {
        Err(e) if e.raw_os_error() != Some(libc::ECONNRESET) => return Err(e),
        received => received.unwrap_or(0),
    };
    // SAFETY: the other end sent whole records of the same program; T is Copy and read unaligned.
    let record = |bytes: &[u8]| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() };
    Ok((n > 0).then(|| (bytes[..n].chunks_exact(size_of::<T>()).map(record).collect(), fds)))
}

impl Task {
    /// Maps replicas that main has sent.
    fn attach(&mut self, count: u32) {
        let mut left = count as usize;
        while left > 0 {
            match self.socket.fd().and_then(|socket| receive::<Attach>(socket, BATCH)) {
                Ok(Some((attachments, fds))) => {
                    left = left.saturating_sub(attachments.len());
                    attachments.into_iter().zip(fds).for_each(|(attach, fd)| self.map(attach, fd));
                }
                // Main is gone or has let go; nothing is left to do.
                Ok(None) => process::end(0),
                Err(e) => panic!("taking the replicas of {left} areas from main: {e}"),
            }
        }
    }

    fn map(&mut self, attach: Attach, fd: OwnedFd) {
        let Attach { base, len, area, number, shared, reserved: _ } = attach;
        if let Err(e) = limits::make_room(&self.limits, len as u64) {
            panic!("making room for the replica of area {area}: {e}");
        }
        // Before main says that the area which was here is gone, it may have given the place to
        // another.
        while let Some(old) = self.replicas.iter().find(|r| r.base < base + len && base < r.base + r.len) {
            self.forget(old.number);
        }
        if let Err(e) = born::make_place(Address::new(base), Bytes::new(len)) {
            panic!(
                "no place for area {area} at {base:#x} to {:#x}: this process has memory of its own there ({e}); have \
                 main \
                 adopt its memory before it sets the library up",
                base + len
            );
        }
        // SAFETY: main carved this range from the window (empty here) or adopted memory that this
        // process has as a stale copy at most: replacing it by the replica is what the range is
        // for.
        if let Err(e) = unsafe { map::fixed_private_file(base, len, fd.as_fd(), 0) } {
            panic!("mapping the replica of area {area} at {base:#x}: {e}");
        }
        // A process whose new memory is locked (mlockall) has copies of its own already, from
        // before main fills the replica.
        if let Err(e) = show_replica(base, len, base, base + len) {
            panic!("showing the replica of area {area} at {base:#x}: {e}");
        }
        match Own::new(fd) {
            Ok(fd) => self.replicas.push(Replica { area, number, base, len, fd, shared: shared != 0 }),
            Err(e) => panic!("reading the replica of area {area}: {e}"),
        }
    }

    fn forget(&mut self, number: u32) {
        if let Some(at) = self.replicas.iter().position(|r| r.number == number) {
            let replica = self.replicas.swap_remove(at);
            // SAFETY: this range held the replica and nothing else; main has let go of it.
            let _ = unsafe { map::fixed_none(replica.base, replica.len) };
        }
    }

    /// Takes the next call; whether it ran, and there are replicas now.
    fn next_call(&mut self, own_threads: &OwnThreads) -> bool {
        self.wait_for_call();
        let call = self.done;
        let slot = &self.shared.down.slots[(call & (SLOTS - 1)) as usize];
        if self.replicas.is_empty() && slot.attach.load(Ordering::Relaxed) > 0 {
            self.leave_no_thread(own_threads);
        }
        self.shared.current.store(call, Ordering::Relaxed);
        // Before the read of `state`: main, cancelling, stores `state` first and then reads this.
        self.shared.up.begun.store(call.wrapping_add(1), Ordering::SeqCst);
        // Main, taking calls back, lowers `submitted` first and then reads `begun`.
        if !self.is_there(call) {
            self.shared.up.begun.store(call, Ordering::SeqCst);
            return false;
        }
        let copied = self.wait_for_copier(slot);
        self.attach(slot.attach.load(Ordering::Relaxed));
        let mut long_args: Option<Vec<u8>> = None;
        let (start, end) = (slot.log_start.load(Ordering::Relaxed), slot.log_end.load(Ordering::Relaxed));
        if start != end {
            self.replay(start, end, &mut long_args);
        }
        let skipped = if is_cancelled(slot) { Some(ENDED_SKIPPED) } else { (!copied).then_some(ENDED_NO_IMAGE) };
        if let Some(how) = skipped {
            self.report(call, how, 0);
            // What was laid over shared memory was for this call.
            self.drop_own_writes();
            return false;
        }
        let args_len = slot.args_len.load(Ordering::Relaxed) as usize;
        let value = match &mut long_args {
            Some(args) => self.run(slot, args.as_mut_ptr()),
            None if args_len == 0 => self.run(slot, std::ptr::null_mut()),
            None => {
                let mut args = Inline([0; INLINE_ARGS]);
                for (to, from) in args.0.iter_mut().zip(&slot.args[..args_len.min(INLINE_ARGS)]) {
                    *to = from.load(Ordering::Relaxed);
                }
                self.run(slot, args.0.as_mut_ptr())
            }
        };
        self.report(call, ENDED_RETURNED, value as i64);
        self.drop_own_writes();
        !self.replicas.is_empty()
    }

    /// Ends this process if calls have left threads: they would write on into the snapshots of
    /// later calls. Asked before the first replica comes, and after each call from then on.
    fn leave_no_thread(&self, own: &OwnThreads) {
        let others = own.others();
        if others > 0 {
            self.shared.up.left_threads.store(others as u32, Ordering::Release);
            process::end(0);
        }
    }

    fn run(&self, slot: &Slot, args: *mut u8) -> c_long {
        let function = match slot.function.load(Ordering::Relaxed) as usize {
            0 => self.entry,
            once => once,
        };
        let (first, second) = if self.args_first { (args.cast(), self.store) } else { (self.store, args.cast()) };
        let process = generation();
        blackbox::note_in_task(true);
        // SAFETY: main checked that the function's code is in this process; what the function does
        // is its own affair.
        let value = unsafe { border::call(std::mem::transmute::<usize, Entry>(function), first, second) };
        blackbox::note_in_task(false);
        if generation() != process {
            // A child that the task forked came back out of it: it is no orbit, and would serve the
            // orbit's calls a second time.
            process::end(0);
        }
        value
    }

    /// Whether main has handed over this call, the next one. While main takes calls back,
    /// `submitted` may be lower.
    fn is_there(&self, call: u32) -> bool {
        let submitted = self.shared.down.submitted.load(Ordering::SeqCst);
        (1..=SLOTS).contains(&submitted.wrapping_sub(call))
    }

    /// Sleeps until a call is there; first polls for it a while, if calls usually come
    /// that soon.
    fn wait_for_call(&mut self) {
        if self.is_there(self.done) {
            return;
        }
        let since = now_ns();
        let patience = u64::from(self.shared.down.spin_us.load(Ordering::Relaxed));
        if self.usual_gap_us < patience {
            let until = since + patience * 1000;
            loop {
                for _ in 0..32 {
                    if self.is_there(self.done) {
                        return self.note_gap(since);
                    }
                    std::hint::spin_loop();
                }
                if now_ns() > until {
                    break;
                }
            }
        }
        while !self.is_there(self.done) {
            // Main stores `submitted` and then reads `asleep`; here it is the other way round:
            // one of both sees the other.
            self.shared.up.asleep.store(1, Ordering::SeqCst);
            let seen = self.shared.down.submitted.load(Ordering::SeqCst);
            if !self.is_there(self.done) {
                let _ = futex::wait(&self.shared.down.submitted, seen, None);
            }
        }
        self.shared.up.asleep.store(0, Ordering::Relaxed);
        self.note_gap(since);
    }

    /// Learns how long calls let the orbit wait, by when they were made: how long the orbit then
    /// took to wake is no sign that calls come seldom.
    fn note_gap(&mut self, since: u64) {
        let slot = &self.shared.down.slots[(self.done & (SLOTS - 1)) as usize];
        let gap = (slot.submitted_ns.load(Ordering::Relaxed).saturating_sub(since) / 1000).min(2_000);
        self.usual_gap_us = (self.usual_gap_us * 7 + gap) / 8;
    }

    /// Lets the copier of this call, if it has one, write the replicas. False if the copier died.
    fn wait_for_copier(&self, slot: &Slot) -> bool {
        if slot.copier.load(Ordering::Acquire) == COPIER_NONE {
            return true;
        }
        futex::wake(&self.shared.up.begun, i32::MAX);
        loop {
            match slot.copier.load(Ordering::Acquire) {
                COPIER_WAITED_FOR => {
                    let _ = futex::wait(&slot.copier, COPIER_WAITED_FOR, None);
                }
                state => return state == COPIER_DONE,
            }
        }
    }

    fn replay(&mut self, start: u64, end: u64, long_args: &mut Option<Vec<u8>>) {
        let mut gone = Vec::new();
        // Records of an area lie together: each replica is visited once.
        let mut open: Option<(u32, BorrowedFd<'_>)> = None;
        log::replay(&self.shared.down, start, end, |record| match record {
            Record::Pages { area, first, data } => {
                let Some(replica) = self.replicas.iter().find(|r| r.area == area) else { return };
                if replica.shared {
                    return replica.lay_over(first.offset(PAGE_BYTES).get(), data);
                }
                let fd = open.filter(|(known, _)| *known == area).map_or_else(|| replica.fd.fd(), |(_, fd)| Ok(fd));
                open = fd.as_ref().ok().map(|fd| (area, *fd));
                if let Err(e) = fd.and_then(|fd| stream::write_all_at(fd, data, first.offset(PAGE_BYTES).get() as u64))
                {
                    panic!(
                        "writing {} pages of area {area} into its replica: {e}",
                        Bytes::new(data.len()).pages(PAGE_BYTES)
                    );
                }
            }
            Record::Args(bytes) => *long_args = Some(bytes.to_vec()),
            Record::Forget { replica } => gone.push(replica),
        });
        for replica in gone {
            self.forget(replica);
        }
    }

    fn report(&mut self, call: u32, kind: u32, value: i64) {
        let ending = &self.shared.up.endings[(call & (SLOTS - 1)) as usize];
        ending.call.store(call, Ordering::Relaxed);
        ending.kind.store(kind, Ordering::Relaxed);
        ending.value.store(value, Ordering::Relaxed);
        ending.at.store(now_ns(), Ordering::Relaxed);
        self.done = call.wrapping_add(1);
        // After this main may read the ending, and write the replicas; SeqCst, for main raises
        // `waiters` and then reads this.
        self.shared.up.completed.store(self.done, Ordering::SeqCst);
        if self.shared.down.waiters.load(Ordering::SeqCst) != 0 {
            futex::wake(&self.shared.up.completed, i32::MAX);
        }
        if self.shared.down.notify.load(Ordering::SeqCst) != 0 {
            self.shared.notify_main();
        }
    }

    /// What the task wrote to its replicas stays its own and is gone at the next call. The first
    /// write to a page of a private mapping faults, whoever of this process makes it: without a
    /// fault since the last time there is nothing to drop, and nothing to scan, however large the
    /// replicas.
    fn drop_own_writes(&mut self) {
        if self.replicas.is_empty() {
            // Those that come later are compared with nothing known.
            self.faults = None;
            return;
        }
        // Before the scan: a thread of the task may write meanwhile.
        let now = process::page_faults().ok();
        if now.is_none() || now != self.faults {
            self.drop_all_own_writes();
            self.faults = now;
        }
    }

    fn drop_all_own_writes(&mut self) {
        let mut ranges = Vec::new();
        for replica in &self.replicas {
            let (start, end) = (replica.base, replica.base + replica.len);
            ranges.clear();
            let pagemap = self.pagemap.as_ref().and_then(|pagemap| pagemap.get().ok());
            let found = pagemap.map(|p| p.scan_anonymous(start, end, &mut ranges));
            if !matches!(found, Some(Ok(_))) {
                ranges.clear();
                ranges.push((start, end));
            }
            for &(from, to) in &ranges {
                if let Err(e) = show_replica(replica.base, replica.len, from, to) {
                    // It would show the next call what this one wrote.
                    panic!("dropping what the task wrote to area {} at {from:#x}: {e}", replica.area);
                }
            }
        }
    }
}

impl Replica {
    /// Lays pages over those of the area's own memory, for this process, until its own writes are
    /// dropped.
    fn lay_over(&self, at: usize, data: &[u8]) {
        assert!(at.checked_add(data.len()).is_some_and(|end| end <= self.len), "pages beyond area {}", self.area);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.base + at);
        // SAFETY: inside the private mapping, which is writable; the task does not run.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
    }
}

/// Shows the replica at `base`'s own pages again from `from` to `to`, in place of this process'
/// copies. Where the task has locked its memory, which makes such copies and keeps them, the
/// replica is unlocked first.
fn show_replica(base: usize, len: usize, from: usize, to: usize) -> std::io::Result<()> {
    // SAFETY: a range of a replica's private mapping, whose content is the task's to lose.
    let drop = || unsafe { map::dont_need(from, to - from) };
    match drop() {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => map::unlock(base, len).and_then(|()| drop()),
        dropped => dropped,
    }
}

impl Shared {
    /// Wakes main's supervisor. If the task has closed the way there, the end of this process does.
    fn notify_main(&self) {
        match self.event.fd() {
            Ok(event) => eventfd::signal(event),
            Err(e) => panic!("notifying main: {e}"),
        }
    }

    /// Puts bytes into the ring of updates, in pieces, waiting for main to take them where the ring
    /// is full.
    fn push(&self, bytes: &[u8]) -> Result<()> {
        let _one_at_a_time = self.pushing.lock().unwrap_or_else(|e| e.into_inner());
        let call = self.current.load(Ordering::Relaxed);
        let mut rest = bytes;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(PUSH_PIECE));
            let record = PUSH_HEADER + piece.len().next_multiple_of(8);
            let pushed = self.up.pushed.load(Ordering::Relaxed);
            loop {
                let pulled = self.down.pulled.load(Ordering::Acquire);
                if record + pushed.wrapping_sub(pulled) as usize <= PUSH_BYTES {
                    break;
                }
                self.notify_main();
                self.up.push_waits.store(1, Ordering::SeqCst);
                if self.down.pulled.load(Ordering::SeqCst) == pulled {
                    let _ = futex::wait(&self.down.pulled, pulled, Some(Duration::from_millis(20)));
                }
                self.up.push_waits.store(0, Ordering::Relaxed);
            }
            let more = u64::from(!after.is_empty());
            let at = pushed as usize / 8;
            self.put(at, piece.len() as u64 | u64::from(call) << 32);
            self.put(at + 1, more);
            for (offset, word) in piece.chunks(8).enumerate() {
                let mut padded = [0; 8];
                padded[..word.len()].copy_from_slice(word);
                self.put(at + 2 + offset, u64::from_le_bytes(padded));
            }
            self.up.pushed.store(pushed.wrapping_add(record as u32), Ordering::Release);
            if after.is_empty() {
                break;
            }
            rest = after;
        }
        if self.down.waiters.load(Ordering::SeqCst) != 0 {
            futex::wake(&self.up.completed, i32::MAX);
        }
        if self.down.notify.load(Ordering::SeqCst) != 0 {
            self.notify_main();
        }
        Ok(())
    }

    fn put(&self, at: usize, word: u64) {
        self.up.push[at & (PUSH_BYTES / 8 - 1)].store(word, Ordering::Relaxed);
    }
}

/// Whether main has cancelled the call; to be asked once it is begun.
fn is_cancelled(slot: &Slot) -> bool {
    loop {
        match slot.state.load(Ordering::SeqCst) {
            // Main is between two of its steps and waits for nothing.
            ASKED => std::thread::yield_now(),
            state => return state == CANCELLED,
        }
    }
}

/// Arguments as C wants them: aligned for anything.
#[repr(C, align(16))]
struct Inline([u8; INLINE_ARGS]);

/// Hands encoded bytes of an update to main, from the task that runs now.
pub(crate) fn push(bytes: &[u8]) -> Result<()> {
    match SELF.get() {
        Some(shared) => shared.push(bytes),
        None => {
            Err(Error::new(Kind::WrongSide, "an update is pushed from an orbit to main: do it in a task, not in main"))
        }
    }
}
