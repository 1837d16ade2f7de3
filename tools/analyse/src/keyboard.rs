//! Ctrl-C is the program's while it is analysed.
//!
//! Owns: the action of SIGINT in this process. Promises: as long as a [`Keyboard`] lives, SIGINT
//! does nothing here; after the last one the action is what it was. A program that is started
//! meanwhile has the default action, or ignores SIGINT if this process did.

use orbit_linux::signals::{self, Action, Set};
use std::sync::{Mutex, PoisonError};

/// How many there are, and the action from before the first.
static LEFT: Mutex<(usize, Option<Action>)> = Mutex::new((0, None));

/// SIGINT is left to the program until this is dropped.
pub(crate) struct Keyboard(());

extern "C" fn nothing(_: libc::c_int) {}

impl Keyboard {
    pub(crate) fn left_to_the_program() -> Keyboard {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        if left.0 == 0 && !signals::is_ignored(libc::SIGINT) {
            left.1 = Action::of(libc::SIGINT).ok();
            // A handler, since what is ignored stays so in programs that are started.
            let handler = Action::handler(nothing as *const () as usize, libc::SA_RESTART, &Set::of([]));
            // SAFETY: the handler has the signature for these flags, does nothing, and stays.
            let _ = unsafe { handler.install(libc::SIGINT) };
        }
        left.0 += 1;
        Keyboard(())
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.0 -= 1;
        if left.0 == 0
            && let Some(before) = left.1.take()
        {
            // SAFETY: the action that the signal had.
            let _ = unsafe { before.install(libc::SIGINT) };
        }
    }
}
