//! The interpreter: one wasm service in it, its memory, the calls it makes, and one run of its
//! handler.

use crate::calls::{self, ARGUMENTS_AT, CONTROL, Calls, EVENT_AT, PAGE};
use crate::engine::{Handler, Loader, Outcome};
use orbit_services::grant::Granted;
use orbit_services::{Account, Answer, Budget, Error, Event, Kind, Questions, Result, sys};
use std::sync::Arc;
use std::time::Duration;
use wasmi::errors::ErrorKind;
use wasmi::{
    Caller, CompilationMode, Config, EnforcedLimits, ExternType, Linker, Memory, Module, Store, StoreLimits,
    StoreLimitsBuilder, TrapCode, TypedFunc, TypedResumableCall,
};

/// The interpreter, and how much fuel it burns here.
#[derive(Debug)]
pub struct Engine {
    engine: wasmi::Engine,
    fuel_per_us: f64,
    /// Fuel of a tick of the CPU's counter, in 65,536ths.
    fuel_per_tick: u64,
}

impl Engine {
    /// Sets it up, and measures how much fuel a microsecond of CPU time is on this machine: some
    /// milliseconds.
    ///
    /// # Errors
    /// `Unsupported` if the interpreter does not run its own measurement.
    pub fn new() -> Result<Engine> {
        let mut config = Config::default();
        config.consume_fuel(true).enforced_limits(EnforcedLimits::strict()).ignore_custom_sections(true);
        // All functions are translated when the module is loaded: a run could not be resumed that
        // runs out of a slice's fuel while a function that it calls is translated.
        config.compilation_mode(CompilationMode::Eager);
        // A start function would run outside of any budget.
        config.allow_start_fn(false).set_max_recursion_depth(1000).set_max_stack_height(1 << 16);
        let engine = wasmi::Engine::new(&config);
        let (began, ticks) = (std::time::Instant::now(), ticks());
        let fuel_per_us = calibrate(&engine).map_err(|error| {
            Error::new(Kind::Unsupported, format!("the wasm interpreter cannot be measured: {error}"))
        })?;
        let ticks_per_us = self::ticks().wrapping_sub(ticks) as f64 / (began.elapsed().as_secs_f64() * 1e6);
        let fuel_per_tick = (fuel_per_us / ticks_per_us.max(1.0) * 65_536.0) as u64;
        Ok(Engine { engine, fuel_per_us, fuel_per_tick })
    }

    /// Fuel of a CPU time.
    fn fuel(&self, time: Duration) -> u64 {
        (time.as_secs_f64() * 1e6 * self.fuel_per_us).max(1.0) as u64
    }
}

/// The CPU's counter of time: what calls take is charged by it, since a clock would cost more than
/// most calls.
fn ticks() -> u64 {
    // SAFETY: the instruction reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// A loop that adds: `(func (export "f") (loop (br 0)))` with work in it.
const LOOP: &[u8] = &[
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, // magic, version
    1, 4, 1, 0x60, 0, 0, // type: () -> ()
    3, 2, 1, 0, // function 0
    7, 5, 1, 1, b'f', 0, 0, // export "f"
    10, 18, 1, 16, 1, 1, 0x7e, // code: one local, i64
    3, 0x40, 0x20, 0, 0x42, 1, 0x7c, 0x21, 0, 0x0c, 0, 0x0b, 0x0b,
];

/// Runs a loop out of fuel a few times, and takes the slowest as the interpreter's speed: other
/// code costs more for its fuel.
fn calibrate(engine: &wasmi::Engine) -> std::result::Result<f64, wasmi::Error> {
    const FUEL: u64 = 2_000_000;
    let module = Module::new(engine, LOOP)?;
    let mut store = Store::new(engine, ());
    store.set_fuel(FUEL)?;
    let instance = Linker::new(engine).instantiate_and_start(&mut store, &module)?;
    let function = instance.get_typed_func::<(), ()>(&store, "f")?;
    let mut slowest = f64::INFINITY;
    for _ in 0..3 {
        store.set_fuel(FUEL)?;
        let began = sys::clock(sys::THREAD_CPU);
        // It ends by lack of fuel, which is an error.
        let _ = function.call(&mut store, ());
        let us = sys::clock(sys::THREAD_CPU).saturating_sub(began).max(1) as f64 / 1e3;
        slowest = slowest.min(FUEL as f64 / us);
    }
    Ok(slowest)
}

/// A wasm service to load.
#[derive(Clone, Debug)]
pub struct WasmSpec {
    /// For messages.
    pub name: String,
    /// The process it belongs to.
    pub owner: i32,
    /// CPU time of a run and of a window.
    pub budget: Budget,
    /// Bytes of memory at most; a page of 64 KiB more is the host's.
    pub memory: usize,
    /// Time between two timer events; `None`: only posted ones.
    pub period: Option<Duration>,
    /// What its handler gets with each event; at most 1024 bytes.
    pub arguments: Vec<u8>,
}

/// What the host's side of a module's calls knows.
struct Guest {
    calls: Calls,
    limits: StoreLimits,
    fuel_per_tick: u64,
    fuel_per_us: f64,
    /// CPU time of the thread when this run began, nanoseconds.
    began_ns: u64,
    /// CPU time of a run, nanoseconds.
    budget_ns: u64,
    /// The module's memory, once it is instantiated.
    memory: Option<Memory>,
}

impl Guest {
    /// Fuel for the CPU time that this run has left. `None`: it has none.
    fn left(&self) -> Option<u64> {
        let used = sys::clock(sys::THREAD_CPU).saturating_sub(self.began_ns);
        let left = self.budget_ns.checked_sub(used).filter(|left| *left > 0)?;
        Some((left as f64 / 1e3 * self.fuel_per_us) as u64)
    }
}

/// A run has fuel for this long at a time: then the clock of CPU time says whether its budget is
/// used up. Other code than that of [`calibrate`] takes up to four times as long for its fuel.
const SLICE: Duration = Duration::from_micros(150);

/// A call that takes longer was interrupted, perhaps: microseconds. The clock of CPU time costs a
/// fraction of that.
const LONG_CALL_US: f64 = 20.0;

/// A loaded module. Used by one thread at a time.
pub struct Service {
    store: Store<Guest>,
    handler: TypedFunc<(u32, u32), ()>,
    memory: Memory,
    page: u32,
    /// Fuel for [`SLICE`].
    slice: u64,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("account", &self.account()).finish_non_exhaustive()
    }
}

impl Service {
    /// Loads a module with these handles.
    ///
    /// # Errors
    /// `BadObject`, with what is wrong with the module: no valid wasm, a start function, imports
    /// that services have not got, more memory than allowed, no handler. `Invalid` for too many
    /// handles or arguments.
    pub fn load(engine: &Engine, spec: &WasmSpec, module: &[u8], grants: Vec<Granted>) -> Result<Service> {
        let name = &spec.name;
        let wrong = |why: String| Error::new(Kind::BadObject, format!("service {name:?}: {why}"));
        calls::check(spec, module, grants.len())?;
        let module = Module::new(&engine.engine, module).map_err(|error| wrong(format!("no wasm module: {error}")))?;
        if let Some(ExternType::Memory(memory)) = module.get_export("memory") {
            let least = memory.minimum().saturating_mul(PAGE as u64);
            if least > spec.memory as u64 {
                return Err(wrong(format!(
                    "its memory begins with {least} bytes, of {} bytes that it may have: give --memory {}K, or link it \
                     with a smaller stack (-z stack-size=16384)",
                    spec.memory,
                    least.div_ceil(1024)
                )));
            }
        }
        let limits = StoreLimitsBuilder::new()
            .memory_size(spec.memory.saturating_add(PAGE))
            .table_elements(10_000)
            .instances(1)
            .memories(1)
            .tables(1)
            .build();
        let handles = grants.len();
        let fuel_per_tick = engine.fuel_per_tick;
        let guest = Guest {
            calls: Calls::new(grants),
            limits,
            fuel_per_tick,
            fuel_per_us: engine.fuel_per_us,
            began_ns: 0,
            budget_ns: spec.budget.cpu().as_nanos() as u64,
            memory: None,
        };
        let mut store = Store::new(&engine.engine, guest);
        store.limiter(|guest| &mut guest.limits);
        // Of instantiation: data segments cost fuel too.
        store.set_fuel(engine.fuel(spec.budget.cpu()).max(1_000_000)).map_err(|error| wrong(error.to_string()))?;
        let linker = imports(&engine.engine).map_err(|error| wrong(error.to_string()))?;
        let instance = linker.instantiate_and_start(&mut store, &module).map_err(|error| {
            wrong(format!(
                "{error}; it may import \"orbit\" now, get, set, control_step, question and answer, and use {} bytes \
                 of memory",
                spec.memory
            ))
        })?;
        let handler = instance
            .get_typed_func::<(u32, u32), ()>(&store, "orbit_handler")
            .map_err(|_| wrong("it exports no orbit_handler(context, event): see orbit_service.h".into()))?;
        let memory = instance.get_memory(&store, "memory").ok_or_else(|| wrong("it exports no memory".into()))?;
        store.data_mut().memory = Some(memory);
        let pages = memory.grow(&mut store, 1).map_err(|_| {
            wrong(format!("its memory cannot have the page for its events beside {} bytes", spec.memory))
        })?;
        let page = pages as u32 * PAGE as u32;
        let context = calls::context(page, spec, handles);
        for (at, bytes) in [(page, &context), (page + ARGUMENTS_AT, &spec.arguments)] {
            memory.write(&mut store, at as usize, bytes).map_err(|error| wrong(error.to_string()))?;
        }
        Ok(Service { store, handler, memory, page, slice: engine.fuel(SLICE) })
    }

    /// Calls the handler: slice by slice, until it returns or its CPU time is used up.
    fn call(&mut self, at: u32) -> std::result::Result<(), wasmi::Error> {
        self.store.set_fuel(self.first_slice())?;
        let mut call = self.handler.call_resumable(&mut self.store, (self.page, at))?;
        loop {
            let paused = match call {
                TypedResumableCall::Finished(()) => return Ok(()),
                TypedResumableCall::HostTrap(trap) if is_out_of_fuel(trap.host_error()) => {
                    return Err(TrapCode::OutOfFuel.into());
                }
                // Of the module's own memory: no other error comes from a call.
                TypedResumableCall::HostTrap(_) => return Err(TrapCode::MemoryOutOfBounds.into()),
                TypedResumableCall::OutOfFuel(paused) => paused,
            };
            let left = self.store.data().left().ok_or(TrapCode::OutOfFuel)?;
            // An instruction on much memory needs its fuel at once.
            let needed = paused.required_fuel();
            if needed > left {
                return Err(TrapCode::OutOfFuel.into());
            }
            self.store.set_fuel(left.min(self.slice).max(needed))?;
            call = paused.resume(&mut self.store)?;
        }
    }

    fn first_slice(&self) -> u64 {
        self.store.data().left().unwrap_or(0).min(self.slice).max(1)
    }
}

impl Handler for Service {
    fn run(&mut self, event: &Event) -> Outcome {
        let began = sys::clock(sys::THREAD_CPU);
        self.store.data_mut().began_ns = began;
        let bytes = calls::event(event);
        let at = self.page + EVENT_AT;
        let result = match self.memory.write(&mut self.store, at as usize, &bytes) {
            Ok(()) => self.call(at),
            Err(_) => Err(TrapCode::MemoryOutOfBounds.into()),
        };
        let used = sys::clock(sys::THREAD_CPU).saturating_sub(began);
        let budget_ns = self.store.data().budget_ns;
        let account = &mut self.store.data_mut().calls.account;
        account.runs += 1;
        account.cpu_ns += used;
        match result {
            // Its last slice was longer than what was left.
            Ok(()) if used > budget_ns => {
                account.overruns += 1;
                Outcome::Overrun
            }
            Ok(()) => Outcome::Done,
            Err(error) if is_out_of_fuel(&error) => {
                account.overruns += 1;
                Outcome::Overrun
            }
            Err(_) => {
                account.faults += 1;
                Outcome::Trapped
            }
        }
    }

    fn questions(&self) -> &Arc<Questions> {
        &self.store.data().calls.questions
    }

    fn account(&self) -> Account {
        self.store.data().calls.account
    }

    fn count_unpaid(&mut self) {
        self.store.data_mut().calls.account.unpaid += 1;
    }

    fn grants(&self) -> &[Granted] {
        &self.store.data().calls.grants
    }
}

impl From<Service> for Box<dyn Handler> {
    fn from(service: Service) -> Box<dyn Handler> {
        Box::new(service)
    }
}

impl Loader for Engine {
    fn name(&self) -> &'static str {
        "wasmi"
    }

    fn load(&self, spec: &WasmSpec, module: &[u8], grants: Vec<Granted>) -> Result<Box<dyn Handler>> {
        Service::load(self, spec, module, grants).map(Into::into)
    }
}

fn is_out_of_fuel(error: &wasmi::Error) -> bool {
    error.as_trap_code() == Some(TrapCode::OutOfFuel) || matches!(error.kind(), ErrorKind::Fuel(_))
}

/// The calls of `orbit_service.h`. Each consumes fuel by the time it takes, so a loop of calls is
/// bounded as any other.
fn imports(engine: &wasmi::Engine) -> std::result::Result<Linker<Guest>, wasmi::Error> {
    let mut linker = Linker::new(engine);
    linker.func_wrap("orbit", "now", |mut caller: Caller<'_, Guest>| charged(&mut caller, |_| Ok(sys::now())))?;
    linker.func_wrap("orbit", "get", |mut caller: Caller<'_, Guest>, handle: u64, to: u32| {
        charged(&mut caller, |caller| get(caller, handle, to))
    })?;
    linker.func_wrap("orbit", "set", |mut caller: Caller<'_, Guest>, handle: u64, value: i64| {
        charged(&mut caller, |caller| Ok(caller.data_mut().calls.set(handle, value)))
    })?;
    linker.func_wrap("orbit", "control_step", |mut caller: Caller<'_, Guest>, control: u32, now: u64, used: u64| {
        charged(&mut caller, |caller| step(caller, control, now, used))
    })?;
    linker.func_wrap("orbit", "question", |mut caller: Caller<'_, Guest>, number: u64, to: u32| {
        charged(&mut caller, |caller| question(caller, number, to))
    })?;
    linker.func_wrap("orbit", "answer", |mut caller: Caller<'_, Guest>, number: u64, verdict: u32, result: i64| {
        charged(&mut caller, |caller| Ok(caller.data().calls.answer(number, Answer { verdict, result })))
    })?;
    Ok(linker)
}

/// Makes a call and takes its time from the fuel. The counter continues while the thread waits for
/// its CPU: an agent without real-time priority would be charged for other programs, and its
/// services revoked. So a call that seems long is charged by the clock of CPU time.
fn charged<R>(
    caller: &mut Caller<'_, Guest>,
    body: impl FnOnce(&mut Caller<'_, Guest>) -> std::result::Result<R, wasmi::Error>,
) -> std::result::Result<R, wasmi::Error> {
    let began = ticks();
    let result = body(caller)?;
    // A thread that moved to a CPU whose counter is behind is charged nothing.
    let passed = ticks().saturating_sub(began);
    let fuel = ((u128::from(passed) * u128::from(caller.data().fuel_per_tick)) >> 16) as u64 + 1;
    let left = caller.get_fuel()?.saturating_sub(fuel);
    let is_long = fuel as f64 > caller.data().fuel_per_us * LONG_CALL_US;
    if is_long && caller.data().left().is_none() {
        return Err(TrapCode::OutOfFuel.into());
    }
    // The module's next instruction finds the slice used up, and the clock is asked.
    caller.set_fuel(left)?;
    Ok(result)
}

fn memory(caller: &Caller<'_, Guest>) -> std::result::Result<Memory, wasmi::Error> {
    caller.data().memory.ok_or_else(|| TrapCode::MemoryOutOfBounds.into())
}

fn get(caller: &mut Caller<'_, Guest>, handle: u64, to: u32) -> std::result::Result<i64, wasmi::Error> {
    match caller.data_mut().calls.get(handle) {
        Ok(value) => {
            memory(caller)?.write(&mut *caller, to as usize, &value.to_le_bytes())?;
            Ok(0)
        }
        Err(number) => Ok(number),
    }
}

/// Copies a question to this service into its memory.
fn question(caller: &mut Caller<'_, Guest>, number: u64, to: u32) -> std::result::Result<i64, wasmi::Error> {
    match caller.data().calls.question(number) {
        Ok(bytes) => {
            memory(caller)?.write(&mut *caller, to as usize, &bytes)?;
            Ok(0)
        }
        Err(number) => Ok(number),
    }
}

/// `orbit_control_step` on a structure in the module's memory.
fn step(caller: &mut Caller<'_, Guest>, at: u32, now: u64, used: u64) -> std::result::Result<i32, wasmi::Error> {
    let memory = memory(caller)?;
    let mut bytes = [0u8; CONTROL];
    memory.read(&*caller, at as usize, &mut bytes)?;
    let is_owed = calls::step(&mut bytes, now, used);
    memory.write(&mut *caller, at as usize, &bytes)?;
    Ok(is_owed)
}
