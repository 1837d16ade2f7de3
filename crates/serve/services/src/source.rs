//! Sources of events beside ticks: pressure stalls, descriptors that become readable, tracepoints
//! of the kernel, runs of other services.
//!
//! One thread of the host waits for all of them and posts an event for each to its service's queue,
//! which is bounded and counts what does not fit. A source that fires all the time costs this
//! thread at most one event in `PAUSE_BETWEEN_ROUNDS`.

use crate::error::{Error, Kind, Result};
use crate::{budget, tracepoint};
use orbit_linux::epoll::Epoll;
use orbit_linux::pressure::{self, Resource};
use orbit_linux::{eventfd, pidfd};
use orbit_sandbox_lib::abi::{PRESSURE, READABLE, SERVICE, TRACEPOINT};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two rounds of events.
const PAUSE_BETWEEN_ROUNDS: Duration = Duration::from_micros(200);
/// The token of the descriptor that stops the thread.
const STOP: u64 = 0;

/// Where a service's events come from, beside ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Tasks stalled for `stall` within `window`: those of the process' control group where it has
    /// one, else all.
    Pressure {
        /// What they waited for.
        resource: Resource,
        /// How long they waited.
        stall: Duration,
        /// In which time.
        window: Duration,
        /// Whose control group.
        process: i32,
    },
    /// A descriptor of a process became readable, or has more to read.
    Readable {
        /// The process.
        process: i32,
        /// Its descriptor.
        descriptor: i32,
    },
    /// A tracepoint of this name was hit, anywhere on the machine. Needs root or `CAP_BPF` and
    /// `CAP_PERFMON`.
    Tracepoint(String),
}

impl Source {
    /// Reads `psi=memory:150ms/2s`, `fd=5` or `tracepoint=sched_process_exec`; the first two are
    /// about the owner.
    ///
    /// # Errors
    /// `Invalid`, with the forms that there are.
    pub fn parse(text: &str, owner: i32) -> Result<Source> {
        let wrong = || {
            let text = format!(
                "source {text:?}: write tick=10ms, psi=memory:150ms/2s (or cpu, io), fd=NUMBER, tracepoint=NAME or \
                 service=ID"
            );
            Error::new(Kind::Invalid, text)
        };
        let (form, rest) = text.split_once('=').ok_or_else(wrong)?;
        match form {
            "psi" => {
                let (resource, times) = rest.split_once(':').ok_or_else(wrong)?;
                let (stall, window) = times.split_once('/').ok_or_else(wrong)?;
                let resource = match resource {
                    "memory" => Resource::Memory,
                    "cpu" => Resource::Cpu,
                    "io" => Resource::Io,
                    _ => return Err(wrong()),
                };
                let time = |text| budget::duration(text).ok_or_else(wrong);
                Ok(Source::Pressure { resource, stall: time(stall)?, window: time(window)?, process: owner })
            }
            "fd" => {
                let descriptor = rest.parse().ok().filter(|fd| *fd >= 0).ok_or_else(wrong)?;
                Ok(Source::Readable { process: owner, descriptor })
            }
            "tracepoint" => {
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                if rest.is_empty() || rest.len() > 100 || !rest.bytes().all(is_name) {
                    return Err(wrong());
                }
                Ok(Source::Tracepoint(rest.to_owned()))
            }
            _ => Err(wrong()),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// `NotFound` for processes, descriptors and tracepoints that are not there; `Denied`;
    /// `Unsupported` where the kernel or user has no such source, or the descriptor is a file that
    /// is always readable; `Invalid` for windows that the kernel does not take.
    pub fn open(&self) -> Result<Opened> {
        match self {
            Source::Pressure { resource, stall, window, process } => {
                let file = pressure::file_of(*process, *resource);
                let trigger = pressure::trigger(&file, *stall, *window).map_err(|error| {
                    let text = format!("pressure events of {}: {error}", file.display());
                    match error.kind() {
                        ErrorKind::InvalidInput => Error::new(
                            Kind::Invalid,
                            format!(
                                "{text}: the window is 500ms to 10s, without CAP_SYS_RESOURCE 2s, 4s, ...; the \
                                stall less"
                            ),
                        ),
                        ErrorKind::PermissionDenied => Error::new(Kind::Denied, text),
                        ErrorKind::NotFound => Error::new(Kind::Unsupported, text),
                        _ => Error::system(text, &error),
                    }
                })?;
                let seen = pressure::stalled(&file).unwrap_or_default();
                Ok(Opened(Inner::Pressure { trigger, file, seen }))
            }
            Source::Readable { process, descriptor } => {
                let what = format!("descriptor {descriptor} of process {process}");
                let opened = pidfd::open(*process).and_then(|process| pidfd::duplicate(process.as_fd(), *descriptor));
                let opened = opened.map_err(|error| match error.raw_os_error() {
                    Some(libc::ESRCH | libc::EBADF) => Error::new(Kind::NotFound, format!("there is no {what}")),
                    Some(libc::EPERM) => Error::new(Kind::Denied, format!("{what}: {error}")),
                    _ => Error::system(&what, &error),
                })?;
                Ok(Opened(Inner::Readable(opened)))
            }
            Source::Tracepoint(name) => Ok(Opened(Inner::Tracepoint(Box::new(tracepoint::Hits::start(name)?)))),
        }
    }
}

/// An open source.
#[derive(Debug)]
pub struct Opened(Inner);

#[derive(Debug)]
enum Inner {
    Service(Arc<OwnedFd>),
    Pressure { trigger: OwnedFd, file: PathBuf, seen: Duration },
    Readable(OwnedFd),
    Tracepoint(Box<tracepoint::Hits>),
}

impl Opened {
    /// The runs of a service: each adds to this eventfd, which [`crate::Host::follow`] or the wasm
    /// runner made.
    pub fn service(runs: Arc<OwnedFd>) -> Opened {
        Opened(Inner::Service(runs))
    }

    /// A descriptor that becomes readable.
    pub fn readable(descriptor: OwnedFd) -> Opened {
        Opened(Inner::Readable(descriptor))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Inner::Service(runs) => runs.as_fd(),
            Inner::Pressure { trigger, .. } => trigger.as_fd(),
            Inner::Readable(opened) => opened.as_fd(),
            Inner::Tracepoint(hits) => hits.descriptor(),
        }
    }

    /// The event that is to be posted: its kind and value.
    fn event(&mut self) -> (u32, u64) {
        match &mut self.0 {
            Inner::Pressure { file, seen, .. } => {
                let now = pressure::stalled(file).unwrap_or(*seen);
                let stalled = now.saturating_sub(*seen);
                *seen = now;
                (PRESSURE, stalled.as_nanos() as u64)
            }
            Inner::Service(runs) => (SERVICE, eventfd::drain(runs.as_fd())),
            Inner::Readable(_) => (READABLE, 0),
            Inner::Tracepoint(hits) => (TRACEPOINT, hits.take()),
        }
    }
}

/// Takes the events of a source: kind and value. Runs on the thread of sources; it does not block.
pub type Sink = Box<dyn Fn(u32, u64) + Send>;

struct State {
    epoll: Epoll,
    bell: OwnedFd,
    watched: Mutex<HashMap<u64, (Opened, Sink)>>,
    stop: AtomicBool,
}

impl State {
    fn watched(&self) -> std::sync::MutexGuard<'_, HashMap<u64, (Opened, Sink)>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that waits for sources. Dropping it stops it and closes them.
pub struct Sources {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
    next: u64,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").field("watched", &self.state.watched().len()).finish_non_exhaustive()
    }
}

impl Sources {
    /// Starts the thread, at this real-time priority where it may have one.
    ///
    /// # Errors
    /// `System`.
    pub fn start(priority: i32) -> Result<Sources> {
        let failed = |error: std::io::Error| Error::system("the thread of sources", &error);
        let (epoll, bell) = (Epoll::new().map_err(failed)?, eventfd::create().map_err(failed)?);
        epoll.add(bell.as_fd(), STOP).map_err(failed)?;
        let state = State { epoll, bell, watched: Mutex::default(), stop: AtomicBool::new(false) };
        let state = Arc::new(state);
        let theirs = state.clone();
        let thread = std::thread::Builder::new().name("orbit-sources".into()).spawn(move || {
            // Without the right to, it is an ordinary thread.
            orbit_sandbox_lib::sys::set_priority(0, priority);
            serve(&theirs);
        });
        Ok(Sources { state, thread: Some(thread.map_err(failed)?), next: STOP + 1 })
    }

    /// Lets the events of a source go to `sink`. Answers its number.
    ///
    /// # Errors
    /// `Unsupported` for files that are always readable; `System`.
    pub fn add(&mut self, opened: Opened, sink: Sink) -> Result<u64> {
        let number = self.next;
        self.next += 1;
        let mut watched = self.state.watched();
        self.state.epoll.add_edges(opened.descriptor(), number).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => {
                Error::new(Kind::Unsupported, "an ordinary file is always readable: it is no source of events")
            }
            _ => Error::system("watching a source", &error),
        })?;
        watched.insert(number, (opened, sink));
        Ok(number)
    }

    /// Closes a source: its sink is not called any more once this returns.
    pub fn remove(&self, number: u64) {
        self.state.watched().remove(&number);
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        eventfd::signal(self.state.bell.as_fd());
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported.
            let _ = thread.join();
        }
    }
}

fn serve(state: &State) {
    let mut ready = Vec::new();
    while !state.stop.load(Ordering::SeqCst) {
        state.epoll.wait(-1, &mut ready);
        let mut watched = state.watched();
        for number in &ready {
            if let Some((opened, sink)) = watched.get_mut(number) {
                let (kind, value) = opened.event();
                sink(kind, value);
            }
        }
        drop(watched);
        std::thread::sleep(PAUSE_BETWEEN_ROUNDS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read() {
        let psi = Source::parse("psi=memory:150ms/2s", 7).expect("a source");
        let (stall, window) = (Duration::from_millis(150), Duration::from_secs(2));
        assert_eq!(psi, Source::Pressure { resource: Resource::Memory, stall, window, process: 7 });
        assert_eq!(Source::parse("fd=3", 7), Ok(Source::Readable { process: 7, descriptor: 3 }));
        assert!(Source::parse("tracepoint=sched_process_exec", 7).is_ok());
        for bad in ["", "psi", "psi=memory", "psi=disk:1ms/2s", "fd=-1", "fd=x", "tracepoint=../x:y", "tick=1ms"] {
            assert_eq!(Source::parse(bad, 7).map_err(|e| e.kind()), Err(Kind::Invalid), "{bad:?}");
        }
    }
}
