//! Clients that wait for the orbit's answer, while Redis continues.
//!
//! The client is blocked in Redis' sense, and a thread of its own waits for the call: it takes
//! updates while they come and writes the reply, which needs Redis' lock neither. So Redis' main
//! thread makes the call and lets go of the client, however long the answer is. The call has a
//! deadline, so the thread ends whatever the orbit does; a query whose orbit came to an end is
//! asked again of the next process, a few times; one that a crash of another call cancelled, for
//! ten seconds. There are no more threads than calls in the orbit's queue, and none is left once
//! [`close`] has returned.

use std::sync::{Mutex, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use orbit::{Future, Outcome, Update};
use orbit_redis_api::{Answer, Context, Error, Value, Waiting};

use crate::keeper::Keeper;
use crate::with_keeper;

/// Times that a query runs in an orbit that does not finish it.
const TRIES: u32 = 4;
/// How long a query is asked again that was cancelled before it ran. Another call's crash cancels
/// it, so it does not count as a try.
const CANCELLED_FOR: Duration = Duration::from_secs(10);
/// Bytes of a thread's stack.
const STACK: usize = 512 << 10;

/// What is asked of the orbit.
pub trait Question: Send {
    /// Makes the next call.
    fn ask(&mut self, keeper: &mut Keeper) -> orbit::Result<Future>;
    /// Takes what the call has brought.
    fn take(&mut self, _: Update) {}
    /// The call has ended so. The reply is written once it is whole.
    fn answer(&mut self, outcome: &Outcome, client: &Context) -> Next;
}

/// What comes after a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: the reply is written.
    Answered,
    /// A call for more.
    More,
    /// This end is no answer: the question is asked again from its start.
    Again,
}

/// Threads that may still run.
static THREADS: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// Asks on behalf of the client of this command. The reply comes later.
pub fn wait_for(ctx: &Context, mut question: Box<dyn Question>) -> Answer {
    let future = ask(&mut *question)?;
    // No time limit: the call has a deadline.
    let client = ctx.block().ok_or("ORBIT Redis would not let the client wait")?;
    let mut threads = THREADS.lock().unwrap_or_else(|e| e.into_inner());
    threads.retain(|thread| !thread.is_finished());
    // Where no thread can be made the client is still here, for an error.
    let (give, given) = mpsc::channel::<Waiting>();
    let run = move || {
        if let Ok(client) = given.recv() {
            client.finish(|ctx| wait(&mut *question, future, ctx));
        }
    };
    match Builder::new().name("slowlog-answer".to_owned()).stack_size(STACK).spawn(run) {
        Ok(thread) => {
            threads.push(thread);
            // It fails only where the thread has ended, which it does after it has the client.
            let _ = give.send(client);
        }
        Err(e) => client.finish(|ctx| ctx.reply(Err(format!("ORBIT no thread to wait for the orbit: {e}").into()))),
    }
    Ok(Value::Nothing)
}

/// Waits for the threads. The orbit must be gone: then they end by themselves.
pub fn close() {
    let threads = std::mem::take(&mut *THREADS.lock().unwrap_or_else(|e| e.into_inner()));
    for thread in threads {
        // One that panicked has ended too.
        let _ = thread.join();
    }
}

/// The error of commands where the module is off.
pub fn off() -> Error {
    "ORBIT the module was loaded with mode off: it keeps no slow log".into()
}

fn ask(question: &mut dyn Question) -> Result<Future, Error> {
    match with_keeper(|keeper| question.ask(keeper)) {
        Some(Ok(future)) => Ok(future),
        Some(Err(e)) => Err(format!("ORBIT {e}").into()),
        None => Err(off()),
    }
}

/// Waits for calls until there is an answer, and writes it.
fn wait(question: &mut dyn Question, future: Future, client: &Context) {
    if let Err(e) = calls(question, future, client) {
        client.reply(Err(e));
    }
}

fn calls(question: &mut dyn Question, mut future: Future, client: &Context) -> Result<(), Error> {
    let mut tries = 1;
    let began = Instant::now();
    loop {
        let outcome = end(question, &future).map_err(|e| format!("ORBIT {e}"))?;
        with_keeper(|keeper| keeper.note_outcome(&outcome));
        match question.answer(&outcome, client) {
            Next::Answered => return Ok(()),
            Next::More => {}
            Next::Again if outcome == Outcome::Cancelled && began.elapsed() < CANCELLED_FOR => {}
            Next::Again if tries == TRIES => {
                return Err(format!("ORBIT the slow log's orbit did not answer: {outcome}").into());
            }
            Next::Again => tries += 1,
        }
        future = ask(question)?;
    }
}

/// How the call ends; what it brings is given to the question as it comes.
fn end(question: &mut dyn Question, future: &Future) -> orbit::Result<Outcome> {
    while let Some(update) = future.pull()? {
        question.take(update);
    }
    future.wait()
}
