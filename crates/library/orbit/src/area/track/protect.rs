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
use crate::units::{Address, Bytes, Page, Pages};
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
    base: Address,
    len: Bytes,
    page: Bytes,
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
    fn protect(&self, first: Page, count: Pages, prot: i32) -> bool {
        let (start, len) = (self.base + first.offset(self.page), count.bytes(self.page));
        // SAFETY: the pages belong to the area this engine was made for; reading and writing them
        // keeps working, as the handler lets writes through.
        unsafe { map::protect(start.get(), len.get(), prot) }.is_ok()
    }

    /// Makes all pages writable. Async-signal-safe.
    fn unprotect_all(&self) -> bool {
        self.protect(Page::ZERO, self.len.whole_pages(self.page), libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Lets the write to the page at this offset through. Runs in the signal handler.
    fn fault(&self, offset: Bytes) {
        let page = offset.page(self.page);
        if self.generation != generation() {
            // A child's copy of its parent's memory: nobody asks for it.
            if !self.protect(page, Pages::ONE, libc::PROT_READ | libc::PROT_WRITE) {
                self.unprotect_all();
            }
            return;
        }
        self.lock();
        if !self.protect(page, Pages::ONE, libc::PROT_READ | libc::PROT_WRITE) {
            // No more mappings can be made: give the whole range up until the next harvest.
            self.unprotect_all();
            self.all.store(true, Ordering::Relaxed);
        }
        self.note(page);
        self.unlock();
    }

    /// The word of `noted` that a page has, and its bit there.
    fn bit(&self, page: Page) -> (&AtomicU64, u64) {
        (&self.noted[page.get() / 64], 1 << (page.get() % 64))
    }

    /// Notes a page as written.
    fn note(&self, page: Page) {
        let (word, bit) = self.bit(page);
        word.fetch_or(bit, Ordering::Relaxed);
    }

    /// Whether a page is noted.
    fn is_noted(&self, page: Page) -> bool {
        let (word, bit) = self.bit(page);
        word.load(Ordering::Relaxed) & bit != 0
    }
}

/// The handler. Everything it calls is async-signal-safe; it runs with all signals blocked.
extern "C" fn on_segv(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler installed with SA_SIGINFO.
    let (address, code) = unsafe { (Address::of((*info).si_addr()), (*info).si_code) };
    // SAFETY: errno belongs to this thread; the interrupted code must find it as it was.
    let errno = unsafe { *libc::__errno_location() };
    let ours = code > 0 && resolve(address);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !ours {
        hand_on(signal, code, info, context);
    }
}

/// Finds the area of an address and lets the write through; false if it is no affair of ours.
fn resolve(address: Address) -> bool {
    for slot in &WATCHED {
        // SAFETY: slots hold null or a `Watched` that is never freed.
        let Some(watched) = (unsafe { slot.load(Ordering::Acquire).as_ref() }) else { continue };
        let Some(offset) = address.offset_from(watched.base).filter(|offset| *offset < watched.len) else { continue };
        let passes = watched.retired.load(Ordering::Acquire);
        if passes == 0 {
            watched.fault(offset);
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
    pub fn new(base: Address, len: Bytes, page: Bytes) -> io::Result<Self> {
        let pages = len.whole_pages(page).get();
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

    /// Adds the noted pages below `used` to `out`, no more than `stop_after`.
    pub fn peek(&self, used: Page, stop_after: Pages, out: &mut PageRuns) {
        let all = self.watched.all.load(Ordering::Relaxed);
        let noted = Page::ZERO.until(used).filter(|&page| all || self.watched.is_noted(page));
        noted.take(stop_after.get()).for_each(|page| out.push(page, Pages::ONE));
    }

    /// Adds the noted pages below `used` to `pending` and makes them read-only.
    pub fn harvest(&mut self, used: Page, pending: &mut PageRuns) -> io::Result<()> {
        let step = fault::step(Pages::new(1 << 12)).get().next_multiple_of(64);
        let mut from = Page::ZERO;
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
            let to = (from + Pages::new(step)).min(used);
            fault::check()?;
            let mut runs = PageRuns::new();
            let quiet = Blocked::all();
            self.watched.lock();
            for page in from.until(to) {
                let (word, bit) = self.watched.bit(page);
                if word.load(Ordering::Relaxed) & bit != 0 {
                    word.fetch_and(!bit, Ordering::Relaxed);
                    runs.push(page, Pages::ONE);
                }
            }
            let mut refused = None;
            for (first, count) in runs.iter() {
                if refused.is_none() && !self.watched.protect(first, count, libc::PROT_READ) {
                    refused = Some(io::Error::last_os_error());
                }
                if refused.is_some() {
                    // Still writable, so still noted.
                    first.run(count).for_each(|page| self.watched.note(page));
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
            self.watched.unprotect_all();
            self.watched.retired.store(LATE_FAULTS + 1, Ordering::Release);
            self.watched.unlock();
        }
        users.0 -= 1;
        if users.0 == 0 {
            uninstall();
        }
    }
}
