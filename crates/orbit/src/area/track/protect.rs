//! The `mprotect` engine: pages are read-only after a harvest, and a SIGSEGV handler notes the
//! first write to each. Used only when asked for: a first write costs five times that of `track`,
//! system calls that write into a protected page fail with EFAULT, and the program's SIGSEGV
//! handler is ours while such an area lives (faults elsewhere continue to the earlier one, and it
//! comes back when the last such area is gone).
//!
//! **No write is lost.** The handler makes a page writable and notes it in one critical section; a
//! harvest takes the notes and makes the pages read-only in one. So "writable implies noted" holds
//! whenever the lock is free. The lock spins; its holder has all signals blocked and touches no
//! area, so it cannot fault or be interrupted while it holds it. A forked child may have it as held
//! for ever: there the handler makes its parent's pages writable without it, and notes nothing.

use super::super::fault;
use super::super::pages::PageRuns;
use crate::generation::generation;
use crate::per_process::{Inherit, PerProcess};
use orbit_linux::map;
use orbit_linux::signals::{self, Action, Blocked, Set};
use std::io;
use std::ptr;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Areas that can have this engine at a time.
const SLOTS: usize = 64;
/// Faults in a range just given up that are retried before they count as somebody else's.
const LATE_FAULTS: u32 = 64;

/// What the handler needs to know of one area. Never freed: a handler in another thread may be
/// reading it.
#[derive(Debug)]
struct Watched {
    base: usize,
    len: usize,
    page: usize,
    /// The process that watches.
    generation: u64,
    /// Guards `noted` and the protection of the pages.
    busy: AtomicBool,
    /// One bit a page: writable, and written since the last harvest as far as we know.
    noted: Box<[AtomicU64]>,
    /// Set when protecting failed: every page is writable and counts as written.
    all: AtomicBool,
    /// Zero while in use; after that, how many late faults may still be retried plus one.
    retired: AtomicU32,
}

static WATCHED: [AtomicPtr<Watched>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];
/// The handler that was there before ours.
static EARLIER: AtomicPtr<Action> = AtomicPtr::new(ptr::null_mut());
/// How many areas have this engine; the handler is installed while it is not zero.
static USERS: PerProcess<Users> = PerProcess::new();

#[derive(Clone, Default)]
struct Users(usize);

/// A child has its parent's areas, and the handler with them.
impl Inherit for Users {
    fn inherit(&self) -> Users {
        self.clone()
    }
}

impl Watched {
    fn lock(&self) {
        while self.busy.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
    }

    fn unlock(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Changes the protection of `count` pages from `first` on. Async-signal-safe.
    fn protect(&self, first: usize, count: usize, prot: i32) -> bool {
        // SAFETY: the pages belong to the area this engine was made for; reading and writing them
        // keeps working, as the handler lets writes through.
        unsafe { map::protect(self.base + first * self.page, count * self.page, prot) }.is_ok()
    }

    /// Lets the write to `addr` through. Runs in the signal handler.
    fn fault(&self, addr: usize) {
        let page = (addr - self.base) / self.page;
        if self.generation != generation() {
            // A child's copy of its parent's memory: nobody asks for it.
            if !self.protect(page, 1, libc::PROT_READ | libc::PROT_WRITE) {
                self.protect(0, self.len / self.page, libc::PROT_READ | libc::PROT_WRITE);
            }
            return;
        }
        self.lock();
        if !self.protect(page, 1, libc::PROT_READ | libc::PROT_WRITE) {
            // No more mappings can be made: give the whole range up until the next harvest.
            self.protect(0, self.len / self.page, libc::PROT_READ | libc::PROT_WRITE);
            self.all.store(true, Ordering::Relaxed);
        }
        self.noted[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        self.unlock();
    }
}

/// The handler. Everything it calls is async-signal-safe; it runs with all signals blocked.
extern "C" fn on_segv(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler installed with SA_SIGINFO.
    let (addr, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // SAFETY: errno belongs to this thread; the interrupted code must find it as it was.
    let errno = unsafe { *libc::__errno_location() };
    let ours = code > 0 && resolve(addr);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !ours {
        hand_on(signal, code, info, context);
    }
}

/// Finds the area of `addr` and lets the write through; false if it is no affair of ours.
fn resolve(addr: usize) -> bool {
    for slot in &WATCHED {
        // SAFETY: slots hold null or a `Watched` that is never freed.
        let Some(watched) = (unsafe { slot.load(Ordering::Acquire).as_ref() }) else { continue };
        if addr < watched.base || addr >= watched.base + watched.len {
            continue;
        }
        let passes = watched.retired.load(Ordering::Acquire);
        if passes == 0 {
            watched.fault(addr);
            return true;
        }
        // The range was made writable after this thread had faulted: trying again is enough.
        // Counted, so that a fault for another reason is handed on in the end.
        if passes > 1
            && watched.retired.compare_exchange(passes, passes - 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return true;
        }
    }
    false
}

fn hand_on(signal: i32, code: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: null, or a leaked sigaction that is not written to any more.
    let earlier = unsafe { EARLIER.load(Ordering::Acquire).as_ref() };
    let handler = earlier.map_or(libc::SIG_DFL, Action::address);
    match earlier {
        Some(earlier) if handler != libc::SIG_DFL && handler != libc::SIG_IGN => {
            if earlier.flags() & libc::SA_SIGINFO != 0 {
                // SAFETY: installed with SA_SIGINFO, so the address is that of a function of this
                // type.
                let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { std::mem::transmute(handler) };
                call(signal, info, context);
            } else {
                // SAFETY: installed without SA_SIGINFO, so the address is that of a function of
                // this type.
                let call: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
                call(signal);
            }
        }
        _ if handler == libc::SIG_IGN && code <= 0 => {}
        _ => {
            // Back to the default: the faulting instruction runs again and ends the process as it
            // would have without us.
            signals::reset(signal);
            if code <= 0 {
                signals::raise(signal);
            }
        }
    }
}

fn handler_address() -> usize {
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_segv;
    handler as usize
}

fn install() -> io::Result<()> {
    let earlier = Action::of(libc::SIGSEGV)?;
    if earlier.address() == handler_address() {
        return Ok(());
    }
    // Known before ours is in place. Leaked: a handler may be reading the one before.
    EARLIER.store(Box::into_raw(Box::new(earlier)), Ordering::Release);
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler has the signature for SA_SIGINFO, and everything it calls is
    // async-signal-safe.
    unsafe { Action::handler(handler_address(), flags, &Set::all()).install(libc::SIGSEGV) }
}

/// Puts the earlier handler back, unless the program has installed another over ours.
fn uninstall() {
    // SAFETY: null, or a leaked action that is not written to any more.
    let earlier = unsafe { EARLIER.load(Ordering::Acquire).as_ref() };
    let is_ours = Action::of(libc::SIGSEGV).is_ok_and(|now| now.address() == handler_address());
    if let (true, Some(earlier)) = (is_ours, earlier) {
        // SAFETY: the action that the program had before, as the kernel gave it.
        let _ = unsafe { earlier.install(libc::SIGSEGV) };
    }
}

/// One area under this engine.
#[derive(Debug)]
pub(super) struct Protect {
    watched: &'static Watched,
}

impl Protect {
    /// Starts watching. Every page is writable and counts as written until the first harvest.
    pub fn new(base: usize, len: usize, page: usize) -> io::Result<Self> {
        let pages = len / page;
        let noted = (0..pages.div_ceil(64))
            .map(|word| AtomicU64::new(if pages - word * 64 >= 64 { u64::MAX } else { (1 << (pages % 64)) - 1 }))
            .collect();
        let watched: &'static Watched = Box::leak(Box::new(Watched {
            base,
            len,
            page,
            generation: generation(),
            busy: AtomicBool::new(false),
            noted,
            all: AtomicBool::new(false),
            retired: AtomicU32::new(0),
        }));
        let mut users = USERS.lock().write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: slots hold null or a `Watched` that is never freed.
        let retired = |slot: &&AtomicPtr<Watched>| unsafe {
            slot.load(Ordering::Acquire).as_ref().is_some_and(|old| old.retired.load(Ordering::Acquire) != 0)
        };
        let empty = |slot: &&AtomicPtr<Watched>| slot.load(Ordering::Acquire).is_null();
        let Some(slot) = WATCHED.iter().find(empty).or_else(|| WATCHED.iter().find(retired)) else {
            return Err(io::Error::other(format!("{SLOTS} areas have the engine already, and no more can")));
        };
        // A range given up earlier may be ours now: its late faults are over.
        for old in WATCHED.iter().filter(retired) {
            // SAFETY: as above.
            let old_range = unsafe { old.load(Ordering::Acquire).as_ref() };
            if old_range.is_some_and(|old| old.base < base + len && base < old.base + old.len) {
                old.store(ptr::null_mut(), Ordering::Release);
            }
        }
        if users.0 == 0 {
            install()?;
        }
        users.0 += 1;
        slot.store(ptr::from_ref(watched).cast_mut(), Ordering::Release);
        Ok(Protect { watched })
    }

    /// How many of the first `used` pages are noted, counting no further than `stop_after`.
    pub fn peek(&self, used: usize, stop_after: usize, out: &mut PageRuns) {
        let mut found = 0;
        let all = self.watched.all.load(Ordering::Relaxed);
        for page in 0..used {
            if all || self.watched.noted[page / 64].load(Ordering::Relaxed) >> (page % 64) & 1 == 1 {
                out.push(page, 1);
                found += 1;
                if found == stop_after {
                    return;
                }
            }
        }
    }

    /// Adds the noted pages of the first `used` to `pending` and makes them read-only.
    pub fn harvest(&mut self, used: usize, pending: &mut PageRuns) -> io::Result<()> {
        let step = fault::step(1 << 12).next_multiple_of(64);
        let mut from = 0;
        if self.watched.all.load(Ordering::Relaxed) {
            let _quiet = Blocked::all();
            self.watched.lock();
            self.watched.all.store(false, Ordering::Relaxed);
            for word in &self.watched.noted {
                word.store(u64::MAX, Ordering::Relaxed);
            }
            self.watched.unlock();
        }
        while from < used {
            let to = (from + step).min(used);
            fault::check()?;
            let mut runs = PageRuns::new();
            let quiet = Blocked::all();
            self.watched.lock();
            for page in from..to {
                let word = &self.watched.noted[page / 64];
                let bit = 1 << (page % 64);
                if word.load(Ordering::Relaxed) & bit != 0 {
                    word.fetch_and(!bit, Ordering::Relaxed);
                    runs.push(page, 1);
                }
            }
            let mut refused = None;
            for (first, count) in runs.iter() {
                if refused.is_none() && !self.watched.protect(first, count, libc::PROT_READ) {
                    refused = Some(io::Error::last_os_error());
                }
                if refused.is_some() {
                    // Still writable, so still noted.
                    for page in first..first + count {
                        self.watched.noted[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
                    }
                }
            }
            self.watched.unlock();
            drop(quiet);
            pending.extend(&runs);
            if let Some(error) = refused {
                return Err(error);
            }
            from = to;
        }
        Ok(())
    }
}

impl Drop for Protect {
    fn drop(&mut self) {
        let mut users = USERS.lock().write().unwrap_or_else(PoisonError::into_inner);
        {
            let _quiet = Blocked::all();
            self.watched.lock();
            self.watched.protect(0, self.watched.len / self.watched.page, libc::PROT_READ | libc::PROT_WRITE);
            self.watched.retired.store(LATE_FAULTS + 1, Ordering::Release);
            self.watched.unlock();
        }
        users.0 -= 1;
        if users.0 == 0 {
            uninstall();
        }
    }
}
