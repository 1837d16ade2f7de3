//! What threads of a module do: answer clients that wait, and call the server under its lock.

use crate::{Context, core, ffi};

/// A client that waits for an answer of the module, while the server continues. It waits until
/// [`Waiting::finish`].
#[must_use = "the client waits until it is finished"]
pub struct Waiting(*mut ffi::Blocked);

// SAFETY: a waiting client may be answered and released by any thread; only its owner does so.
unsafe impl Send for Waiting {}

impl Context {
    /// Has the client of this command wait, with no limit of time. `None` if the server does not
    /// allow it. The command itself answers [`Value::Nothing`](crate::Value).
    pub fn block(&self) -> Option<Waiting> {
        // SAFETY: the context is good. There are no callbacks.
        let client = unsafe { (core().block)(self.raw, None, None, None, 0) };
        (!client.is_null()).then_some(Waiting(client))
    }
}

impl Waiting {
    /// Has this write the reply, and releases the client. The context takes replies only: the
    /// server's lock is not held.
    pub fn finish(self, reply: impl FnOnce(&Context)) {
        // SAFETY: the client waits, and is released here alone. A context that was made for it may
        // be replied through by one thread without the server's lock; it is freed before.
        unsafe {
            let ctx = (core().make_context)(self.0);
            reply(&Context::new(ctx));
            (core().free_context)(ctx);
            (core().unblock)(self.0, std::ptr::null_mut());
        }
    }
}

/// A context of no client, and the server's lock.
struct Locked(Context);

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: made and locked by `with_lock`, and dropped once.
        unsafe {
            (core().unlock)(self.0.raw);
            (core().free_context)(self.0.raw);
        }
    }
}

/// Runs this in a thread of the module while the server's own thread waits. Blocks until that lets
/// it; never returns in a callback of the server, whose thread has the lock.
pub fn with_lock<T>(what: impl FnOnce(&Context) -> T) -> T {
    // SAFETY: a context may be made for no client; it is used under the lock only.
    let locked = unsafe {
        let ctx = (core().make_context)(std::ptr::null_mut());
        (core().lock)(ctx);
        Locked(Context::new(ctx))
    };
    what(&locked.0)
}
