//! A Redis module that lets a service set `maxmemory`: the memory manager of Orbit's services
//! lowers it when tasks stall for lack of memory, and Redis evicts what no longer fits.
//!
//! One thread waits for values. It takes Redis' lock for one `CONFIG SET` each; the server's own
//! threads wait for nothing.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

use orbit_redis_api::{Argument, Context, Value, ffi, with_lock};
use orbit_services::program::Attribute;
use orbit_services::{Invitation, Program};
use std::ffi::c_int;
use std::path::PathBuf;
use std::time::Duration;

/// The least cache that a service may leave.
const LEAST: i64 = 1 << 20;
/// Time between two attempts to reach a host.
const RETRY: Duration = Duration::from_secs(1);

/// Where the host of services is.
enum Host {
    /// Named in the environment.
    Invited(Invitation),
    /// It listens there.
    Socket(PathBuf),
}

impl Host {
    fn connect(&self) -> orbit_services::Result<std::sync::Arc<Program>> {
        match self {
            Host::Invited(invitation) => Program::connect(invitation),
            Host::Socket(path) => Program::connect(&Invitation::ask(path)?),
        }
    }
}

/// `maxmemory` as the server has it; 0: no limit.
fn maxmemory(ctx: &Context) -> Option<i64> {
    let Value::Array(answer) = ctx.call(c"CONFIG", &[b"GET", b"maxmemory"]).ok()? else { return None };
    answer.get(1)?.number()
}

/// Sets it, and answers what the server has then.
fn set(value: i64) -> Option<i64> {
    with_lock(|ctx| {
        ctx.call(c"CONFIG", &[b"SET", b"maxmemory", value.to_string().as_bytes()]).ok()?;
        maxmemory(ctx)
    })
}

/// The thread: publishes the cache to whatever host there is, and applies what services ask for.
fn serve(host: &Host, most: i64) {
    loop {
        let published = host.connect().and_then(|program| {
            let cache = program.publish("memory:cache", (LEAST.min(most), most), most)?;
            Ok((program, cache))
        });
        if let Ok((program, cache)) = published {
            follow(&program, cache);
            // The host is gone, and its services with it.
            let _ = set(most);
        }
        std::thread::sleep(RETRY);
    }
}

fn follow(program: &Program, mut cache: Attribute) {
    while program.has_host() {
        if let Some(present) = cache.wait(RETRY).and_then(set) {
            cache.report(present);
        }
    }
}

fn load(ctx: &Context, args: &[Argument]) -> Result<(), String> {
    let args: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg.bytes())).collect();
    let args: Vec<&str> = args.iter().map(|arg| &**arg).collect();
    let invited = std::env::var(Invitation::VARIABLE).ok().and_then(|text| Invitation::parse(&text));
    let host = match (args[..].as_ref(), invited) {
        (["socket", path], _) => Host::Socket(PathBuf::from(path)),
        ([], Some(invitation)) => Host::Invited(invitation),
        ([], None) => {
            let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| PathBuf::from("/run"), PathBuf::from);
            Host::Socket(folder.join("orbit-services.sock"))
        }
        _ => return Err(format!("arguments {args:?}: give none, or socket PATH")),
    };
    let most = maxmemory(ctx).filter(|most| *most > 0);
    let most =
        most.ok_or("maxmemory is 0, no limit: set it to what the cache may use at most, before the module is loaded")?;
    let thread = std::thread::Builder::new().name("orbit-memory".into()).spawn(move || serve(&host, most));
    thread.map(drop).map_err(|error| format!("its thread cannot be started: {error}"))
}

/// Redis calls this to load the module.
///
/// # Safety
/// Redis alone calls it, with what it calls each module with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(ctx: *mut ffi::Ctx, argv: *mut *mut ffi::Text, argc: c_int) -> c_int {
    // SAFETY: by contract.
    unsafe { orbit_redis_api::load(ctx, argv, argc, c"orbit-memory", &[], load) }
}

/// Redis calls this to unload the module. Its thread may wait for the server's lock, which the
/// server holds now: the module stays.
#[unsafe(no_mangle)]
pub extern "C" fn RedisModule_OnUnload(_: *mut ffi::Ctx) -> c_int {
    ffi::ERR
}
