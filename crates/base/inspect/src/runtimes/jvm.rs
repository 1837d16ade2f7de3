//! What a JVM says of its threads, asked as `jstack` asks it: their names, stacks, and the monitors
//! they wait for and hold, and its own verdict about deadlocks.
//!
//! Promises: at most [`STEP_TIMEOUT`] for each step, [`ANSWER`] bytes of an answer, and [`GROUPS`]
//! groups of threads. What it says was so when it was asked, which is after the native stacks were
//! copied: a frame that comes from it is likely. Refuses: virtual threads, which are on no thread
//! while they wait.

use super::pools::{self, Worker};
use super::{FUNCTIONS, GROUPS, NAMES};
use crate::Sure;
use crate::stacks::{Frame, fold};
use crate::waits::Watched;
use orbit_linux::status::Status;
use orbit_linux::{pidfd, procfs};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the JVM may take to begin to answer, and to answer.
const STEP_TIMEOUT: Duration = Duration::from_millis(1500);
/// Bytes of a JVM's answer that are read.
const ANSWER: u64 = 4 << 20;
/// Lines of its verdict about deadlocks at most.
const MAX_VERDICT_LINES: usize = 60;
/// How the JVM's own verdict begins.
pub const DEADLOCK: &str = "Found one Java-level deadlock";
/// Beginnings of lines of a thread that say what it waits for, and in which words that is said.
const WAITS: [(&str, &str); 6] = [
    ("- waiting on the Class initialization monitor for ", "waits until another thread has initialised class "),
    ("- waiting to lock ", "waits to enter "),
    ("- waiting to re-lock in wait() ", "waits to enter again "),
    ("- parking to wait for ", "is parked for "),
    ("- waiting on ", "waits for a notify of "),
    ("- blocked on ", "waits to enter "),
];

/// What a JVM says.
#[derive(Clone, Debug, Default)]
pub struct Jvm {
    /// Its verdict about deadlocks, in lines.
    verdict: Vec<String>,
    threads: Vec<Thread>,
}

/// A thread that has Java frames.
#[derive(Clone, Debug, Default)]
struct Thread {
    tid: i32,
    name: String,
    is_blocked: bool,
    /// What it waits for, in words; empty if for nothing.
    waits: String,
    /// The monitors that it holds.
    holds: Vec<String>,
    frames: Vec<Frame>,
}

/// Asks a JVM for its threads; nothing if the process is none.
///
/// # Errors
/// In a sentence, where it is a JVM and does not answer.
pub fn java(pid: i32) -> Result<Option<Jvm>, String> {
    let maps = procfs::text(format!("/proc/{pid}/maps")).unwrap_or_default();
    if !maps.contains("/libjvm.so") {
        return Ok(None);
    }
    let dump = dump(pid).map_err(|e| format!("the JVM was not asked for its threads: {e}"))?;
    // A JVM in a container knows its threads by the ids there.
    let watched = Watched::of_few(pid).map_err(|e| e.to_string())?;
    Ok(Some(Jvm::read(&dump, |id| watched.translated(id))))
}

/// Asks for a dump of all threads.
fn dump(pid: i32) -> std::io::Result<String> {
    let status = Status::of(pid)?;
    let inner = status.innermost_id().unwrap_or(pid);
    let (socket, wish) =
        (format!("/proc/{pid}/root/tmp/.java_pid{inner}"), format!("/proc/{pid}/root/tmp/.attach_pid{inner}"));
    if !Path::new(&socket).exists() {
        if status.caught_signals().unwrap_or(0) & (1 << (libc::SIGQUIT - 1)) == 0 {
            return Err(std::io::Error::other("it does not catch SIGQUIT"));
        }
        File::options().write(true).create_new(true).mode(0o600).open(&wish)?;
        let asked = pidfd::open(pid).and_then(|process| pidfd::send_signal(process.as_fd(), libc::SIGQUIT));
        let begun = Instant::now();
        while asked.is_ok() && !Path::new(&socket).exists() && begun.elapsed() < STEP_TIMEOUT {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::fs::remove_file(&wish)?;
        asked?;
    }
    let mut jvm = UnixStream::connect(&socket)?;
    jvm.set_read_timeout(Some(STEP_TIMEOUT))?;
    // Version, command, three arguments.
    jvm.write_all(b"1\0threaddump\0\0\0\0")?;
    let mut answer = Vec::new();
    jvm.take(ANSWER).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

impl Jvm {
    /// From a dump; `known` has the id of a thread by the one that the JVM knows it by.
    fn read(dump: &str, known: impl Fn(i32) -> Option<i32>) -> Jvm {
        let (threads, verdict) = dump.find(DEADLOCK).map_or((dump, ""), |at| dump.split_at(at));
        let verdict = verdict.split("Java stack information").next().unwrap_or_default();
        let lines = verdict.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('='));
        let verdict = lines.take(MAX_VERDICT_LINES).map(str::to_owned).collect();
        let one = |part: &str| {
            let (id, thread) = Thread::read(part.trim_start_matches('\n'))?;
            Some(Thread { tid: known(id)?, ..thread })
        };
        Jvm { verdict, threads: threads.split("\n\n").filter_map(one).collect() }
    }

    /// Puts a thread's Java frames in place of those of generated code, which have no names.
    pub fn name(&self, tid: i32, stack: &mut Vec<Frame>) {
        let Some(thread) = self.threads.iter().find(|thread| thread.tid == tid) else { return };
        let generated = |frame: &Frame| frame.module.is_empty();
        let first = stack.iter().position(generated).unwrap_or(stack.len());
        let behind = stack.iter().rposition(generated).map_or(stack.len(), |last| last + 1);
        stack.splice(first..behind, thread.frames.iter().cloned());
    }

    /// What it says, in lines: deadlocks, pools that cannot run a task, and threads in the
    /// program's own functions, those that do the same in one line, `first` those of these.
    pub fn lines(&self, first: &[i32]) -> Vec<String> {
        let mut groups: BTreeMap<(String, String), Vec<&Thread>> = BTreeMap::new();
        for thread in self.threads.iter().filter(|thread| thread.is_blocked || thread.own().is_some()) {
            groups.entry((thread.does(), thread.place())).or_default().push(thread);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        let is_first = |all: &[&Thread]| all.iter().any(|thread| first.contains(&thread.tid));
        let is_blocked = |all: &[&Thread]| all.iter().any(|thread| thread.is_blocked);
        groups.sort_by_key(|(_, all)| (!is_blocked(all), !is_first(all), std::cmp::Reverse(all.len())));
        let left: usize = groups.iter().skip(GROUPS).map(|(_, all)| all.len()).sum();
        let line = |((does, place), all): ((String, String), Vec<&Thread>)| {
            let names: Vec<String> = all.iter().take(NAMES).map(|thread| format!("\"{}\"", thread.name)).collect();
            let more = if all.len() > NAMES { ", ..." } else { "" };
            let (count, each) = match all.len() {
                1 => ("Java thread".to_owned(), ""),
                n => (format!("{n} Java threads"), "each "),
            };
            format!("{count} {}{more} {each}{does}: {place}", names.join(", "))
        };
        let mut lines = self.verdict.clone();
        lines.extend(self.pools());
        lines.extend(groups.into_iter().take(GROUPS).map(line));
        lines.extend((left > 0).then(|| format!("and {left} more Java threads in functions of the program")));
        lines
    }

    /// Pools of `ThreadPoolExecutor` that cannot run a task.
    fn pools(&self) -> Vec<String> {
        const RESULTS: [&str; 5] = [
            "java.util.concurrent.CompletableFuture.get",
            "java.util.concurrent.CompletableFuture.join",
            "java.util.concurrent.FutureTask.get",
            "java.util.concurrent.AbstractExecutorService.invokeAll",
            "java.util.concurrent.ExecutorCompletionService.take",
        ];
        let is = |frame: &Frame, names: &[&str]| frame.function.as_deref().is_some_and(|name| names.contains(&name));
        let worker = |thread: &'_ Thread| {
            thread.frames.iter().any(|f| is(f, &["java.util.concurrent.ThreadPoolExecutor.runWorker"]))
        };
        let one = |thread: &'_ Thread| {
            let waits = thread.frames.iter().any(|frame| is(frame, &RESULTS));
            waits.then(|| thread.own().map(at)).flatten()
        };
        let workers = self.threads.iter().filter(|thread| worker(thread));
        pools::lines(workers.map(|thread| Worker { name: &thread.name, waits_at: one(thread) }))
    }
}

impl Thread {
    /// A part of a dump, with the JVM's id of the thread.
    fn read(part: &str) -> Option<(i32, Thread)> {
        let (header, rest) = part.strip_prefix('"')?.split_once('\n')?;
        let name = header.rsplit_once('"')?.0;
        let id = header.rsplit_once("nid=")?.1.split_whitespace().next()?;
        let id = id.strip_prefix("0x").map_or_else(|| id.parse().ok(), |hex| i32::from_str_radix(hex, 16).ok())?;
        let mut thread = Thread { name: name.to_owned(), ..Thread::default() };
        for line in rest.lines().map(str::trim) {
            thread.is_blocked |= line.starts_with("java.lang.Thread.State: BLOCKED");
            if let Some(frame) = line.strip_prefix("at ") {
                thread.frames.push(frame_of(frame));
            } else if let Some(held) = line.strip_prefix("- locked ") {
                thread.holds.push(object(held));
            } else if let Some((begins, words)) = WAITS.iter().find(|(begins, _)| line.starts_with(begins))
                && thread.waits.is_empty()
            {
                let is_class = begins.contains("Class");
                thread.is_blocked |= is_class;
                let what = line[begins.len()..].trim();
                thread.waits = format!("{words}{}", if is_class { what.to_owned() } else { object(what) });
            }
        }
        (!thread.frames.is_empty()).then_some((id, thread))
    }

    /// Its first frame that is the program's own.
    fn own(&self) -> Option<&Frame> {
        self.frames.iter().find(|frame| !fold::is_of_system(frame) && frame.line.is_some())
    }

    fn does(&self) -> String {
        // The object that a thread waits at is held by it no more.
        let holds: Vec<&str> =
            self.holds.iter().map(String::as_str).filter(|held| !self.waits.ends_with(held)).collect();
        let holds = if holds.is_empty() { String::new() } else { format!(", holds {}", holds.join(", ")) };
        // Objects that one thread alone waits at say no more than their class.
        let waits = match self.waits.split_once(" of class ") {
            Some((begin, class)) if begin.starts_with("is parked") && !self.is_blocked => {
                format!("is parked for an object of class {class}")
            }
            _ if self.waits.is_empty() => "is at work or in a call".to_owned(),
            _ => self.waits.clone(),
        };
        format!("{waits}{holds}")
    }

    /// The library's function that it is in, as far as it is in one, and the program's own.
    fn place(&self) -> String {
        let own = self.frames.iter().position(|frame| !fold::is_of_system(frame)).unwrap_or(0);
        let names = self.frames.iter().skip(own.saturating_sub(1)).filter_map(|frame| frame.function.as_deref());
        let names: Vec<&str> = names.take(FUNCTIONS).collect();
        let frame = self.own().and_then(|frame| Some((frame.file.as_deref()?, frame.line?)));
        let place = frame.map_or_else(String::new, |(file, line)| format!(" at {file}:{line}"));
        format!("{}{place}", names.join(" < "))
    }
}

/// A frame of the program with its line.
fn at(frame: &Frame) -> String {
    let (function, file) = (frame.function.as_deref().unwrap_or_default(), frame.file.as_deref().unwrap_or_default());
    format!("{function} at {file}:{}", frame.line.unwrap_or(0))
}

/// `<0x0000000700010> (a java.lang.Object)` in words.
fn object(text: &str) -> String {
    let parts = text.strip_prefix('<').and_then(|text| text.split_once("> (a "));
    let Some((address, class)) = parts else { return text.to_owned() };
    let address = address.strip_prefix("0x").map_or(address, |hex| hex.trim_start_matches('0'));
    let class = class.trim_end_matches(')');
    match class.strip_prefix("java.lang.Class for ") {
        Some(class) => format!("0x{address} of class java.lang.Class for {class}"),
        None => format!("0x{address} of class {class}"),
    }
}

/// `java.lang.Object.wait(java.base@17/Native Method)` as a frame.
fn frame_of(text: &str) -> Frame {
    let (function, place) = text.trim_end_matches(')').rsplit_once('(').unwrap_or((text, ""));
    let (module, place) = place.rsplit_once('/').unwrap_or(("", place));
    let (file, line) = match place.rsplit_once(':') {
        Some((file, line)) => (Some(file), line.parse().ok()),
        None => (Some(place).filter(|place| place.ends_with(".java")), None),
    };
    Frame {
        address: 0,
        module: if module.is_empty() { "Java".to_owned() } else { module.to_owned() },
        function: Some(function.to_owned()),
        file: file.map(str::to_owned),
        line,
        offset: 0,
        inlined: false,
        sure: Sure::Likely,
        cfa: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "0\nFull thread dump\n\n\
        \"a\" #1 prio=5 nid=0x1f runnable\n   java.lang.Thread.State: RUNNABLE\n\
        \tat java.lang.Thread.run(java.base@17.0.15/Thread.java:840)\n\n\
        \"b\" #2 nid=32 waiting\n   java.lang.Thread.State: BLOCKED (on object monitor)\n\
        \tat B.g(B.java:2)\n\t- waiting to lock <0x0000000700010> (a java.lang.Object)\n\
        \t- locked <0x0000000700020> (a B$Lock)\n\n\
        \"pool-1-thread-1\" #3 nid=0x21 waiting on condition\n   java.lang.Thread.State: WAITING (parking)\n\
        \tat jdk.internal.misc.Unsafe.park(java.base@17.0.15/Native Method)\n\
        \t- parking to wait for  <0x1> (a java.util.concurrent.CompletableFuture$Signaller)\n\
        \tat java.util.concurrent.CompletableFuture.join(java.base@17.0.15/CompletableFuture.java:2117)\n\
        \tat C.h(C.java:3)\n\
        \tat java.util.concurrent.ThreadPoolExecutor.runWorker(java.base@17.0.15/ThreadPoolExecutor.java:1136)\n\n\
        \"d\" #4 nid=0x22 in Object.wait()\n   java.lang.Thread.State: RUNNABLE\n\tat D.i(D.java:4)\n\
        \t- waiting on the Class initialization monitor for E\n\tat D.<clinit>(D.java:9)\n\n\
        Found one Java-level deadlock:\n====\n\"b\":\n  waits\n\n\
        Java stack information for the threads listed above:\n\tat B.g(B.java:2)\n";

    fn jvm() -> Jvm {
        Jvm::read(DUMP, Some)
    }

    #[test]
    fn of_a_dump_deadlocks_pools_and_threads_in_the_programs_functions_are_lines() {
        let lines = jvm().lines(&[33]);
        assert_eq!(lines[..3], ["Found one Java-level deadlock:", "\"b\":", "waits"]);
        assert_eq!(
            lines[3],
            "no thread of the pool pool-1-thread-N is free: its only thread waits for the result of a task (C.h at \
             C.java:3); if such a task is in this pool, nobody is left to run it"
        );
        assert_eq!(
            lines[4..],
            [
                "Java thread \"b\" waits to enter 0x700010 of class java.lang.Object, holds 0x700020 of class B$Lock: \
                 B.g at B.java:2",
                "Java thread \"d\" waits until another thread has initialised class E: D.i < D.<clinit> at D.java:4",
                "Java thread \"pool-1-thread-1\" is parked for an object of class \
                 java.util.concurrent.CompletableFuture$Signaller: java.util.concurrent.CompletableFuture.join < C.h < \
                 java.util.concurrent.ThreadPoolExecutor.runWorker at C.java:3",
            ]
        );
    }

    #[test]
    fn java_frames_take_the_place_of_those_of_generated_code() {
        let native = |module: &str, function: Option<&str>| Frame {
            module: module.to_owned(),
            function: function.map(str::to_owned),
            ..frame_of("")
        };
        let park = || native("/lib/libjvm.so", Some("Unsafe_Park"));
        let start = || native("/lib/libjvm.so", Some("thread_native_entry"));
        let mut stack = vec![park(), native("", None), native("", None), start()];
        jvm().name(33, &mut stack);
        let names: Vec<&str> = stack.iter().filter_map(|frame| frame.function.as_deref()).collect();
        assert_eq!(names.len(), 6);
        assert_eq!((names[0], names[3], names[5]), ("Unsafe_Park", "C.h", "thread_native_entry"));
        let lines: Vec<String> = fold::folded(&stack).iter().map(ToString::to_string).collect();
        assert_eq!(lines[0], "java.util.concurrent.CompletableFuture.join in java.base@17.0.15 (3 frames)");
        assert_eq!(lines[1], "C.h at C.java:3 (likely)");
        let mut stack = vec![park()];
        jvm().name(7, &mut stack);
        assert_eq!(stack, [park()], "not a thread of the dump");
    }
}
