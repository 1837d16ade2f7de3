//! How slow commands are seen.
//!
//! The module API of Redis 7 shows a command before it runs, never when it has run. But Redis times
//! every command for its own slow log, nested ones (scripts, transactions) and unblocked ones
//! included. So that log is the sensor: a short staging place, from which new entries are taken. It
//! is read only when Redis was busy for at least the threshold between two sleeps, for no
//! command can have been slow otherwise. Fast commands cost nothing; the event loop pays two
//! readings of the clock a round.
//!
//! Each n-th command, if asked for (`every`), is seen by a command filter instead: its arguments
//! are copied before it runs, and its time ends when the next command or the sleep begins. No
//! client is known there. Commands whose arguments may hold secrets are noted by name only.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use orbit_linux::clock::monotonic_ns;
use orbit_redis_api::{AFTER_SLEEP, Context, Event, Filtered, Value, ffi};

use crate::keeper::Keeper;
use crate::record::MAX_ARGUMENTS;
use crate::with_keeper;

/// Threshold, microseconds; negative: Redis notes nothing.
static THRESHOLD: AtomicI64 = AtomicI64::new(-1);
/// Entries that Redis' own log keeps; negative: not asked yet.
static KEPT: AtomicI64 = AtomicI64::new(-1);
/// When the event loop last woke, nanoseconds of CLOCK_MONOTONIC.
static WOKE: AtomicU64 = AtomicU64::new(0);
/// Id that the next entry of Redis' own log will have.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);
/// Commands until the filter acts.
static COUNTDOWN: AtomicU32 = AtomicU32::new(0);
/// When the command that the filter noted began, nanoseconds; 0: none is open.
static OPEN_SINCE: AtomicU64 = AtomicU64::new(0);
/// Commands from one that the filter notes to the next.
static EVERY: AtomicU32 = AtomicU32::new(0);

/// Entries of Redis' log asked for at first.
const FIRST_READ: i64 = 16;

/// Commands whose arguments may hold secrets.
const SECRET: [&[u8]; 6] = [b"AUTH", b"HELLO", b"ACL", b"CONFIG", b"MIGRATE", b"REPLCONF"];

fn unix_time() -> i64 {
    // SAFETY: asks for the time only.
    unsafe { libc::time(std::ptr::null_mut()) }
}

/// Begins to watch. An error names what this server lacks. `threshold`, if given, becomes Redis'
/// own `slowlog-log-slower-than`.
pub fn start(ctx: &Context, threshold: Option<i64>, every: u32) -> Result<(), String> {
    if let Some(threshold) = threshold {
        ctx.call(c"CONFIG", &[b"SET", b"slowlog-log-slower-than", threshold.to_string().as_bytes()])
            .map_err(|e| format!("setting slowlog-log-slower-than to {threshold}: {e}"))?;
    }
    KEPT.store(-1, Relaxed);
    read_settings(ctx)?;
    NEXT_ID.store(newest_of_log(ctx, 1, 0)?.first().map_or(0, |newest| newest.id + 1), Relaxed);
    WOKE.store(monotonic_ns(), Relaxed);
    subscribe(ctx, Event::EventLoop, on_event_loop)?;
    subscribe(ctx, Event::Config, on_config)?;
    EVERY.store(every, Relaxed);
    OPEN_SINCE.store(0, Relaxed);
    COUNTDOWN.store(every, Relaxed);
    if every > 0 && !ctx.filter(on_command) {
        return Err("Redis refused the command filter".to_owned());
    }
    Ok(())
}

/// The threshold in microseconds; negative: none.
pub fn threshold() -> i64 {
    THRESHOLD.load(Relaxed)
}

fn subscribe(ctx: &Context, event: Event, run: ffi::OnEvent) -> Result<(), String> {
    if ctx.subscribe(event, run) {
        Ok(())
    } else {
        Err(format!("this Redis has no server event {}: version 7.0 or later is needed", event as u64))
    }
}

/// Reads what Redis is configured to note. A server that keeps no entry shows none, so there is
/// none to be counted as missed either: that is said.
fn read_settings(ctx: &Context) -> Result<(), String> {
    THRESHOLD.store(setting(ctx, "slowlog-log-slower-than")?, Relaxed);
    let kept = setting(ctx, "slowlog-max-len")?;
    if KEPT.swap(kept, Relaxed) != 0 && kept == 0 {
        ctx.log_warning("orbit: slowlog-max-len is 0: Redis keeps no slow command, so none is seen or counted");
    }
    Ok(())
}

/// A setting of Redis that is a number.
fn setting(ctx: &Context, name: &str) -> Result<i64, String> {
    let value = match ctx.call(c"CONFIG", &[b"GET", name.as_bytes()]) {
        Ok(Value::Array(pair)) => pair.get(1).and_then(Value::number),
        _ => None,
    };
    value.ok_or_else(|| lacking(&format!("CONFIG GET {name}")))
}

/// Why the module cannot work without a command that has not answered as it should.
fn lacking(command: &str) -> String {
    format!(
        "{command} does not answer: the module needs the commands CONFIG and SLOWLOG by these names; is one renamed \
         (rename-command)?"
    )
}

/// The settings are others now. What was noted under the old ones is taken first.
unsafe extern "C" fn on_config(ctx: *mut ffi::Ctx, _: ffi::Event, _: u64, _: *mut c_void) {
    // SAFETY: the context of this callback.
    let ctx = unsafe { Context::new(ctx) };
    harvest(&ctx);
    if let Err(why) = read_settings(&ctx) {
        ctx.log_warning(&format!("orbit: {why}"));
    }
}

unsafe extern "C" fn on_event_loop(ctx: *mut ffi::Ctx, _: ffi::Event, subevent: u64, _: *mut c_void) {
    let now = monotonic_ns();
    if subevent == AFTER_SLEEP {
        WOKE.store(now, Relaxed);
        return;
    }
    if OPEN_SINCE.load(Relaxed) != 0 {
        with_keeper(|keeper| close_open(keeper, now));
        COUNTDOWN.store(EVERY.load(Relaxed), Relaxed);
    }
    let threshold = THRESHOLD.load(Relaxed);
    if threshold >= 0 && now.saturating_sub(WOKE.load(Relaxed)) / 1000 >= threshold as u64 {
        // SAFETY: the context of this callback.
        harvest(&unsafe { Context::new(ctx) });
    }
    with_keeper(Keeper::hand_over);
}

/// Takes what is new in Redis' own slow log.
pub fn harvest(ctx: &Context) {
    if THRESHOLD.load(Relaxed) < 0 {
        return;
    }
    let next = NEXT_ID.load(Relaxed);
    // A command that was there when the module was loaded stays there: a read that fails has
    // nothing new.
    let mut fresh = newest_of_log(ctx, FIRST_READ, next).unwrap_or_default();
    if fresh.len() as i64 == FIRST_READ {
        // As many as are new, with this read: Redis' log may be much longer.
        let count = fresh[0].id + 2 - next;
        fresh = newest_of_log(ctx, i64::try_from(count).unwrap_or(-1), next).unwrap_or(fresh);
    }
    let Some(newest) = fresh.first().map(|entry| entry.id) else { return };
    NEXT_ID.store(newest + 1, Relaxed);
    with_keeper(|keeper| {
        keeper.counts.missed += (newest + 1 - next).saturating_sub(fresh.len() as u64);
        for entry in fresh.iter().rev().filter(|entry| !entry.is_own_read()) {
            let draft = keeper.begin(entry.time, entry.micros, entry.address.bytes(), entry.name.bytes());
            for arg in &entry.args {
                draft.cut_argument(arg.bytes());
            }
            keeper.end();
        }
    });
}

/// An entry of Redis' own log.
struct Staged {
    id: u64,
    time: i64,
    micros: i64,
    args: Vec<Value>,
    address: Value,
    name: Value,
}

impl Staged {
    /// Whether this is the sensor's own read of the log, which Redis times like any command: by a
    /// client without a connection, which has the address `?:0` up to Redis 7, and none from Redis
    /// 8 on.
    fn is_own_read(&self) -> bool {
        matches!(self.address.bytes(), b"?:0" | b"") && self.args.first().is_some_and(|name| name.bytes() == b"SLOWLOG")
    }
}

/// Up to `count` entries (-1: all) with an id of at least `from`, the newest first.
fn newest_of_log(ctx: &Context, count: i64, from: u64) -> Result<Vec<Staged>, String> {
    match ctx.call(c"SLOWLOG", &[b"GET", count.to_string().as_bytes()]) {
        Ok(Value::Array(entries)) => {
            Ok(entries.into_iter().map_while(staged).take_while(|entry| entry.id >= from).collect())
        }
        _ => Err(lacking("SLOWLOG GET")),
    }
}

fn staged(entry: Value) -> Option<Staged> {
    let Value::Array(fields) = entry else { return None };
    let mut fields = fields.into_iter();
    let (Value::Integer(id), Value::Integer(time), Value::Integer(micros), Value::Array(args)) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?)
    else {
        return None;
    };
    let id = u64::try_from(id).ok()?;
    Some(Staged { id, time, micros, args, address: fields.next()?, name: fields.next()? })
}

/// The filter: counts, and acts on each n-th command and, to end its time, on the one after it.
unsafe extern "C" fn on_command(filter: *mut ffi::Filter) {
    let left = COUNTDOWN.load(Relaxed).wrapping_sub(1);
    COUNTDOWN.store(left, Relaxed);
    if left != 0 {
        return;
    }
    let now = monotonic_ns();
    with_keeper(|keeper| {
        let every = EVERY.load(Relaxed);
        if OPEN_SINCE.load(Relaxed) != 0 {
            close_open(keeper, now);
            if every > 1 {
                COUNTDOWN.store(every - 1, Relaxed);
                return;
            }
        }
        COUNTDOWN.store(1, Relaxed);
        OPEN_SINCE.store(now, Relaxed);
        // SAFETY: the command of this callback.
        open(keeper, &unsafe { Filtered::new(filter) });
    });
}

/// Begins an entry of the command that is about to run.
fn open(keeper: &mut Keeper, command: &Filtered) {
    let draft = keeper.begin(unix_time(), 0, b"", b"");
    let count = command.count();
    let secret = count > 0 && SECRET.iter().any(|name| name.eq_ignore_ascii_case(command.word(0)));
    for at in 0..count.min(MAX_ARGUMENTS) {
        if at == MAX_ARGUMENTS - 1 && count > MAX_ARGUMENTS {
            draft.argument(format!("... ({} more arguments)", count - MAX_ARGUMENTS + 1).as_bytes());
        } else if at > 0 && secret {
            draft.argument(b"(redacted)");
        } else {
            draft.argument(command.word(at));
        }
    }
}

/// The command noted last has ended.
fn close_open(keeper: &mut Keeper, now: u64) {
    let since = OPEN_SINCE.swap(0, Relaxed);
    if since != 0 {
        keeper.end_after((now.saturating_sub(since) / 1000) as i64);
    }
}
