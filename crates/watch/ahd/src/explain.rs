//! A verdict in words and with stacks. Only here threads are stopped, tens of microseconds each.
//!
//! Owns: the sentence of a report, and [`Explainer`], which takes the stacks; [`without_stacks`]
//! does without. Refuses: to change a verdict.

use crate::event::{Edge, Event, Hang, Involved, Kind, Unit};
use crate::facts::{Back, Facts, Id, Runtime, Thread};
use crate::history::{History, serves};
use crate::judge::{Verdict, Why};
use crate::locks::Names;
use crate::stacks::{Stacks, place};
use crate::wakers::{How, Wakers, wakers};
use crate::words::words;
use orbit_inspect::Sure;
use orbit_inspect::contention::{Contention, Holder, Waiter, contentions};
use orbit_inspect::runtimes;
use orbit_inspect::stacks::Frame;
use orbit_inspect::waits::{FutexWait, Owner, Wait, Watched, call_name};
use std::time::Duration;

/// Threads of a hang whose stacks are taken.
const STACKS: usize = 32;
/// Threads that wait for a lock without a known holder, among which the one that waits for itself
/// is searched for.
const WAITERS: usize = 256;
/// Threads of a process without answers whose stacks are taken, beside its first.
const SUSPECTS: usize = 7;
/// A thread that computes for so long without a pause is busy, s.
const COMPUTES: f64 = 1.0;
/// Time between the first sight of a thread's sleep and of what it sleeps for, s.
const ABOUT: f64 = 0.3;

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
        let tids: Vec<i32> = threads.iter().filter(|id| id.pid == pid).map(|id| id.tid).collect();
        let runtime = self.stacks.runtime(pid, &tids, verdict.sure == Sure::Guess || is_of_java(verdict));
        let event = report(verdict, before, (facts, history), taken, (runtime, lock.as_ref(), &Names::of(verdict)));
        proven(event)
    }
}

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

/// A hang is certain where the runtime itself found a deadlock among its threads.
fn proven(event: Event) -> Event {
    match event {
        Event::Hang(mut hang) if hang.runtime.iter().any(|line| line.starts_with(runtimes::DEADLOCK)) => {
            if hang.sure < Sure::Certain {
                hang.why += "; the JVM itself finds a deadlock";
                hang.sure = Sure::Certain;
            }
            Event::Hang(hang)
        }
        event => event,
    }
}

/// Whether it is about monitors of a JVM, which then knows more of it.
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
        Involved { pid: id.pid, tid: id.tid, comm, does, stack: Vec::new(), python: Vec::new(), note: None }
    };
    let threads = involved(verdict, facts, history).into_iter().take(STACKS).map(one).collect();
    report(verdict, before, (facts, history), threads, (Vec::new(), None, &Names::default()))
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
    (runtime, lock, names): (Vec<String>, Option<&Contention>, &Names),
) -> Event {
    let first = taken.first().map(|t| Id { pid: t.pid, tid: t.tid });
    let (pid, tid) = first.map_or((0, 0), |id| (id.pid, id.tid));
    let mut why = sentence(verdict, facts, taken.first(), (lock, names));
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
    let is_busy = verdict.threads.is_empty() && thread.is_some_and(|t| t.computes_for(facts.now, COMPUTES));
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
        cycle: cycle(verdict, facts, names),
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

/// The threads of a verdict, the one to blame first. Of a port without answers: threads of its
/// process that run, then those that went to sleep since the request came, the first of them first,
/// then others that are not where they wait for work. Its first thread is always among them.
fn involved(verdict: &Verdict, facts: &Facts, history: &History) -> Vec<Id> {
    if !verdict.threads.is_empty() {
        return verdict.threads.clone();
    }
    let crate::judge::Key::Unanswered(pid, _) = verdict.key else { return Vec::new() };
    let of = facts.threads.range(Id { pid, tid: i32::MIN }..=Id { pid, tid: i32::MAX });
    // A thread is seen to sleep, and a request to have come, within a scan of each other.
    let before = |thread: &Thread| thread.since < verdict.since - ABOUT;
    let at_work = |(id, thread): &(&Id, &Thread)| {
        let at_home = history.threads.get(*id).is_some_and(|h| h.at_home);
        !(at_home && before(thread) || thread.sleeps() && serves(&thread.sight))
    };
    let mut all: Vec<&Thread> = of.filter(at_work).map(|(_, t)| t).collect();
    let order = |t: &Thread| (t.sleeps(), before(t));
    all.sort_by(|a, b| order(a).cmp(&order(b)).then(a.since.total_cmp(&b.since)));
    let mut ids: Vec<Id> = all.into_iter().map(|t| t.id).take(SUSPECTS).collect();
    let first = Id { pid, tid: pid };
    if !ids.contains(&first) {
        ids.push(first);
    }
    ids
}

/// Why, in one sentence.
fn sentence(
    verdict: &Verdict,
    facts: &Facts,
    first: Option<&Involved>,
    (found, names): (Option<&Contention>, &Names),
) -> String {
    let name = |id: &Id| {
        let comm = facts.threads.get(id).map_or("?", |t| &t.comm);
        format!("thread {} ({comm})", id.tid)
    };
    // A recording has no stacks.
    let at = |t: &Involved| if t.stack.is_empty() && t.note.is_none() { None } else { Some(place(&t.stack)) };
    let at = first.and_then(at).map_or_else(String::new, |place| format!(" in {place}"));
    match &verdict.why {
        Why::ClosedSet(members) => closed(members, verdict.sure, &name, names),
        Why::LoopLeft { away, longest, returns, call, waiting } => {
            let thread = verdict.threads.last().map(&name).unwrap_or_default();
            let does = match call {
                None => format!("uses the CPU{at}"),
                Some(nr) => format!("is asleep in {}{at}", call_name(*nr).unwrap_or("a system call")),
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
            // A handler that takes the lock again is known by its stack, whatever the lock.
            if let (None, None, Some((first, function))) =
                (holder, reader, first.and_then(|t| Some((t, taken_twice(&t.stack)?))))
            {
                return format!(
                    "{waits}; {} waits for itself: a signal's handler interrupted it in {function} and takes the same \
                     lock there again",
                    name(&Id { pid: first.pid, tid: first.tid })
                );
            }
            match (holder, reader, found.map(|lock| lock.holder)) {
                (Some(holder), ..) => {
                    format!("{waits}, held by {}{}", name(holder), at.replacen(" in", " which is in", 1))
                }
                (None, Some(reader), _) => format!(
                    "{waits} that readers hold, and {} waits behind it to read: a reader that takes the lock again \
                     behind a \
                     waiting writer waits for itself",
                    name(reader)
                ),
                (None, None, Some(Holder::Named(Owner::Thread { pid, tid }))) => {
                    format!("{waits}, held by {}", name(&Id { pid, tid }))
                }
                (None, None, Some(Holder::Named(Owner::Gone { tid }))) => {
                    format!("{waits}, held by thread {tid}, which has exited")
                }
                (None, None, Some(Holder::Named(Owner::Forked { parent, tid }))) => {
                    format!("{waits}, held by thread {tid} of process {parent} when this one was forked")
                }
                (None, None, Some(Holder::Readers { count })) => {
                    let readers = if count == 1 { "a reader".to_owned() } else { format!("{count} readers") };
                    format!("{waits}, held by {readers}")
                }
                (
                    None,
                    None,
                    Some(Holder::Named(Owner::Unknown) | Holder::OwnHandler { .. } | Holder::Unknown) | None,
                ) => {
                    format!("{waits}; its holder is not known")
                }
            }
        }
        Why::Section { name: section, used, usual, check } => {
            let thread = verdict.threads.first().map(&name).unwrap_or_default();
            let ms = |ns: &u64| *ns as f64 / 1e6;
            match (used, usual) {
                (Some(used), Some(usual @ 0..1000)) => {
                    format!("{thread} spins in section {section}{at}: {:.0} ms of CPU, usually {usual} ns", ms(used))
                }
                (Some(used), Some(usual)) => format!(
                    "{thread} spins in section {section}{at}: {:.0} ms of CPU, usually {:.3} ms",
                    ms(used),
                    ms(usual)
                ),
                (Some(used), None) => format!(
                    "{thread} spins in section {section}{at}: {:.0} ms of CPU, allowed {:.0} ms (what it usually uses \
                     is \
                     not known yet)",
                    ms(used),
                    ms(check)
                ),
                (None, _) => {
                    let does = first.map_or("waits", |t| &t.does);
                    let since = facts.now - verdict.since;
                    format!("{thread} has not run in section {section} for {since:.1} s: it {does}")
                }
            }
        }
        Why::Owed { port, fd, waited, longest, back: (back, pids) } => {
            let thread = verdict.threads.first().map(&name).unwrap_or_default();
            let of = |what: &str| match pids.first() {
                Some(pid) => format!("process {pid} at the other side {what}"),
                None => "the other side is not a process of this machine that can be seen".to_owned(),
            };
            let back = of(match back {
                Back::Stopped => "is stopped",
                _ => "sleeps, and does nothing for it",
            });
            format!(
                "{thread} has waited for an answer from port {port} at descriptor {fd} for {waited:.1} s (longest \
                 before {}): {back}",
                span(*longest)
            )
        }
        Why::Unanswered { port, requests, oldest, longest } => format!(
            "{requests} {} read at port {port} and not answered, the oldest for {oldest:.1} s (longest before {})",
            if *requests == 1 { "request was" } else { "requests were" },
            span(*longest)
        ),
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
        Runtime::Java => "Java monitor",
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
