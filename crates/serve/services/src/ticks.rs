//! The kernel half: ticks of each CPU that start an upcall in whichever member is current. Needs
//! root or CAP_BPF and CAP_PERFMON; without, agents take every event.

use crate::error::{Error, Kind, Result};
use aya::maps::{HashMap as Members, MapData, PerCpuArray};
use aya::programs::perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::programs::{BtfTracePoint, PerfEvent};
use aya::{Btf, Ebpf, EbpfLoader};
use orbit_sandbox_lib::abi;

#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/ticks.bpf.o")));

/// What became of ticks since the start, all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// An upcall was started.
    pub sent: u64,
    /// No member was current.
    pub no_member: u64,
    /// A member was current, in a system call.
    pub in_kernel: u64,
    /// A member was current and has the signal blocked, or a handler of its own for it, or one is
    /// waiting.
    pub blocked: u64,
    /// The kernel would not send the signal.
    pub failed: u64,
}

/// The attached programs; dropping them detaches.
pub struct Ticks {
    /// Keeps the programs loaded.
    _programs: Ebpf,
    members: Members<MapData, u32, u32>,
    outcomes: PerCpuArray<MapData, u64>,
}

impl std::fmt::Debug for Ticks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticks").field("outcomes", &self.outcomes()).finish_non_exhaustive()
    }
}

impl Ticks {
    /// Starts ticks of `period_ns` on these CPUs.
    ///
    /// # Errors
    /// `Unsupported`, with what the kernel said.
    pub fn start((upcall_signal, budget_signal): (i32, i32), period_ns: u64, cpus: &[usize]) -> Result<Ticks> {
        let btf = Btf::from_sys_fs().map_err(|error| failed("reading the kernel's types", &error))?;
        let namespace = orbit_linux::procfs::nested_pid_namespace();
        let mut programs = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("upcall_signal", &(upcall_signal as u32), true)
            .override_global("budget_signal", &(budget_signal as u32), true)
            .override_global("code", &(abi::PUBLIC as u64), true)
            .override_global("code_len", &(abi::PUBLIC_LEN as u64), true)
            .override_global("own_filters", &crate::member::filters(0), true)
            .override_global("ns_dev", &namespace.0, true)
            .override_global("ns_ino", &namespace.1, true)
            .load(&OBJECT.0)
            .map_err(|error| failed("loading the kernel half", &error))?;
        let mut map = |name: &str| {
            let missing = || Error::new(Kind::Unsupported, format!("the kernel half lacks map {name:?}"));
            programs.take_map(name).ok_or_else(missing)
        };
        let members = Members::try_from(map("members")?).map_err(|error| failed("map \"members\"", &error))?;
        let outcomes = PerCpuArray::try_from(map("outcomes")?).map_err(|error| failed("map \"outcomes\"", &error))?;
        for (name, point) in [("on_exec", "sched_process_exec"), ("on_exit", "sched_process_exit")] {
            let program = programs.program_mut(name).map(TryInto::<&mut BtfTracePoint>::try_into);
            let Some(Ok(program)) = program else {
                return Err(Error::new(Kind::Unsupported, format!("the kernel half lacks program {name:?}")));
            };
            program.load(point, &btf).map_err(|error| failed(point, &error))?;
            program.attach().map_err(|error| failed(point, &error))?;
        }
        let Some(Ok(tick)) = programs.program_mut("tick").map(TryInto::<&mut PerfEvent>::try_into) else {
            return Err(Error::new(Kind::Unsupported, "the kernel half lacks program \"tick\""));
        };
        tick.load().map_err(|error| failed("the tick's program", &error))?;
        for cpu in cpus {
            let scope = PerfEventScope::AllProcessesOneCpu { cpu: *cpu as u32 };
            let clock = PerfEventConfig::Software(SoftwareEvent::CpuClock);
            tick.attach(clock, scope, SamplePolicy::Period(period_ns.max(100_000)), false)
                .map_err(|error| failed(&format!("the clock of CPU {cpu}"), &error))?;
        }
        Ok(Ticks { _programs: programs, members, outcomes })
    }

    /// Ticks that meet this process start upcalls from now on. It must have joined.
    ///
    /// # Errors
    /// `Full` beyond 4096 members.
    pub fn add(&mut self, process: i32) -> Result<()> {
        self.members.insert(process as u32, 1, 0).map_err(|error| {
            Error::new(Kind::Full, format!("process {process} cannot become a member beside 4096 others: {error}"))
        })
    }

    /// No more upcalls in this process.
    pub fn remove(&mut self, process: i32) {
        // One that has ended is off the list already.
        let _ = self.members.remove(&(process as u32));
    }

    /// What became of ticks so far.
    pub fn outcomes(&self) -> Outcomes {
        let sum = |nth: u32| self.outcomes.get(&nth, 0).map_or(0, |cpus| cpus.iter().sum());
        Outcomes { sent: sum(0), no_member: sum(1), in_kernel: sum(2), blocked: sum(3), failed: sum(4) }
    }
}

/// An error of the kernel half, with all its causes.
pub(crate) fn failed(what: &str, error: &dyn std::error::Error) -> Error {
    let mut text = format!("programs in the kernel need root, or CAP_BPF and CAP_PERFMON: {what}: {error}");
    let mut source = error.source();
    while let Some(inner) = source {
        text += &format!(": {inner}");
        source = inner.source();
    }
    Error::new(Kind::Unsupported, text)
}
