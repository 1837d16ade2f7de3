//! Stacks of threads, taken for a report.

use crate::event::Involved;
use orbit_inspect::python;
use orbit_inspect::runtimes;
use orbit_inspect::stacks::fold::is_of_system;
use orbit_inspect::stacks::{End, Frame, How, ThreadStack, Unwinder};
use std::collections::{BTreeMap, BTreeSet};

/// Takes stacks of threads; files once parsed are kept, a process at a time.
#[derive(Debug, Default)]
pub struct Stacks {
    unwinders: BTreeMap<i32, Unwinder>,
}

impl Stacks {
    /// Parses the process' files ahead of need.
    pub fn prepare(&mut self, pid: i32) {
        if let std::collections::btree_map::Entry::Vacant(free) = self.unwinders.entry(pid)
            && let Ok(mut u) = Unwinder::new(pid)
        {
            // A process that cannot be read says so when its stack is taken.
            let _ = u.prepare();
            free.insert(u);
        }
    }

    /// What the process' own runtime says, in lines: a Go program's goroutines, pools and tasks of
    /// Python, and where `asks` a JVM's threads, those that were taken first. The JVM also names
    /// the frames of those.
    pub(crate) fn runtime(&mut self, pid: i32, taken: &mut [Involved], asks: bool) -> Vec<String> {
        let mut lines = self.unwinders.get_mut(&pid).map_or_else(Vec::new, |u| runtimes::goroutines(pid, u));
        if lines.is_empty() {
            lines = runtimes::of_python(pid);
        }
        if !asks || !lines.is_empty() {
            return lines;
        }
        match runtimes::java(pid) {
            Ok(Some(jvm)) => {
                let mut tids = Vec::new();
                for thread in taken.iter_mut().filter(|thread| thread.pid == pid) {
                    jvm.name(thread.tid, &mut thread.stack);
                    tids.push(thread.tid);
                }
                jvm.lines(&tids)
            }
            Ok(None) => Vec::new(),
            Err(error) => vec![error],
        }
    }

    /// Forgets what it knows of a process' files.
    pub fn forget(&mut self, pid: i32) {
        self.unwinders.remove(&pid);
    }

    /// The threads with their stacks. `gentle`: without stopping those that sleep.
    pub fn involve(&mut self, threads: Vec<(i32, i32, String)>, gentle: bool) -> Vec<Involved> {
        let mut out: Vec<Involved> = threads
            .into_iter()
            .map(|(pid, tid, does)| Involved {
                pid,
                tid,
                comm: String::new(),
                python_name: None,
                does,
                stack: Vec::new(),
                python: Vec::new(),
                note: None,
            })
            .collect();
        let pids: BTreeSet<i32> = out.iter().map(|t| t.pid).collect();
        for pid in pids {
            self.prepare(pid);
            // One may be part of several hangs.
            let mut met = BTreeSet::new();
            let tids: Vec<i32> = out.iter().filter(|t| t.pid == pid && met.insert(t.tid)).map(|t| t.tid).collect();
            let taken = match self.unwinders.get_mut(&pid) {
                Some(u) => {
                    u.gentle(gentle);
                    u.capture(&tids)
                }
                None => Vec::new(),
            };
            let is_python = taken.iter().any(|t| t.frames.iter().any(of_python));
            let python = if is_python { of_interpreter(pid) } else { Ok((Vec::new(), BTreeMap::new())) };
            let taken: BTreeMap<i32, ThreadStack> = taken.into_iter().map(|s| (s.tid, s)).collect();
            for t in out.iter_mut().filter(|t| t.pid == pid) {
                let Some(s) = taken.get(&t.tid) else {
                    t.note = Some("the process has exited or may not be inspected".into());
                    continue;
                };
                t.comm.clone_from(&s.comm);
                t.note = match (&s.error, s.how, s.end) {
                    (Some(e), ..) => Some(e.to_string()),
                    (None, How::Not, _) => Some("no stack".into()),
                    (None, _, End::Complete) => None,
                    (None, _, End::Lost) => Some("the stack ends early: no unwind information".into()),
                    (None, _, End::TooDeep) => Some("deeper than shown".into()),
                };
                t.stack.clone_from(&s.frames);
                match &python {
                    Ok((all, names)) => {
                        t.python = all.iter().find(|p| p.tid == s.tid).map(|p| p.frames.clone()).unwrap_or_default();
                        t.python_name = names.get(&s.tid).cloned();
                    }
                    Err(e) => t.note = Some(e.clone()),
                }
            }
        }
        out
    }
}

fn of_python(f: &Frame) -> bool {
    f.module.contains("python") || f.function.as_deref().is_some_and(|n| n.starts_with("_PyEval_EvalFrame"))
}

/// Python's stacks, and names of threads.
fn of_interpreter(pid: i32) -> Result<(Vec<python::PyThread>, BTreeMap<i32, String>), String> {
    match python::find(pid) {
        Ok(Some(p)) => Ok((p.stacks(), p.thread_names())),
        Ok(None) => Ok((Vec::new(), BTreeMap::new())),
        Err(e) => Err(e.to_string()),
    }
}

/// The function to blame in a stack: the innermost that is the program's own, with its place.
pub fn place(stack: &[Frame]) -> String {
    match stack.iter().find(|f| !is_of_system(f) && f.function.is_some()).or(stack.first()) {
        Some(f) => f.to_string(),
        None => "code that could not be seen".into(),
    }
}
