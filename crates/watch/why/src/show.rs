//! A sample for people and for scripts.

use crate::groups::groups;
use crate::sample::{Sample, Thread};
use orbit_console::harmless::Harmless;
use orbit_console::out::{BAD, FAINT, HEAD, WARN};
use orbit_console::time::rfc3339;
use orbit_inspect::contention::{Contention, Holder};
use orbit_inspect::stacks::fold;
use orbit_inspect::waits::{FutexKind, Owner};
use serde_json::{Value, json};
use std::io::{self, Write};

/// Lines of a stack that people are shown; scripts get all its frames.
const SHOWN: usize = 16;
/// Threads of a group that are named.
const NAMED: usize = 8;

/// Text for people.
pub(crate) fn text(to: &mut (impl Write + ?Sized), sample: &Sample) -> io::Result<()> {
    let Sample { pid, command, threads, .. } = sample;
    let time = rfc3339(sample.at);
    let count = if threads.len() == 1 { "thread" } else { "threads" };
    writeln!(to, "{HEAD}process {pid}{HEAD:#}: {} ({} {count}, {time})", Harmless(command), threads.len())?;
    for ring in &sample.rings {
        writeln!(to, "{BAD}deadlock:{BAD:#} {}", Harmless(ring))?;
    }
    for ring in sample.runtime.rings() {
        let waits: Vec<String> = ring.iter().map(|edge| format!("thread {} waits for {edge}", edge.waiter)).collect();
        writeln!(to, "{BAD}deadlock:{BAD:#} {} (certain)", waits.join("; "))?;
    }
    for (lock, name) in &sample.locks {
        writeln!(to, "{BAD}lock:{BAD:#} {}", Harmless(sentence(lock, name.as_deref())))?;
    }
    if let Some(holder) = sample.runtime.gil {
        writeln!(to, "Python's global lock (GIL) is held by thread {holder}")?;
    }
    for text in [sample.unreaped(), sample.names_of_generated_code()].into_iter().flatten() {
        writeln!(to, "{}", Harmless(text))?;
    }
    for group in groups(threads) {
        let members: Vec<&Thread> = group.iter().map(|place| &threads[*place]).collect();
        writeln!(to)?;
        heads(to, sample, &members)?;
        frames(to, members[0])?;
    }
    if !sample.runtime.says.is_empty() {
        writeln!(to, "\n{HEAD}its runtime says:{HEAD:#}")?;
    }
    for line in &sample.runtime.says {
        writeln!(to, "    {}", Harmless(line))?;
    }
    for lack in &sample.lacks {
        writeln!(to, "{WARN}not seen:{WARN:#} {}", Harmless(lack))?;
    }
    to.flush()
}

/// A lock, the thread that holds it, and those that wait, in a sentence.
pub(crate) fn sentence(lock: &Contention, name: Option<&str>) -> String {
    let kind = if matches!(lock.kind, FutexKind::RwLock { .. }) { "rwlock" } else { "mutex" };
    let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
    let holder = match lock.holder {
        Holder::Named(Owner::Thread { tid, .. }) => format!("held by thread {tid}"),
        Holder::Named(Owner::Gone { tid }) => format!("held by thread {tid}, which has exited"),
        Holder::Named(Owner::Forked { parent, tid }) => {
            format!("held by thread {tid} of the parent {parent} when this process was forked")
        }
        Holder::Named(Owner::Unknown) | Holder::Unknown => "its holder is not known".to_owned(),
        Holder::OwnHandler { tid } => {
            format!(
                "thread {tid} waits for it in a signal handler, and probably holds it itself: the handler \
                 interrupted it"
            )
        }
        Holder::Readers { count } => {
            let readers = if count == 1 { "a reader".to_owned() } else { format!("{count} readers") };
            format!(
                "held by {readers}; a reader among those that wait may be the one, and take it again behind a writer"
            )
        }
    };
    let shown: Vec<String> = lock.waiters.iter().take(NAMED).map(i32::to_string).collect();
    let more = match lock.waiters.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (count, wait) = if lock.waiters.len() == 1 { ("thread", "waits") } else { ("threads", "wait") };
    format!("{kind} {:#x}{name}: {holder}; {count} {}{more} {wait} for it", lock.lock, shown.join(", "))
}

/// A line for each thread, up to [`NAMED`].
fn heads(to: &mut (impl Write + ?Sized), sample: &Sample, members: &[&Thread]) -> io::Result<()> {
    for thread in members.iter().take(NAMED) {
        let of_python = sample.runtime.names.get(&thread.tid);
        let named = of_python.map_or_else(String::new, |name| format!(", in Python {name}"));
        write!(to, "{HEAD}thread {}{HEAD:#} ({}{}) ", thread.tid, Harmless(&thread.name), Harmless(named))?;
        write!(to, "{}", Harmless(does(sample, thread)))?;
        let others = thread.peers.iter().copied().chain(thread.holder.map(|(pid, _)| pid));
        for other in others.filter(|other| *other != sample.pid) {
            if let Some(command) = sample.commands.get(&other).filter(|command| !command.is_empty()) {
                let stopped = if sample.stopped.contains(&other) { "stopped by a signal: " } else { "" };
                write!(to, "; {other} is {stopped}{}", Harmless(command))?;
            }
        }
        writeln!(to)?;
    }
    if members.len() > NAMED {
        writeln!(to, "{FAINT}and {} more threads with the same stack{FAINT:#}", members.len() - NAMED)?;
    }
    Ok(())
}

/// What a thread does or waits for, in words.
pub(crate) fn does(sample: &Sample, thread: &Thread) -> String {
    match (thread.is_busy(), sample.runtime.wait_of(thread.tid)) {
        (true, _) => format!("uses {:.0} % of a CPU", thread.cpu * 100.0),
        (false, Some(wait)) => format!("waits for {wait}"),
        (false, None) => format!("waits for {}", thread.wait),
    }
}

fn frames(to: &mut (impl Write + ?Sized), thread: &Thread) -> io::Result<()> {
    for line in thread.python.iter().take(SHOWN) {
        writeln!(to, "    {} (Python)", Harmless(line))?;
    }
    let (lines, left) = fold::shown(&thread.frames, SHOWN);
    for (place, line) in lines.iter().enumerate() {
        writeln!(to, "    {FAINT}{place:>2}{FAINT:#} {}", Harmless(line))?;
    }
    match left {
        _ if thread.frames.is_empty() => writeln!(to, "    {FAINT}its stack could not be read{FAINT:#}"),
        0 => Ok(()),
        n => writeln!(to, "    {FAINT}and {n} more frames{FAINT:#}"),
    }
}

/// The same for scripts.
pub(crate) fn json(sample: &Sample) -> Value {
    let threads: Vec<Value> = sample.threads.iter().map(|thread| of_thread(sample, thread)).collect();
    let groups: Vec<Vec<i32>> = groups(&sample.threads)
        .iter()
        .map(|group| group.iter().map(|place| sample.threads[*place].tid).collect())
        .collect();
    let edge = |edge: &crate::runtime::Edge| {
        let text = edge.to_string();
        json!({"tid": edge.waiter, "lock": edge.at, "kind": edge.kind, "holder": edge.holder, "text": text})
    };
    let of_runtime = sample.runtime.rings().into_iter().map(|ring| {
        let tids: Vec<i32> = ring.iter().map(|edge| edge.waiter).collect();
        let text: Vec<String> = ring.iter().map(|edge| format!("thread {} waits for {edge}", edge.waiter)).collect();
        json!({"tids": tids, "sure": "certain", "text": text.join("; ")})
    });
    let ring = |ring: &orbit_inspect::rings::Ring| {
        let tids: Vec<i32> = ring.members.iter().map(|member| member.tid).collect();
        json!({"tids": tids, "sure": ring.sure.to_string(), "text": ring.to_string()})
    };
    json!({
        "pid": sample.pid,
        "time": rfc3339(sample.at),
        "command": sample.command,
        "deadlocks": sample.rings.iter().map(ring).chain(of_runtime).collect::<Vec<_>>(),
        "runtime": sample.runtime.says,
        "runtime_locks": sample.runtime.edges.iter().map(edge).collect::<Vec<_>>(),
        "global_lock": sample.runtime.gil,
        "global_lock_waiters": sample.runtime.gil_waiters,
        "unreaped_children": sample.unreaped,
        "stopped_processes": sample.stopped,
        "locks": sample.locks.iter().map(|(lock, name)| {
            let holder = match lock.holder {
                Holder::Named(Owner::Thread { tid, .. }) | Holder::OwnHandler { tid } => Some(tid),
                _ => None,
            };
            let text = sentence(lock, name.as_deref());
            json!({"address": lock.lock, "name": name, "holder": holder, "waiters": lock.waiters, "text": text})
        }).collect::<Vec<_>>(),
        "groups": groups,
        "threads": threads,
        "not_seen": sample.lacks,
    })
}

fn of_thread(sample: &Sample, thread: &Thread) -> Value {
    let peers: Vec<Value> = thread
        .peers
        .iter()
        .map(|pid| json!({"pid": pid, "command": sample.commands.get(pid).unwrap_or(&sample.command)}))
        .collect();
    let frames: Vec<Value> = thread
        .frames
        .iter()
        .map(|frame| {
            json!({
                "function": frame.function,
                "module": frame.module,
                "file": frame.file,
                "line": frame.line,
                "address": frame.address,
                "sure": frame.sure.to_string(),
            })
        })
        .collect();
    json!({
        "tid": thread.tid,
        "name": thread.name,
        "python_name": sample.runtime.names.get(&thread.tid),
        "waits_for": (!thread.is_busy())
            .then(|| sample.runtime.wait_of(thread.tid).unwrap_or_else(|| thread.wait.to_string())),
        "cpu": (thread.cpu * 1000.0).round() / 1000.0,
        "holder": thread.holder.map(|(pid, tid)| json!({"pid": pid, "tid": tid})),
        "peers": peers,
        "in_deadlock": thread.in_ring,
        "python": thread.python,
        "frames": frames,
    })
}
