//! The dispatcher: one thread that sleeps until the kernel's ring, a timer or a counter has
//! something, and hands it on.
//!
//! Sources add themselves while their pin is loaded. `remove` returns only when the source no
//! longer runs, so a pin may free what the source used. A source must not add or remove sources
//! from within `ready`.

use super::subscription::lock;
use crate::error::{Error, Result};
use orbit_linux::{
    epoll::{self, Epoll},
    eventfd,
};
use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
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
    /// Called before the dispatcher sleeps; how long it may sleep at most, in milliseconds,
    /// whatever the descriptor says (-1: for ever, 0: there is something already).
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
    epoll: Arc<Epoll>,
    wake: Arc<OwnedFd>,
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

impl Dispatcher {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Arc<Dispatcher>> {
        let system = |what: &str| {
            let what = what.to_owned();
            move |source| Error::System { what, source }
        };
        let epoll = Arc::new(Epoll::new().map_err(system("making the dispatcher's epoll set"))?);
        let wake = Arc::new(eventfd::create().map_err(system("making the dispatcher's event counter"))?);
        epoll.add(wake.as_fd(), 0).map_err(system("waiting for the dispatcher's event counter"))?;
        let shared: Arc<Shared> = Arc::default();
        let thread = std::thread::Builder::new()
            .name("rmk-dispatch".into())
            .spawn({
                let (shared, epoll, wake) = (shared.clone(), epoll.clone(), wake.clone());
                move || run(&shared, &epoll, wake.as_fd())
            })
            .map_err(system("starting the dispatcher's thread"))?;
        Ok(Arc::new(Dispatcher { shared, epoll, wake, next: AtomicU64::new(1), thread: Mutex::new(Some(thread)) }))
    }

    /// Adds a source; its events are handed on from now on, until the registration is dropped.
    pub fn add(self: &Arc<Self>, source: Box<dyn Source>) -> io::Result<Registration> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let fd = source.fd();
        self.shared.sources().insert(id, source);
        if let Err(error) = self.epoll.add_raw(fd, id) {
            self.shared.sources().remove(&id);
            return Err(error);
        }
        self.wake();
        Ok(Registration { dispatcher: Arc::downgrade(self), id })
    }

    fn remove(&self, id: u64) {
        let Some(source) = self.shared.sources().remove(&id) else { return };
        self.epoll.remove(source.fd());
    }

    /// Makes the thread call every source's `before_sleep` again.
    fn wake(&self) {
        eventfd::signal(self.wake.as_fd());
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

fn run(shared: &Shared, epoll: &Epoll, wake: BorrowedFd<'_>) {
    let mut ready = Vec::with_capacity(epoll::MAX_EVENTS);
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
        // A thread that waits for the lock acquires it even while sources always have work.
        if shared.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
        epoll.wait(sleep, &mut ready);
        for token in &ready {
            if *token == 0 {
                eventfd::drain(wake);
            } else if !due.contains(token) {
                due.push(*token);
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
