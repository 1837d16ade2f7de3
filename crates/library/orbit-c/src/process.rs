//! Functions of the library as a whole: set-up, errors, which side this is.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use orbit::{Config, SharedMemory};

use crate::failure::{Failure, code, last};
use crate::given::{self, Sized0};
use crate::orbits::choice;

/// `struct orbit_config`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CConfig {
    size: usize,
    window: usize,
    spares: u32,
    spin_us: u32,
    shared_memory: c_int,
    flags: c_int,
}

/// `ORBIT_KEEP_OOM_SCORE`.
const KEEP_OOM_SCORE: c_int = 1;

// SAFETY: integers, the size first.
unsafe impl Sized0 for CConfig {
    const NAME: &str = "orbit_config";
    const MAKER: &str = "ORBIT_CONFIG_INIT";
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn orbit_init() -> c_int {
    code(|| {
        orbit::init()?;
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_init_with(config: *const CConfig) -> c_int {
    code(|| {
        // SAFETY: the header's contract.
        let given = unsafe { given::structure(config)? };
        if given.spares > 16 {
            return Err(Failure::invalid(format!("{} spares; there are 0 to 16", given.spares)));
        }
        if given.flags & !KEEP_OOM_SCORE != 0 {
            return Err(Failure::invalid(format!("flags {:#x} of struct orbit_config: not known", given.flags)));
        }
        let mut config = Config::new().spares(given.spares as usize).spin(Duration::from_micros(given.spin_us.into()));
        config = config.killed_first(given.flags & KEEP_OOM_SCORE == 0);
        if given.window != 0 {
            config = config.window(given.window);
        }
        let choices = [SharedMemory::ReadOnly, SharedMemory::Writable, SharedMemory::Absent];
        let shared = choice(given.shared_memory, &choices, "shared_memory")?;
        orbit::init_with(config.shared_memory(shared))?;
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn orbit_shutdown() -> c_int {
    code(|| {
        orbit::shutdown()?;
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn orbit_is_orbit() -> c_int {
    c_int::from(orbit::is_orbit())
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn orbit_last_error() -> *const c_char {
    last()
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn orbit_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn orbit_strerror(error: c_int) -> *const c_char {
    // The least number has no positive one, and stays as it is.
    let number = error.wrapping_abs();
    let sentence = match number {
        0 => c"no error",
        libc::EINVAL => c"an argument makes no sense: null, misaligned, out of range",
        libc::EBADF => c"not a handle of this kind, or one that was freed or destroyed",
        libc::EFAULT => c"an address that is in no area, or not in the one named",
        libc::EALREADY => c"the object is free already",
        libc::ENOSPC => c"the area, the log or the queue has no room left",
        libc::E2BIG => c"more bytes than this call takes",
        libc::ENOENT => c"nothing answers to this name or number",
        libc::EOPNOTSUPP => c"this machine, user or build cannot do it",
        libc::ENODEV => c"the orbit or the area is gone for good",
        libc::ECHILD => c"made by the parent of this process: orbits do not reach across fork",
        libc::EAGAIN => c"a limit of descriptors, processes or memory was reached",
        libc::EACCES => c"the orbit lacks the privilege for it",
        libc::ETIMEDOUT => c"the time given has run out",
        libc::ECANCELED => c"the call was cancelled before it began",
        libc::EHOSTDOWN => c"the orbit is down just now and will be started again",
        libc::EPERM => c"only an orbit may do this, or only main may, or the kernel does not permit it",
        libc::ESTALE => c"the old bytes of a modification no longer stand there",
        libc::EINPROGRESS => c"the call has not ended",
        libc::EBUSY => c"the call runs or has ended: it cannot be cancelled",
        libc::EREMOTEIO => c"the task crashed",
        libc::EDEADLK => c"the task slept on a lock that nobody in the orbit can release",
        libc::EOWNERDEAD => c"the task's process was killed or ended itself",
        libc::ENOMEM => c"out of memory",
        libc::EIO => c"an error of input or output, or a fault in the library itself",
        // SAFETY: gives a string that stays until this thread's next strerror.
        _ => return unsafe { libc::strerror(number) },
    };
    sentence.as_ptr()
}
