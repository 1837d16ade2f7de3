//! Signals blocked for a while in one thread.

/// All signals that can be blocked are, in the thread that made it, while it lives; then the thread has the mask it had.
///
/// Threads and processes that begin meanwhile begin with all blocked. Must be dropped by the thread that made it, which the type sees to, and
/// not in another order than that of making, where there are several. Async-signal-safe.
#[derive(Debug)]
pub struct Blocked {
    before: libc::sigset_t,
    /// A mask is a thread's: not to be sent to another.
    _here: std::marker::PhantomData<*const ()>,
}

impl Blocked {
    /// Blocks them.
    pub fn all() -> Blocked {
        // SAFETY: sets of signals are plain bits, for which zeros are a value; both outlive the calls.
        let before = unsafe {
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            before
        };
        Blocked { before, _here: std::marker::PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled by `all`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::Blocked;

    fn blocked(signal: i32) -> bool {
        // SAFETY: a set on the stack, which the call fills.
        unsafe {
            let mut now: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut now);
            libc::sigismember(&raw const now, signal) == 1
        }
    }

    #[test]
    fn as_it_was_afterwards() {
        let none = [libc::SIGSEGV, libc::SIGTERM, libc::SIGRTMAX()].map(blocked);
        let outer = Blocked::all();
        {
            let _inner = Blocked::all();
            assert!(blocked(libc::SIGSEGV) && blocked(libc::SIGRTMAX()));
        }
        assert!(blocked(libc::SIGTERM), "the outer one still holds");
        drop(outer);
        assert_eq!([libc::SIGSEGV, libc::SIGTERM, libc::SIGRTMAX()].map(blocked), none);
    }
}
