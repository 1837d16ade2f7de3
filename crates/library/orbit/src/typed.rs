//! Tasks as Rust functions: typed arguments in, a typed value out, a store between calls.
//!
//! ```
//! use orbit::{Area, Shown, Task};
//!
//! # fn main() -> orbit::Result<()> {
//! // Runs in a process of its own: it may crash, hang or leak, and main will not.
//! let checker = Task::new("checker", |calls: &mut u32, numbers: &Shown<Vec3>| {
//!     *calls += 1;
//!     (numbers.get().0.iter().sum::<i64>(), *calls)
//! })?;
//! # struct Vec3([i64; 3]);
//! let area = Area::new(1 << 16)?;
//! let numbers = area.place(Vec3([1, 2, 39]))?;
//! // SAFETY: the object lives in the area that the call names, and nobody changes it meanwhile.
//! let (sum, calls) = checker.call(&[&area], &unsafe { Shown::new(numbers) })?;
//! assert_eq!((sum, calls), (42, 1));
//! # Ok(()) }
//! ```
//!
//! Arguments are copied into the orbit, whole. A reference or a pointer into main's heap means
//! nothing there, so it is no argument, and does not compile:
//!
//! ```compile_fail
//! let task = orbit::Task::new("length", |_: &mut (), text: &&'static String| text.len());
//! ```
//!
//! The function has no captures: what it needs comes as arguments, in areas, or from its store. A
//! panic in it is a crash of the orbit like any other.

use std::collections::VecDeque;
use std::ffi::{c_long, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::area::Area;
use crate::call::{CallOptions, Outcome};
use crate::error::{Error, Kind, Result};
use crate::future::Future;
use crate::orbit::{Orbit, OrbitBuilder};
use crate::update::Update;
use crate::value::{Answer, Value};

/// An orbit whose task is a Rust function of arguments `A` that returns an `R`. Thread-safe; cheap
/// to clone.
pub struct Task<A, R> {
    orbit: Orbit,
    types: PhantomData<fn(&A) -> R>,
}

impl<A, R> Clone for Task<A, R> {
    fn clone(&self) -> Task<A, R> {
        Task { orbit: self.orbit.clone(), types: PhantomData }
    }
}

impl<A, R> fmt::Debug for Task<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.orbit.fmt(f)
    }
}

/// The one value of a function's type that has no captures.
fn function<F: 'static>() -> &'static F {
    const { assert!(size_of::<F>() == 0, "a task's function captures nothing: give it arguments, areas or a store") }
    // SAFETY: a type without size has its values anywhere that is aligned; one was given to `Task`
    // and forgotten there.
    unsafe { NonNull::<F>::dangling().as_ref() }
}

unsafe extern "C" fn begin<S: 'static, I: Fn() -> S + 'static>() -> *mut c_void {
    Box::into_raw(Box::new(function::<I>()())).cast()
}

unsafe extern "C" fn run<S, A, R, F>(store: *mut c_void, args: *mut c_void) -> c_long
where
    S: 'static,
    A: Value,
    R: Answer,
    F: Fn(&mut S, &A) -> R + 'static,
{
    // SAFETY: `begin` has made the store, which only this function uses, one call at a time.
    let store = unsafe { &mut *store.cast::<S>() };
    let len = A::BYTES.unwrap_or_else(|| {
        // SAFETY: `begin_call` puts the length first where the type has none.
        unsafe { args.cast::<usize>().read_unaligned() }
    });
    let skipped = if A::BYTES.is_some() { 0 } else { size_of::<usize>() };
    let mut bytes = match len {
        0 => &[][..],
        // SAFETY: so many bytes were written by `begin_call`, and stay as they are during the call.
        _ => unsafe { std::slice::from_raw_parts(args.cast::<u8>().add(skipped), len) },
    };
    // SAFETY: main wrote them by `write` of the same type.
    let args = unsafe { A::read(&mut bytes) }.expect("the arguments as main wrote them");
    let value = function::<F>()(store, &args);
    let mut bytes = Vec::new();
    value.write(&mut bytes);
    if is_word::<R>() {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(&bytes);
        return c_long::from_ne_bytes(word);
    }
    let mut update = Update::new();
    update.data(&bytes);
    crate::push(&update).expect("a value of at most the bytes that an update takes (MAX_BYTES)");
    0
}

/// Whether values fit into what a function returns.
const fn is_word<R: Value>() -> bool {
    matches!(R::BYTES, Some(0..=8))
}

impl OrbitBuilder {
    /// Makes the orbit with a Rust function for its entry, which keeps a store between calls: made
    /// by `S::default()` when the orbit starts, and after each restart.
    ///
    /// # Errors
    /// As [`OrbitBuilder::build`].
    pub fn task<S, A, R, F>(self, entry: F) -> Result<Task<A, R>>
    where
        S: Default + 'static,
        A: Value,
        R: Answer,
        F: Fn(&mut S, &A) -> R + 'static,
    {
        self.task_with(S::default, entry)
    }

    /// The same with a function that makes the store.
    ///
    /// # Errors
    /// As [`OrbitBuilder::build`].
    pub fn task_with<S, A, R, I, F>(self, init: I, entry: F) -> Result<Task<A, R>>
    where
        S: 'static,
        A: Value,
        R: Answer,
        I: Fn() -> S + 'static,
        F: Fn(&mut S, &A) -> R + 'static,
    {
        // They live for ever, in no memory: see `function`.
        std::mem::forget((init, entry));
        let orbit = self.init(begin::<S, I>).entry(run::<S, A, R, F>).build()?;
        Ok(Task { orbit, types: PhantomData })
    }
}

impl<A: Value, R: Answer> Task<A, R> {
    /// An orbit with default options; see [`OrbitBuilder::task`].
    ///
    /// # Errors
    /// As [`OrbitBuilder::build`].
    pub fn new<S, F>(name: &str, entry: F) -> Result<Task<A, R>>
    where
        S: Default + 'static,
        F: Fn(&mut S, &A) -> R + 'static,
    {
        Orbit::builder(name).task(entry)
    }

    /// The orbit, for all that has no types: [`Orbit::stats`], [`Orbit::detach`],
    /// [`Orbit::destroy`].
    pub fn orbit(&self) -> &Orbit {
        &self.orbit
    }

    /// Takes a snapshot of the areas, runs the function on it, and waits for its value.
    ///
    /// # Errors
    /// Those of [`Orbit::call`]; [`Kind::Failed`], [`Kind::TimedOut`] or [`Kind::Cancelled`] if the
    /// function did not return.
    pub fn call(&self, areas: &[&Area], args: &A) -> Result<R> {
        self.call_async(areas, args)?.wait()
    }

    /// The same without waiting: returns when the snapshot is taken.
    ///
    /// # Errors
    /// Those of [`Orbit::call_async`].
    pub fn call_async(&self, areas: &[&Area], args: &A) -> Result<TaskFuture<R>> {
        self.call_async_with(areas, args, &CallOptions::default())
    }

    /// The same with options. [`CallOptions::function`] is not for typed tasks.
    ///
    /// # Errors
    /// Those of [`Orbit::call_async`]; `Invalid` for options with a function.
    pub fn call_async_with(&self, areas: &[&Area], args: &A, options: &CallOptions) -> Result<TaskFuture<R>> {
        if options.has_function() {
            let why = format!("orbit \"{}\" has typed calls, which have no function of their own", self.orbit.name());
            return Err(Error::new(Kind::Invalid, why));
        }
        let mut bytes = Vec::new();
        args.write(&mut bytes);
        if A::BYTES.is_none() {
            bytes.splice(..0, bytes.len().to_ne_bytes());
        }
        let call = self.orbit.call_async_with(areas, &bytes, options)?;
        Ok(TaskFuture { call, orbit: self.orbit.clone(), updates: VecDeque::new(), value: PhantomData })
    }
}

/// A call of a [`Task`]: wait for its value, or `.await` it. Dropping it leaves the call to run.
#[must_use = "the value of the call; dropping it leaves the call to run"]
pub struct TaskFuture<R> {
    call: Future,
    orbit: Orbit,
    updates: VecDeque<Update>,
    value: PhantomData<fn() -> R>,
}

impl<R> fmt::Debug for TaskFuture<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.call.fmt(f)
    }
}

impl<R: Answer> TaskFuture<R> {
    /// Blocks until the function has returned.
    ///
    /// # Errors
    /// [`Kind::Failed`], [`Kind::TimedOut`] or [`Kind::Cancelled`] if it did not; the sentence says
    /// why, for a crash with the call stack.
    pub fn wait(mut self) -> Result<R> {
        // A task that pushes more than main keeps waits until main pulls.
        while let Some(update) = self.call.pull()? {
            self.updates.push_back(update);
        }
        let outcome = self.call.wait()?;
        self.value(outcome)
    }

    /// Blocks until the function has returned, or this long: then the error's kind is
    /// [`Kind::TimedOut`], the call continues, and nobody gets its value.
    ///
    /// # Errors
    /// As [`TaskFuture::wait`].
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<R> {
        let outcome = self.call.wait_timeout(timeout)?;
        self.value(outcome)
    }

    /// The call without types: its descriptor, its outcome, [`Future::cancel`].
    pub fn call(&self) -> &Future {
        &self.call
    }

    /// The value of a call that has ended so.
    fn value(&mut self, outcome: Outcome) -> Result<R> {
        self.take_updates();
        let nonsense = || {
            let name = self.orbit.name();
            Error::new(Kind::Failed, format!("the task of orbit \"{name}\" returned what is no value of its type"))
        };
        let word = outcome.into_value(self.orbit.name())?.to_ne_bytes();
        // The value is the last that the task pushed.
        let last = if is_word::<R>() { None } else { self.updates.pop_back() };
        let bytes = match (R::BYTES, &last) {
            (Some(bytes @ 0..=8), _) => &word[..bytes],
            (_, Some(update)) => update.first_data().ok_or_else(nonsense)?,
            _ => return Err(nonsense()),
        };
        // SAFETY: an `Answer` may be read of any bytes.
        unsafe { R::read(&mut &bytes[..]) }.ok_or_else(nonsense)
    }

    fn take_updates(&mut self) {
        while let Some(update) = self.call.try_pull() {
            self.updates.push_back(update);
        }
    }
}

impl<R: Answer> std::future::Future for TaskFuture<R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<R>> {
        self.take_updates();
        match std::future::Future::poll(Pin::new(&mut self.call), context) {
            Poll::Ready(outcome) => Poll::Ready(self.value(outcome)),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Sets the library up before `main` begins, while the program has one thread: for programs whose
/// first statement makes threads, as `#[tokio::main]` does. Write it once, at the top of the
/// program:
///
/// ```
/// orbit::init_before_main!();
/// # fn main() { assert!(orbit::init().is_ok()); }
/// ```
///
/// An error is kept until somebody asks: `orbit::init()` tries again and returns it.
#[macro_export]
macro_rules! init_before_main {
    () => {
        const _: () = {
            extern "C" fn set_up() {
                let _ = $crate::init();
            }
            #[used]
            #[unsafe(link_section = ".init_array")]
            static SET_UP: extern "C" fn() = set_up;
        };
    };
}
