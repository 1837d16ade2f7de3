//! Work in a second thread while the tracer works in a stopped program: what can be read from
//! outside needs no tracer, and a second processor is often free then.
//!
//! The thread is made before the program stops. If it has not begun when its result is needed, the
//! caller does the work itself: on a loaded machine the pause does not wait for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What is done beside.
pub(crate) type Work<'w, T> = &'w (dyn Fn() -> T + Sync);

/// The work: not before [`Beside::start`], since the program runs until then.
pub(crate) struct Beside<'w, T> {
    work: Work<'w, T>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    Waits,
    /// The program is stopped.
    MayBegin,
    Begun,
    Done(T),
    /// The thread is not to begin, or has failed.
    Off,
}

impl<T: Send> Beside<'_, T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State<T>) {
        *self.lock() = state;
        self.changed.notify_all();
    }

    /// The work may begin.
    pub fn start(&self) {
        self.set(State::MayBegin);
    }

    /// What the work returns is not to be used: [`Beside::result`] does it again.
    pub fn discard(&self) {
        let mut state = self.lock();
        while matches!(*state, State::Begun) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        *state = State::Off;
    }

    /// Returns what the work has returned since [`Beside::start`]; does it here if the thread has
    /// not begun.
    pub fn result(&self) -> T {
        let mut state = self.lock();
        while matches!(*state, State::Begun) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match std::mem::replace(&mut *state, State::Off) {
            State::Done(result) => result,
            _ => {
                drop(state);
                (self.work)()
            }
        }
    }

    /// The thread.
    fn serve(&self) {
        let mut state = self.lock();
        while matches!(*state, State::Waits) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !matches!(*state, State::MayBegin) {
            return;
        }
        *state = State::Begun;
        drop(state);
        let off = Off(self);
        let result = (self.work)();
        std::mem::forget(off);
        self.set(State::Done(result));
    }
}

/// Ends the wait of the other side, also after a panic.
struct Off<'b, 'w, T: Send>(&'b Beside<'w, T>);

impl<T: Send> Drop for Off<'_, '_, T> {
    fn drop(&mut self) {
        self.0.set(State::Off);
    }
}

/// Runs `body` with `work` beside it, if there is any; the thread has ended when this returns.
pub(crate) fn with<T: Send, R>(work: Option<Work<'_, T>>, body: impl FnOnce(Option<&Beside<'_, T>>) -> R) -> R {
    let Some(work) = work else { return body(None) };
    let beside = Beside { work, state: Mutex::new(State::Waits), changed: Condvar::new() };
    std::thread::scope(|scope| {
        // Without a thread the caller does the work.
        let _ = std::thread::Builder::new().name("keep-beside".into()).spawn_scoped(scope, || beside.serve());
        let _end = Off(&beside);
        body(Some(&beside))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::thread::ThreadId;

    #[test]
    fn the_work_is_done_once_by_one_of_the_two() {
        for nth in 0..200u32 {
            let count = AtomicU32::new(0);
            let work = || (count.fetch_add(1, SeqCst), std::thread::current().id());
            let (first, by): (u32, ThreadId) = with(Some(&work), |beside| {
                let beside = beside.expect("there is work");
                beside.start();
                if nth % 2 == 0 {
                    std::thread::yield_now();
                }
                beside.result()
            });
            assert_eq!((first, count.load(SeqCst)), (0, 1), "done by {by:?}");
        }
    }

    #[test]
    fn work_that_was_discarded_is_done_again() {
        let count = AtomicU32::new(0);
        let last = with(Some(&|| count.fetch_add(1, SeqCst) + 1), |beside| {
            let beside = beside.expect("there is work");
            beside.start();
            while count.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            beside.discard();
            beside.result()
        });
        assert_eq!((last, count.load(SeqCst)), (2, 2));
    }

    #[test]
    fn work_that_was_not_started_is_not_done() {
        let count = AtomicU32::new(0);
        with(Some(&|| count.fetch_add(1, SeqCst)), |_| {});
        assert_eq!(count.load(SeqCst), 0);
    }
}
