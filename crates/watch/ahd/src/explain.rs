//! A verdict in words and with stacks. Only here threads are stopped, tens of microseconds each.
//!
//! Owns: the sentence of a report, and [`Explainer`], which takes the stacks; [`without_stacks`]
//! does without. Refuses: to change a verdict.

use crate::event::{Edge, Event, Hang, Involved, Kind, Unit};
use crate::facts::{Back, Facts, Id, Locked, Runtime, Thread};
use crate::history::History;
use crate::judge::{Key, Verdict, Why};
use crate::locks::Names;
use crate::stacks::{Stacks, place};
use crate::suspects::{choose_suspects, involved};
use crate::wakers::{How, Wakers, wakers};
use crate::words::words;
use orbit_inspect::Sure;
use orbit_inspect::contention::{Contention, Holder, Waiter, contentions};
use orbit_inspect::python;
use orbit_inspect::runtimes;
use orbit_inspect::stacks::Frame;
use orbit_inspect::waits::{FutexWait, Owner, Wait, Watched, call_name};
use std::time::Duration;

/// Threads of a hang whose stacks are taken.
const STACKS: usize = 32;
/// Threads that wait for a lock without a known holder, among which the one that waits for itself
/// is searched for.
const WAITERS: usize = 256;
/// A thread that computes for so long without a pause is busy, s.
const COMPUTES: f64 = 1.0;

/// Takes stacks; files once parsed are kept for each process.
#[derive(Debug, Default)]
pub(crate) struct Explainer {
    stacks: Stacks,
}

impl Explainer {
    /// What takes the stacks.
    pub(crate) fn stacks(&mut self) -> &mut Stacks {
        &mut self.stacks
    }

    /// Forgets what it knows of a process' files.
    pub(crate) fn forget(&mut self, pid: i32) {
        self.stacks.forget(pid);
    }

    /// The verdict as an event. Stops its threads for their stacks; `stopping` hears of each
    /// before.
    pub(crate) fn explain(
        &mut self,
        verdict: &Verdict,
        before: Option<(Sure, f64)>,
        (facts, history): (&Facts, &History),
        stopping: &mut dyn FnMut(Id),
    ) -> Event {
        let threads = involved(verdict, facts, history);
        let is_unknown = matches!(verdict.why, Why::LockHeld { holder: None, reader: None, .. });
        let (mut list, mut futexes) = (Vec::new(), Vec::new());
        for id in threads.iter().take(if is_unknown { WAITERS } else { STACKS }) {
            stopping(*id);
            let wait = Watched::of_few(id.pid).map(|mut watched| watched.wait_of(id.tid));
            list.push((id.pid, id.tid, wait.as_ref().map_or_else(ToString::to_string, words)));
            futexes.push(match wait {
                Ok(Wait::Futex(futex)) => Some(futex),
                _ => None,
            });
        }
        let gil = global_lock(&mut list, &mut futexes, facts, stopping);
        let mut taken = self.stacks.involve(list, false);
        let lock = if is_unknown { contention(&taken, &futexes) } else { None };
        let is_blamed = |t: &Involved| {
            let by_lock = lock.as_ref().is_some_and(|l| matches!(l.holder, Holder::OwnHandler { tid } if tid == t.tid));
            by_lock || taken_twice(&t.stack).is_some()
        };
        if is_unknown && let Some(at) = taken.iter().position(is_blamed) {
            taken[..=at].rotate_right(1);
        }
        taken.truncate(STACKS);
        let pid = taken.first().map_or(0, |t| t.pid);
        let runtime = self.stacks.runtime(pid, &mut taken, verdict.sure == Sure::Guess || is_of_java(verdict));
        if matches!(verdict.key, Key::Unanswered(..)) {
            choose_suspects(&mut taken);
        }
        let found = Found { lock: lock.as_ref(), gil, names: &Names::of(verdict) };
        let event = report(verdict, before, (facts, history), taken, (runtime, &found));
        proven(event)
    }
}

/// What was found of the locks of a report's threads.
struct Found<'a> {
    /// The lock that most of them wait for.
    lock: Option<&'a Contention>,
    /// The thread that has Python's global lock, for which some of them wait.
    gil: Option<Id>,
    names: &'a Names,
}

/// Time that a thread is asleep with Python's global lock before it is to blame, s.
const KEEPS_GIL: f64 = 0.5;

/// The thread that has Python's global lock, asleep, while these wait for it: it comes first. Of
/// one that runs it says nothing, as the lock goes from hand to hand.
fn global_lock(
    list: &mut Vec<(i32, i32, String)>,
    futexes: &mut Vec<Option<FutexWait>>,
    facts: &Facts,
    stopping: &mut dyn FnMut(Id),
) -> Option<Id> {
    let pid = list.first()?.0;
    if !facts.processes.get(&pid)?.is_python {
        return None;
    }
    let python = python::find(pid).ok()??;
    let lock = python.lock_words()?;
    let waits = |futex: &Option<FutexWait>| futex.as_ref().is_some_and(|futex| lock.contains(&futex.call.addr));
    let waiting: Vec<usize> = (0..list.len()).filter(|at| list[*at].0 == pid && waits(&futexes[*at])).collect();
    let holder = Id { pid, tid: python.lock_holder().filter(|_| !waiting.is_empty())? };
    facts.threads.get(&holder).filter(|thread| thread.idle_for(facts.now, KEEPS_GIL))?;
    for at in waiting {
        list[at].2 = format!("{GIL}, held by thread {}", holder.tid);
    }
    match list.iter().position(|(pid, tid, _)| Id { pid: *pid, tid: *tid } == holder) {
        Some(at) => {
            list[..=at].rotate_right(1);
            futexes[..=at].rotate_right(1);
        }
        None => {
            stopping(holder);
            let wait = Watched::of_few(pid).map(|mut watched| watched.wait_of(holder.tid));
            list.insert(0, (pid, holder.tid, wait.as_ref().map_or_else(ToString::to_string, words)));
            futexes.insert(0, None);
        }
    }
    Some(holder)
}

/// What a thread does that waits for that lock.
const GIL: &str = "waits for Python's global lock (GIL)";

/// The lock that most of these threads wait for, by their memory and stacks, as a sample of the
/// process has it.
fn contention(taken: &[Involved], futexes: &[Option<FutexWait>]) -> Option<Contention> {
    let of = |(thread, wait): (&'_ Involved, &'_ Option<FutexWait>)| Some((thread.pid, thread.tid, wait.clone()?));
    let waits: Vec<(i32, i32, FutexWait)> = taken.iter().zip(futexes).filter_map(of).collect();
    let stack = |tid: i32| taken.iter().find(|t| t.tid == tid).map_or(&[][..], |t| &t.stack);
    let waiters: Vec<Waiter<'_>> =
        waits.iter().map(|(pid, tid, wait)| Waiter { pid: *pid, tid: *tid, wait, frames: stack(*tid) }).collect();
    contentions(&waiters).into_iter().next()
}

/// A hang is certain where the runtime itself found a deadlock among its threads. What it says of
/// pools that cannot run a task is part of the reason, and no proof.
fn proven(event: Event) -> Event {
    match event {
        Event::Hang(mut hang) if hang.runtime.iter().any(|line| line.starts_with(runtimes::DEADLOCK)) => {
            if hang.sure < Sure::Certain {
                hang.why += "; the JVM itself finds a deadlock";
                hang.sure = Sure::Certain;
            }
            Event::Hang(hang)
        }
        Event::Hang(mut hang) => {
            if let Some(line) = hang.runtime.iter().find(|line| line.starts_with(runtimes::BUSY_POOL)) {
                hang.why += &format!("; {line}");
            }
            Event::Hang(hang)
        }
        event => event,
    }
}

/// Whether it is about locks of a JVM, which then knows more of it.
fn is_of_java(verdict: &Verdict) -> bool {
    let of_java = |(_, how): &(Id, How)| matches!(how, How::Held { by: Runtime::Java, .. });
    matches!(&verdict.why, Why::ClosedSet(members) if members.iter().any(of_java))
}

/// The verdict as an event, by what is known without the processes: no stack, and threads as the
/// facts have them.
pub(crate) fn without_stacks(
    verdict: &Verdict,
    before: Option<(Sure, f64)>,
    (facts, history): (&Facts, &History),
) -> Event {
    let one = |id: Id| {
        let thread = facts.threads.get(&id);
        let does = thread.map_or_else(|| "has ended".to_owned(), |t| does(facts, t));
        let comm = thread.map_or_else(String::new, |t| t.comm.clone());
        Involved {
            pid: id.pid,
            tid: id.tid,
            comm,
            python_name: None,
            does,
            stack: Vec::new(),
            python: Vec::new(),
            note: None,
        }
    };
    let threads = involved(verdict, facts, history).into_iter().take(STACKS).map(one).collect();
    let found = Found { lock: None, gil: None, names: &Names::default() };
    report(verdict, before, (facts, history), threads, (Vec::new(), &found))
}

/// What a thread does, by the facts.
fn does(facts: &Facts, thread: &Thread) -> String {
    if !thread.sleeps() {
        return "runs, or waits for a CPU".to_owned();
    }
    match wakers(facts, thread) {
        Wakers::Only { how, .. } => format!("waits for {}", what(thread.id, how, &Names::default())),
        Wakers::World => format!("waits in {}", call_name(thread.sight.nr).unwrap_or("a system call")),
    }
}

fn report(
    verdict: &Verdict,
    before: Option<(Sure, f64)>,
    (facts, history): (&Facts, &History),
    taken: Vec<Involved>,
    (runtime, found): (Vec<String>, &Found<'_>),
) -> Event {
    let first = taken.first().map(|t| Id { pid: t.pid, tid: t.tid });
    let (pid, tid) = first.map_or((0, 0), |id| (id.pid, id.tid));
    let mut why = sentence(verdict, facts, &taken, found);
    if let Some((sure, ago)) = before {
        why += &format!(" (reported as a {sure} {ago:.1} s ago)").replace("a likely", "likely");
    }
    let more = involved(verdict, facts, history).len().saturating_sub(STACKS);
    if more > 0 {
        why += &format!("; {more} more threads are part of it");
    }
    let since = seconds(facts.now - verdict.since);
    let allowed = seconds(verdict.allowed);
    let marked = first.and_then(|id| history.processes.get(&id.pid)?.marked.innermost(id.tid)).map(str::to_owned);
    let ns = |time: Duration| time.as_nanos() as u64;
    // Whatever rule found it: who computes all the while is busy.
    let thread = first.and_then(|id| facts.threads.get(&id));
    let is_busy =
        matches!(verdict.key, Key::Unanswered(..)) && thread.is_some_and(|t| t.computes_for(facts.now, COMPUTES));
    let (section, progress, usual, check_value, unit) = match &verdict.why {
        Why::Section { name, used: Some(used), usual, check } => {
            (Some(name.clone()), *used, *usual, *check, Unit::CpuNs)
        }
        Why::Section { name, check, .. } => (Some(name.clone()), ns(since), None, *check, Unit::WaitNs),
        _ => (marked, ns(since), usual(verdict).map(|s| ns(seconds(s))), ns(allowed), Unit::WaitNs),
    };
    Event::Hang(Box::new(Hang {
        kind: if is_busy { Kind::Busy } else { kind(verdict) },
        pid,
        tid,
        comm: first.and_then(|id| facts.threads.get(&id)).map_or_else(String::new, |t| t.comm.clone()),
        section,
        progress,
        usual,
        check_value,
        unit,
        since,
        latency: since.saturating_sub(allowed),
        why,
        sure: verdict.sure,
        threads: taken,
        cycle: cycle(verdict, facts, found.names),
        runtime,
    }))
}

/// That a hang is over, `after` seconds after its report.
pub(crate) fn over(verdict: &Verdict, after: f64, (facts, history): (&Facts, &History)) -> Option<Event> {
    let Id { pid, tid } = involved(verdict, facts, history).first().copied()?;
    Some(Event::Recovered { pid, tid, kind: kind(verdict), after: seconds(after) })
}

/// Busy or blocked.
pub(crate) fn kind(verdict: &Verdict) -> Kind {
    let is_busy = matches!(verdict.why, Why::LoopLeft { call: None, .. } | Why::Section { used: Some(_), .. });
    if is_busy { Kind::Busy } else { Kind::Blocked }
}

fn seconds(s: f64) -> Duration {
    Duration::try_from_secs_f64(s.max(0.0)).unwrap_or(Duration::ZERO)
}

fn usual(verdict: &Verdict) -> Option<f64> {
    match &verdict.why {
        Why::LoopLeft { longest, .. } | Why::Unanswered { longest, .. } | Why::Owed { longest, .. } => Some(*longest),
        _ => None,
    }
}

/// Why, in one sentence.
fn sentence(verdict: &Verdict, facts: &Facts, taken: &[Involved], found: &Found<'_>) -> String {
    let Found { lock: found, gil, names } = *found;
    let first = taken.first();
    // Threads of Python have the program's name but by Python itself.
    let name = |id: &Id| {
        let of_python =
            taken.iter().find(|t| (t.pid, t.tid) == (id.pid, id.tid)).and_then(|t| t.python_name.as_deref());
        let name = of_python.or_else(|| facts.threads.get(id).map(|t| t.comm.as_str())).unwrap_or("?");
        format!("thread {} ({name})", id.tid)
    };
    // A recording has no stacks.
    let at = |t: &Involved| if t.stack.is_empty() && t.note.is_none() { None } else { Some(place(&t.stack)) };
    let at = first.and_then(at).map_or_else(String::new, |place| format!(" in {place}"));
    match &verdict.why {
        Why::ClosedSet(members) => {
            let unreaped = |(id, _): &(Id, How)| facts.processes.get(&id.pid).map(|p| exited(&p.unreaped.1));
            let first = members.first().and_then(unreaped).filter(|text| !text.is_empty());
            closed(members, verdict.sure, &name, names) + &first.map_or_else(String::new, |text| format!("; {text}"))
        }
        Why::LoopLeft { away, longest, returns, call, waiting } => {
            let thread = verdict.threads.last().map(&name).unwrap_or_default();
            let does = match (call, &gil) {
                (None, _) => format!("uses the CPU{at}"),
                (Some(libc::SYS_futex), Some(holder)) => {
                    let place = at.replacen(" in", ", asleep in", 1);
                    format!("{GIL}, which {} has{place}", name(holder))
                }
                (Some(nr), _) => format!("is asleep in {}{at}", call_name(*nr).unwrap_or("a system call")),
            };
            let input = match &waiting[..] {
                [] => String::new(),
                fds => format!("; input waits at {} of its process' descriptors", fds.len()),
            };
            format!(
                "{thread} has not been back in its loop for {away:.1} s (longest before {}, {returns} \
                 returns): it \
                 {does}{input}",
                span(*longest)
            )
        }
        Why::LockHeld { waiter, waited, at: lock, holder, reader } => {
            let lock = names.lock(waiter.pid, *lock);
            let waits = format!("{} has been blocked on lock {lock} for {waited:.1} s", name(waiter));
            match (holder, reader) {
                (Some(holder), _) => {
                    format!("{waits}, held by {}{}", name(holder), at.replacen(" in", " which is in", 1))
                }
                (None, Some(reader)) => format!(
                    "{waits} that readers hold, and {} waits behind it to read: a reader that takes the lock again \
                     behind a waiting writer waits for itself",
                    name(reader)
                ),
                (None, None) => waits + &by_stacks(first, found.map(|lock| lock.holder), &name),
            }
        }
        Why::Section { name: section, used: Some(used), usual, check } => {
            let thread = verdict.threads.first().map(&name).unwrap_or_default();
            let ms = |ns: u64| ns as f64 / 1e6;
            let otherwise = match *usual {
                Some(usual @ 0..1000) => format!("usually {usual} ns"),
                Some(usual) => format!("usually {:.3} ms", ms(usual)),
                None => format!("allowed {:.0} ms (what it usually uses is not known yet)", ms(*check)),
            };
            format!("{thread} spins in section {section}{at}: {:.0} ms of CPU, {otherwise}", ms(*used))
        }
        Why::Section { name: section, used: None, .. } => {
            let thread = verdict.threads.first().map(&name).unwrap_or_default();
            let does = first.map_or("waits", |t| &t.does);
            let since = facts.now - verdict.since;
            format!("{thread} has not run in section {section} for {since:.1} s: it {does}")
        }
        Why::Owed { port, fd, waited, longest, back } => {
            let thread = verdict.threads.first().map(&name).unwrap_or_default();
            let back = other_side(back.as_ref());
            format!(
                "{thread} has waited for an answer from port {port} at descriptor {fd} for {waited:.1} s (longest \
                 before {}): {back}",
                span(*longest)
            )
        }
        Why::Stopped { how, waited, pids } => {
            let thread = verdict.threads.first().map(&name).unwrap_or_default();
            let of = verdict.threads.first().map_or_else(String::new, |id| what(*id, *how, names));
            let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
            let process = if pids.len() == 1 { "process" } else { "processes" };
            let is = if pids.len() == 1 { "is" } else { "are" };
            format!(
                "{thread} has waited for {of} for {waited:.1} s, and {process} {} that could end that {is} stopped by \
                 a signal: SIGCONT continues it",
                pids.join(", ")
            )
        }
        Why::Unreaped { call, waited, pids } => {
            let thread = verdict.threads.first().map(&name).unwrap_or_default();
            let call = call_name(*call).unwrap_or("a system call");
            format!(
                "{thread} has been asleep in {call} for {waited:.1} s, and {}; the signal for that (SIGCHLD) may have \
                 come before the wait began",
                exited(pids)
            )
        }
        Why::Goroutines { waited, waits, is_ring } => of_goroutines(*waited, waits, *is_ring),
        Why::Unanswered { port, requests, oldest, longest } => format!(
            "{requests} {} read at port {port} and not answered, the oldest for {oldest:.1} s (longest before {})",
            if *requests == 1 { "request was" } else { "requests were" },
            span(*longest)
        ),
    }
}

/// What is said of children that their process has not asked for; nothing if there is none.
fn exited(pids: &[i32]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = pids.iter().take(SHOWN).map(i32::to_string).collect();
    let (shown, more) = (shown.join(", "), if pids.len() > SHOWN { ", ..." } else { "" });
    match pids.len() {
        0 => String::new(),
        1 => format!("its child {shown} has exited and was not asked for"),
        n => format!("{n} of its children have exited and were not asked for ({shown}{more})"),
    }
}

/// The end of a sentence about a lock whose holder no judge knows: what stacks and the lock's own
/// words say of it.
fn by_stacks(first: Option<&Involved>, found: Option<Holder>, name: &dyn Fn(&Id) -> String) -> String {
    // A handler that takes the lock again is known by its stack, whatever the lock.
    if let Some((first, function)) = first.and_then(|t| Some((t, taken_twice(&t.stack)?))) {
        return format!(
            "; {} waits for itself: a signal's handler interrupted it in {function} and takes the same lock there \
             again",
            name(&Id { pid: first.pid, tid: first.tid })
        );
    }
    match found {
        Some(Holder::Named(Owner::Thread { pid, tid })) => format!(", held by {}", name(&Id { pid, tid })),
        Some(Holder::Named(Owner::Gone { tid })) => format!(", held by thread {tid}, which has exited"),
        Some(Holder::Named(Owner::Forked { parent, tid })) => {
            format!(", held by thread {tid} of process {parent} when this one was forked")
        }
        Some(Holder::Readers { count: 1 }) => ", held by a reader".to_owned(),
        Some(Holder::Readers { count }) => format!(", held by {count} readers"),
        Some(Holder::Named(Owner::Unknown) | Holder::OwnHandler { .. } | Holder::Unknown) | None => {
            "; its holder is not known".to_owned()
        }
    }
}

/// Goroutines that wait for locks.
fn of_goroutines(waited: f64, waits: &[Locked], is_ring: bool) -> String {
    const SHOWN: usize = 4;
    let lock = |locked: &Locked| {
        let kind = if locked.rw { "sync.RWMutex" } else { "sync.Mutex" };
        format!("{kind} {:#x}", locked.at)
    };
    if !is_ring {
        let first = waits.first().map_or_else(String::new, |l| format!("goroutine {} has waited for {}", l.g, lock(l)));
        let more = match waits.len() {
            0 | 1 => String::new(),
            2 => "; 1 more waits for a lock for as long as the limit".to_owned(),
            n => format!("; {} more wait for locks for as long as the limit", n - 1),
        };
        return format!("{first} for {waited:.1} s; such a lock does not say who holds it{more}");
    }
    let next = waits.iter().cycle().skip(1);
    let one = |(locked, next): (&Locked, &Locked)| {
        format!("goroutine {} waits for {}, which goroutine {} seems to hold", locked.g, lock(locked), next.g)
    };
    let shown: Vec<String> = waits.iter().zip(next).take(SHOWN).map(one).collect();
    let more = waits.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{}{more}, for {waited:.1} s: nobody else has these locks on its stack", shown.join("; "))
}

/// What the other side of a connection does, as far as it was read.
fn other_side(back: Option<&(Back, Vec<i32>)>) -> String {
    match back {
        None => "what the other side does was not read yet".to_owned(),
        Some((back, pids)) => match (pids.first(), back) {
            (None, _) => "the other side is not a process of this machine that can be seen".to_owned(),
            (Some(pid), Back::Stopped) => format!("process {pid} at the other side is stopped"),
            (Some(pid), Back::Waits) => format!("process {pid} at the other side sleeps, and does nothing for it"),
            (Some(pid), _) => format!("what process {pid} at the other side does cannot be seen"),
        },
    }
}

/// A time in words, s; of one that rounds to nothing that it is short.
fn span(seconds: f64) -> String {
    if seconds < 0.05 { "less than 0.1 s".to_owned() } else { format!("{seconds:.1} s") }
}

/// The function that takes a lock, if it stands in the stack once more below a signal's handler.
fn taken_twice(stack: &[Frame]) -> Option<&str> {
    let is_wait = |name: &str| ["lock_wait", "mutex_lock", "futex", "rwlock"].iter().any(|part| name.contains(part));
    let names = stack.iter().map(|f| f.function.as_deref());
    let taker = names.clone().flatten().find(|name| !is_wait(name))?;
    // The kernel's return from a handler has no name in most C libraries.
    let mut below = names.skip_while(|name| *name != Some(taker)).skip(1);
    below.find(|name| name.is_none_or(|name| name == "__restore_rt"))?;
    below.any(|name| name == Some(taker)).then_some(taker)
}

fn closed(members: &[(Id, How)], sure: Sure, name: &dyn Fn(&Id) -> String, names: &Names) -> String {
    let waits =
        |(id, how): &(Id, How)| format!("{} of process {} waits for {}", name(id), id.pid, what(*id, *how, names));
    const SHOWN: usize = 4;
    let shown: Vec<String> = members.iter().take(SHOWN).map(waits).collect();
    let more = members.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let nobody = if members.len() == 1 { "nobody else can end that" } else { "only these could wake each other" };
    let is_open = |(_, how): &(Id, How)| how.is_open();
    let unless = if sure < Sure::Certain && members.iter().any(is_open) {
        ", unless another thread unlocks what it did not lock"
    } else {
        ""
    };
    format!("{}{more}: {nobody}{unless}", shown.join("; "))
}

/// What a thread waits for.
fn what(of: Id, how: How, names: &Names) -> String {
    let lock = |at: u64| names.lock(of.pid, at);
    match how {
        How::Lock { at, owner, lives: true, .. } if owner == of.tid => {
            format!("lock {}, which it holds itself", lock(at))
        }
        How::Lock { at, owner, lives: true, .. } => format!("lock {} held by thread {owner}", lock(at)),
        How::Lock { at, owner, .. } => format!("lock {} held by thread {owner}, which has ended", lock(at)),
        How::ForkedLock { at, owner } => {
            format!("lock {}, which thread {owner} held when the process was forked from its own", lock(at))
        }
        How::Held { by, at, owner, .. } if owner == of.tid => format!("{} {at:#x}, which it holds itself", lock_of(by)),
        How::Held { by, at, owner, .. } => format!("{} {at:#x} held by thread {owner}", lock_of(by)),
        How::Join(tid) => format!("the end of thread {tid}"),
        How::Word(at) => format!("a wake-up at {at:#x}"),
        How::Read(fd) => format!("input at descriptor {fd}"),
        How::Write(fd) => format!("room at descriptor {fd}"),
        How::FileLock(fd) => format!("a lock on the file of descriptor {fd}"),
        How::Child => "a child to exit".into(),
        How::Events => "events".into(),
    }
}

/// What a runtime calls its locks.
fn lock_of(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::Java => "Java lock",
        Runtime::Python => "Python lock",
    }
}

/// Who waits for whom, as far as it is known.
fn cycle(verdict: &Verdict, facts: &Facts, names: &Names) -> Vec<Edge> {
    let Why::ClosedSet(members) = &verdict.why else { return Vec::new() };
    let edge = |id: &Id| {
        let Wakers::Only { threads, processes, how } = wakers(facts, facts.threads.get(id)?) else { return None };
        let waits_for = match how {
            How::Lock { at, .. } => format!("mutex {}", names.lock(id.pid, at)),
            How::Held { by, at, .. } => format!("{} {at:#x}", lock_of(by)),
            How::Join(tid) => format!("end of thread {tid}"),
            How::Read(fd) => format!("input at descriptor {fd}"),
            How::Write(fd) => format!("room at descriptor {fd}"),
            How::FileLock(fd) => format!("lock on the file of descriptor {fd}"),
            How::Child => "end of a child".to_owned(),
            How::ForkedLock { .. } | How::Word(_) | How::Events => return None,
        };
        // Of a process that it waits for, the thread that is part of the set.
        let of_process = |pid: &i32| members.iter().map(|(id, _)| *id).find(|id| id.pid == *pid);
        let next = threads.first().copied().or_else(|| processes.iter().find_map(of_process))?;
        Some((next, Edge { pid: id.pid, tid: id.tid, waits_for, held_by: next.tid, sure: verdict.sure }))
    };
    // From each member on until it comes back to one that was passed.
    for (start, _) in members {
        let (mut passed, mut edges, mut at) = (Vec::new(), Vec::new(), *start);
        while let Some((next, e)) = edge(&at) {
            if let Some(from) = passed.iter().position(|id| *id == at) {
                return edges.split_off(from);
            }
            passed.push(at);
            edges.push(e);
            at = next;
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::other_side;
    use crate::facts::Back;

    #[test]
    fn nothing_is_said_of_another_side_but_what_was_read() {
        let of = |back: Back, pids: &[i32]| other_side(Some(&(back, pids.to_vec())));
        assert_eq!(other_side(None), "what the other side does was not read yet");
        assert!(of(Back::Unknown, &[]).contains("not a process of this machine"));
        assert!(of(Back::Unknown, &[7]).contains("does cannot be seen"));
        assert!(of(Back::Stopped, &[7, 8]).contains("process 7 at the other side is stopped"));
        assert!(of(Back::Waits, &[7]).contains("sleeps, and does nothing for it"));
    }
}
