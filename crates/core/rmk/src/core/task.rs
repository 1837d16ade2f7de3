//! The module's side of its process: the function that the orbit runs for each message of the core.

use super::module::{Context, Message, Module};
use crate::{event::Event, wire::decode};
use std::ffi::{c_long, c_void};

/// What `run` answers when it did not understand: the core and the module are of different builds.
pub(super) const NOT_UNDERSTOOD: c_long = -1;
/// What it answers to a message before its start: another process has taken its place meanwhile.
pub(super) const NOT_STARTED: c_long = -2;

struct Life<M> {
    module: Option<M>,
    context: Context,
}

/// Makes the store of an orbit that runs module `M`.
pub(super) unsafe extern "C" fn begin<M: Module>() -> *mut c_void {
    Box::into_raw(Box::new(Life::<M> { module: None, context: Context::default() })).cast()
}

/// Hands the module one message and pushes its requests. A panic here aborts, so the orbit ends as
/// a crash.
///
/// # Safety
/// `store` is what [`begin`] of the same `M` made; `args` starts with the length of what follows,
/// as `u32`.
pub(super) unsafe extern "C" fn run<M: Module>(store: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: by contract; the orbit makes one call at a time, so nothing else refers to the store.
    let life = unsafe { &mut *store.cast::<Life<M>>() };
    // SAFETY: by contract the arguments hold the length and as many bytes.
    let bytes = unsafe {
        let length = args.cast::<u32>().read_unaligned();
        std::slice::from_raw_parts(args.cast::<u8>().add(4), length as usize)
    };
    let Some(message) = decode::<Message>(bytes) else { return NOT_UNDERSTOOD };
    if let Message::Start { settings, missed } = &message {
        life.context.missed = *missed;
        life.module = Some(M::create(settings));
    }
    let Some(module) = &mut life.module else { return NOT_STARTED };
    let context = &mut life.context;
    match &message {
        Message::Start { .. } => module.start(context),
        Message::Tick => module.tick(context),
        Message::Guarded { pids } => module.guarded(context, pids),
        Message::Replied { ticket, reply } => module.reply(context, *ticket, reply),
        Message::Happened { events } => {
            for bytes in events.as_chunks::<{ Event::BYTES }>().0 {
                module.event(context, &Event::from_bytes(bytes));
            }
        }
    }
    match context.leave() {
        Ok(()) => 0,
        Err(_) => NOT_UNDERSTOOD,
    }
}
