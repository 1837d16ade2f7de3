//! A Redis module whose slow log lives in an orbit.
//!
//! | part | question |
//! |---|---|
//! | `options` | what was asked for |
//! | `sensor` | which commands were slow |
//! | `keeper` | ring, hand-over, what was lost (Redis' side) |
//! | `record`, `ring` | the form of an entry, how it travels |
//! | `task`, `log` | the log and what runs in the orbit |
//! | `acl` | which users may ask |
//! | `commands`, `query` | `ORBIT.SLOWLOG`, `ORBIT.INFO`, `ORBIT.FAULT`, and clients that wait for an answer |
//! | `answer` | what the orbit brings for `GET` |
//!
//! What runs on Redis' main thread never waits for the orbit; a client's answer is waited for, and
//! written, in a thread.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

mod acl;
mod answer;
mod commands;
mod keeper;
mod log;
mod options;
mod query;
mod record;
mod ring;
mod sensor;
mod task;

use std::ffi::c_int;
use std::sync::Mutex;

use orbit_redis_api::{Argument, Command, Context, command, ffi};

use keeper::Keeper;
use options::{Mode, Options};

/// The slow log of this server; `None` while the module is not loaded, or off.
static KEEPER: Mutex<Option<Keeper>> = Mutex::new(None);

/// Runs this on the slow log, if there is one. Not to be nested: nothing inside may call Redis.
fn with_keeper<T>(what: impl FnOnce(&mut Keeper) -> T) -> Option<T> {
    KEEPER.lock().unwrap_or_else(|e| e.into_inner()).as_mut().map(what)
}

const COMMANDS: [Command; 3] = [
    Command {
        name: c"orbit.slowlog",
        run: command!(commands::slowlog),
        flags: c"admin",
        categories: c"admin slow dangerous",
    },
    Command { name: c"orbit.info", run: command!(commands::info), flags: c"admin", categories: c"slow dangerous" },
    Command {
        name: c"orbit.fault",
        run: command!(commands::fault),
        flags: c"admin",
        categories: c"admin slow dangerous",
    },
];

/// Redis calls this to load the module.
///
/// # Safety
/// Redis alone calls it, with what it calls each module with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(ctx: *mut ffi::Ctx, argv: *mut *mut ffi::Text, argc: c_int) -> c_int {
    // SAFETY: by contract.
    unsafe { orbit_redis_api::load(ctx, argv, argc, c"orbit", &COMMANDS, load) }
}

/// Redis calls this to unload the module.
#[unsafe(no_mangle)]
pub extern "C" fn RedisModule_OnUnload(_: *mut ffi::Ctx) -> c_int {
    close();
    ffi::OK
}

fn load(ctx: &Context, args: &[Argument]) -> Result<(), String> {
    let args: Vec<&[u8]> = args.iter().map(Argument::bytes).collect();
    let options = Options::parse(&args)?;
    if options.mode == Mode::Off {
        return Ok(());
    }
    let (threshold, every) = (options.threshold, options.every);
    let mut keeper = Keeper::new(options).map_err(|e| e.to_string())?;
    keeper.warm_up();
    *KEEPER.lock().unwrap_or_else(|e| e.into_inner()) = Some(keeper);
    sensor::start(ctx, threshold, every).inspect_err(|_| close())
}

fn close() {
    let keeper = KEEPER.lock().unwrap_or_else(|e| e.into_inner()).take();
    if let Some(keeper) = keeper {
        keeper.close();
    }
    query::close();
    // Its processes and its thread: nothing of the module runs on. It fails in an orbit only, which
    // this is not.
    let _ = orbit::shutdown();
}
