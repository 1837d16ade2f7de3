//! The part of Redis' module interface that the modules of this project use, behind safe types.
//!
//! | part | what |
//! |---|---|
//! | this file | loading a module, its commands |
//! | `context` | what a callback of the server may do: call, reply, log |
//! | `value` | what commands answer, the server's and the module's |
//! | `client` | clients that wait for a thread; the server's lock |
//! | `events` | events of the server, and a filter of its commands |
//! | `rights` | who a command runs for, and what else that user may run |
//! | [`ffi`] | the functions themselves |
//!
//! Pointers of the server are good for one callback; [`Context`], [`Argument`] and [`Filtered`]
//! stand for such. The module's callbacks make them by `unsafe` functions, which say so. All else
//! is safe.

mod client;
mod context;
mod events;
pub mod ffi;
mod rights;
mod value;

use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

pub use client::{Waiting, with_lock};
pub use context::{Argument, Context};
pub use events::{AFTER_SLEEP, Event, Filtered};
pub use rights::{Caller, Permission, User, server_version};
pub use value::{Answer, Error, Value};

/// The server's functions, from the module's first load on: a module that stays mapped finds them
/// again, at the same addresses, when the same server loads it once more.
static API: OnceLock<ffi::Api> = OnceLock::new();

/// The server's functions. Only what the server calls runs here, so they are there.
fn api() -> &'static ffi::Api {
    API.get().expect("the server has loaded the module")
}

fn core() -> &'static ffi::Core {
    &api().core
}

/// A command of a module.
pub struct Command {
    /// Its name.
    pub name: &'static CStr,
    /// What runs it: made by [`command!`].
    pub run: ffi::OnCommand,
    /// Its flags, as `RedisModule_CreateCommand` takes them.
    pub flags: &'static CStr,
    /// Its categories of access control, set from Redis 7.2 on.
    pub categories: &'static CStr,
}

/// Makes what the server calls for a command of a function `fn(&Context, &[Argument]) -> Answer`.
#[macro_export]
macro_rules! command {
    ($run:path) => {{
        unsafe extern "C" fn run(
            ctx: *mut $crate::ffi::Ctx,
            argv: *mut *mut $crate::ffi::Text,
            argc: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: the server calls this with a command's context and arguments.
            unsafe { $crate::run(ctx, argv, argc, $run) }
        }
        run
    }};
}

/// Runs a command and sends what it answers: the body of [`command!`].
///
/// # Safety
/// These are the context and the arguments of a command that the server runs.
pub unsafe fn run(
    ctx: *mut ffi::Ctx,
    argv: *mut *mut ffi::Text,
    argc: c_int,
    command: fn(&Context, &[Argument]) -> Answer,
) -> c_int {
    // SAFETY: by contract; both are used until the callback returns.
    let (ctx, args) = unsafe { (Context::new(ctx), Argument::all(argv, argc)) };
    ctx.reply(command(&ctx, args));
    ffi::OK
}

/// Loads a module: the body of its `RedisModule_OnLoad`. Adds the commands, then runs `start`. Why
/// it fails is in the server's log.
///
/// # Safety
/// `ctx`, `argv` and `argc` are those of `RedisModule_OnLoad`, as the server has called it.
pub unsafe fn load(
    ctx: *mut ffi::Ctx,
    argv: *mut *mut ffi::Text,
    argc: c_int,
    name: &CStr,
    commands: &[Command],
    start: fn(&Context, &[Argument]) -> Result<(), String>,
) -> c_int {
    if API.get().is_none() {
        // SAFETY: by contract.
        match unsafe { ffi::Api::ask(ctx) } {
            // A process has one server, and that loads one module at a time.
            Ok(api) => drop(API.set(api)),
            Err(lacking) => {
                if let Some(log) = lacking.log {
                    let (name, function) = (name.as_ptr(), lacking.function.as_ptr());
                    // SAFETY: by contract; the format takes two strings.
                    unsafe {
                        (log.log)(
                            ctx,
                            c"warning".as_ptr(),
                            c"%s: not loaded: this server lacks %s".as_ptr(),
                            name,
                            function,
                        );
                    }
                }
                return ffi::ERR;
            }
        }
    }
    // SAFETY: by contract; the server copies the name.
    let ctx = unsafe {
        if (core().is_name_taken)(name.as_ptr()) != 0 {
            return ffi::ERR;
        }
        (core().set_attributes)(ctx, name.as_ptr(), 1, ffi::VERSION);
        Context::new(ctx)
    };
    // SAFETY: by contract; they are used until the callback returns.
    let args = unsafe { Argument::all(argv, argc) };
    match commands.iter().try_for_each(|command| ctx.add(command)).and_then(|()| start(&ctx, args)) {
        Ok(()) => ffi::OK,
        Err(why) => {
            ctx.log_warning(&format!("{}: not loaded: {why}", name.to_string_lossy()));
            ffi::ERR
        }
    }
}
