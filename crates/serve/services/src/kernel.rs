//! Services in the kernel (class 4, for root): the handler is a BPF program, which the verifier
//! bounds; an agent thread judges what it asks for by the guards of its handles, and applies it.
//! `orbit_kernel.h` is what they are written against.

use crate::account::Account;
use crate::error::{Error, Kind, Result};
use crate::grant::Granted;
use crate::kernel_calls;
use crate::ticks::failed;
use aya::maps::{Array, MapData, RingBuf};
use aya::programs::Program;
use aya::programs::perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::{Btf, Ebpf, EbpfLoader, Pod};
use orbit_linux::eventfd;
use orbit_sandbox_lib::abi::{ARGUMENTS, GRANTS};
use orbit_sandbox_lib::guard::Verdict;
use orbit_sandbox_lib::sys;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

/// A service in the kernel to load. It holds handles of [`crate::Host::grant`].
#[derive(Clone, Debug)]
pub struct KernelSpec {
    /// For messages.
    pub name: String,
    /// Time between two runs of its program `tick`.
    pub period: Duration,
    /// What it is loaded with; at most [`ARGUMENTS`] bytes.
    pub arguments: Vec<u8>,
    /// Its handles, in this order.
    pub grants: Vec<Granted>,
    /// The processor whose ticks run it, and that the agent is bound to.
    pub cpu: usize,
    /// The agent's real-time priority; 0: an ordinary thread.
    pub priority: i32,
}

/// `struct orbit_loaded`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Loaded {
    handles: u32,
    length: u32,
    target: [i32; GRANTS],
    arguments: [u8; ARGUMENTS],
}

// SAFETY: numbers only, without padding.
unsafe impl Pod for Loaded {}

#[derive(Debug, Default)]
struct Counts {
    refused: AtomicU64,
    clamped: AtomicU64,
    failed: AtomicU64,
    cpu_ns: AtomicU64,
}

/// A loaded service. Dropping it detaches it and stops its agent; what it set is put back by
/// [`crate::Host::release`].
pub struct Kernel {
    /// Keeps the programs attached.
    _programs: Ebpf,
    counts: Array<MapData, u64>,
    agent: Arc<Counts>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("account", &self.account()).finish_non_exhaustive()
    }
}

impl Kernel {
    /// Loads a BPF object and starts its agent.
    ///
    /// # Errors
    /// `Unsupported` without the rights for BPF; `BadObject`, with what is wrong or what the
    /// verifier says; `Invalid`.
    pub fn load(spec: KernelSpec, object: &[u8]) -> Result<Kernel> {
        let name = spec.name.clone();
        let wrong = |why: String| Error::new(Kind::BadObject, format!("service {name:?}: {why}"));
        if spec.grants.len() > GRANTS || spec.arguments.len() > ARGUMENTS || spec.period < Duration::from_micros(100) {
            let text = format!(
                "service {name:?}: {} handles, {} bytes of arguments, a period of {:?}: at most {GRANTS} and \
                 {ARGUMENTS}, at least 100us",
                spec.grants.len(),
                spec.arguments.len(),
                spec.period
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        if !orbit_linux::procfs::in_first_pid_namespace() {
            let why = "a PID namespace (a container) has other numbers than the kernel, by which it knows threads";
            let text = format!("service {name:?}: {why}: load services of the kernel outside");
            return Err(Error::new(Kind::Unsupported, text));
        }
        let btf = Btf::from_sys_fs().map_err(|error| failed("reading the kernel's types", &error))?;
        // The loader indexes by what some broken objects say.
        let load = || kernel_calls::check(object).map(|()| EbpfLoader::new().btf(Some(&btf)).load(object));
        let programs = std::panic::catch_unwind(std::panic::AssertUnwindSafe(load));
        let programs = programs.map_err(|_| wrong("no BPF object: its sections contradict each other".into()))?;
        let programs = programs.map_err(&wrong)?;
        let mut programs = programs.map_err(|error| match error {
            aya::EbpfError::ParseError(error) => wrong(format!("no BPF object: {error}")),
            error => failed(&format!("loading service {name:?}"), &error),
        })?;
        let mut loaded = Loaded {
            handles: spec.grants.len() as u32,
            length: spec.arguments.len() as u32,
            target: [0; GRANTS],
            arguments: [0; ARGUMENTS],
        };
        for (to, grant) in loaded.target.iter_mut().zip(&spec.grants) {
            *to = grant.target();
        }
        loaded.arguments[..spec.arguments.len()].copy_from_slice(&spec.arguments);
        let mut map = |name: &str| {
            programs.take_map(name).ok_or_else(|| wrong(format!("it lacks map {name}: see orbit_kernel.h")))
        };
        let mut context: Array<_, Loaded> =
            Array::try_from(map("orbit_loaded")?).map_err(|error| wrong(format!("map orbit_loaded: {error}")))?;
        let counts =
            Array::try_from(map("orbit_counts")?).map_err(|error| wrong(format!("map orbit_counts: {error}")))?;
        let asked =
            RingBuf::try_from(map("orbit_asked")?).map_err(|error| wrong(format!("map orbit_asked: {error}")))?;
        context.set(0, loaded, 0).map_err(|error| wrong(format!("map orbit_loaded: {error}")))?;
        // It takes the verifier's words for text, and they may repeat the object's bytes.
        let attached = std::panic::AssertUnwindSafe(|| attach(&mut programs, &btf, &spec, &wrong));
        std::panic::catch_unwind(attached).map_err(|_| wrong("the verifier rejects it".into()))??;
        let stop = eventfd::create().map_err(|error| Error::system("an agent of the kernel's services", &error))?;
        let agent = Arc::new(Counts::default());
        let bell = stop.try_clone().map_err(|error| Error::system("an agent of the kernel's services", &error))?;
        let (theirs, ready) = (agent.clone(), Arc::new(Barrier::new(2)));
        let at_work = ready.clone();
        let thread = std::thread::Builder::new().name("orbit-kernel".into()).spawn(move || {
            // A processor that went away since, and a missing right, are no reasons not to apply
            // what is asked for.
            let _ = orbit_linux::sched::set_affinity(0, &[spec.cpu]);
            sys::set_priority(0, spec.priority);
            at_work.wait();
            apply(asked, &spec.grants, &bell, &theirs);
        });
        let thread = thread.map_err(|error| Error::system("an agent of the kernel's services", &error))?;
        ready.wait();
        Ok(Kernel { _programs: programs, counts, agent, stop, thread: Some(thread) })
    }

    /// What it used and asked for. The time is its agent's; the kernel does not say what its
    /// programs take.
    pub fn account(&self) -> Account {
        let count = |nth: u32| self.counts.get(&nth, 0).unwrap_or(0);
        Account {
            runs: count(0),
            lost: count(2),
            cpu_ns: self.agent.cpu_ns.load(Relaxed),
            refused: self.agent.refused.load(Relaxed),
            clamped: self.agent.clamped.load(Relaxed),
            failed: self.agent.failed.load(Relaxed),
            ..Account::default()
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        eventfd::signal(self.stop.as_fd());
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported.
            let _ = thread.join();
        }
    }
}

/// Attaches all programs of the object.
fn attach(programs: &mut Ebpf, btf: &Btf, spec: &KernelSpec, wrong: &dyn Fn(String) -> Error) -> Result<()> {
    let mut has_tick = false;
    for (name, program) in programs.programs_mut() {
        let name = name.to_owned();
        let refused = |error: &dyn std::error::Error| failed(&format!("program {name}"), error);
        match program {
            Program::PerfEvent(tick) if name == "tick" => {
                has_tick = true;
                tick.load().map_err(|error| refused(&error))?;
                let scope = PerfEventScope::AllProcessesOneCpu { cpu: spec.cpu as u32 };
                let clock = PerfEventConfig::Software(SoftwareEvent::CpuClock);
                let period = SamplePolicy::Period(spec.period.as_nanos() as u64);
                tick.attach(clock, scope, period, false).map_err(|error| refused(&error))?;
            }
            Program::BtfTracePoint(program) => {
                let point = name.strip_prefix("on_").ok_or_else(|| {
                    wrong(format!("program {name} is to be called on_ and the name of its tracepoint"))
                })?;
                program.load(point, btf).map_err(|error| refused(&error))?;
                program.attach().map_err(|error| refused(&error))?;
            }
            _ => {
                return Err(wrong(format!(
                    "program {name} is neither the perf_event program tick nor a tp_btf program"
                )));
            }
        }
    }
    if has_tick { Ok(()) } else { Err(wrong("it has no perf_event program tick".into())) }
}

/// The agent: judges and applies what is asked for, until it is stopped.
fn apply(mut asked: RingBuf<MapData>, grants: &[Granted], stop: &OwnedFd, counts: &Counts) {
    let began = sys::clock(sys::THREAD_CPU);
    loop {
        let of = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = [of(stop.as_raw_fd()), of(asked.as_raw_fd())];
        let _ = orbit_linux::poll::poll(&mut polled, None);
        if polled[0].revents != 0 {
            return;
        }
        while let Some(record) = asked.next() {
            let Ok(bytes) = <[u8; 16]>::try_from(&*record) else { continue };
            let handle = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let value = i64::from_ne_bytes(std::array::from_fn(|nth| bytes[8 + nth]));
            let Some(grant) = grants.get(handle as usize) else {
                counts.refused.fetch_add(1, Relaxed);
                continue;
            };
            let (verdict, applied) = grant.set(value);
            match verdict {
                Verdict::Pass(_) => {}
                Verdict::Clamp(_) => drop(counts.clamped.fetch_add(1, Relaxed)),
                Verdict::OutOfRange | Verdict::NoRight => drop(counts.refused.fetch_add(1, Relaxed)),
            }
            if applied.is_err() {
                counts.failed.fetch_add(1, Relaxed);
            }
        }
        counts.cpu_ns.store(sys::clock(sys::THREAD_CPU).saturating_sub(began), Relaxed);
    }
}
