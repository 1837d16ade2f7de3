//! What a program's own runtime says of its threads: the JVM of Java's, Go's of goroutines, asyncio
//! of its tasks. For reports only, not for verdicts.
//!
//! The JVM is asked as `jstack` asks it, for which it gets SIGQUIT: only where it catches that, and
//! where its caller asks for it: by a person, of a guess, for which the stacks of its threads say
//! too little, and of its monitors (`jvm`). Go's goroutines are read from memory; nothing is
//! stopped. `pools` finds pools all of whose threads wait for results of tasks.

mod jvm;
mod pools;

pub use jvm::{DEADLOCK, Jvm, java};
pub use pools::BUSY_POOL;

use crate::goroutines::{Parked, parked};
use crate::python::{self, PyFrame, Task};
use crate::stacks::{Frame, Unwinder};
use std::collections::BTreeMap;

/// Groups of goroutines or tasks shown, functions of each, and names.
const GROUPS: usize = 8;
const FUNCTIONS: usize = 4;
const NAMES: usize = 4;

/// Goroutines by what they wait for; nothing if it is no Go program.
pub fn goroutines(pid: i32, unwinder: &mut Unwinder) -> Vec<String> {
    let of_runtime = |name: &&str| name.starts_with("runtime.") || name.starts_with("internal/");
    let group = |group: Parked| {
        let names = group.frames.iter().filter_map(|f| f.function.as_deref()).filter(|name| !of_runtime(name));
        let names: Vec<&str> = names.take(FUNCTIONS).collect();
        let place = own_place(&group.frames).map_or_else(String::new, |(file, line)| format!(" at {file}:{line}"));
        let one = if group.count == 1 { "goroutine" } else { "goroutines" };
        let text = format!("{} {one} ({}): {}{place}", group.count, group.reason, names.join(" < "));
        (!names.is_empty()).then_some(text)
    };
    let mut all = parked(pid, unwinder).unwrap_or_default();
    // Whoever waits for the world is seldom to blame.
    all.sort_by_key(|group| group.reason == "IO wait");
    all.into_iter().filter_map(group).take(GROUPS).collect()
}

/// The first place in a goroutine's stack that is not in Go's own library, of which a line, inlined
/// or not, says less than its caller's. The library is wherever the runtime's files are:
/// `/usr/local/go/src`, `/usr/lib/go-1.24/src`; files of a program built with `-trimpath` have no
/// directory, and those of the library no domain in the name of their package.
fn own_place(frames: &[Frame]) -> Option<(&str, u32)> {
    const RUNTIME: &str = "/src/runtime/";
    let is_of_runtime = |f: &&Frame| f.function.as_deref().is_some_and(|name| name.starts_with("runtime."));
    let root = frames.iter().filter(is_of_runtime).find_map(|f| {
        let path = f.file.as_deref()?;
        path.rfind(RUNTIME).map(|at| &path[..at + "/src/".len()])
    });
    let is_own = |f: &&Frame| match (f.file.as_deref(), root) {
        (Some(file), Some(root)) => !file.starts_with(root),
        (Some(file), None) => {
            let first = file.split('/').next().unwrap_or_default();
            first.is_empty()
                || first.contains('.')
                || f.function.as_deref().is_some_and(|name| name.starts_with("main."))
        }
        (None, _) => false,
    };
    frames.iter().find(is_own).and_then(|f| Some((f.file.as_deref()?, f.line?)))
}

/// Pools that cannot run a task, and tasks of asyncio by what they await; nothing if it is no
/// Python program, or one that has none or whose objects are not known.
pub fn of_python(pid: i32) -> Vec<String> {
    let Some(python) = python::find(pid).ok().flatten() else { return Vec::new() };
    let mut lines = pools::of_python(&python.stacks(), &python.thread_names());
    lines.extend(of_tasks(python.tasks()));
    lines
}

/// Those that await the same at the same place in one line, the most first.
fn of_tasks(tasks: Vec<Task>) -> Vec<String> {
    let mut alike: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for task in tasks {
        let names: Vec<&str> = task.frames.iter().take(FUNCTIONS).map(|frame| frame.function.as_str()).collect();
        let place = place_in_tasks(&task.frames).map_or_else(String::new, |(file, line)| format!(" at {file}:{line}"));
        let key = (task.awaits.to_string(), format!("{}{place}", names.join(" < ")));
        alike.entry(key).or_default().push(task.name);
    }
    let mut groups: Vec<((String, String), Vec<String>)> = alike.into_iter().collect();
    groups.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    let left: usize = groups.iter().skip(GROUPS).map(|(_, names)| names.len()).sum();
    let line = |((awaits, place), mut names): ((String, String), Vec<String>)| {
        names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        match &names[..] {
            [name] => format!("task {name} of asyncio {awaits}: {place}"),
            _ => {
                let more = if names.len() > NAMES { ", ..." } else { "" };
                let shown = names[..names.len().min(NAMES)].join(", ");
                format!("{} tasks of asyncio ({shown}{more}), each {awaits}: {place}", names.len())
            }
        }
    };
    let mut lines: Vec<String> = groups.into_iter().take(GROUPS).map(line).collect();
    lines.extend((left > 0).then(|| format!("and {left} more tasks of asyncio")));
    lines
}

/// The first place of a task that is not in asyncio itself, if there is one.
fn place_in_tasks(frames: &[PyFrame]) -> Option<(&str, u32)> {
    let is_own = |frame: &&PyFrame| !frame.file.contains("/asyncio/");
    let frame = frames.iter().find(is_own).or(frames.first())?;
    Some((&frame.file, frame.line?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::Awaits;

    #[test]
    fn tasks_that_await_the_same_are_one_line() {
        let frame = |function: &str, file: &str, line| PyFrame {
            function: function.to_owned(),
            file: file.to_owned(),
            line: Some(line),
        };
        let locked =
            || vec![frame("Lock.acquire", "/usr/lib/python3.11/asyncio/locks.py", 120), frame("pay", "/srv/app.py", 7)];
        let task = |name: &str, awaits, frames| Task { name: name.to_owned(), awaits, frames };
        let future = || Awaits::Future("_asyncio.Future".to_owned());
        let mut tasks: Vec<Task> = (1..=6).rev().map(|n| task(&format!("Task-{n}"), future(), locked())).collect();
        tasks.push(task("main", Awaits::Task("Task-6".to_owned()), vec![frame("main", "/srv/app.py", 20)]));
        assert_eq!(
            of_tasks(tasks),
            [
                "6 tasks of asyncio (Task-1, Task-2, Task-3, Task-4, ...), each awaits a future: \
                 Lock.acquire < pay at /srv/app.py:7",
                "task main of asyncio awaits task Task-6: main at /srv/app.py:20",
            ]
        );
        let many = (0..20).map(|n| task("t", Awaits::Turn, vec![frame("f", "/srv/app.py", n)])).collect();
        assert_eq!(of_tasks(many).last().map(String::as_str), Some("and 12 more tasks of asyncio"));
    }

    #[test]
    fn the_place_of_a_goroutine_is_outside_of_gos_library_wherever_that_is() {
        let frame = |function: &str, file: &str, line| Frame {
            address: 0,
            module: String::new(),
            function: Some(function.to_owned()),
            file: Some(file.to_owned()),
            line: Some(line),
            offset: 0,
            inlined: false,
            sure: crate::Sure::Certain,
            cfa: None,
        };
        let stack = |root: &str, own: &str| {
            let file = |name: &str| format!("{root}{name}");
            [
                frame("runtime.gopark", &file("runtime/proc.go"), 435),
                frame("sync.(*Mutex).Lock", &file("sync/mutex.go"), 90),
                frame("main.monitor", own, 32),
                frame("net/http.HandlerFunc.ServeHTTP", &file("net/http/server.go"), 2294),
            ]
        };
        for root in ["/usr/local/go/src/", "/usr/lib/go-1.24/src/", "/home/x/sdk/go1.25/src/", ""] {
            let own = if root.is_empty() { "hangs/hangs.go" } else { "/home/x/src/runtime/hangs.go" };
            assert_eq!(own_place(&stack(root, own)), Some((own, 32)), "{root}");
            assert_eq!(own_place(&stack(root, "example.org/hangs/hangs.go")).map(|p| p.1), Some(32), "{root}");
        }
        assert_eq!(own_place(&stack("/usr/lib/go-1.24/src/", "/usr/lib/go-1.24/src/os/file.go")), None);
    }
}
