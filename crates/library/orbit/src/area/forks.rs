//! Main's own forks beside shared areas.
//!
//! A child is to have what main has at the fork, as ordinary memory. So before the fork the area is
//! made private, as for a call, and inherited; from then on the child may read the file that it
//! views indefinitely. **A file that a child may map is never written again**: another one takes
//! its place at a later merge, and is filled meanwhile (`track::memory`).
//!
//! That works where `fork` runs handlers (`pthread_atfork`). A child of a raw `clone` has none of
//! the area, which otherwise is not inherited; `vfork` and `posix_spawn` share main's memory as it
//! is.
//!
//! A signal handler may fork, whatever of the library it interrupts (not the allocator, of which
//! libc's own fork takes the locks): what stands here allocates nothing, and the locks that it
//! takes are held with all signals blocked.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, PoisonError};

use super::inner::AreaInner;
use super::track::Refill;
use crate::per_process::{Inherit, PerProcess};
use crate::runtime::Runtime;
use orbit_linux::signals::Blocked;

/// The shared areas of this process.
#[derive(Default)]
struct Shared {
    /// Each is valid while it is in the list: it leaves before it goes.
    areas: Vec<*const AreaInner>,
    /// Forks that were prepared and are not over.
    forks: usize,
}

// SAFETY: the pointers are only read through, under the lock, and `AreaInner` may be used from any
// thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// A child has its parent's shared areas as ordinary memory.
impl Inherit for Shared {
    fn inherit(&self) -> Shared {
        Shared::default()
    }
}

/// Locked with signals blocked.
static SHARED: PerProcess<Shared> = PerProcess::new();
/// Memory has been lent since the supervisor asked last.
static HAS_LENT: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread makes a process of the library's, which is to have no area.
    static IS_LIBRARYS: Cell<bool> = const { Cell::new(false) };
    /// Whether the fork that this thread makes was prepared.
    static IS_PREPARED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` on the list, if this process has one.
fn with<R>(f: impl FnOnce(&mut Shared) -> R) -> Option<R> {
    let _blocked = Blocked::all();
    let list = SHARED.existing()?;
    Some(f(&mut list.write().unwrap_or_else(PoisonError::into_inner)))
}

/// Prepares main's forks for this area from now on.
pub(super) fn enter(area: &Arc<AreaInner>) {
    SHARED.lock();
    with(|shared| shared.areas.push(Arc::as_ptr(area)));
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are code of this library's, which is never unloaded; they neither
        // unwind nor wait for what another thread does for long.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_main), Some(in_child)) };
    });
}

/// The area goes.
pub(super) fn leave(area: &AreaInner) {
    with(|shared| shared.areas.retain(|one| !std::ptr::eq(*one, area)));
}

/// Runs `f`, which forks a process of the library's.
pub(crate) fn of_the_library<R>(f: impl FnOnce() -> R) -> R {
    IS_LIBRARYS.set(true);
    let result = f();
    IS_LIBRARYS.set(false);
    result
}

/// Whether memory has been lent since the last time this was asked.
pub(crate) fn have_lent() -> bool {
    HAS_LENT.load(Ordering::Relaxed) && HAS_LENT.swap(false, Ordering::Acquire)
}

/// Has the supervisor see to lent memory.
pub(crate) fn note_lent() {
    HAS_LENT.store(true, Ordering::Release);
}

/// The copies that take the place of lent memory which orbits use, begun where there are none.
pub(crate) fn refills() -> Vec<Arc<Refill>> {
    // SAFETY: in the list.
    with(|shared| shared.areas.iter().filter_map(|area| unsafe { &**area }.refill()).collect()).unwrap_or_default()
}

extern "C" fn prepare() {
    if IS_LIBRARYS.get() {
        return;
    }
    let prepared = with(|shared| {
        shared.forks += 1;
        for area in &shared.areas {
            // SAFETY: in the list.
            if unsafe { &**area }.lend() {
                HAS_LENT.store(true, Ordering::Release);
            }
        }
    });
    IS_PREPARED.set(prepared.is_some());
}

extern "C" fn in_main() {
    if !IS_PREPARED.replace(false) {
        return;
    }
    with(|shared| {
        shared.forks -= 1;
        if shared.forks == 0 {
            // SAFETY: in the list.
            shared.areas.iter().for_each(|area| unsafe { &**area }.forks_are_over());
        }
    });
    if HAS_LENT.load(Ordering::Acquire) {
        Runtime::knock_in_fork();
    }
}

extern "C" fn in_child() {
    IS_PREPARED.set(false);
}
