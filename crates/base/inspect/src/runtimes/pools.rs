//! Pools of threads that cannot run a task: each of their threads waits for the result of one.
//!
//! Promises: says only what the stacks show, all threads of one name taken for a pool. Whether the
//! results are those of tasks in the same pool, and so never come, is not known.

use crate::python::{PyFrame, PyThread};
use std::collections::BTreeMap;

/// How a line about such a pool begins.
pub const BUSY_POOL: &str = "no thread of the pool ";

/// What a thread of a pool does.
pub(super) struct Worker<'a> {
    /// Its name, with a number at the end.
    pub(super) name: &'a str,
    /// Where it waits for the result of a task; nothing if it does something else.
    pub(super) waits_at: Option<String>,
}

/// A line for each pool all of whose threads wait for results.
pub(super) fn lines<'a>(workers: impl Iterator<Item = Worker<'a>>) -> Vec<String> {
    let mut pools: BTreeMap<&str, Vec<Option<String>>> = BTreeMap::new();
    for Worker { name, waits_at } in workers {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        pools.entry(stem).or_default().push(waits_at);
    }
    let line = |(stem, places): (&str, Vec<Option<String>>)| {
        let count = places.len();
        let places: Vec<String> = places.into_iter().collect::<Option<Vec<String>>>()?;
        let is_one = places.iter().all(|place| *place == places[0]);
        let at = if is_one { format!(" ({})", places[0]) } else { String::new() };
        let threads = if count == 1 { "its only thread waits".to_owned() } else { format!("all {count} wait") };
        Some(format!(
            "{BUSY_POOL}{stem}N is free: {threads} for the result of a task{at}; if such a task is in this pool, \
             nobody is left to run it"
        ))
    };
    pools.into_iter().filter_map(line).collect()
}

/// The same of Python's `ThreadPoolExecutor`s: threads by Python's names and stacks.
pub fn of_python(threads: &[PyThread], names: &BTreeMap<i32, String>) -> Vec<String> {
    let is_in = |frame: &PyFrame, file: &str, functions: &[&str]| {
        let name = frame.function.rsplit('.').next().unwrap_or_default();
        frame.file.ends_with(file) && functions.contains(&name)
    };
    let worker = |thread: &PyThread| {
        thread.frames.iter().any(|f| is_in(f, "/concurrent/futures/thread.py", &["_worker"])).then_some(())?;
        let base = "/concurrent/futures/_base.py";
        let mut frames = thread.frames.iter().skip_while(|f| !is_in(f, base, &["result", "exception", "wait"]));
        // A generator of `map` or `as_completed` takes results for its caller.
        let mut outside = frames.by_ref().skip_while(|f| f.file.contains("/concurrent/futures/"));
        let waits_at = outside.next().map(|f| match f.line {
            Some(line) => format!("{} at {}:{line}", f.function, f.file),
            None => format!("{} at {}", f.function, f.file),
        });
        Some(Worker { name: names.get(&thread.tid)?, waits_at })
    };
    lines(threads.iter().filter_map(worker))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker<'a>(name: &'a str, at: Option<&str>) -> Worker<'a> {
        Worker { name, waits_at: at.map(str::to_owned) }
    }

    #[test]
    fn a_pool_with_a_free_thread_is_not_named() {
        let all = |last| lines([worker("pool-1-thread-1", Some("a:1")), worker("pool-1-thread-2", last)].into_iter());
        assert_eq!(
            all(Some("a:1")),
            [format!(
                "{BUSY_POOL}pool-1-thread-N is free: all 2 wait for the result of a task (a:1); if such a task is in \
                 this pool, nobody is left to run it"
            )]
        );
        assert_eq!(all(None), Vec::<String>::new());
        assert!(all(Some("b:2"))[0].contains("all 2 wait for the result of a task; if"));
        let one = lines([worker("loop-1", Some("a:1")), worker("io-1", None)].into_iter());
        assert!(one[0].contains("its only thread waits") && one.len() == 1, "{one:?}");
    }

    #[test]
    fn threads_of_a_python_pool_are_known_by_their_stacks() {
        let frame = |function: &str, file: &str| PyFrame {
            function: function.to_owned(),
            file: format!("/usr/lib/python3.11/{file}"),
            line: Some(7),
        };
        let thread = |tid, frames| PyThread { tid, frames, cut: false, sure: crate::Sure::Certain };
        let worker = frame("_worker", "concurrent/futures/thread.py");
        let result = frame("Future.result", "concurrent/futures/_base.py");
        let wait = frame("Condition.wait", "threading.py");
        let waits = vec![wait, result, frame("outer", "app.py"), worker.clone()];
        let names = BTreeMap::from([(1, "TPE-0_0".to_owned()), (2, "TPE-0_1".to_owned())]);
        let said = of_python(&[thread(1, waits.clone()), thread(2, waits.clone())], &names);
        assert!(
            said[0].contains("pool TPE-0_N") && said[0].contains("outer at /usr/lib/python3.11/app.py:7"),
            "{said:?}"
        );
        assert_eq!(of_python(&[thread(1, waits), thread(2, vec![worker])], &names), Vec::<String>::new());
    }
}
