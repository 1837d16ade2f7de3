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
#![expect(missing_docs, reason = "the two public functions are those that redis_module! makes for Redis")]

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

use std::sync::Mutex;

use redis_module::{Context, RedisString, Status};

use keeper::Keeper;
use options::{Mode, Options};

/// The slow log of this server; `None` while the module is not loaded, or off.
static KEEPER: Mutex<Option<Keeper>> = Mutex::new(None);

/// Runs this on the slow log, if there is one. Not to be nested: nothing inside may call Redis.
fn with_keeper<T>(what: impl FnOnce(&mut Keeper) -> T) -> Option<T> {
    KEEPER.lock().unwrap_or_else(|e| e.into_inner()).as_mut().map(what)
}

fn load(ctx: &Context, args: &[RedisString]) -> Status {
    match try_load(ctx, args) {
        Ok(()) => Status::Ok,
        Err(why) => {
            ctx.log_warning(&format!("orbit: not loaded: {why}"));
            Status::Err
        }
    }
}

fn try_load(ctx: &Context, args: &[RedisString]) -> Result<(), String> {
    let args: Vec<&[u8]> = args.iter().map(RedisString::as_slice).collect();
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

fn unload(_: &Context) -> Status {
    close();
    Status::Ok
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

redis_module::redis_module! {
    name: "orbit",
    version: 1,
    allocator: (std::alloc::System, std::alloc::System),
    data_types: [],
    init: load,
    deinit: unload,
    commands: [
        ["orbit.slowlog", commands::slowlog, "admin", 0, 0, 0, "", "admin slow dangerous"],
        ["orbit.info", commands::info, "admin", 0, 0, 0, "", "slow dangerous"],
        ["orbit.fault", commands::fault, "admin", 0, 0, 0, "", "admin slow dangerous"],
    ],
}
