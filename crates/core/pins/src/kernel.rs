//! The kernel half of the pins, loaded once and shared: its maps, its ring of events, and the
//! programs that loaded pins need.
//!
//! Lives from the first pin that needs it to the last (the pins hold it by `Arc`). A program is
//! attached while at least one pin holds an [`Attachment`] for it.

use super::{
    calls,
    flow::{Flow, Reader, Tables, View, online_cpus, possible_cpus},
    layout::{MAX_CPUS, SUBS},
};
use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{Array, HashMap as PidMap, Map, MapData, RingBuf},
    programs::{
        BtfTracePoint, PerfEvent, Program,
        perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent},
    },
};
use orbit_linux::{bpf, status::Status};
use orbit_rmk::{Dispatcher, Env, Filter, PinError, Registration, Scope, Shared, lock};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/rmk.bpf.o")));

/// Nanoseconds between two ticks of a CPU (P_APIC).
pub(crate) const TICK_NS: u64 = 20_000_000;
type Programs = HashMap<&'static str, usize>;

/// See the module's head.
pub(crate) struct Kernel {
    programs: Mutex<(Ebpf, Btf, Programs)>,
    flow: Arc<Flow>,
    /// Programs that are loaded later refer to it by its descriptor, so it stays open.
    _classes: Array<MapData, u32>,
    /// Last, so that the reader is gone when `load`'s caller may load again.
    _reader: Registration,
}

/// A program of the kernel half, attached; dropping it detaches the program unless another pin
/// needs it.
pub(crate) struct Attachment {
    kernel: Arc<Kernel>,
    program: &'static str,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.kernel.detach(self.program);
    }
}

pub(crate) fn failed(what: &str, error: impl std::error::Error) -> PinError {
    let mut text = format!("{what}: {error}");
    let mut source = error.source();
    while let Some(inner) = source {
        text += &format!(": {inner}");
        source = inner.source();
    }
    PinError::Refused(text)
}

/// Whether the kernel half can be loaded for this core; if not, what to allow.
pub(crate) fn support(env: &Env) -> Result<(), String> {
    if !env.kernel_programs() {
        return Err("kernel programs are switched off for this core (CoreBuilder::kernel_programs)".into());
    }
    probe()
}

impl Shared for Kernel {
    fn mark_own(&self, pid: u32, own: bool) {
        self.flow.mark_own(pid, own);
    }

    fn attached(&self) -> Vec<&'static str> {
        let mut names: Vec<_> =
            lock(&self.programs).2.iter().filter(|(_, users)| **users > 0).map(|(name, _)| *name).collect();
        names.sort_unstable();
        names
    }
}

impl Kernel {
    /// The core's, loaded now if no pin has it yet.
    pub(crate) fn of(env: &Env) -> Result<Arc<Kernel>, PinError> {
        support(env).map_err(PinError::Refused)?;
        env.shared(|| Kernel::load(env.dispatcher(), &calls::classes(), &env.own()))
    }

    /// Loads the object, maps its tables and starts reading its ring.
    fn load(dispatcher: &Arc<Dispatcher>, classes: &[(u32, u32)], own: &[u32]) -> Result<Arc<Kernel>, PinError> {
        let btf = Btf::from_sys_fs().map_err(|error| failed("reading /sys/kernel/btf/vmlinux", error))?;
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("ncpu", &(possible_cpus() as u32), true)
            .load(&OBJECT.0)
            .map_err(|error| failed("loading the kernel half", error))?;
        let missing = |name: &str| PinError::Refused(format!("the kernel half lacks map \"{name}\""));
        let tables = Tables {
            subs: View::new(array(&ebpf, "subs")?, SUBS + 1)?,
            seen: View::new(array(&ebpf, "seen")?, 64 * MAX_CPUS)?,
            table: View::new(array(&ebpf, "tables")?, 1)?,
            cpus: View::new(array(&ebpf, "cpus")?, MAX_CPUS)?,
        };
        let mut take = |name: &str| ebpf.take_map(name).ok_or_else(|| missing(name));
        let mut class_map: Array<_, u32> =
            Array::try_from(take("classes")?).map_err(|error| failed("map \"classes\"", error))?;
        for (call, class) in classes {
            class_map.set(*call, class, 0).map_err(|error| failed("map \"classes\"", error))?;
        }
        let pids = PidMap::try_from(take("pids")?).map_err(|error| failed("map \"pids\"", error))?;
        let ring = RingBuf::try_from(take("ring")?).map_err(|error| failed("the ring", error))?;
        let flow = Arc::new(Flow::new(tables, pids));
        for pid in own {
            flow.mark_own(*pid, true);
        }
        let reader = Box::new(Reader::new(flow.clone(), ring));
        let reader = dispatcher.add(reader).map_err(|error| PinError::of("waiting for the ring", error))?;
        Ok(Arc::new(Kernel {
            programs: Mutex::new((ebpf, btf, Programs::new())),
            flow,
            _classes: class_map,
            _reader: reader,
        }))
    }

    /// The way of its events.
    pub(crate) fn flow(&self) -> &Arc<Flow> {
        &self.flow
    }

    /// Attaches the programs that raise a subscription's events. One that is bound to processes
    /// needs two more, that list the processes made by listed ones and take those off that end.
    pub(crate) fn attach_for(
        self: &Arc<Self>,
        filter: &Filter,
        programs: &[&'static str],
    ) -> Result<Vec<Attachment>, PinError> {
        let bound: &[&'static str] =
            if filter.scope == Scope::Everyone { &[] } else { &["process_fork", "process_exit"] };
        programs.iter().chain(bound).map(|program| self.attach(program)).collect()
    }

    /// Attaches a program, unless it is attached already.
    pub(crate) fn attach(self: &Arc<Self>, program: &'static str) -> Result<Attachment, PinError> {
        let mut guard = lock(&self.programs);
        let (ebpf, btf, users) = &mut *guard;
        let count = users.entry(program).or_insert(0);
        if *count == 0 {
            self.attach_first(ebpf, btf, program)?;
        }
        *count += 1;
        drop(guard);
        Ok(Attachment { kernel: self.clone(), program })
    }

    fn attach_first(&self, ebpf: &mut Ebpf, btf: &Btf, program: &'static str) -> Result<(), PinError> {
        let what = format!("kernel program {program}");
        let found = ebpf.program_mut(program).ok_or_else(|| PinError::Refused(format!("there is no {what}")))?;
        if program == "cpu_tick" {
            let tick: &mut PerfEvent = found.try_into().map_err(|error| failed(&what, error))?;
            tick.load().map_err(|error| failed(&what, error))?;
            for cpu in online_cpus() {
                tick.attach(
                    PerfEventConfig::Software(SoftwareEvent::CpuClock),
                    PerfEventScope::AllProcessesOneCpu { cpu },
                    SamplePolicy::Period(TICK_NS),
                    false,
                )
                .map_err(|error| failed(&what, error))?;
            }
            return Ok(());
        }
        let point = TRACEPOINTS.iter().find(|(name, _)| *name == program).map_or(program, |(_, point)| point);
        let trace: &mut BtfTracePoint = found.try_into().map_err(|error| failed(&what, error))?;
        trace.load(point, btf).map_err(|error| failed(&format!("{what} at tracepoint {point}"), error))?;
        trace.attach().map_err(|error| failed(&what, error))?;
        Ok(())
    }

    fn detach(&self, program: &'static str) {
        let mut guard = lock(&self.programs);
        let (ebpf, _, users) = &mut *guard;
        let Some(count) = users.get_mut(program) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        // Unloading drops every link, which detaches.
        match ebpf.program_mut(program) {
            Some(Program::BtfTracePoint(trace)) => drop(trace.unload()),
            Some(Program::PerfEvent(tick)) => drop(tick.unload()),
            _ => {}
        }
    }
}

fn array<'a>(ebpf: &'a Ebpf, name: &str) -> Result<&'a MapData, PinError> {
    match ebpf.map(name) {
        Some(Map::Array(data)) => Ok(data),
        _ => Err(PinError::Refused(format!("the kernel half lacks map \"{name}\""))),
    }
}

/// Programs whose name is not their tracepoint's.
const TRACEPOINTS: [(&str, &str); 10] = [
    ("process_fork", "sched_process_fork"),
    ("process_exec", "sched_process_exec"),
    ("process_exit", "sched_process_exit"),
    ("irq_entry", "irq_handler_entry"),
    ("irq_exit", "irq_handler_exit"),
    ("soft_entry", "softirq_entry"),
    ("soft_exit", "softirq_exit"),
    ("page_fault", "page_fault_user"),
    ("call_begun", "sys_enter"),
    ("call_completed", "sys_exit"),
];

/// Whether the kernel half can be loaded here, and if not, what to allow.
fn probe() -> Result<(), String> {
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err("needs a kernel built with CONFIG_DEBUG_INFO_BTF (there is no /sys/kernel/btf/vmlinux)".into());
    }
    let status = Status::own().unwrap_or_default();
    let has = |number: u32| status.has_capability(number);
    const SYS_ADMIN: u32 = 21;
    const PERFMON: u32 = 38;
    const BPF: u32 = 39;
    let may = has(SYS_ADMIN) || (has(BPF) && has(PERFMON));
    if !may {
        return Err(
            "needs CAP_BPF and CAP_PERFMON: run as root, or setcap cap_bpf,cap_perfmon+ep on the program".into()
        );
    }
    // A container may grant the capability and still forbid the call.
    bpf::may_make_maps().map_err(|error| format!("bpf(2) fails ({error}): allow it in the container's seccomp profile"))
}
