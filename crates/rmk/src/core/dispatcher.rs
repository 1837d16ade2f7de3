//! The dispatcher: one thread that sleeps until the kernel's ring, a timer or a counter has something, and hands it on.
//!
//! Sources add themselves while their pin is loaded. `remove` returns only when the source no longer runs, so a pin may
//! free what the source used. A source must not add or remove sources from within `ready`.

use super::subscription::lock;
use crate::error::{Error, Result};
use std::{
    collections::HashMap,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Something with a descriptor that becomes readable when it has events.
pub trait Source: Send {
    /// The descriptor to wait for; the same for the life of the source.
    fn fd(&self) -> RawFd;
    /// Hands on what there is. Must not block.
    fn ready(&mut self);
    /// Called before the dispatcher sleeps; how long it may sleep at most, in milliseconds, whatever the descriptor says
    /// (-1: for ever, 0: there is something already).
    fn before_sleep(&mut self) -> i32 {
        -1
    }
}

#[derive(Default)]
struct Shared {
    sources: Mutex<HashMap<u64, Box<dyn Source>>>,
    waiting: AtomicU32,
    stop: AtomicBool,
}

impl Shared {
    fn sources(&self) -> MutexGuard<'_, HashMap<u64, Box<dyn Source>>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let sources = lock(&self.sources);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        sources
    }
}

/// See the module's head. Dropping it ends the thread.
pub struct Dispatcher {
    shared: Arc<Shared>,
    epoll: Arc<OwnedFd>,
    wake: OwnedFd,
    next: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A source's place at the dispatcher; dropping it removes the source.
pub struct Registration {
    dispatcher: Weak<Dispatcher>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(dispatcher) = self.dispatcher.upgrade() {
            dispatcher.remove(self.id);
        }
    }
}

fn owned(fd: i32, what: &str) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::System { what: what.into(), source: io::Error::last_os_error() });
    }
    // SAFETY: the caller has just got this descriptor from the kernel, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn epoll_add(epoll: RawFd, fd: RawFd, token: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
    // SAFETY: `event` is valid for the call; the kernel copies it.
    match unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Dispatcher {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Arc<Dispatcher>> {
        // SAFETY: no pointers are passed.
        let epoll = Arc::new(owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "epoll_create1")?);
        // SAFETY: no pointers are passed.
        let wake = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }, "eventfd")?;
        epoll_add(epoll.as_raw_fd(), wake.as_raw_fd(), 0)
            .map_err(|source| Error::System { what: "epoll_ctl".into(), source })?;
        let shared: Arc<Shared> = Arc::default();
        let thread = std::thread::Builder::new()
            .name("rmk-dispatch".into())
            .spawn({
                let (shared, epoll, wake) = (shared.clone(), epoll.clone(), wake.as_raw_fd());
                move || run(&shared, epoll.as_raw_fd(), wake)
            })
            .map_err(|source| Error::System { what: "starting the dispatcher's thread".into(), source })?;
        Ok(Arc::new(Dispatcher { shared, epoll, wake, next: AtomicU64::new(1), thread: Mutex::new(Some(thread)) }))
    }

    /// Adds a source; its events are handed on from now on, until the registration is dropped.
    pub fn add(self: &Arc<Self>, source: Box<dyn Source>) -> io::Result<Registration> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let fd = source.fd();
        self.shared.sources().insert(id, source);
        if let Err(error) = epoll_add(self.epoll.as_raw_fd(), fd, id) {
            self.shared.sources().remove(&id);
            return Err(error);
        }
        self.wake();
        Ok(Registration { dispatcher: Arc::downgrade(self), id })
    }

    fn remove(&self, id: u64) {
        let Some(source) = self.shared.sources().remove(&id) else { return };
        // SAFETY: removing takes no event; a null pointer is allowed since Linux 2.6.9.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, source.fd(), std::ptr::null_mut()) };
    }

    /// Makes the thread look at every source's `before_sleep` again.
    fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight bytes are read from a live local; a full counter is as good as a wake-up.
        unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = lock(&self.thread).take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, epoll: RawFd, wake: RawFd) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
    let mut due = Vec::new();
    while !shared.stop.load(Ordering::Acquire) {
        let mut sleep = -1;
        due.clear();
        for (id, source) in lock(&shared.sources).iter_mut() {
            let limit = source.before_sleep();
            if limit >= 0 {
                due.push(*id);
                sleep = if sleep < 0 { limit } else { sleep.min(limit) };
            }
        }
        // A thread that wants the lock gets a chance also while sources have work without end.
        if shared.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
        // SAFETY: the kernel writes at most as many events as the array holds.
        let n = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), events.len() as i32, sleep) };
        for event in &events[..n.max(0) as usize] {
            let token = event.u64;
            if token == 0 {
                let mut count = 0u64;
                // SAFETY: eight bytes are written to a live local; the descriptor lives as long as the thread.
                unsafe { libc::read(wake, (&raw mut count).cast(), 8) };
            } else if !due.contains(&token) {
                due.push(token);
            }
        }
        let mut sources = lock(&shared.sources);
        for id in &due {
            if let Some(source) = sources.get_mut(id) {
                source.ready();
            }
        }
    }
}
