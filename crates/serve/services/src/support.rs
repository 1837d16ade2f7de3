//! What of services this machine and user have: for `orbit doctor`.

use crate::clocks::Clocks;
use crate::spec::Options;
use crate::ticks::Ticks;
use orbit_linux::Support;
use orbit_sandbox_lib::sys;

/// Upcalls started by a program in the kernel.
pub fn upcalls() -> Support {
    // A clock so slow that it does not tick before it is closed.
    match Ticks::start(Options::default().signals, 3_600_000_000_000, &[]) {
        Ok(_) => Support::Yes,
        Err(error) => Support::No(error.to_string()),
    }
}

/// Upcalls started by clocks of the members' own threads.
pub fn clocks() -> Support {
    match Clocks::start(Options::STACK_FAULT, 3_600_000_000_000) {
        Ok(_) => Support::Yes,
        Err(error) => Support::No(error.to_string()),
    }
}

/// Agents at a real-time priority: tried with this thread, which is put back at once.
pub fn real_time() -> Support {
    let before = sys::priority(0).max(0) as i32;
    let tried = sys::set_priority(0, 99);
    sys::set_priority(0, before);
    match tried {
        0.. => Support::Yes,
        _ => Support::No("SCHED_FIFO is not allowed to this user here".to_owned()),
    }
}

/// Slots opened by protection keys: one is allocated and given back.
pub fn keys() -> Support {
    match sys::key_alloc() {
        key if key > 0 => {
            sys::key_free(key as i32);
            Support::Yes
        }
        _ => Support::No("this CPU or kernel has no protection keys".to_owned()),
    }
}

/// `cpu:weight` by the control group of a process, judged by this one.
pub fn weights() -> Support {
    if orbit_sandbox_lib::group::has_group(sys::process()) {
        return Support::Yes;
    }
    Support::No("this process is in no control group with a cpu controller that it may write".to_owned())
}
