//! Main's own forks beside shared areas.
//!
//! A child is to have what main has at the fork, as ordinary memory. So before the fork the area is
//! made private, as for a call, and inherited; from then on the child may read the file that it
//! views indefinitely. **A file that a child may map is never written again**: the next
//! merge makes another one (`track::share`).
//!
//! That works where `fork` runs handlers (`pthread_atfork`). A child of a raw `clone` has none of
//! the area, which otherwise is not inherited; `vfork` and `posix_spawn` share main's memory as it
//! is.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Once};

use super::inner::AreaInner;
use super::registry;

thread_local! {
    /// The areas that the fork which this thread makes was prepared for.
    static PREPARED: RefCell<Vec<Arc<AreaInner>>> = const { RefCell::new(Vec::new()) };
    /// Whether this thread makes a process of the library's, which is to have no area.
    static IS_LIBRARYS: Cell<bool> = const { Cell::new(false) };
}

/// Prepares main's forks from now on.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are code of this library's, which is never unloaded; they neither
        // unwind nor wait for what another thread does for long.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_main), Some(in_child)) };
    });
}

/// Runs `f`, which forks a process of the library's.
pub(crate) fn of_the_library<R>(f: impl FnOnce() -> R) -> R {
    IS_LIBRARYS.set(true);
    let result = f();
    IS_LIBRARYS.set(false);
    result
}

extern "C" fn prepare() {
    if IS_LIBRARYS.get() {
        return;
    }
    let areas: Vec<_> = registry::all().into_iter().filter(|area| area.lend()).collect();
    PREPARED.with_borrow_mut(|prepared| *prepared = areas);
}

extern "C" fn in_main() {
    for area in PREPARED.take() {
        area.fork_is_over();
    }
}

extern "C" fn in_child() {
    // They are main's.
    std::mem::forget(PREPARED.take());
}
