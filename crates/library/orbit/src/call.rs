//! One call as main sees it: what it asks for, how it ended, the updates it brought, and the
//! [`Future`] that stands for it.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use orbit_linux::eventfd;

use crate::blackbox::Crash;
use crate::error::{Error, Kind, Result};
use crate::kept::MOST_BYTES as MAX_KEPT_BYTES;
use crate::own::Own;
use crate::side::Entry;
use crate::update::Update;

/// Bytes of updates of one orbit, encoded, that wait in main's memory for the futures of calls
/// which have not ended. Above, the task that pushes waits until some were pulled.
pub const MOST_WAITING_BYTES: usize = 256 << 20;

/// How a call ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The function returned this.
    Returned(i64),
    /// The orbit crashed while the call ran: by which signal, where, and on what path.
    Crashed(Box<Crash>),
    /// The orbit ended itself by `exit` or `_exit` with this status; see [`Entry`] on which to use.
    Exited(i32),
    /// The orbit was killed by this signal from outside.
    Killed(i32),
    /// The orbit ran out of the memory it may use.
    OutOfMemory,
    /// The task slept on a lock in an area that was held when the snapshot was made, which nobody
    /// in the orbit can release (see
    /// [`OrbitBuilder::stuck_after`](crate::OrbitBuilder::stuck_after)); its orbit was ended.
    /// `address` is the lock's, `message` names its area, and the call stack shows where it was
    /// taken.
    Stuck(Box<Crash>),
    /// The call was not done at its deadline. If it was running, its orbit was ended: the call
    /// stack shows where the task was, and is empty if the orbit left none within a second. None:
    /// the call had not begun.
    TimedOut(Option<Box<Crash>>),
    /// The call never ran: it was cancelled, replaced, or its orbit was destroyed or went down
    /// before its turn, or the one-shot process that held its large snapshot died.
    Cancelled,
}

impl Outcome {
    /// What the function returned, if it did.
    pub fn returned(&self) -> Option<i64> {
        match self {
            Outcome::Returned(value) => Some(*value),
            _ => None,
        }
    }

    /// What the function returned, or an error of kind [`Kind::Failed`], [`Kind::TimedOut`] or
    /// [`Kind::Cancelled`] that says how the call of the orbit with this name ended.
    ///
    /// # Errors
    /// Whenever the function did not return.
    pub fn into_value(self, orbit: &str) -> Result<i64> {
        let kind = match self {
            Outcome::Returned(value) => return Ok(value),
            Outcome::TimedOut(_) => Kind::TimedOut,
            Outcome::Cancelled => Kind::Cancelled,
            _ => Kind::Failed,
        };
        Err(Error::new(kind, format!("orbit \"{orbit}\" {self}")))
    }

    /// Where the task was when its orbit ended, where that is known: with the call stack.
    pub fn crash(&self) -> Option<&Crash> {
        match self {
            Outcome::Crashed(crash) | Outcome::Stuck(crash) | Outcome::TimedOut(Some(crash)) => Some(crash),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn crash_mut(&mut self) -> Option<&mut Crash> {
        match self {
            Outcome::Crashed(crash) | Outcome::Stuck(crash) | Outcome::TimedOut(Some(crash)) => Some(crash),
            _ => None,
        }
    }

    /// The outcome with the names of functions that have come so far: showing it waits for no
    /// others. See [`Crash::backtrace`].
    #[must_use]
    pub fn without_waiting(self) -> Outcome {
        self.named_within(Duration::ZERO)
    }

    /// The outcome with the names of functions that come within this time, for which it waits.
    #[must_use]
    pub fn named_within(mut self, time: Duration) -> Outcome {
        if let Some(crash) = self.crash_mut() {
            crash.wait_for_names(time);
        }
        self
    }

    /// Whether the orbit came to an end in this call.
    pub fn is_failure(&self) -> bool {
        !matches!(self, Outcome::Returned(_) | Outcome::Cancelled)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Returned(value) => write!(f, "returned {value}"),
            Outcome::Crashed(crash) => write!(f, "crashed: {crash}"),
            Outcome::Exited(status) => write!(f, "ended itself with exit status {status}"),
            Outcome::Killed(signal) => write_killed(f, *signal),
            Outcome::OutOfMemory => f.write_str("out of memory"),
            Outcome::Stuck(crash) => {
                write!(f, "stuck: {}", crash.message.as_deref().unwrap_or_default())?;
                crash.write_stack(f)
            }
            Outcome::TimedOut(None) => f.write_str("not done at its deadline, before it had begun"),
            Outcome::TimedOut(Some(crash)) => {
                f.write_str("not done at its deadline")?;
                crash.write_place(f)?;
                crash.write_stack(f)
            }
            Outcome::Cancelled => f.write_str("cancelled before it ran"),
        }
    }
}

/// Writes which signal killed an orbit, and what may have sent it: main cannot know which of these
/// did.
fn write_killed(f: &mut fmt::Formatter<'_>, signal: i32) -> fmt::Result {
    write!(f, "killed by signal {signal}")?;
    let why = match signal {
        libc::SIGKILL => {
            "sent by the kernel for want of memory (its log has a line then), by another process, or by this program's \
             own request to kill the orbit"
        }
        libc::SIGXCPU => "a limit of CPU time, RLIMIT_CPU, was reached",
        libc::SIGXFSZ => "the task wrote to a file beyond the limit RLIMIT_FSIZE",
        libc::SIGPIPE => "the task wrote to a pipe or socket that nothing reads",
        libc::SIGALRM | libc::SIGVTALRM | libc::SIGPROF => "a timer expired that the task has set",
        _ => "sent by another process, or by the task to itself",
    };
    let name = crate::blackbox::signal_name(signal);
    if name.starts_with("SIG") { write!(f, " ({name}): {why}") } else { write!(f, ": {why}") }
}

/// What to do when the same orbit has calls waiting already (the running call counts as waiting).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coalesce {
    /// Queue the call whatever waits.
    #[default]
    Never,
    /// If any call waits, take no snapshot and queue nothing: the future is that call's.
    SkipIfAny,
    /// The same if a call of the same function with the same arguments waits.
    SkipIfSame,
    /// Queue this one in the place of the calls of the same function that have not begun: they are
    /// cancelled once it is queued, and not if it fails. Those at the end of the queue leave their
    /// room to it, so that a call may be replaced any number of times while another runs. The
    /// others keep theirs until the orbit comes to them: those with a call of another function
    /// behind them, and those whose large snapshot a copier holds, with all before them.
    Replace,
}

/// How a call is to be made. The default: the orbit's entry function, no deadline but the orbit's
/// own, no coalescing.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    pub(crate) function: Option<Entry>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) coalesce: Coalesce,
    pub(crate) quiet: bool,
}

impl CallOptions {
    /// The default.
    pub fn new() -> CallOptions {
        CallOptions::default()
    }

    /// Runs this function in place of the orbit's entry, for this call.
    pub fn function(mut self, function: Entry) -> CallOptions {
        self.function = Some(function);
        self
    }

    pub(crate) fn has_function(&self) -> bool {
        self.function.is_some()
    }

    /// Whether nothing was asked for.
    pub(crate) fn is_plain(&self) -> bool {
        self.function.is_none() && self.deadline.is_none() && self.coalesce == Coalesce::Never && !self.quiet
    }

    /// Ends the call (and the orbit, if it runs it) when it is not done this long after it was
    /// made.
    pub fn deadline(mut self, deadline: Duration) -> CallOptions {
        self.deadline = Some(deadline);
        self
    }

    /// Says that nothing writes to the call's areas of [`Engine::Share`](crate::Engine::Share)
    /// until the call is made: what main wrote during earlier calls is merged, if none of them is
    /// in flight. Other areas need no such word.
    ///
    /// # Safety
    /// It is so: no other thread, no signal handler of another thread's, no other process and no
    /// device writes there. What one writes all the same is lost.
    pub unsafe fn quiet(mut self) -> CallOptions {
        self.quiet = true;
        self
    }

    /// What to do when calls wait already.
    pub fn coalesce(mut self, coalesce: Coalesce) -> CallOptions {
        self.coalesce = coalesce;
        self
    }
}

/// A call's state in main, shared by its futures and its orbit's queue.
pub(crate) struct Call {
    /// Its place in the queue. That of a call taken back is given to another.
    pub number: u32,
    /// Function given for this call, 0 for the entry.
    pub function: usize,
    /// When it was made, nanoseconds of CLOCK_MONOTONIC.
    pub submitted_ns: u64,
    pub deadline: Option<Instant>,
    /// Set once the outcome is there.
    done: AtomicBool,
    /// Bytes of the updates that wait. Written under `state`.
    waiting: AtomicUsize,
    futures: AtomicUsize,
    state: Mutex<State>,
}

/// A waker, and the mark of the future that was polled with it.
pub(crate) type Marked = (Weak<()>, Waker);

/// Wakers to be woken once the orbit's lock is free: what a waker does is the program's affair, and
/// it may well ask the library something. They are woken, each once, when this is dropped. One that
/// panics keeps nothing else from being woken; the panic has been reported by its hook.
#[derive(Default)]
pub(crate) struct Wakers(Vec<Marked>);

impl Wakers {
    pub fn append(&mut self, more: &mut Wakers) {
        if !more.0.is_empty() {
            self.0.append(&mut more.0);
        }
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        for (mark, waker) in self.0.drain(..) {
            // Dropping a waker runs the program's code too.
            let _ = catch_unwind(AssertUnwindSafe(|| if mark.strong_count() > 0 { waker.wake() } else { drop(waker) }));
        }
    }
}

/// What is to be notified of a call's end, when this is dropped: a descriptor, then wakers.
#[derive(Default)]
pub(crate) struct Notice {
    event: Option<Arc<Own>>,
    wakers: Wakers,
}

impl Drop for Notice {
    fn drop(&mut self) {
        if let Some(event) = &self.event {
            let _ = event.fd().map(eventfd::signal);
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub outcome: Option<Outcome>,
    /// With the bytes of each.
    updates: VecDeque<(Update, usize)>,
    /// The last future is gone: nobody can pull updates.
    left: bool,
    /// One a [`Future`] that was polled as a Rust future, with the future's mark: the last one it
    /// was polled with. Those of futures that were dropped go at the next poll.
    wakers: Vec<Marked>,
    pub event: Option<Arc<Own>>,
    /// Whether this call is counted in the orbit's `notify` word.
    pub watched: bool,
}

impl State {
    /// As new. What a call usually has is seen with one read of each line.
    #[inline(always)]
    fn renew(&mut self) {
        let usual = matches!(self.outcome, Some(Outcome::Returned(_)))
            && self.updates.capacity() == 0
            && self.wakers.capacity() == 0
            && self.event.is_none()
            && !self.watched;
        if !usual {
            return self.clear();
        }
        self.left = false;
        // SAFETY: what it holds, a number, needs no drop.
        unsafe { (&raw mut self.outcome).write(None) };
    }

    #[cold]
    #[inline(never)]
    fn clear(&mut self) {
        *self = State::default();
    }

    /// Has the future of this mark wake this waker. Returns those that are not needed any more, to
    /// be dropped without the lock: what that does is the program's affair.
    pub fn wakes(&mut self, mark: &Arc<()>, waker: Waker) -> Vec<Marked> {
        let stays = |known: &Weak<()>| known.as_ptr() != Arc::as_ptr(mark) && known.strong_count() > 0;
        let (kept, old) = std::mem::take(&mut self.wakers).into_iter().partition(|(known, _)| stays(known));
        self.wakers = kept;
        self.wakers.push((Arc::downgrade(mark), waker));
        old
    }
}

impl Call {
    pub fn new(number: u32, function: usize, submitted_ns: u64, deadline: Option<Instant>) -> Call {
        Call {
            number,
            function,
            submitted_ns,
            deadline,
            done: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            futures: AtomicUsize::new(0),
            state: Mutex::new(State::default()),
        }
    }

    /// A new call as [`Call::renew`] makes it.
    #[cold]
    #[inline(never)]
    pub fn usual(number: u32, submitted_ns: u64) -> Arc<Call> {
        let call = Call::new(number, 0, submitted_ns, None);
        call.futures.store(1, Ordering::Relaxed);
        Arc::new(call)
    }

    /// Makes a call that returned, and that nobody else has any more, a new one of the entry
    /// function without a deadline, which has one future.
    #[inline(always)]
    pub fn renew(&mut self, number: u32, submitted_ns: u64) {
        (self.number, self.function, self.submitted_ns, self.deadline) = (number, 0, submitted_ns, None);
        *self.done.get_mut() = false;
        *self.waiting.get_mut() = 0;
        *self.futures.get_mut() = 1;
        self.state.get_mut().unwrap_or_else(|e| e.into_inner()).renew();
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Gives the call its outcome, once, and notifies its waiters: descriptors now, `wakers`
    /// later. Returns whether the call was being watched.
    pub fn finish(&self, outcome: Outcome, wakers: &mut Wakers) -> bool {
        let mut notice = Notice::default();
        let was_watched = self.finish_unnoticed(outcome, &mut notice);
        wakers.append(&mut notice.wakers);
        was_watched
    }

    /// The same, with the notices left to the caller: they are given when `notice` is dropped.
    pub fn finish_unnoticed(&self, outcome: Outcome, notice: &mut Notice) -> bool {
        let mut state = self.lock();
        if state.outcome.is_some() {
            return false;
        }
        state.outcome = Some(outcome);
        self.done.store(true, Ordering::Release);
        notice.wakers.0.append(&mut state.wakers);
        notice.event = state.event.clone();
        std::mem::take(&mut state.watched)
    }

    /// An update arrived for this call. It is let go of if nobody can pull it.
    pub fn add_update(&self, update: Update, wakers: &mut Wakers) {
        let bytes = update.encoded_bytes();
        let mut state = self.lock();
        if !state.left {
            state.updates.push_back((update, bytes));
            self.waiting.fetch_add(bytes, Ordering::Relaxed);
        }
        wakers.0.append(&mut state.wakers);
    }

    /// Bytes of the updates that wait to be pulled.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// One more future of this call.
    pub fn join(&self) {
        if self.futures.fetch_add(1, Ordering::AcqRel) == 0 {
            self.lock().left = false;
        }
    }

    /// One future less. If it was the last one, it has the updates that wait.
    pub fn leave(&self) -> VecDeque<(Update, usize)> {
        if self.futures.fetch_sub(1, Ordering::AcqRel) != 1 {
            return VecDeque::new();
        }
        let mut state = self.lock();
        // Another may have joined since.
        state.left = self.futures.load(Ordering::Acquire) == 0;
        if !state.left {
            return VecDeque::new();
        }
        // Of the futures; the call itself may stay, to be used again.
        state.event = None;
        self.take_all(&mut state)
    }

    /// The updates that wait, if there is one future alone and they are more than a synchronous
    /// call may leave.
    pub fn take_too_many(&self) -> VecDeque<(Update, usize)> {
        if self.waiting_bytes() <= MAX_KEPT_BYTES {
            return VecDeque::new();
        }
        let mut state = self.lock();
        if self.futures.load(Ordering::Acquire) == 1 { self.take_all(&mut state) } else { VecDeque::new() }
    }

    fn take_all(&self, state: &mut State) -> VecDeque<(Update, usize)> {
        self.waiting.store(0, Ordering::Relaxed);
        std::mem::take(&mut state.updates)
    }

    pub fn outcome(&self) -> Option<Outcome> {
        if self.is_done() { self.lock().outcome.clone() } else { None }
    }

    pub fn take_update(&self) -> Option<Update> {
        let mut state = self.lock();
        let (update, bytes) = state.updates.pop_front()?;
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        Some(update)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_call_is_as_new() {
        let mut call = Call::usual(7, 1);
        let mut wakers = Wakers::default();
        let plain = Arc::get_mut(&mut call).expect("the only one");
        plain.finish(Outcome::Returned(3), &mut wakers);
        assert_eq!(plain.outcome(), Some(Outcome::Returned(3)));
        plain.renew(8, 2);
        assert_eq!((plain.number, plain.submitted_ns, plain.outcome()), (8, 2, None));
        let mut update = Update::new();
        update.data(b"left over");
        plain.add_update(update, &mut wakers);
        plain.lock().watched = true;
        plain.finish(Outcome::Returned(4), &mut wakers);
        plain.lock().watched = true;
        plain.renew(9, 3);
        assert!(plain.take_update().is_none() && plain.waiting_bytes() == 0 && !plain.is_done());
        assert!(!plain.finish(Outcome::Returned(5), &mut wakers), "nobody watches the new call");
        assert_eq!(plain.outcome(), Some(Outcome::Returned(5)));
    }

    #[test]
    fn a_kill_names_its_signal_and_what_may_have_sent_it() {
        let text = |signal| Outcome::Killed(signal).to_string();
        assert!(text(libc::SIGKILL).starts_with("killed by signal 9 (SIGKILL): sent by the kernel for want of memory"));
        assert!(text(libc::SIGTERM).starts_with("killed by signal 15 (SIGTERM): sent by another process"));
        assert!(text(libc::SIGXCPU).contains("RLIMIT_CPU") && text(libc::SIGXFSZ).contains("RLIMIT_FSIZE"));
        assert!(text(40).starts_with("killed by signal 40: "), "{}", text(40));
    }
}
