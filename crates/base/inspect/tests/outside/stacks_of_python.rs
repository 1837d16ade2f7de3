//! Python's own frames with function, file and line, for each interpreter on this machine that is
//! known; names of threads and tasks of asyncio, where objects are known.

use crate::common;
use common::{Dir, Running, have, until};
use orbit_inspect::python::{Awaits, HeldLock, Task};
use orbit_inspect::waits::{Wait, Watched};
use orbit_inspect::{Sure, python};
use std::process::Command;

const PROGRAM: &str = "\
import threading, time
class Keeper:
    def hold(self, n):
        if n == 0:
            time.sleep(1000)
        self.hold(
            n - 1)
def held():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
threading.Thread(target=Keeper().hold, args=(2,), daemon=True).start()
threading.Thread(target=held, daemon=True).start()
print('ready', flush=True)
\u{e4}_\u{4e2d} = 1
def gr\u{fc}n_\u{4e2d}():
    time.sleep(1000)
gr\u{fc}n_\u{4e2d}()
";

/// Interpreters by the names they usually have, and those in `ORBIT_PYTHONS` (paths, with colons
/// between), each once.
fn interpreters() -> Vec<String> {
    let mut seen = Vec::new();
    let mut out = Vec::new();
    let usual = "python3:/usr/bin/python3:python3.9:python3.10:python3.11:python3.12:python3.13";
    let more = std::env::var("ORBIT_PYTHONS").unwrap_or_default();
    for name in usual.split(':').chain(more.split(':')) {
        if name.is_empty() || !have(name, "--version") {
            continue;
        }
        let code = "import sys; print(sys.executable, sys.version_info[:2], sys.implementation.name)";
        let version = Command::new(name).args(["-c", code]).output().unwrap().stdout;
        let version = String::from_utf8_lossy(&version).into_owned();
        if !seen.contains(&version) {
            seen.push(version);
            out.push(name.to_owned());
        }
    }
    out
}

#[test]
fn frames_of_every_thread() {
    let all = interpreters();
    if all.is_empty() {
        println!("SKIP: needs python3");
        return;
    }
    let dir = Dir::new("python");
    let file = dir.0.join("keeps.py");
    std::fs::write(&file, PROGRAM).unwrap();
    for name in all {
        let p = Running::start(Command::new(&name).arg(&file));
        let python = match python::find(p.pid()) {
            Ok(Some(python)) => python,
            Err(e) => {
                println!("SKIP: {name}: {e}");
                continue;
            }
            Ok(None) => panic!("{name} was not found to be Python"),
        };
        println!("{name}: {:?}", python.version());
        let threads = until("all three to sleep", || {
            let t = python.stacks();
            let waiting = |f: &str| t.iter().any(|t| t.frames.first().is_some_and(|x| x.function.ends_with(f)));
            (t.len() == 3 && waiting("hold") && waiting("held") && waiting("\u{4e2d}")).then_some(t)
        });
        for t in &threads {
            assert!(!t.cut, "{t:#?}");
            assert!(t.frames.iter().all(|f| f.line.is_some()), "{t:#?}");
        }
        let main = threads.iter().find(|t| t.tid == p.pid()).unwrap();
        let frames: Vec<_> = main.frames.iter().map(|f| (f.function.as_str(), f.line.unwrap())).collect();
        assert_eq!(frames, [("gr\u{fc}n_\u{4e2d}", 17), ("<module>", 18)]);
        assert_eq!(main.frames[0].file, file.to_str().unwrap());
        let hold = threads.iter().find(|t| t.frames[0].function.ends_with("hold")).unwrap();
        let lines: Vec<_> = hold.frames.iter().take(3).map(|f| f.line.unwrap()).collect();
        // The line of a call spread over two is its first or its second, by version.
        assert!(lines[0] == 5 && (6..=7).contains(&lines[1]) && lines[1] == lines[2], "{lines:?}");
        if python.version() >= (3, 11) {
            assert_eq!(hold.frames[0].function, "Keeper.hold");
        }
        let mut tids: Vec<i32> = threads.iter().map(|t| t.tid).collect();
        tids.sort_unstable();
        let want = std::fs::read_dir(format!("/proc/{}/task", p.pid())).unwrap().count();
        tids.dedup();
        assert_eq!(tids.len(), want);
        until("all to be read while asleep", || python.stacks().iter().all(|t| t.sure == Sure::Certain).then_some(()));
    }
}

const NAMES: &str = "\
import asyncio, threading, time
class Worker(threading.Thread):
    def run(self):
        time.sleep(1000)
Worker(name='worker-7', daemon=True).start()
later = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
later.start()
later.name = 'ren\u{e4}med'
async def query():
    await asyncio.get_running_loop().create_future()
async def handler(n):
    async with lock:
        await query()
async def main():
    global lock
    lock = asyncio.Lock()
    tasks = [asyncio.create_task(handler(n), name=f'request-{n}') for n in range(2)]
    await asyncio.sleep(0)
    print('ready', flush=True)
    await tasks[1]
asyncio.run(main())
";

#[test]
fn names_of_threads_and_tasks() {
    let dir = Dir::new("python-names");
    let file = dir.0.join("names.py");
    std::fs::write(&file, NAMES).unwrap();
    let mut seen = 0;
    for name in interpreters() {
        let p = Running::start(Command::new(&name).arg(&file));
        let Ok(Some(python)) = python::find(p.pid()) else { continue };
        if let Err(why) = python.reads_objects() {
            assert!(![11, 12].contains(&python.version().1) && why.contains("3.12 alone"), "{why}");
            assert!(python.tasks().is_empty() && python.thread_names().is_empty());
            continue;
        }
        seen += 1;
        let names: Vec<String> = python.thread_names().into_values().collect();
        let of_main = python.thread_names().get(&p.pid()).cloned();
        assert_eq!(of_main.as_deref(), Some("MainThread"), "{names:?}");
        assert!(names.len() == 3 && ["worker-7", "ren\u{e4}med"].iter().all(|n| names.contains(&(*n).to_owned())));
        let tasks = until("all tasks to wait", || {
            let tasks = python.tasks();
            (tasks.len() == 3 && tasks.iter().all(|task| !matches!(task.awaits, Awaits::Turn | Awaits::Nothing)))
                .then_some(tasks)
        });
        let of = |name: &str| -> &Task { tasks.iter().find(|task| task.name == name).unwrap() };
        let functions = |task: &Task| -> Vec<String> { task.frames.iter().map(|f| f.function.clone()).collect() };
        assert_eq!(functions(of("request-0")), ["query", "handler"]);
        assert_eq!(of("request-0").frames[0].line, Some(10));
        assert_eq!(of("request-0").awaits, Awaits::Future("_asyncio.Future".to_owned()));
        assert_eq!(functions(of("request-1")), ["Lock.acquire", "_ContextManagerMixin.__aenter__", "handler"]);
        let main = tasks.iter().find(|task| task.frames[0].function == "main").unwrap();
        assert_eq!(main.awaits, Awaits::Task("request-1".to_owned()));
    }
    if seen == 0 {
        println!("SKIP: needs CPython 3.11 or 3.12");
    }
}

/// Threads that wait for locks which the first one holds: reentrant ones, in a call, a bound method
/// and a `with`; the last one for a lock that keeps no owner.
const OWNED: &str = "\
import threading, time
lock, plain = threading.RLock(), threading.Lock()
lock.acquire(); lock.acquire(); plain.acquire()
def calls(): lock.acquire()
def bound():
    take = lock.acquire
    take()
def enters():
    with lock: pass
def other(): plain.acquire()
for waits in (calls, bound, enters, other):
    threading.Thread(target=waits, name=waits.__name__, daemon=True).start()
print('ready', flush=True)
time.sleep(1000)
";

#[test]
fn owners_of_reentrant_locks() {
    let dir = Dir::new("python-owners");
    let file = dir.0.join("owners.py");
    std::fs::write(&file, OWNED).unwrap();
    let mut seen = 0;
    for name in interpreters() {
        let p = Running::start(Command::new(&name).arg(&file));
        let Ok(Some(python)) = python::find(p.pid()) else { continue };
        if let Err(why) = python.reads_locks() {
            assert!(![11, 12, 13].contains(&python.version().1) && why.contains("3.13 alone"), "{why}");
            assert!(python.owners(&[(p.pid(), 8)]).is_empty() && python.held_locks().is_empty());
            continue;
        }
        seen += 1;
        let mut watched = Watched::new(p.pid()).unwrap();
        // Before that they may wait for the global lock.
        let (reentrant, plain) = until("three threads to wait for one lock, and one for another", || {
            let waits = watched.scan().into_iter().filter(|t| t.tid != p.pid()).map(|t| t.tid).collect::<Vec<i32>>();
            let word = |tid: i32| match watched.wait_of(tid) {
                Wait::Futex(futex) => Some((tid, futex.call.addr)),
                _ => None,
            };
            let waiters: Vec<(i32, u64)> = waits.into_iter().map(word).collect::<Option<_>>()?;
            let of = |count: usize| -> Option<Vec<(i32, u64)>> {
                let alike = |at: u64| waiters.iter().filter(move |(_, word)| *word == at);
                let at = waiters.iter().map(|(_, word)| *word).find(|at| alike(*at).count() == count)?;
                Some(alike(at).copied().collect())
            };
            Some((of(3)?, of(1)?))
        });
        let owned = vec![HeldLock { holder: p.pid(), word: reentrant[0].1 }];
        for waiter in &reentrant {
            assert_eq!(python.owners(&[*waiter]), owned, "{name}");
        }
        assert_eq!(python.owners(&[&reentrant[..], &plain].concat()), owned, "{name}");
        assert!(python.owners(&plain).is_empty(), "{name}");
        // Threads that do not wait for that lock.
        assert!(python.owners(&[(p.pid(), owned[0].word), (plain[0].0, owned[0].word)]).is_empty(), "{name}");
    }
    if seen == 0 {
        println!("SKIP: needs CPython 3.11 to 3.13");
    }
}

#[test]
fn holder_of_the_lock() {
    if !have("python3", "--version") {
        println!("SKIP: needs python3");
        return;
    }
    let busy = "print('ready', flush=True)\nwhile True: pass";
    let p = Running::start(Command::new("python3").args(["-c", busy]));
    match python::find(p.pid()) {
        Ok(Some(python)) => {
            until("the lock to be held", || (python.lock_holder() == Some(p.pid())).then_some(()));
        }
        other => println!("SKIP: needs CPython 3.9 to 3.13, not {other:?}"),
    }
}

#[test]
fn other_programs_are_none() {
    let p = common::Running::start(Command::new("sh").args(["-c", "echo ready; exec sleep 1000"]));
    assert!(python::find(p.pid()).unwrap().is_none());
}
