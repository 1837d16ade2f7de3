//! The thread that waits for the program to ring, and that marks the keeper as alive.

use crate::shared::Shared;
use orbit_linux::eventfd;
use orbit_linux::robust::LifeMark;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

/// Readable after the program rang. While it lives, the program sees that its keeper does.
pub(crate) struct Bell {
    fd: Arc<OwnedFd>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Bell {
    /// Starts the thread; the mark is set when this returns.
    pub fn start(shared: &Arc<Shared>) -> io::Result<Bell> {
        let fd = Arc::new(eventfd::create()?);
        let ends = Arc::new(AtomicBool::new(false));
        let (its_fd, its_ends, its_shared) = (Arc::clone(&fd), Arc::clone(&ends), Arc::clone(shared));
        let (ready, set) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("keep-bell".into()).spawn(move || {
            let mark = LifeMark::new(&its_shared.orders().keeper);
            let failed = mark.as_ref().err().map(|e| e.raw_os_error().unwrap_or(libc::ENOSYS));
            // The other side waits for it.
            let _ = ready.send(failed);
            if failed.is_some() {
                return;
            }
            let mut seen = 0;
            while !its_ends.load(SeqCst) {
                its_shared.wait_bell(seen, Duration::from_millis(500));
                let now = its_shared.bell();
                if now != seen {
                    seen = now;
                    eventfd::signal(its_fd.as_fd());
                }
            }
        })?;
        match set.recv() {
            Ok(None) => Ok(Bell { fd, ends, thread: Some(thread), shared: Arc::clone(shared) }),
            Ok(Some(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Err(_) => Err(io::Error::other("the thread that waits for the program has ended")),
        }
    }

    /// Whether it rang since the last time.
    pub fn drain(&self) -> bool {
        eventfd::drain(self.fd.as_fd()) > 0
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ends.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            // It may be just about to sleep.
            while !thread.is_finished() {
                self.shared.wake_bell();
                std::thread::sleep(Duration::from_micros(100));
            }
            // A panic there has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}
