//! Cancellation of threads (`pthread_cancel`), held back while a thread is in code that cannot be
//! left in the middle.

use std::marker::PhantomData;

/// glibc's `PTHREAD_CANCEL_DISABLE`.
const DISABLE: libc::c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// While this lives, the calling thread is not cancelled. A request that comes meanwhile is acted
/// upon at the thread's next cancellation point after it.
#[derive(Debug)]
pub struct Held {
    before: libc::c_int,
    /// Of the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl Held {
    /// Holds cancellation of the calling thread back.
    #[inline]
    pub fn new() -> Held {
        let mut before = 0;
        // SAFETY: writes one number to a local. It fails for unknown states only.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Held { before, _thread: PhantomData }
    }
}

impl Default for Held {
    fn default() -> Held {
        Held::new()
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the state the thread had. Setting it is no cancellation point, unless the thread
        // has asked to be cancelled at any instruction, which no function but a few of libc allows.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}
