//! The module's commands.

use std::fmt::Write;
use std::time::Duration;

use orbit::{Future, Outcome};
use orbit_redis_api::{Answer, Argument, Context, Error, Value};

use crate::answer::Get;
use crate::keeper::Keeper;
use crate::query::{self, Next, Question};
use crate::task::{self, Fault};
use crate::{acl, answer, sensor, with_keeper};

/// Entries that `GET` gives unless asked otherwise, as in Redis.
const DEFAULT_COUNT: u64 = 10;

/// Within what time a fault that ends by itself must have done so.
const FAULT_DEADLINE: Duration = Duration::from_secs(30);

/// What the commands that Redis has no like of ask the right to where it has not the command that
/// comes nearest either.
const ELSE: &[&[u8]] = &[b"SLOWLOG", b"GET"];

/// `ORBIT.SLOWLOG GET [count] | LEN | RESET | HELP`: as Redis' own `SLOWLOG`.
pub fn slowlog(ctx: &Context, args: &[Argument]) -> Answer {
    let word = |at: usize| args.get(at).map(Argument::bytes);
    let is = |name: &str| word(1).is_some_and(|w| w.eq_ignore_ascii_case(name.as_bytes()));
    // Redis, too, finds a number of words that fits no subcommand wrong before it checks rights.
    if let Some(word) = word(1)
        && (args.len() == 2 || is("GET"))
    {
        acl::may(ctx, &[&[b"SLOWLOG", word]])?;
    }
    let count = match args.len() {
        2 if is("RESET") => {
            sensor::harvest(ctx);
            with_keeper(Keeper::reset).ok_or_else(query::off)?;
            return Ok(Value::Status(c"OK"));
        }
        2 if is("LEN") => None,
        2 if is("GET") => Some(DEFAULT_COUNT),
        3 if is("GET") => match word(2).and_then(whole_number) {
            Some(-1) => Some(u64::MAX),
            Some(count @ 0..) => Some(count as u64),
            Some(_) | None => return ask_redis(ctx, &args[1..]),
        },
        _ => return ask_redis(ctx, &args[1..]),
    };
    sensor::harvest(ctx);
    let inside = with_keeper(|keeper| {
        keeper.inside().map(|log| match count {
            None => Value::Integer(log.len() as i64),
            Some(count) => {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                Value::Array(log.newest(count).cloned().map(answer::entry_reply).collect())
            }
        })
    });
    match (inside.flatten(), count) {
        (Some(answer), _) => Ok(answer),
        (None, None) => query::wait_for(ctx, Box::new(Len)),
        (None, Some(count)) => query::wait_for(ctx, Box::new(Get::new(count))),
    }
}

/// Passes on what Redis' own `SLOWLOG` says of these words, letter for letter: help, and the errors
/// of what is wrong.
fn ask_redis(ctx: &Context, words: &[Argument]) -> Answer {
    if ctx.pass_on(c"SLOWLOG", words) {
        Ok(Value::Nothing)
    } else {
        Err("ORBIT Redis' own SLOWLOG did not answer".into())
    }
}

/// A number as Redis takes it: no sign but a minus, no zero in front.
fn whole_number(word: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(word).ok()?;
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

/// `LEN`.
struct Len;

impl Question for Len {
    fn ask(&mut self, keeper: &mut Keeper) -> orbit::Result<Future> {
        keeper.ask(task::note, [0; 2], None)
    }

    fn answer(&mut self, outcome: &Outcome, client: &Context) -> Next {
        let Some(len) = outcome.returned() else { return Next::Again };
        client.reply(Ok(Value::Integer(len)));
        Next::Answered
    }
}

/// `ORBIT.FAULT segv|abort|hang|oom|leak|recursion|kill`: has the orbit do harm, and says how the
/// call ended.
pub fn fault(ctx: &Context, args: &[Argument]) -> Answer {
    if args.len() != 2 {
        return Err(Error::WrongArity);
    }
    // With as many words as it takes: Redis 8 allows no command that has too few.
    acl::may(ctx, &[&[b"DEBUG", b"SEGFAULT"], ELSE])?;
    if with_keeper(|keeper| keeper.options.faults) != Some(true) {
        return Err("ERR faults are not allowed here: load the module with the arguments faults yes".into());
    }
    match Fault::named(args[1].bytes()) {
        Some(fault) => query::wait_for(ctx, Box::new(fault)),
        None => Err("ERR there is no such fault: there are segv, abort, hang, oom, leak, recursion, kill".into()),
    }
}

impl Question for Fault {
    fn ask(&mut self, keeper: &mut Keeper) -> orbit::Result<Future> {
        // Only the hang is there to be ended by the deadline; the others end by themselves, however
        // slow the machine.
        let deadline = if *self == Fault::Hang { None } else { Some(FAULT_DEADLINE) };
        keeper.ask(task::harm, [*self as u64, 0], deadline)
    }

    fn answer(&mut self, outcome: &Outcome, client: &Context) -> Next {
        client.reply(Ok(Value::Bytes(
            match (self, outcome) {
                (Fault::Leak, Outcome::Returned(_)) => format!(
                    "leaking: from now on the task loses {} KiB with every call, until its memory limit ends it; \
                 orbit_last_failure of ORBIT.INFO then says so",
                    task::LEAK >> 10
                ),
                _ => outcome.to_string(),
            }
            .into_bytes(),
        )));
        Next::Answered
    }
}

/// `ORBIT.INFO`: what happened so far, one `name:value` a line, as `INFO` does.
pub fn info(ctx: &Context, args: &[Argument]) -> Answer {
    if args.len() != 1 {
        return Err(Error::WrongArity);
    }
    acl::may(ctx, &[&[b"INFO"], ELSE])?;
    sensor::harvest(ctx);
    let text = with_keeper(|keeper| {
        keeper.hand_over();
        describe(keeper)
    });
    Ok(Value::Bytes(text.unwrap_or_else(|| "mode:off\r\n".to_owned()).into_bytes()))
}

fn describe(keeper: &Keeper) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{name}:{value}\r\n");
    };
    let counts = &keeper.counts;
    line("mode", &format!("{:?}", keeper.options.mode).to_ascii_lowercase());
    line("threshold_usec", &sensor::threshold());
    line("every", &keeper.options.every);
    line("max_len", &keeper.options.max_len);
    line("entries_seen", &keeper.seen());
    line("entries_missed", &counts.missed);
    line("entries_lost", &counts.lost);
    line("handovers", &counts.handovers);
    line("handovers_failed", &counts.failed);
    line("handover_usec_total", &(counts.handover_ns / 1000));
    line("handover_usec_max", &(counts.handover_max_ns / 1000));
    if let Some((stats, last_failure, engine)) = keeper.orbit() {
        line("orbit_state", &if stats.pid == 0 { "down" } else { "up" });
        line("orbit_pid", &stats.pid);
        line("orbit_engine", &engine);
        line("orbit_calls", &stats.calls);
        line("orbit_calls_failed", &stats.failed);
        line("orbit_crashes", &stats.crashes);
        line("orbit_restarts", &stats.restarts);
        line("orbit_pages", &stats.pages);
        line("orbit_last_failure", &last_failure.and_then(|text| text.lines().next()).unwrap_or("none"));
    }
    text
}
