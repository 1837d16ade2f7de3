//! Calls (`orbit_call`, `orbit_call_async` and their forms with options).

use std::ffi::{c_int, c_void};

use orbit::{Area, CallOptions, Coalesce, Orbit, Outcome};

use crate::area::COrbitArea;
use crate::failure::{Answer, Failure, code, pointer};
use crate::future::{self, COrbitFuture};
use crate::given::{self, Sized0, micros};
use crate::handle;
use crate::orbits::{self, CEntry, COrbit};
use crate::outcome::{self, COutcome};

/// `struct orbit_call_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CCallOptions {
    size: usize,
    func_once: CEntry,
    flags: c_int,
    reserved: c_int,
    deadline_us: u64,
}

// SAFETY: integers and a function that may be null, the size first.
unsafe impl Sized0 for CCallOptions {
    const NAME: &str = "orbit_call_options";
    const MAKER: &str = "ORBIT_CALL_OPTIONS_INIT";
}

fn coalesce(flags: c_int) -> Answer<Coalesce> {
    match flags {
        0 => Ok(Coalesce::Never),
        1 => Ok(Coalesce::SkipIfAny),
        2 => Ok(Coalesce::SkipIfSame),
        4 => Ok(Coalesce::Replace),
        other => Err(Failure::invalid(format!(
            "flags {other:#x} of a call: one of ORBIT_SKIP_ANY, ORBIT_SKIP_SAME, ORBIT_REPLACE, or 0, with or without \
             ORBIT_QUIET"
        ))),
    }
}

/// `ORBIT_QUIET`.
const QUIET: c_int = 8;

/// # Safety
/// With [`QUIET`] nothing writes to the call's areas until it is made, as the header says.
unsafe fn options(func_once: CEntry, flags: c_int, deadline_us: u64) -> Answer<CallOptions> {
    let mut options = CallOptions::new().coalesce(coalesce(flags & !QUIET)?);
    if flags & QUIET != 0 {
        // SAFETY: the caller's contract.
        options = unsafe { options.quiet() };
    }
    if let Some(function) = func_once {
        options = options.function(function);
    }
    if let Some(deadline) = micros(deadline_us) {
        options = options.deadline(deadline);
    }
    Ok(options)
}

/// What every form of call takes: an orbit, areas, arguments.
///
/// # Safety
/// As the header says of lists of areas and of arguments; the arguments live as long as the result
/// is used.
unsafe fn taken<'a>(
    orbit: *mut COrbit,
    area_count: usize,
    areas: *const *mut COrbitArea,
    args: *const c_void,
    args_size: usize,
) -> Answer<(Orbit, Vec<Area>, &'a [u8])> {
    let orbit = handle::get::<orbits::Object>(orbit)?;
    // SAFETY: the caller's contract.
    unsafe { Ok((orbit, orbits::areas(areas, area_count)?, given::bytes(args, args_size, "the arguments")?)) }
}

fn wait((orbit, areas, args): (Orbit, Vec<Area>, &[u8]), options: &CallOptions) -> Answer<Outcome> {
    Ok(orbit.call_with(&areas.iter().collect::<Vec<_>>(), args, options)?)
}

fn begin((orbit, areas, args): (Orbit, Vec<Area>, &[u8]), options: &CallOptions) -> Answer<*mut COrbitFuture> {
    let future = orbit.call_async_with(&areas.iter().collect::<Vec<_>>(), args, options)?;
    handle::add(future::Object::new(future, orbit))
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_call(
    orbit: *mut COrbit,
    area_count: usize,
    areas: *const *mut COrbitArea,
    func_once: CEntry,
    args: *const c_void,
    args_size: usize,
    to: *mut COutcome,
) -> c_int {
    code(|| {
        // SAFETY: the header's contract.
        unsafe {
            outcome::begin(to)?;
            let taken = taken(orbit, area_count, areas, args, args_size)?;
            future::ended(&wait(taken, &options(func_once, 0, 0)?)?, to)
        }
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_call_with(
    orbit: *mut COrbit,
    area_count: usize,
    areas: *const *mut COrbitArea,
    args: *const c_void,
    args_size: usize,
    given: *const CCallOptions,
    to: *mut COutcome,
) -> c_int {
    code(|| {
        // SAFETY: the header's contract.
        unsafe {
            outcome::begin(to)?;
            let given = given::structure(given)?;
            let options = options(given.func_once, given.flags, given.deadline_us)?;
            let taken = taken(orbit, area_count, areas, args, args_size)?;
            future::ended(&wait(taken, &options)?, to)
        }
    })
}

/// A call of the entry function with one area, if it is a usual one (see `usual` in `orbit`): calls
/// now and then run with cold caches, so this touches little. `None`: nothing was done.
///
/// # Safety
/// As the header says of lists of areas and of arguments.
#[unsafe(link_section = "orbit_usual")]
#[inline(never)]
unsafe fn begin_usual(
    orbit: *mut COrbit,
    areas: *const *mut COrbitArea,
    args: *const c_void,
    args_size: usize,
) -> Option<Answer<*mut COrbitFuture>> {
    if !given::is_sure(areas.cast(), size_of::<usize>()) || !areas.is_aligned() {
        return None;
    }
    let args = match args_size {
        0 => &[],
        // SAFETY: the caller's contract.
        _ if given::is_sure(args, args_size) => unsafe { std::slice::from_raw_parts(args.cast(), args_size) },
        _ => return None,
    };
    let tables = handle::known()?;
    let orbit = tables.orbits.read().ok()?.object(orbit.addr())?.clone();
    // SAFETY: the caller's contract.
    let area = unsafe { *areas };
    let area = tables.areas.read().ok()?.object(area.addr())?.clone();
    let future = orbit.call_usual(&[&area], args)?;
    Some(handle::put(tables, future::Object::new(future, orbit)))
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "orbit_usual")]
pub unsafe extern "C" fn orbit_call_async(
    orbit: *mut COrbit,
    flags: c_int,
    area_count: usize,
    areas: *const *mut COrbitArea,
    func_once: CEntry,
    args: *const c_void,
    args_size: usize,
) -> *mut COrbitFuture {
    pointer(|| {
        if func_once.is_none()
            && flags == 0
            && area_count == 1
            // SAFETY: the header's contract.
            && let Some(answer) = unsafe { begin_usual(orbit, areas, args, args_size) }
        {
            return answer;
        }
        // SAFETY: the header's contract.
        let taken = unsafe { taken(orbit, area_count, areas, args, args_size)? };
        // SAFETY: the header's contract.
        begin(taken, &unsafe { options(func_once, flags, 0) }?)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_call_async_with(
    orbit: *mut COrbit,
    area_count: usize,
    areas: *const *mut COrbitArea,
    args: *const c_void,
    args_size: usize,
    given: *const CCallOptions,
) -> *mut COrbitFuture {
    pointer(|| {
        // SAFETY: the header's contract.
        let (given, taken) = unsafe { (given::structure(given)?, taken(orbit, area_count, areas, args, args_size)?) };
        // SAFETY: the header's contract.
        begin(taken, &unsafe { options(given.func_once, given.flags, given.deadline_us) }?)
    })
}
