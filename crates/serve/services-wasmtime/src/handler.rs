//! One compiled module: its memory, and one run of its handler.

use crate::alarm::Alarm;
use crate::compiler::Compiler;
use orbit_services::grant::Granted;
use orbit_services::{Account, Error, Event, Kind, Questions, Result, sys};
use orbit_services_wasm::calls::{self, ARGUMENTS_AT, Calls, EVENT_AT, PAGE};
use orbit_services_wasm::{Handler, Outcome, WasmSpec};
use std::sync::Arc;
use wasmtime::{Memory, Module, Store, StoreLimits, StoreLimitsBuilder, TypedFunc, UpdateDeadline};

/// What the host's side of a module's calls knows.
pub(crate) struct Guest {
    pub(crate) calls: Calls,
    /// The module's memory, once it is instantiated.
    pub(crate) memory: Option<Memory>,
    limits: StoreLimits,
    alarm: Alarm,
    budget_ns: u64,
    /// CPU clock of the thread when the run began.
    began: u64,
}

impl Guest {
    /// Bounds what begins now on the calling thread by the budget. False where that is not
    /// possible.
    fn begin(&mut self) -> bool {
        self.began = sys::clock(sys::THREAD_CPU);
        self.alarm.set(self.budget_ns)
    }

    /// The alarm fired, or fires soon: how long the run may still take. `None`: its budget is used
    /// up.
    fn left(&self) -> Option<u64> {
        let used = sys::clock(sys::THREAD_CPU).saturating_sub(self.began);
        self.budget_ns.checked_sub(used).filter(|left| *left > 0)
    }
}

/// What a run over its budget ends with.
#[derive(Clone, Copy, Debug)]
struct Overrun;

impl std::fmt::Display for Overrun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("its budget is used up")
    }
}

impl std::error::Error for Overrun {}

/// A compiled module. Used by one thread at a time.
pub struct Compiled {
    store: Store<Guest>,
    handler: TypedFunc<(u32, u32), ()>,
    memory: Memory,
    page: u32,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("account", &self.account()).finish_non_exhaustive()
    }
}

impl Compiled {
    /// Compiles a module that was checked.
    pub(crate) fn new(compiler: &Compiler, spec: &WasmSpec, module: &[u8], grants: Vec<Granted>) -> Result<Compiled> {
        let wrong = |why: String| Error::new(Kind::BadObject, format!("service {:?}: {why}", spec.name));
        let engine = compiler.linker.engine();
        let module = Module::new(engine, module).map_err(|error| wrong(format!("no wasm module: {error:#}")))?;
        let limits = StoreLimitsBuilder::new()
            .memory_size(spec.memory.saturating_add(PAGE))
            .table_elements(10_000)
            .instances(1)
            .memories(1)
            .tables(1)
            .build();
        let handles = grants.len();
        let budget_ns = spec.budget.cpu().as_nanos() as u64;
        let alarm = Alarm::default();
        let guest = Guest { calls: Calls::new(grants), memory: None, limits, alarm, budget_ns, began: 0 };
        let mut store = Store::new(engine, guest);
        store.limiter(|guest| &mut guest.limits);
        // An alarm that was not of this run, or a run that was not on a CPU all the time: it
        // continues.
        store.epoch_deadline_callback(|mut store| {
            let guest = store.data_mut();
            match guest.left() {
                Some(left) if guest.alarm.set(left) => Ok(UpdateDeadline::Continue(1)),
                _ => Err(Overrun.into()),
            }
        });
        store.set_epoch_deadline(1);
        let instance = compiler.linker.instantiate(&mut store, &module).map_err(|error| {
            wrong(format!(
                "{error:#}; it may import \"orbit\" now, get, set, control_step, question and answer, and use {} \
                 bytes of \
                 memory",
                spec.memory
            ))
        })?;
        let handler = instance
            .get_typed_func::<(u32, u32), ()>(&mut store, "orbit_handler")
            .map_err(|_| wrong("it exports no orbit_handler(context, event): see orbit_service.h".into()))?;
        let memory = instance.get_memory(&mut store, "memory");
        let memory = memory.ok_or_else(|| wrong("it exports no memory".into()))?;
        store.data_mut().memory = Some(memory);
        let pages = memory.grow(&mut store, 1).map_err(|_| {
            wrong(format!("its memory cannot have the page for its events beside {} bytes", spec.memory))
        })?;
        let page = pages as u32 * PAGE as u32;
        let context = calls::context(page, spec, handles);
        for (at, bytes) in [(page, &context), (page + ARGUMENTS_AT, &spec.arguments)] {
            memory.write(&mut store, at as usize, bytes).map_err(|error| wrong(error.to_string()))?;
        }
        Ok(Compiled { store, handler, memory, page })
    }

    fn account_mut(&mut self) -> &mut Account {
        &mut self.store.data_mut().calls.account
    }
}

impl Handler for Compiled {
    fn run(&mut self, event: &Event) -> Outcome {
        let began = sys::clock(sys::THREAD_CPU);
        let at = self.page + EVENT_AT;
        let ready = self.memory.write(&mut self.store, at as usize, &calls::event(event)).is_ok();
        // Before the alarm is set: one that fires at once is not to be missed.
        self.store.set_epoch_deadline(1);
        let result = if ready && self.store.data_mut().begin() {
            self.handler.call(&mut self.store, (self.page, at))
        } else {
            Err(wasmtime::Trap::MemoryOutOfBounds.into())
        };
        self.store.data().alarm.clear();
        let used = sys::clock(sys::THREAD_CPU).saturating_sub(began);
        let account = self.account_mut();
        account.runs += 1;
        account.cpu_ns += used;
        match result {
            Ok(()) => Outcome::Done,
            Err(error) if error.is::<Overrun>() => {
                account.overruns += 1;
                Outcome::Overrun
            }
            Err(_) => {
                account.faults += 1;
                Outcome::Trapped
            }
        }
    }

    fn account(&self) -> Account {
        self.store.data().calls.account
    }

    fn count_unpaid(&mut self) {
        self.account_mut().unpaid += 1;
    }

    fn questions(&self) -> &Arc<Questions> {
        &self.store.data().calls.questions
    }

    fn grants(&self) -> &[Granted] {
        &self.store.data().calls.grants
    }
}
