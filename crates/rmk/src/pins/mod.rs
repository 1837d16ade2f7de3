//! The twelve pins of the paper's Table 3. PINS.md beside this crate tells what each does, raises, needs and costs.

mod apic;
mod calls;
mod dbr;
mod descriptors;
mod inject;
mod intr;
mod mem;
mod overflow;
mod peri;
mod pmc;
mod proc;
mod schl;
mod sig;
mod traced;
mod tracer;

use crate::pin::PinKind;

/// The system calls that belong to P_FILE, P_NET and P_IPC, for the kernel programs.
pub(crate) use calls::classes as call_classes;

/// Every pin that this crate has.
pub(crate) fn all() -> Vec<PinKind> {
    vec![
        pmc::KIND,
        apic::KIND,
        dbr::KIND,
        intr::KIND,
        sig::KIND,
        mem::KIND,
        schl::KIND,
        peri::KIND,
        calls::NET_PIN,
        calls::SYSC,
        calls::FILE_PIN,
        calls::IPC_PIN,
    ]
}
