//! Futures (`orbit_future_*`, `pull_orbit`), and updates without one (`orbit_pull`).

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::RwLock;
use std::time::Duration;

use orbit::{Future, Orbit, Outcome, Update};

use crate::failure::{Answer, Failure, code};
use crate::given;
use crate::handle::{self, Table, Tables};
use crate::orbits::COrbit;
use crate::outcome::{self, COutcome};
use crate::update::{self, COrbitUpdate};

/// `struct orbit_future`.
#[repr(C)]
pub struct COrbitFuture {
    _opaque: [u8; 0],
}

/// What stands behind a future's handle.
#[derive(Clone)]
pub(crate) struct Object {
    pub future: Future,
    /// The orbit of the call: its updates are applied in its name.
    pub orbit: Orbit,
    /// The handle of the update that `orbit_future_pull` gave last, 0 for none. What counts is that
    /// of the object in the table.
    kept: usize,
}

impl Object {
    pub fn new(future: Future, orbit: Orbit) -> Object {
        Object { future, orbit, kept: 0 }
    }
}

/// Frees an update that was kept, unless the program has done so itself.
fn free_kept(kept: usize) {
    if kept != 0 {
        let _ = handle::remove::<update::Object>(std::ptr::without_provenance(kept));
    }
}

impl handle::Object for Object {
    type Opaque = COrbitFuture;
    const KIND: usize = 2;
    fn table(all: &Tables) -> &RwLock<Table<Object>> {
        &all.futures
    }
}

/// The number that goes with an outcome, which is written to `to` if that is not null. The sentence
/// is set.
///
/// # Safety
/// If not null, the pointer may be written to.
pub(crate) unsafe fn ended(outcome: &Outcome, to: *mut COutcome) -> Answer<c_int> {
    // SAFETY: the caller's contract.
    Ok(unsafe { outcome::report(outcome, to) })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_future_wait(future: *mut COrbitFuture, to: *mut COutcome) -> c_int {
    code(|| {
        // SAFETY: the header's contract.
        unsafe {
            outcome::begin(to)?;
            ended(&handle::get::<Object>(future)?.future.wait()?, to)
        }
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_future_wait_timeout(
    future: *mut COrbitFuture,
    timeout_us: u64,
    to: *mut COutcome,
) -> c_int {
    code(|| {
        // SAFETY: the header's contract.
        unsafe {
            outcome::begin(to)?;
            ended(&handle::get::<Object>(future)?.future.wait_timeout(Duration::from_micros(timeout_us))?, to)
        }
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_future_poll(future: *mut COrbitFuture, to: *mut COutcome) -> c_int {
    code(|| {
        // SAFETY: the header's contract.
        unsafe {
            outcome::begin(to)?;
            match handle::get::<Object>(future)?.future.poll() {
                // Names that have not come yet are not waited for.
                Some(outcome) => ended(&outcome.without_waiting(), to),
                None => Err(Failure::new(libc::EINPROGRESS, "the call has not ended; wait for it or ask again")),
            }
        }
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_future_fd(future: *mut COrbitFuture) -> c_int {
    code(|| Ok(handle::get::<Object>(future)?.future.fd()?.as_raw_fd()))
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_future_cancel(future: *mut COrbitFuture) -> c_int {
    code(|| {
        if handle::get::<Object>(future)?.future.cancel() {
            return Ok(0);
        }
        Err(Failure::new(
            libc::EBUSY,
            "the call runs or has ended: it cannot be cancelled; to end a running call give it a deadline, or \
             orbit_kill",
        ))
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_future_free(future: *mut COrbitFuture) -> c_int {
    code(|| {
        if !future.is_null() {
            free_kept(handle::remove::<Object>(future)?.kept);
        }
        Ok(0)
    })
}

/// Takes an update by `take` and gives C a handle of it: 1; 0 if there was none.
fn pull(to: *mut *mut COrbitUpdate, take: impl FnOnce() -> Answer<(Option<Update>, Orbit)>) -> c_int {
    code(|| {
        given::place(to, "the update")?;
        // SAFETY: the header's contract.
        unsafe { given::give(to, std::ptr::null_mut()) };
        let (Some(taken), orbit) = take()? else { return Ok(0) };
        let handle = handle::add(update::Object::pulled(taken, orbit))?;
        // SAFETY: the header's contract.
        unsafe { given::give(to, handle) };
        Ok(1)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pull_orbit(future: *mut COrbitFuture, to: *mut *mut COrbitUpdate) -> c_int {
    pull(to, || {
        let Object { future, orbit, .. } = handle::get(future)?;
        Ok((future.pull()?, orbit))
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_future_pull(future: *mut COrbitFuture, to: *mut *mut COrbitUpdate) -> c_int {
    // SAFETY: the header's contract.
    let pulled = unsafe { pull_orbit(future, to) };
    if pulled == 1 {
        // SAFETY: `pull_orbit` has written a handle there.
        let new = unsafe { *to }.addr();
        // A future that was freed meanwhile keeps nothing: the update is the program's.
        if let Ok(old) = handle::change::<Object, _>(future, |object| std::mem::replace(&mut object.kept, new)) {
            free_kept(old);
        }
    }
    pulled
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_pull(orbit: *mut COrbit, to: *mut *mut COrbitUpdate) -> c_int {
    pull(to, || {
        let orbit: Orbit = handle::get(orbit)?;
        Ok((orbit.pull(), orbit))
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_try_pull(future: *mut COrbitFuture, to: *mut *mut COrbitUpdate) -> c_int {
    pull(to, || {
        let Object { future, orbit, .. } = handle::get(future)?;
        match future.try_pull() {
            Some(update) => Ok((Some(update), orbit)),
            None if future.poll().is_some() => Ok((future.try_pull(), orbit)),
            None => Err(Failure::new(
                libc::EINPROGRESS,
                "no update has arrived, and the call has not ended; ask again or wait with pull_orbit",
            )),
        }
    })
}
