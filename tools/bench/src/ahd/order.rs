//! What the bench sends the library that hangs a thread (`c/inject.c`), and what that answers: one
//! page that both map.

use orbit_console::out::Failure;
use orbit_linux::map::Mapping;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};

/// The page. Written by the bench before `armed`, by the library from then on.
#[repr(C)]
struct Page {
    armed: AtomicI32,
    pid: AtomicI32,
    side: AtomicI32,
    left: AtomicI32,
    comm: [u8; 16],
    function: [u8; 32],
    way: [u8; 16],
    hung_at: AtomicI64,
    tid: AtomicI32,
    members: AtomicI32,
    tids: [AtomicI32; 8],
}
const _: () = assert!(size_of::<Page>() == 128);

/// Which thread shall hang, where and how.
pub struct Order<'a> {
    pub pid: i32,
    /// Another thread than the main one.
    pub side: bool,
    /// Of a name that begins so.
    pub comm: &'a str,
    pub function: &'a str,
    /// Calls to go.
    pub nth: i32,
    pub way: &'a str,
}

/// A thread that hangs.
#[derive(Clone, Debug)]
pub struct Hung {
    /// Nanoseconds of the monotonic clock.
    pub at: i64,
    pub tid: i32,
    /// The threads of the ring; none if it is none.
    pub ring: Vec<i32>,
}

/// The bench's side of the page.
pub struct Orders(Mapping);

impl Orders {
    /// Makes the file.
    pub fn new(path: &Path) -> Result<Orders, Failure> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(4096)?;
        Ok(Orders(Mapping::shared(file.as_fd(), 4096, true, true)?))
    }

    fn page(&self) -> *mut Page {
        self.0.as_ptr().cast()
    }

    /// Which process is meant, before any order.
    pub fn meant(&self, pid: i32) {
        // SAFETY: the mapping is a page long, and this word is only ever used as an atomic.
        unsafe { &(*self.page()).pid }.store(pid, Ordering::Release);
    }

    /// Has a thread hang at the next chance.
    pub fn give(&self, order: &Order<'_>) {
        let page = self.page();
        // SAFETY: the mapping is a page long. Nobody reads the names before `armed` is set, and the
        // bench gives one order a page.
        unsafe {
            put(&raw mut (*page).comm, order.comm);
            put(&raw mut (*page).function, order.function);
            put(&raw mut (*page).way, order.way);
        }
        // SAFETY: as above; from here on only atomics are used.
        let page = unsafe { &*page };
        page.pid.store(order.pid, Ordering::Relaxed);
        page.side.store(i32::from(order.side), Ordering::Relaxed);
        page.left.store(order.nth, Ordering::Relaxed);
        page.armed.store(1, Ordering::Release);
    }

    /// Takes the order back, unless it was carried out.
    pub fn withdraw(&self) {
        // SAFETY: the mapping is a page long, and this word is only ever used as an atomic.
        unsafe { &(*self.page()).armed }.store(0, Ordering::Release);
    }

    /// The thread that hangs, once it does.
    pub fn hung(&self) -> Option<Hung> {
        // SAFETY: the mapping is a page long; what is read here is only ever used as atomics.
        let page = unsafe { &*self.page() };
        let at = page.hung_at.load(Ordering::Acquire);
        let members = page.members.load(Ordering::Relaxed).clamp(0, 8) as usize;
        let ring = page.tids[..members].iter().map(|tid| tid.load(Ordering::Relaxed)).collect();
        (at != 0).then(|| Hung { at, tid: page.tid.load(Ordering::Relaxed), ring })
    }
}

/// Writes a text that ends with a zero.
///
/// # Safety
/// `to` can be written, and nothing else uses it meanwhile.
unsafe fn put<const N: usize>(to: *mut [u8; N], text: &str) {
    let mut bytes = [0; N];
    let length = text.len().min(N - 1);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    // SAFETY: by contract.
    unsafe { to.write(bytes) };
}
