//! What the kernel calls itself: for reports only. Whether something works is found by the probes,
//! never from here.

use std::ffi::CStr;
use std::fmt;

/// Names of the running kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// For example `6.1.0-18-amd64`.
    pub release: String,
    /// Build number and date.
    pub version: String,
    /// For example `x86_64`.
    pub machine: String,
}

/// Asks the kernel.
pub fn kernel() -> Kernel {
    // SAFETY: a utsname is arrays of characters.
    let mut u: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the struct outlives the call, which cannot fail with a valid address; zeroed it reads
    // as empty names.
    unsafe { libc::uname(&raw mut u) };
    // SAFETY: uname ends every name with a NUL inside its array; zeroed arrays do too.
    let text = |a: &[libc::c_char]| unsafe { CStr::from_ptr(a.as_ptr()) }.to_string_lossy().into_owned();
    Kernel { release: text(&u.release), version: text(&u.version), machine: text(&u.machine) }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linux {} {}", self.release, self.machine)
    }
}
