//! How a call ended, as C sees it: `struct orbit_outcome`, and the number that goes with it.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::time::Duration;

use orbit::Outcome;

use crate::failure::{Answer, remember};
use crate::given;

/// Addresses of a backtrace that fit.
const FRAMES: usize = 32;
/// Bytes of the text that fit, its final zero included.
const TEXT: usize = 1024;

/// `struct orbit_outcome`.
#[repr(C)]
pub struct COutcome {
    kind: c_int,
    signal: c_int,
    code: c_int,
    status: c_int,
    value: c_long,
    address: *mut c_void,
    frame_count: u32,
    reserved: u32,
    frames: [*mut c_void; FRAMES],
    text: [c_char; TEXT],
}

/// How long a caller waits for the names of a call stack.
const NAMED_WITHIN: Duration = Duration::from_secs(2);
/// The same after a call that was not done at its deadline.
const LATE_NAMED_WITHIN: Duration = Duration::from_millis(250);

/// The kinds, as the header numbers them.
const PENDING: c_int = 0;
const RETURNED: c_int = 1;
const CRASHED: c_int = 2;
const EXITED: c_int = 3;
const KILLED: c_int = 4;
const OUT_OF_MEMORY: c_int = 5;
const TIMED_OUT: c_int = 6;
const CANCELLED: c_int = 7;
const STUCK: c_int = 8;

/// Checks a place for an outcome, if one is wanted, and says there that the call has not ended. To
/// be done before anything else is: a call that was made must have a place for its outcome.
///
/// # Safety
/// If not null, and where memory can be, the pointer may be written to.
pub(crate) unsafe fn begin(to: *mut COutcome) -> Answer<()> {
    if !to.is_null() {
        given::place(to, "the outcome")?;
    }
    // SAFETY: the caller's contract.
    unsafe { blank(to, PENDING) };
    Ok(())
}

/// Writes an outcome of this kind with nothing else in it. The long fields at the end are left
/// alone but for their emptiness: a call that returns pays for a few words.
///
/// # Safety
/// If not null, the pointer may be written to.
unsafe fn blank(to: *mut COutcome, kind: c_int) {
    if to.is_null() {
        return;
    }
    // SAFETY: the caller's contract; the fields may be uninitialised, so no reference is made.
    unsafe {
        (&raw mut (*to).kind).write(kind);
        (&raw mut (*to).signal).write(0);
        (&raw mut (*to).code).write(0);
        (&raw mut (*to).status).write(0);
        (&raw mut (*to).value).write(0);
        (&raw mut (*to).address).write(std::ptr::null_mut());
        (&raw mut (*to).frame_count).write(0);
        (&raw mut (*to).reserved).write(0);
        (&raw mut (*to).text).cast::<c_char>().write(0);
    }
}

/// Reports to C how a call ended: fills in the outcome, if wanted; gives 0 if the task returned,
/// else a negative number, with the text as the thread's last error.
///
/// # Safety
/// If not null, the pointer may be written to.
pub(crate) unsafe fn report(outcome: &Outcome, to: *mut COutcome) -> c_int {
    let (kind, answer) = match outcome {
        Outcome::Returned(_) => (RETURNED, 0),
        Outcome::Crashed(_) => (CRASHED, -libc::EREMOTEIO),
        Outcome::Exited(_) => (EXITED, -libc::EOWNERDEAD),
        Outcome::Killed(_) => (KILLED, -libc::EOWNERDEAD),
        Outcome::OutOfMemory => (OUT_OF_MEMORY, -libc::ENOMEM),
        Outcome::TimedOut(_) => (TIMED_OUT, -libc::ETIMEDOUT),
        Outcome::Cancelled => (CANCELLED, -libc::ECANCELED),
        Outcome::Stuck(_) => (STUCK, -libc::EDEADLK),
        // Kinds of later versions are reported by their text.
        _ => (KILLED, -libc::EOWNERDEAD),
    };
    // SAFETY: the caller's contract, here and below.
    unsafe { blank(to, kind) };
    if let Outcome::Returned(value) = outcome {
        if !to.is_null() {
            // SAFETY: as above.
            unsafe { (&raw mut (*to).value).write(*value as c_long) };
        }
        return answer;
    }
    // A caller whose time is over does not wait long for names.
    let wait = if matches!(outcome, Outcome::TimedOut(_)) { LATE_NAMED_WITHIN } else { NAMED_WITHIN };
    let outcome = &outcome.clone().named_within(wait);
    let text = outcome.to_string();
    if !to.is_null() {
        // SAFETY: as above; every index is below its array's length.
        unsafe {
            match outcome {
                Outcome::Crashed(crash) | Outcome::Stuck(crash) | Outcome::TimedOut(Some(crash)) => {
                    if kind != TIMED_OUT {
                        (&raw mut (*to).signal).write(crash.signal);
                        (&raw mut (*to).code).write(crash.code);
                    }
                    (&raw mut (*to).address).write(crash.address as *mut c_void);
                    let mut count = 0;
                    let mut before = None;
                    for frame in crash.backtrace() {
                        // Functions inlined into one another have one address.
                        if count < FRAMES && before != Some(frame.address) {
                            (&raw mut (*to).frames)
                                .cast::<*mut c_void>()
                                .add(count)
                                .write(frame.address as *mut c_void);
                            count += 1;
                        }
                        before = Some(frame.address);
                    }
                    (&raw mut (*to).frame_count).write(count as u32);
                }
                Outcome::Exited(status) => (&raw mut (*to).status).write(*status),
                Outcome::Killed(signal) => (&raw mut (*to).signal).write(*signal),
                _ => {}
            }
            let mut len = text.len().min(TEXT - 1);
            while !text.is_char_boundary(len) {
                len -= 1;
            }
            let room = (&raw mut (*to).text).cast::<c_char>();
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), room, len);
            room.add(len).write(0);
        }
    }
    remember(text);
    answer
}
