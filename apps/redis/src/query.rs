//! Clients that wait for the orbit's answer, while Redis goes on.
//!
//! The client is blocked in Redis' sense, and the descriptor of the call's future is watched by Redis' event loop. The
//! call has a deadline, so it ends whatever the orbit does; a query whose orbit came to an end is asked again of the next
//! process, a few times.

use std::os::fd::AsRawFd;
use std::os::raw::{c_int, c_void};

use orbit::{Future, Outcome};
use redis_module::raw::{self, RedisModuleBlockedClient, RedisModuleCtx, RedisModuleString};
use redis_module::{Context, RedisError, RedisResult, RedisValue};

use crate::keeper::Keeper;
use crate::with_keeper;

/// Times that a query is asked.
const TRIES: u32 = 4;

/// What is asked of the orbit.
pub trait Question {
    /// Makes the call.
    fn ask(&self, keeper: &mut Keeper) -> orbit::Result<Future>;
    /// The answer for the client; `None`: this end is no answer, ask again.
    fn answer(&self, outcome: &Outcome, future: &Future) -> Option<RedisResult>;
}

struct Query {
    question: Box<dyn Question>,
    client: *mut RedisModuleBlockedClient,
    future: Future,
    tries: u32,
}

/// Asks on behalf of the client of this command. The reply comes later.
pub fn wait_for(ctx: &Context, question: Box<dyn Question>) -> RedisResult {
    let future = ask(&*question)?;
    // SAFETY: the callbacks have the types that the function takes. No time limit: the call has a deadline.
    let client =
        unsafe { raw::RedisModule_BlockClient.map(|block| block(ctx.ctx, Some(reply), None, Some(free_answer), 0)) };
    let Some(client) = client.filter(|c| !c.is_null()) else {
        return Err(RedisError::Str("ORBIT Redis would not let the client wait"));
    };
    watch(Box::new(Query { question, client, future, tries: 1 }));
    Ok(RedisValue::NoReply)
}

/// The error of commands where the module is off.
pub fn off() -> RedisError {
    RedisError::Str("ORBIT the module was loaded with mode off: it keeps no slow log")
}

fn ask(question: &dyn Question) -> Result<Future, RedisError> {
    match with_keeper(|keeper| question.ask(keeper)) {
        Some(Ok(future)) => Ok(future),
        Some(Err(e)) => Err(RedisError::String(format!("ORBIT {e}"))),
        None => Err(off()),
    }
}

/// Has the event loop tell when the call has ended.
fn watch(query: Box<Query>) {
    let fd = match query.future.fd() {
        Ok(fd) => fd.as_raw_fd(),
        Err(e) => return finish(&query, Err(RedisError::String(format!("ORBIT {e}")))),
    };
    let query = Box::into_raw(query);
    // SAFETY: the descriptor lives as long as the future in the query, which `done` frees after it has let go of it.
    let added = unsafe {
        raw::RedisModule_EventLoopAdd
            .map(|add| add(fd, raw::REDISMODULE_EVENTLOOP_READABLE as c_int, Some(done), query.cast()))
    };
    if added != Some(raw::Status::Ok as c_int) {
        // SAFETY: made above from a box, and the event loop did not take it.
        let query = unsafe { Box::from_raw(query) };
        finish(&query, Err(RedisError::Str("ORBIT Redis' event loop takes no more descriptors")));
    }
}

/// The descriptor of a query's future is readable.
unsafe extern "C" fn done(fd: c_int, query: *mut c_void, _: c_int) {
    // SAFETY: the pointer was given to the event loop by `watch` and belongs to it until it is let go of below.
    let Some(outcome) = (unsafe { (*query.cast::<Query>()).future.poll() }) else { return };
    // SAFETY: from here on the event loop knows the query no more, so it is this function's alone.
    let mut query = unsafe {
        if let Some(del) = raw::RedisModule_EventLoopDel {
            del(fd, raw::REDISMODULE_EVENTLOOP_READABLE as c_int);
        }
        Box::from_raw(query.cast::<Query>())
    };
    with_keeper(|keeper| keeper.note_outcome(&outcome));
    if let Some(answer) = query.question.answer(&outcome, &query.future) {
        return finish(&query, answer);
    }
    if query.tries >= TRIES {
        let text = format!("ORBIT the slow log's orbit did not answer: {outcome}");
        return finish(&query, Err(RedisError::String(text)));
    }
    query.tries += 1;
    match ask(&*query.question) {
        Ok(future) => {
            query.future = future;
            watch(query);
        }
        Err(e) => finish(&query, Err(e)),
    }
}

/// Lets go of the client, once.
fn finish(query: &Query, answer: RedisResult) {
    let answer: *mut RedisResult = Box::into_raw(Box::new(answer));
    // SAFETY: the client was blocked by `wait_for` and is let go of once; the answer is freed by `free_answer`.
    unsafe {
        if let Some(unblock) = raw::RedisModule_UnblockClient {
            unblock(query.client, answer.cast());
        }
    }
}

unsafe extern "C" fn reply(ctx: *mut RedisModuleCtx, _: *mut *mut RedisModuleString, _: c_int) -> c_int {
    // SAFETY: this is the reply callback of a client whose private data `finish` set; it is freed after this.
    let answer =
        unsafe { raw::RedisModule_GetBlockedClientPrivateData.and_then(|get| get(ctx).cast::<RedisResult>().as_mut()) };
    let answer = answer.map_or(Ok(RedisValue::Null), |a| std::mem::replace(a, Ok(RedisValue::Null)));
    Context::new(ctx).reply(answer) as c_int
}

unsafe extern "C" fn free_answer(_: *mut RedisModuleCtx, answer: *mut c_void) {
    if !answer.is_null() {
        // SAFETY: made by `finish` from a box, and freed by Redis' one call of this function.
        drop(unsafe { Box::from_raw(answer.cast::<RedisResult>()) });
    }
}
