//! Loads and attaches the kernel half: the count of context switches, a timer on every CPU, a
//! performance counter where there is one. Dropping it detaches everything.

use crate::{Error, Options, table::Table};
use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::Map,
    programs::{
        BtfTracePoint, PerfEvent,
        perf_event::{HardwareEvent, PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent},
    },
};
use std::os::fd::AsFd;

#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/shd.bpf.o")));

/// Cycles between two interrupts of a performance counter: about a hundredth of a second of a CPU
/// that is not halted. Cycles, not the paper's instructions: a CPU that waits for a lock executes
/// few instructions, and would pass for a halted one.
const CYCLES_PER_INTERRUPT: u64 = 30_000_000;

/// The kernel half, at work.
pub struct Kernel {
    _ebpf: Ebpf,
    /// Whether every CPU has a performance counter that interrupts it.
    pub counter: bool,
}

impl Kernel {
    pub fn start(options: &Options, cpus: &[usize]) -> Result<(Kernel, Table), Error> {
        let btf = Btf::from_sys_fs().map_err(|e| Error::of("reading /sys/kernel/btf/vmlinux", &e))?;
        let period = options.period.as_nanos() as u64;
        let ticks = |time: std::time::Duration| (time.as_nanos() as u64).div_ceil(period);
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("tick_ns", &period, true)
            .override_global("check_least", &ticks(options.check_least), true)
            .override_global("check_most", &ticks(options.check_most), true)
            .load(&OBJECT.0)
            .map_err(|e| Error::of("loading the kernel half (needs root, or CAP_BPF and CAP_PERFMON)", &e))?;
        let table = match ebpf.map("cpus") {
            Some(Map::Array(data)) => Table::new(data.fd().as_fd())?,
            _ => return Err(Error("the kernel half lacks map \"cpus\"".into())),
        };
        table.watch(cpus);
        for (program, point) in [("switched", "sched_switch"), ("hotplug", "cpuhp_enter")] {
            let failed = |e| Error::of(&format!("attaching to tracepoint {point}"), &e);
            let trace: &mut BtfTracePoint = of(&mut ebpf, program)?;
            trace.load(point, &btf).map_err(failed)?;
            trace.attach().map_err(failed)?;
        }
        // The counter first: once the timers run, hangs are judged.
        let counter = match interrupt(
            of(&mut ebpf, "counted")?,
            PerfEventConfig::Hardware(HardwareEvent::CpuCycles),
            CYCLES_PER_INTERRUPT,
            cpus,
        ) {
            Ok(()) => true,
            Err(_) => {
                // Some CPUs may have one: all or none, so that what an alarm says does not depend
                // on the CPU.
                let some: &mut PerfEvent = of(&mut ebpf, "counted")?;
                // It is not loaded if loading was what failed.
                let _ = some.unload();
                false
            }
        };
        interrupt(of(&mut ebpf, "tick")?, PerfEventConfig::Software(SoftwareEvent::CpuClock), period, cpus)
            .map_err(|e| Error::of("starting a timer on every CPU (perf_event_open)", &e))?;
        Ok((Kernel { _ebpf: ebpf, counter }, table))
    }
}

fn of<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<P, Error>
where
    P: TryFrom<&'a mut aya::programs::Program>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| Error(format!("the kernel half lacks program \"{name}\"")))?;
    P::try_from(program).map_err(|_| Error(format!("program \"{name}\" of the kernel half is of another kind")))
}

fn interrupt(
    program: &mut PerfEvent,
    event: PerfEventConfig,
    period: u64,
    cpus: &[usize],
) -> Result<(), aya::programs::ProgramError> {
    program.load()?;
    for &cpu in cpus {
        program.attach(
            event,
            PerfEventScope::AllProcessesOneCpu { cpu: cpu as u32 },
            SamplePolicy::Period(period),
            false,
        )?;
    }
    Ok(())
}
