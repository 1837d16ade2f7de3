//! The compiler of modules, and the calls that they may import.

use crate::alarm;
use crate::handler::{Compiled, Guest};
use orbit_services::grant::Granted;
use orbit_services::{Answer, Error, Kind, Result, sys};
use orbit_services_wasm::calls::{self, CONTROL};
use orbit_services_wasm::{Handler, Loader, WasmSpec};
use wasmtime::{Caller, Config, Engine, Linker, Memory};

/// The largest module that is compiled, bytes: the compiler's time is the host's, which answers no
/// commands meanwhile.
const MODULE: usize = 1 << 20;
/// Bytes of a handler's stack.
const STACK: usize = 256 << 10;

/// Compiles modules. All of a process share one engine.
pub struct Compiler {
    pub(crate) linker: Linker<Guest>,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

impl Compiler {
    /// Sets it up, with a signal handler for the alarms of runs.
    ///
    /// # Errors
    /// `Unsupported` where the compiler has no machine code for this machine; `System`.
    pub fn new() -> Result<Compiler> {
        let unsupported =
            |error: wasmtime::Error| Error::new(Kind::Unsupported, format!("the wasm compiler: {error:#}"));
        let engine = alarm::engine(|| {
            let mut config = Config::new();
            config.epoch_interruption(true).max_wasm_stack(STACK).wasm_backtrace(false);
            Engine::new(&config).map_err(unsupported)
        })?;
        let linker = imports(engine).map_err(unsupported)?;
        Ok(Compiler { linker })
    }
}

impl Loader for Compiler {
    fn name(&self) -> &'static str {
        "wasmtime"
    }

    fn load(&self, spec: &WasmSpec, module: &[u8], grants: Vec<Granted>) -> Result<Box<dyn Handler>> {
        calls::check(spec, module, grants.len())?;
        let wrong = |why: String| Error::new(Kind::BadObject, format!("service {:?}: {why}", spec.name));
        if module.len() > MODULE {
            return Err(wrong(format!("{} bytes, of at most {MODULE} that are compiled", module.len())));
        }
        if has_start(module) {
            return Err(wrong("it has a start function, which would run outside of any budget".into()));
        }
        Compiled::new(self, spec, module, grants).map(|handler| Box::new(handler) as Box<dyn Handler>)
    }
}

/// Whether a module has a section of its start function. What is no module has none.
fn has_start(module: &[u8]) -> bool {
    const HEADER: usize = 8;
    const START: u8 = 8;
    let mut rest = module.get(HEADER..).unwrap_or_default();
    while let [kind, more @ ..] = rest {
        if *kind == START {
            return true;
        }
        let (mut length, mut shift, mut bytes) = (0usize, 0, 0);
        for byte in more.iter().take(5) {
            length |= usize::from(byte & 0x7f) << shift;
            (shift, bytes) = (shift + 7, bytes + 1);
            if byte & 0x80 == 0 {
                break;
            }
        }
        rest = more.get(bytes + length..).unwrap_or_default();
    }
    false
}

/// The calls of `orbit_service.h`. Their time is the thread's, by which the run is judged.
fn imports(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    linker.func_wrap("orbit", "now", |_: Caller<'_, Guest>| sys::now())?;
    linker.func_wrap(
        "orbit",
        "get",
        |mut caller: Caller<'_, Guest>, handle: u64, to: u32| -> wasmtime::Result<i64> {
            match caller.data_mut().calls.get(handle) {
                Ok(value) => {
                    memory(&caller)?.write(&mut caller, to as usize, &value.to_le_bytes())?;
                    Ok(0)
                }
                Err(number) => Ok(number),
            }
        },
    )?;
    linker.func_wrap("orbit", "set", |mut caller: Caller<'_, Guest>, handle: u64, value: i64| {
        caller.data_mut().calls.set(handle, value)
    })?;
    linker.func_wrap("orbit", "control_step", step)?;
    linker.func_wrap(
        "orbit",
        "question",
        |mut caller: Caller<'_, Guest>, number: u64, to: u32| -> wasmtime::Result<i64> {
            match caller.data().calls.question(number) {
                Ok(bytes) => {
                    memory(&caller)?.write(&mut caller, to as usize, &bytes)?;
                    Ok(0)
                }
                Err(number) => Ok(number),
            }
        },
    )?;
    linker.func_wrap("orbit", "answer", |caller: Caller<'_, Guest>, number: u64, verdict: u32, result: i64| {
        caller.data().calls.answer(number, Answer { verdict, result })
    })?;
    Ok(linker)
}

fn memory(caller: &Caller<'_, Guest>) -> wasmtime::Result<Memory> {
    caller.data().memory.ok_or_else(|| wasmtime::Trap::MemoryOutOfBounds.into())
}

/// `orbit_control_step` on a structure in the module's memory.
fn step(mut caller: Caller<'_, Guest>, at: u32, now: u64, used: u64) -> wasmtime::Result<i32> {
    let memory = memory(&caller)?;
    let mut bytes = [0u8; CONTROL];
    memory.read(&caller, at as usize, &mut bytes)?;
    let is_owed = calls::step(&mut bytes, now, used);
    memory.write(&mut caller, at as usize, &bytes)?;
    Ok(is_owed)
}

#[cfg(test)]
mod tests {
    use super::has_start;

    #[test]
    fn a_start_section_is_found_behind_others() {
        let header = [0u8, b'a', b's', b'm', 1, 0, 0, 0];
        let of = |sections: &[u8]| [&header[..], sections].concat();
        assert!(!has_start(&header) && !has_start(b"") && !has_start(&of(&[1, 4, 1, 0x60, 0, 0])));
        assert!(has_start(&of(&[8, 1, 0])));
        assert!(has_start(&of(&[1, 4, 1, 0x60, 0, 0, 3, 0x82, 0, 1, 0, 8, 1, 0])));
        assert!(!has_start(&of(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 8])), "a length beyond the module's end");
    }
}
