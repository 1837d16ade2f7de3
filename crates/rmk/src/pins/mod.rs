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

/// What holds programs' signals and calls back, one for all pins of a core.
pub(crate) use tracer::Tracer;

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

/// By what a pin works where it works entirely, and the names of its operations ([`crate::Command`]); nothing for one that is
/// not of this crate.
pub(crate) fn described(pin: &str) -> (&'static str, &'static [&'static str]) {
    match pin {
        "P_PMC" => (
            "perf events, per thread or CPU",
            &["CounterOpen", "CounterStart", "CounterStop", "CounterRead", "CounterWrite", "CounterClose"],
        ),
        "P_APIC" => ("perf overflow: kernel program, descriptor or signal", &["OverflowArm", "OverflowDisarm"]),
        "P_DBR" => ("debug registers by perf, four a thread", &["BreakpointSet", "BreakpointClear"]),
        "P_INTR" => ("kernel programs at the interrupts' tracepoints", &["InterruptCounts"]),
        "P_SIG" => (
            "kernel programs at the signals' tracepoints; interception by ptrace",
            &["SignalIntercept", "SignalDecide", "SignalRelease", "SignalSend"],
        ),
        "P_MEM" => (
            "process_vm_readv and writev, PAGEMAP_SCAN, soft-dirty pages",
            &["MemoryRead", "MemoryWrite", "MemoryMap", "PagesWatch", "PagesCollect", "PagesForget", "PagesSet"],
        ),
        "P_SCHL" => ("kernel programs at the scheduler's tracepoints", &["CpuStates", "ThreadTimes"]),
        "P_PERI" => ("timerfd; a thread of real-time priority on each CPU", &["HeartbeatStart", "HeartbeatStop"]),
        "P_NET" => (
            "kernel programs at system calls on sockets; interception by ptrace",
            &["Sockets", "CallIntercept", "CallDecide", "CallRelease"],
        ),
        "P_SYSC" => (
            "kernel programs at system calls; interception by ptrace",
            &["CallsNow", "CallIntercept", "CallDecide", "CallRelease"],
        ),
        "P_FILE" => (
            "kernel programs at system calls on files; interception by ptrace",
            &["OpenFiles", "FileRead", "FileWrite", "FileSeek", "CallIntercept", "CallDecide", "CallRelease"],
        ),
        "P_IPC" => (
            "kernel programs at system calls on channels; interception by ptrace",
            &["Channels", "ChannelWrite", "CallIntercept", "CallDecide", "CallRelease"],
        ),
        _ => ("", &[]),
    }
}
