//! NAME: makes a process nicer, one step a tick, as long as its grant allows it. Change this.
//!
//! Handles come in the order of the `--grant` options.
#![no_std]

#[link(wasm_import_module = "orbit")]
unsafe extern "C" {
    /// Reads an attribute. 0 or a negative error.
    fn get(handle: u64, value: *mut i64) -> i64;
    /// Asks for a value: the guard passes it, clamps it or refuses it. 0 or a negative error.
    fn set(handle: u64, value: i64) -> i64;
}

/// What the service was loaded with.
#[repr(C)]
pub struct Context {
    /// Address of the arguments.
    pub arguments: u64,
    /// Their bytes.
    pub length: u32,
    /// The number of handles.
    pub handles: u32,
    /// In the order of the grants.
    pub handle: [u64; 32],
}

/// Why the handler runs.
#[repr(C)]
pub struct Event {
    /// One of the kinds of `orbit_service.h`.
    pub kind: u32,
    /// Events of this kind that were dropped or merged since the last one.
    pub lost: u32,
    /// When it was due, monotonic nanoseconds.
    pub due_ns: u64,
    /// When this run began.
    pub now_ns: u64,
    /// By kind.
    pub value: u64,
}

const TIMER: u32 = 1;
const NICE: usize = 0;

#[unsafe(no_mangle)]
pub extern "C" fn orbit_handler(context: &Context, event: &Event) {
    if event.kind != TIMER || context.handles as usize <= NICE {
        return;
    }
    let mut nice = 0;
    // SAFETY: the calls check the handle; `nice` outlives the call.
    unsafe {
        if get(context.handle[NICE], &raw mut nice) == 0 {
            set(context.handle[NICE], nice + 1);
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
