//! What stands for a call in the program's hands.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use orbit_linux::eventfd;

use crate::call::{Call, Outcome};
use crate::core::Inner;
use crate::error::{Error, Kind, Result};
use crate::own::Own;
use crate::update::Update;

/// A call that was made: wait for its outcome, take its updates, or cancel it. May be cloned, sent
/// and shared among threads; dropping it leaves the call to run. It is a Rust
/// [`Future`](std::future::Future) of the outcome too.
pub struct Future {
    pub(crate) call: Arc<Call>,
    pub(crate) orbit: Arc<Inner>,
    /// By which the call distinguishes this future's waker from those of its clones; made at the
    /// first poll.
    mark: Option<Arc<()>>,
    /// Of a synchronous call, which leaves its updates to the orbit.
    synchronous: bool,
}

impl Drop for Future {
    fn drop(&mut self) {
        // In a forked child another thread of the parent may have the lock, for ever.
        if self.orbit.runtime.check_process().is_err() {
            return;
        }
        let updates = self.call.leave();
        if self.synchronous {
            updates.into_iter().for_each(|(update, _)| self.orbit.kept.add(update));
        }
    }
}

impl Clone for Future {
    fn clone(&self) -> Future {
        Future::new(self.call.clone(), self.orbit.clone())
    }
}

impl fmt::Debug for Future {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Future").field("call", &self.call.number).field("done", &self.call.is_done()).finish()
    }
}

impl Future {
    pub(crate) fn new(call: Arc<Call>, orbit: Arc<Inner>) -> Future {
        call.join();
        Future::joined(call, orbit)
    }

    /// The future of a call that counts it already.
    #[inline(always)]
    pub(crate) fn joined(call: Arc<Call>, orbit: Arc<Inner>) -> Future {
        Future { call, orbit, mark: None, synchronous: false }
    }

    /// The outcome, if the call has ended. Never blocks for long; takes the orbit's lock for a
    /// moment.
    pub fn poll(&self) -> Option<Outcome> {
        if !self.call.is_done() {
            self.orbit.reap();
        }
        self.call.outcome()
    }

    /// Blocks until the call has ended.
    pub fn wait(&self) -> Result<Outcome> {
        match self.wait_until(None)? {
            Some(outcome) => Ok(outcome),
            None => Err(Error::new(Kind::TimedOut, "a wait without end came to one")),
        }
    }

    /// Blocks until the call has ended, or this long; then the error's kind is [`Kind::TimedOut`]
    /// and the call continues.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Outcome> {
        self.wait_until(Instant::now().checked_add(timeout))?.ok_or_else(|| {
            Error::new(
                Kind::TimedOut,
                format!("call {} has not ended within {timeout:?}; it continues", self.call.number),
            )
        })
    }

    fn wait_until(&self, until: Option<Instant>) -> Result<Option<Outcome>> {
        self.orbit.wait(until, || self.call.is_done())?;
        Ok(self.call.outcome())
    }

    /// Blocks until the call has ended, and leaves its updates to the orbit if this is the last
    /// future of the call: of a synchronous call nobody has another.
    pub(crate) fn finish(mut self) -> Result<Outcome> {
        self.synchronous = true;
        self.orbit.wait(None, || {
            self.call.take_too_many().into_iter().for_each(|(update, _)| self.orbit.kept.add(update));
            self.call.is_done()
        })?;
        self.wait()
    }

    /// The next update that the task pushed in this call, if one has arrived. Never blocks.
    pub fn try_pull(&self) -> Option<Update> {
        if let Some(update) = self.call.take_update() {
            return Some(update);
        }
        self.orbit.reap();
        self.call.take_update()
    }

    /// Blocks until the task pushes an update in this call (section 4.5 of the paper) and takes it;
    /// `None` when the call has ended and no update is left.
    pub fn pull(&self) -> Result<Option<Update>> {
        let mut update = None;
        self.orbit.wait(None, || {
            update = self.call.take_update();
            update.is_some() || self.call.is_done()
        })?;
        // An update may have come together with the end.
        Ok(update.or_else(|| self.call.take_update()))
    }

    /// A descriptor that becomes readable when the call has ended (level-triggered; made at the
    /// first use). It belongs to the future's call and is closed with the last future.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        let mut state = self.call.lock();
        if state.event.is_none() {
            let event = eventfd::create().and_then(Own::shown);
            let event = event.map_err(|e| Error::system("a descriptor for a future", e))?;
            if state.outcome.is_some() {
                let _ = event.fd().map(eventfd::signal);
            }
            state.event = Some(Arc::new(event));
        }
        let event = state.event.clone();
        drop(state);
        self.watch();
        let Some(event) = event else {
            return Err(Error::new(Kind::Gone, "the future's descriptor is gone"));
        };
        let event = event.fd().map_err(|e| Error::system("the descriptor of a future", e))?.as_raw_fd();
        // SAFETY: the descriptor lives in the call's state, where it is never replaced, and the
        // call lives as long as this future, from which the borrow is taken.
        Ok(unsafe { BorrowedFd::borrow_raw(event) })
    }

    /// Cancels the call if it has not begun. True: it will never run, and its outcome is
    /// [`Outcome::Cancelled`]. False: it runs or has ended; to end a running call, destroy or
    /// restart its orbit, or give it a deadline.
    pub fn cancel(&self) -> bool {
        self.orbit.cancel(|waiting| Arc::ptr_eq(&waiting.call, &self.call)) > 0
    }

    /// Asks the orbit to signal the end of this call to the supervisor, which notifies wakers and
    /// descriptors.
    fn watch(&self) {
        let mut state = self.call.lock();
        if state.outcome.is_none() && !state.watched {
            state.watched = true;
            drop(state);
            self.orbit.notify_more();
            // It may have ended before the orbit saw the word.
            self.orbit.reap();
        }
    }
}

impl std::future::Future for Future {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(outcome) = Future::poll(&self) {
            return Poll::Ready(outcome);
        }
        let mark = self.mark.get_or_insert_default().clone();
        let waker = context.waker().clone();
        let _old = {
            let mut state = self.call.lock();
            if state.outcome.is_none() { state.wakes(&mark, waker) } else { Vec::new() }
        };
        self.watch();
        match self.call.outcome() {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}
