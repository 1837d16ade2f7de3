//! The tasks of asyncio with what they await, and the names of threads.
//!
//! A task's coroutine has its frame, on whose stack lies what it awaits: another coroutine, and so
//! on, down to a future or another task. Promises and bounds are those of the module; at most
//! [`MAX_TASKS`] tasks are read. A task that runs meanwhile may be read torn. Refuses: tasks of
//! other event loops' own kinds (trio), and what [`Python::reads_objects`] refuses.

use super::objects::Objects;
use super::{Code, MAX_FRAMES, PyFrame, Python, Reader};
use crate::waits::Watched;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

/// Tasks read at most.
pub const MAX_TASKS: usize = 20_000;
/// Of a weak reference its object.
const REFERENT: u64 = 16;
/// Of a task what it waits for, its coroutine, its name.
const WAITER: u64 = 128;
const COROUTINE: u64 = 136;
const TASK_NAME: u64 = 144;
/// States of a coroutine or generator: below 0 it does not run and has not ended.
const NOT_BEGUN: i8 = -2;
const RUNS: i8 = 0;
/// Of a frame the height of its stack, and where that with the variables begins.
const HEIGHT: u64 = 64;
const STACK: u64 = 72;
const MAX_HEIGHT: u32 = 10_000;
/// Of what wraps a coroutine, or a step of a generator, the thing itself.
const WRAPPED: u64 = 16;

/// What a task waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Awaits {
    /// Nothing: it runs.
    Nothing,
    /// Its turn.
    Turn,
    /// A future, of this kind.
    Future(String),
    /// Another task, by its name.
    Task(String),
}

impl std::fmt::Display for Awaits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Awaits::Nothing => f.write_str("runs"),
            Awaits::Turn => f.write_str("waits for its turn"),
            Awaits::Future(kind) if kind == "_asyncio.Future" => f.write_str("awaits a future"),
            Awaits::Future(kind) => write!(f, "awaits a future, {kind}"),
            Awaits::Task(name) => write!(f, "awaits task {name}"),
        }
    }
}

/// A task of asyncio that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// What it waits for.
    pub awaits: Awaits,
    /// The coroutines that await each other, the one that waits first.
    pub frames: Vec<PyFrame>,
}

impl Python {
    /// The tasks of asyncio, in no order. The process is not stopped; costs some 30 us a task.
    pub fn tasks(&self) -> Vec<Task> {
        let Ok(o) = self.objects() else { return Vec::new() };
        let mut r = Reader::of(self.memory, super::MAX_READS);
        let mut codes = HashMap::new();
        let mut out = Vec::new();
        for variables in self.modules(&mut r, &o, "asyncio.tasks") {
            let all = self.item(&mut r, variables, o.tasks).and_then(|all| self.attribute(&mut r, &o, all, "data"));
            for reference in all.map(|set| self.members(&mut r, set)).unwrap_or_default() {
                if out.len() == MAX_TASKS {
                    return out;
                }
                let task = r.pointer(reference.wrapping_add(REFERENT));
                out.extend(task.and_then(|task| self.task(&mut r, &o, task, &mut codes)));
            }
        }
        out
    }

    fn task(&self, r: &mut Reader, o: &Objects, task: u64, codes: &mut HashMap<u64, Option<Rc<Code>>>) -> Option<Task> {
        let name = self.name_of(r, o, task)?;
        let mut next = r.pointer(task.wrapping_add(COROUTINE));
        let (mut frames, mut known, mut runs) = (Vec::new(), HashSet::new(), false);
        while let Some(at) = next.filter(|at| known.len() < MAX_FRAMES && known.insert(*at)) {
            next = match self.kind(r, at)?.as_str() {
                "coroutine" | "generator" | "async_generator" => {
                    let state = r.bytes(at.wrapping_add(o.state)).map(i8::from_le_bytes)?;
                    if state > RUNS {
                        break;
                    }
                    runs = state == RUNS;
                    let frame = at.wrapping_add(o.frame);
                    frames.push(self.frame(r, frame, codes)?);
                    if state == NOT_BEGUN || runs { None } else { self.on_top(r, frame) }
                }
                "coroutine_wrapper" | "async_generator_asend" | "async_generator_athrow" => {
                    r.pointer(at.wrapping_add(WRAPPED))
                }
                _ => None,
            };
        }
        if frames.is_empty() {
            return None;
        }
        frames.reverse();
        let awaits = match r.pointer(task.wrapping_add(WAITER)) {
            _ if runs => Awaits::Nothing,
            None => Awaits::Turn,
            Some(future) => match self.name_of(r, o, future) {
                Some(name) => Awaits::Task(name),
                None => Awaits::Future(self.kind(r, future)?),
            },
        };
        Some(Task { name, awaits, frames })
    }

    /// The name of a task; nothing of anything else.
    fn name_of(&self, r: &mut Reader, o: &Objects, task: u64) -> Option<String> {
        if self.kind(r, task)? != "_asyncio.Task" {
            return None;
        }
        let name = r.pointer(task.wrapping_add(TASK_NAME))?;
        // One that nobody named may have its number there, until it is asked for its name.
        if self.kind(r, name)? == "int" {
            return self.number(r, o, name).map(|number| format!("Task-{number}"));
        }
        self.text(r, name)
    }

    /// What lies on top of a frame's stack.
    fn on_top(&self, r: &mut Reader, frame: u64) -> Option<u64> {
        let height = r.bytes(frame.wrapping_add(HEIGHT)).map(u32::from_le_bytes)?;
        let top = height.checked_sub(1).filter(|_| height < MAX_HEIGHT)?;
        r.pointer(frame.wrapping_add(STACK + 8 * u64::from(top)))
    }

    /// The names that Python's threads have, by thread id. The process is not stopped.
    pub fn thread_names(&self) -> BTreeMap<i32, String> {
        let Ok(o) = self.objects() else { return BTreeMap::new() };
        let mut r = Reader::of(self.memory, super::MAX_READS);
        let Ok(watched) = Watched::of_few(self.pid) else { return BTreeMap::new() };
        let mut out = BTreeMap::new();
        for variables in self.modules(&mut r, &o, "threading") {
            let all = self.item(&mut r, variables, "_active").map(|all| self.items(&mut r, all)).unwrap_or_default();
            for (_, thread) in all.into_iter().filter(|(_, thread)| *thread != 0) {
                let mut named = || {
                    let id = self.attribute(&mut r, &o, thread, "_native_id")?;
                    let id = watched.translated(self.number(&mut r, &o, id)?)?;
                    let name = self.attribute(&mut r, &o, thread, "_name")?;
                    Some((id, self.text(&mut r, name)?))
                };
                out.extend(named());
            }
        }
        out
    }
}
