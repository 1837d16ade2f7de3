//! A Redis module that lets a service set `maxmemory`: the memory manager of Orbit's services
//! lowers it when tasks stall for lack of memory, and Redis evicts what no longer fits.
//!
//! One thread waits for values. It takes Redis' lock for one `CONFIG SET` each; the server's own
//! threads wait for nothing.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]
#![expect(missing_docs, reason = "the two public functions are those that redis_module! makes for Redis")]

use orbit_services::program::Attribute;
use orbit_services::{Invitation, Program};
use redis_module::{Context, RedisString, RedisValue, Status, ThreadSafeContext};
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
    let RedisValue::Array(answer) = ctx.call("CONFIG", &["GET", "maxmemory"]).ok()? else { return None };
    match answer.get(1)? {
        RedisValue::SimpleString(text) | RedisValue::BulkString(text) => text.parse().ok(),
        RedisValue::StringBuffer(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        RedisValue::BulkRedisString(text) => text.to_string().parse().ok(),
        _ => None,
    }
}

/// Sets it, and answers what the server has then.
fn set(value: i64) -> Option<i64> {
    let context = ThreadSafeContext::new();
    let locked = context.lock();
    locked.call("CONFIG", &["SET", "maxmemory", &value.to_string()]).ok()?;
    maxmemory(&locked)
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

fn load(ctx: &Context, args: &[RedisString]) -> Status {
    match try_load(ctx, args) {
        Ok(()) => Status::Ok,
        Err(why) => {
            ctx.log_warning(&format!("orbit-memory: not loaded: {why}"));
            Status::Err
        }
    }
}

fn try_load(ctx: &Context, args: &[RedisString]) -> Result<(), String> {
    let args: Vec<String> = args.iter().map(RedisString::to_string).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
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

/// Its thread may wait for the server's lock, which the server holds now: the module stays.
fn unload(_: &Context) -> Status {
    Status::Err
}

redis_module::redis_module! {
    name: "orbit-memory",
    version: 1,
    allocator: (std::alloc::System, std::alloc::System),
    data_types: [],
    init: load,
    deinit: unload,
    commands: [],
}
