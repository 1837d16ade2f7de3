//! Orbits: made, limited, asked how they are, ended (`orbit_create` to `orbit_destroy`).

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::RwLock;
use std::time::Duration;

use orbit::{Area, Limits, Orbit, Pending, Restart, WhenFull};

use crate::area::COrbitArea;
use crate::failure::{Answer, Failure, code, pointer};
use crate::given::{self, Sized0, micros};
use crate::handle::{self, Table, Tables};

/// `struct orbit`.
#[repr(C)]
pub struct COrbit {
    _opaque: [u8; 0],
}

/// What stands behind an orbit's handle.
pub(crate) type Object = Orbit;

impl handle::Object for Object {
    type Opaque = COrbit;
    const KIND: usize = 0;
    fn table(all: &Tables) -> &RwLock<Table<Object>> {
        &all.orbits
    }
}

/// `orbit_entry`, which may be null.
pub(crate) type CEntry = Option<orbit::Entry>;

/// `struct orbit_limits`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CLimits {
    size: usize,
    memory: u64,
    cpu_percent: u32,
    set_nice: c_int,
    nice: c_int,
    cpu_count: u32,
    cpus: *const u32,
}

// SAFETY: integers and pointers, the size first.
unsafe impl Sized0 for CLimits {
    const NAME: &str = "orbit_limits";
    const MAKER: &str = "ORBIT_LIMITS_INIT";
}

/// `struct orbit_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct COptions {
    size: usize,
    name: *const c_char,
    entry: CEntry,
    init: Option<orbit::Init>,
    limits: *const CLimits,
    restart: c_int,
    pending: c_int,
    when_full: c_int,
    flags: u32,
    first_pause_us: u64,
    longest_pause_us: u64,
    give_up: u32,
    alter_count: u32,
    alters: *const *mut COrbitArea,
    deadline_us: u64,
    log_size: usize,
    pass_fds: *const c_int,
    pass_fd_count: u32,
    reserved: u32,
    down_wait_us: u64,
    stuck_us: u64,
}

// SAFETY: integers, pointers and functions that may be null, the size first.
unsafe impl Sized0 for COptions {
    const NAME: &str = "orbit_options";
    const MAKER: &str = "ORBIT_OPTIONS_INIT";
}

/// `ORBIT_DATA_ONLY`.
const DATA_ONLY: u32 = 1;
/// `ORBIT_ARGS_FIRST`.
const ARGS_FIRST: u32 = 2;

/// `struct orbit_counters`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CStats {
    calls: u64,
    failed: u64,
    crashes: u64,
    restarts: u64,
    pages: u64,
    copiers: u64,
    updates: u64,
    bad_updates: u64,
    pending: u32,
    pid: i32,
    dropped_updates: u64,
    left_threads: u64,
    reserved: [u64; 4],
}

/// More than any machine has CPUs, or a program areas in one list.
const MAX_LIST_LENGTH: usize = 1 << 20;
/// Most descriptors that an orbit is passed. Checked before the list is read: a count that is wrong
/// reads no further than that.
const MOST_PASSED: usize = 1024;

/// # Safety
/// As the header says of `struct orbit_limits`; null is no limits.
unsafe fn limits(given: *const CLimits) -> Answer<Limits> {
    let mut limits = Limits::new();
    if given.is_null() {
        return Ok(limits);
    }
    // SAFETY: the caller's contract.
    let given = unsafe { given::structure(given)? };
    if given.memory != 0 {
        limits = limits.memory(given.memory);
    }
    if given.cpu_percent != 0 {
        limits = limits.cpu_percent(given.cpu_percent);
    }
    if given.set_nice != 0 {
        limits = limits.nice(given.nice);
    }
    if given.cpu_count != 0 {
        // SAFETY: the caller's contract.
        let cpus = unsafe { given::array(given.cpus, given.cpu_count as usize, MAX_LIST_LENGTH, "CPUs")? };
        limits = limits.cpus(cpus.iter().map(|&cpu| cpu as usize));
    }
    Ok(limits)
}

/// The areas of a list of handles.
///
/// # Safety
/// As the header says of such lists.
pub(crate) unsafe fn areas(list: *const *mut COrbitArea, count: usize) -> Answer<Vec<Area>> {
    // SAFETY: the caller's contract.
    let handles = unsafe { given::array(list, count, MAX_LIST_LENGTH, "areas")? };
    let area = |(number, &area): (usize, &*mut COrbitArea)| {
        handle::get::<Area>(area)
            .map_err(|failure| Failure::new(failure.errno, format!("area {number} of {count}: {}", failure.message)))
    };
    handles.iter().enumerate().map(area).collect()
}

/// One of a few choices that C numbers from 0.
pub(crate) fn choice<T: Copy>(number: c_int, choices: &[T], what: &str) -> Answer<T> {
    let found = usize::try_from(number).ok().and_then(|number| choices.get(number));
    found
        .copied()
        .ok_or_else(|| Failure::invalid(format!("{what} cannot be {number}; there are 0 to {}", choices.len() - 1)))
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_create(name: *const c_char, entry: CEntry, init: Option<orbit::Init>) -> *mut COrbit {
    pointer(|| {
        // SAFETY: the header's contract.
        let name = unsafe { given::text(name, "the orbit's name")? };
        let mut builder = Orbit::builder(name.as_deref().unwrap_or("orbit"));
        if let Some(entry) = entry {
            builder = builder.entry(entry);
        }
        if let Some(init) = init {
            builder = builder.init(init);
        }
        handle::add(builder.build()?)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_create_with(options: *const COptions) -> *mut COrbit {
    pointer(|| {
        // SAFETY: the header's contract, here and for all that the structure points to.
        let (given, name, limits, alters, passed) = unsafe {
            let given = given::structure(options)?;
            let alters = areas(given.alters, given.alter_count as usize)?;
            let passed =
                given::array(given.pass_fds, given.pass_fd_count as usize, MOST_PASSED, "descriptors to pass on")?;
            (given, given::text(given.name, "the orbit's name")?, limits(given.limits)?, alters, passed)
        };
        if given.flags & !(DATA_ONLY | ARGS_FIRST) != 0 {
            return Err(Failure::invalid(format!("flags {:#x} of struct orbit_options: not known", given.flags)));
        }
        let on_failure = match Restart::default() {
            Restart::OnFailure { first_pause, longest_pause, .. } => Restart::OnFailure {
                first_pause: micros(given.first_pause_us).unwrap_or(first_pause),
                longest_pause: micros(given.longest_pause_us).unwrap_or(longest_pause),
                give_up: given.give_up,
            },
            other => other,
        };
        let restart = choice(given.restart, &[on_failure, Restart::Never, Restart::Always], "restart")?;
        let mut builder = Orbit::builder(name.as_deref().unwrap_or("orbit"))
            .limits(limits)
            .restart(restart)
            .pending(choice(given.pending, &[Pending::Fail, Pending::Keep], "pending")?)
            .when_full(choice(given.when_full, &[WhenFull::Block, WhenFull::Fail, WhenFull::DropOldest], "when_full")?)
            .may_alter(given.flags & DATA_ONLY == 0)
            .args_first(given.flags & ARGS_FIRST != 0);
        if let Some(entry) = given.entry {
            builder = builder.entry(entry);
        }
        if let Some(init) = given.init {
            builder = builder.init(init);
        }
        if let Some(deadline) = micros(given.deadline_us) {
            builder = builder.deadline(deadline);
        }
        if let Some(after) = micros(given.stuck_us) {
            builder = builder.stuck_after((given.stuck_us != u64::MAX).then_some(after));
        }
        if let Some(wait) = micros(given.down_wait_us) {
            builder = builder.wait_while_down(wait);
        }
        if given.log_size != 0 {
            builder = builder.log(given.log_size);
        }
        if let Some(number) = passed.iter().find(|number| **number < 0) {
            return Err(Failure::invalid(format!(
                "descriptor {number}, to be passed on, is none: give numbers from 0 on"
            )));
        }
        // SAFETY: a number that is not open is found out, and gives an error.
        let passed: Vec<_> = passed.iter().map(|number| unsafe { BorrowedFd::borrow_raw(*number) }).collect();
        builder = builder.pass_fds(&passed);
        if !alters.is_empty() {
            builder = builder.alters(&alters.iter().collect::<Vec<_>>());
        }
        handle::add(builder.build()?)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_destroy(orbit: *mut COrbit) -> c_int {
    code(|| {
        // First the handle goes, so that of two threads one destroys and the other gets an error.
        handle::remove::<Object>(orbit)?.destroy()?;
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_kill(orbit: *mut COrbit) -> c_int {
    code(|| {
        handle::get::<Object>(orbit)?.kill()?;
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_wait_ready(orbit: *mut COrbit, timeout_us: u64) -> c_int {
    code(|| {
        handle::get::<Object>(orbit)?.wait_ready(Duration::from_micros(timeout_us))?;
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_detach(orbit: *mut COrbit, area: *mut COrbitArea) -> c_int {
    code(|| {
        let area: Area = handle::get(area)?;
        handle::get::<Object>(orbit)?.detach(&area);
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_set_limits(orbit: *mut COrbit, new: *const CLimits) -> c_int {
    code(|| {
        // SAFETY: the header's contract.
        let new = unsafe { limits(new)? };
        handle::get::<Object>(orbit)?.set_limits(new)?;
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_stats(orbit: *mut COrbit, stats: *mut CStats) -> c_int {
    code(|| {
        given::place(stats, "the orbit's counters")?;
        let now = handle::get::<Object>(orbit)?.stats();
        let value = CStats {
            calls: now.calls,
            failed: now.failed,
            crashes: now.crashes,
            restarts: now.restarts,
            pages: now.pages,
            copiers: now.copiers,
            updates: now.updates,
            bad_updates: now.bad_updates,
            pending: now.pending,
            pid: now.pid,
            dropped_updates: now.dropped_updates,
            left_threads: now.left_threads,
            reserved: [0; 4],
        };
        // SAFETY: the header's contract.
        unsafe { given::give(stats, value) };
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_cancel_args(orbit: *mut COrbit, args: *const c_void, size: usize) -> std::ffi::c_long {
    crate::failure::number(|| {
        // SAFETY: the header's contract.
        let args = unsafe { given::bytes(args, size, "the arguments")? };
        Ok(handle::get::<Object>(orbit)?.cancel_args(args) as std::ffi::c_long)
    })
}
