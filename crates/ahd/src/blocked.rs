//! Blocked hangs: rings of locks, and waits that nobody ends.
//!
//! Owns: the decision, and the chain from a waiting thread to whoever holds it up. Promises: a ring is told as soon as it stood still
//! in two looks; a wait that nobody can end (a lost wake-up, a dead holder, a pipe with no one at the other end, a process in
//! which every thread waits for another) after a second; a lock that is held too long after the limit. Refuses: waits with a time limit, rings through
//! such a wait, waits at a thread's usual place (but for [`crate::standstill`]), and holders that are stopped, traced, in an uninterruptible wait, short of CPU or, outside of sections, waiting for work.

mod turns;
pub(crate) use turns::price_of;

use crate::Ahd;
use crate::at_lock::AtLock;
use crate::common_memory::shares_memory;
use crate::describe::{edges, words};
use crate::learn::takes_work;
use crate::proc;
use crate::report::{Edge, Event, Hang, Kind};
use crate::sections::HeldUp;
use crate::sight::{Sight, sight};
use crate::signals::{Handlers, handlers};
use crate::thread::Thread;
use crate::watch::cpu_time;
use orbit_inspect::Sure;
use orbit_inspect::rings::{Member, Ring, RingWatch};
use orbit_inspect::waits::{Ends, FutexKind, FutexWait, Owner, Wait, Watched, stays_lost};
use std::time::{Duration, Instant};

/// A suspected lost wake-up must stay so for this long more.
const STAYS: Duration = Duration::from_millis(60);
/// Scans for rings take at most this part of the time.
const SCAN_SHARE: u32 = 300;
/// Scans are never further apart than this.
const SCAN_SLOWEST: Duration = Duration::from_secs(3);
/// Hangs whose stacks are taken together, which costs little more than those of one.
pub(crate) const TOLD_TOGETHER: usize = 128;
/// Threads followed from a waiter to the last holder.
const MAX_CHAIN: usize = 64;
/// Threads whose stacks go into a report.
const MAX_STACKS: usize = 32;

/// Which chains of holders are told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Those that come back to where they began.
    Rings,
    /// Also those that lasted for the limit, unless the last holder waits for work, as it may do for as long as there is none, and the thread
    /// that waits for it has no main loop from which it is away.
    AtTheLimit,
    /// Also that: a section is not to be entered for so long.
    InSection,
}

/// A blocked hang that is to be told: all but its stacks and its times, which are taken when it leaves.
pub(crate) struct Case {
    pub(crate) hang: Hang,
    /// The threads whose stacks are told, with what they do.
    pub(crate) who: Vec<(i32, i32, String)>,
    /// When the last of them came to rest.
    pub(crate) rest: Instant,
}

/// Why a wait is a hang.
pub(crate) struct Verdict {
    pub(crate) why: String,
    pub(crate) sure: Sure,
    /// The thread it is told of: the waiter, unless the cause is plain to see in another one.
    pub(crate) of: i32,
    /// Threads involved beside that.
    pub(crate) others: Vec<(i32, i32)>,
    pub(crate) cycle: Vec<Edge>,
    /// How long such a wait may last.
    pub(crate) allowed: Duration,
    /// They wait for each other: it is a hang only since the last of them came to rest.
    pub(crate) joint: bool,
}

impl Ahd {
    /// Scans for rings if a thread went to sleep on a futex.
    pub(crate) fn look_for_rings(&mut self, now: Instant, hand: &mut dyn FnMut(Event)) {
        if !self.ring_due || now < self.next_scan {
            return;
        }
        let cpu = cpu_time();
        if self.rings.is_none() {
            self.rings = RingWatch::new(&self.pids()).ok();
        }
        let found = self.rings.as_mut().map(RingWatch::scan);
        // Without a scan it stays due.
        self.ring_due = found.is_none();
        self.next_scan = now + (cpu_time().saturating_sub(cpu) * SCAN_SHARE).min(SCAN_SLOWEST);
        // A thread waits for one lock at a time: as long as all do, it is the same ring.
        let told = |m: &Member| self.thread(m.pid, m.tid).is_none_or(|t| t.in_ring);
        let new: Vec<Ring> = found.into_iter().flatten().filter(|ring| !ring.members.iter().all(told)).collect();
        for (i, some) in new.chunks(TOLD_TOGETHER).enumerate() {
            if i > 0 && self.spent() {
                // The next scan finds the rest.
                (self.ring_due, self.next_scan) = (true, now);
                break;
            }
            let cases = some.iter().map(|ring| self.case_of_ring(ring)).collect();
            self.tell_all(cases, hand);
        }
    }

    fn case_of_ring(&mut self, ring: &Ring) -> Case {
        let first = &ring.members[0];
        let why = in_a_ring(ring.members.len(), first.tid, ring);
        let others = ring.members[1..].iter().map(|m| (m.pid, m.tid)).collect();
        let (cycle, allowed) = (edges(ring), Duration::ZERO);
        let of = first.tid;
        self.case(first.pid, Verdict { why, of, sure: ring.sure, others, cycle, allowed, joint: true })
    }

    /// Who is judged in the place of a first thread that has ended (`pthread_exit` in `main`), as that may have been the last one to wake others: of
    /// those it left, the one that came to rest last, and how long it rests, if that is long enough.
    fn survivor(&mut self, pid: i32, tid: i32) -> Option<(i32, Duration)> {
        let hopeless = self.config.hopeless();
        let p = self.processes.get_mut(&pid).filter(|_| pid == tid)?;
        if p.dir.status(tid)?.state != b'Z' {
            return None;
        }
        p.threads.get_mut(&tid)?.judge = Duration::MAX;
        let left = p.threads.values().filter(|t| t.tid != tid && t.told.is_none() && t.involved.is_none());
        left.map(|t| (t.tid, t.still)).min_by_key(|&(_, still)| still).filter(|&(_, still)| still >= hopeless)
    }

    /// Whether a wait is a hang. `late`: it has lasted for the limit.
    fn verdict(&mut self, pid: i32, tid: i32, late: bool) -> Option<Verdict> {
        let p = self.processes.get_mut(&pid)?;
        let call = p.dir.call(tid).ok().flatten()?;
        if p.threads.get(&tid)?.points.usual(&call) {
            return self.standstill(pid, tid);
        }
        let single = p.threads.len() == 1;
        let status = p.dir.status(tid)?;
        if status.tracer != 0 || status.state != b'S' || frozen(p, tid) {
            return None;
        }
        let caught = handlers(pid, &status, true);
        let astray = late && astray(p, tid, &call);
        let strange = late && p.threads.get(&tid)?.points.away(&call);
        if turns::for_a_process(&call, &p.dir) {
            return self.standstill(pid, tid);
        }
        let wait = self.wait_of(pid, tid)?;
        let allowed = if late { self.config.limit } else { self.config.hopeless() };
        let only = |sure, why: String| {
            Some(Verdict { why, of: tid, sure, others: Vec::new(), cycle: Vec::new(), allowed, joint: false })
        };
        match &wait {
            wait if timed(wait) => None,
            Wait::Futex(f) => {
                let lock = matches!(
                    f.kind,
                    FutexKind::Mutex { .. }
                        | FutexKind::RwLock { .. }
                        | FutexKind::Condvar
                        | FutexKind::Semaphore
                        | FutexKind::GivenUp
                );
                let unsaid = matches!(
                    f.kind,
                    FutexKind::Mutex { owner: Owner::Unknown } | FutexKind::RwLock { writer: Owner::Unknown }
                );
                let stands = unsaid && self.queue_stands(pid, tid, f);
                let p = self.processes.get_mut(&pid)?;
                if lock && f.lost() && stays_lost(p.waits()?, tid, STAYS) {
                    return only(f.sure.min(Sure::Likely), format!("thread {tid} {}", words(&wait)));
                }
                match f.kind {
                    FutexKind::Mutex { owner: Owner::Thread { pid: op, tid: ot } }
                    | FutexKind::RwLock { writer: Owner::Thread { pid: op, tid: ot } }
                        if late =>
                    {
                        self.chain(pid, tid, &wait, (op, ot), f.sure, Told::AtTheLimit)
                    }
                    // Readers leave no trace: it may be they who hold it. And bytes may look like a lock's that are none.
                    _ if unsaid && late && !stands => None,
                    FutexKind::RwLock { .. } if unsaid && late => {
                        let sure = match self.stacks.waits_for_lock(pid, tid) {
                            AtLock::Yes => Sure::Likely,
                            AtLock::Unknown => Sure::Guess,
                            AtLock::No => return self.all_wait(pid, tid),
                        };
                        let others = self.at_the_same_lock(pid, tid, f);
                        let why = format!("thread {tid} {}", words(&wait)) + &also_waiting(others.len());
                        Some(Verdict { others, ..only(sure, why)? })
                    }
                    _ if unsaid && late => match self.stacks.waits_for_lock(pid, tid) {
                        AtLock::Yes => only(Sure::Likely, format!("thread {tid} {}", words(&wait))),
                        AtLock::Unknown => only(Sure::Guess, format!("thread {tid} {}", words(&wait))),
                        AtLock::No => self.all_wait(pid, tid),
                    },
                    FutexKind::Condvar | FutexKind::Semaphore if astray => only(
                        Sure::Guess,
                        format!("thread {tid} {} and does not get back to its main loop", words(&wait)),
                    ),
                    _ => self.all_wait(pid, tid),
                }
            }
            // A pipe that nobody at all holds at the other end does not block: where none is found they cannot be seen. The handler of a
            // signal may be who writes, and at one with a name whoever opens it.
            Wait::Pipe { peers, named: false, .. } if *peers == [pid] && single && caught != Handlers::MayWake => {
                let sure = match (self.deserted(pid, tid, &wait), caught) {
                    (Sight::Whole, Handlers::None) => Sure::Certain,
                    (Sight::Whole | Sight::Strangers, _) => Sure::Likely,
                    (Sight::Doubtful, _) => return None,
                };
                only(sure, format!("thread {tid} {}: nobody is left at the other end", words(&wait)))
            }
            // Threads hand each other work by pipes: only one that usually waits elsewhere is lost here, or all are.
            Wait::Pipe { peers, named: false, .. } if *peers == [pid] && strange => {
                let sure = if self.deserted(pid, tid, &wait) == Sight::Doubtful { Sure::Guess } else { Sure::Likely };
                only(sure, format!("thread {tid} {}: no other process is at the other end", words(&wait)))
            }
            Wait::Pipe { peers, named: false, .. } if *peers == [pid] && !single => self.all_wait(pid, tid),
            Wait::FileLock { owner: Some(o), .. } => {
                let told = if late { Told::AtTheLimit } else { Told::Rings };
                self.chain(pid, tid, &wait, (*o, *o), Sure::Certain, told)
            }
            Wait::FileLock { owner: None, .. } if late => only(Sure::Likely, format!("thread {tid} {}", words(&wait))),
            Wait::Pipe { .. } | Wait::Socket { .. } | Wait::Child { .. } => self.standstill(pid, tid),
            _ => None,
        }
    }

    /// From a waiter over the holders to the last one: a hang unless that one is held up by the machine, or waits for
    /// work. `sure`: of the first wait.
    fn chain(&mut self, pid: i32, tid: i32, wait: &Wait, owner: (i32, i32), sure: Sure, told: Told) -> Option<Verdict> {
        let (op, ot) = owner;
        let mut why = format!("thread {tid} {}", words(wait));
        let mut others: Vec<(i32, i32)> = Vec::new();
        let (mut hp, mut ht) = (op, ot);
        let edge = |pid: i32, tid: i32, wait: &Wait, held_by: i32, sure: Sure| Edge {
            pid,
            tid,
            waits_for: words(wait),
            held_by,
            sure,
        };
        let mut cycle = vec![edge(pid, tid, wait, ot, sure)];
        // A chain is as sure as the least sure wait along it. One with a time limit ends by itself: no ring goes through it, and it is the
        // last that counts.
        let mut least = if timed(wait) { sure.min(Sure::Likely) } else { sure };
        // A lock on a file is a process': which of its threads would give it back is known only where there is one.
        let alone = |pid: i32| proc::Dir::open(pid).and_then(|d| d.tids()).is_ok_and(|t| t.len() == 1);
        let mut known = !matches!(wait, Wait::FileLock { .. }) || alone(op);
        // Who waits for the last holder.
        let mut behind = (pid, tid);
        let last = loop {
            if (hp, ht) == (pid, tid) && known && !timed(wait) {
                let allowed = self.config.hopeless();
                why = in_a_ring(cycle.len(), tid, &why);
                return Some(Verdict { why, of: tid, sure: least, others, cycle, allowed, joint: true });
            }
            if (hp, ht) == (pid, tid) || others.contains(&(hp, ht)) || others.len() >= MAX_CHAIN {
                break None;
            }
            others.push((hp, ht));
            let Some(held) = self.wait_of(hp, ht) else {
                break None;
            };
            why += &format!("; thread {ht} {}", words(&held));
            let sure = certainty(&held);
            least = least.min(sure);
            match &held {
                held if timed(held) => break Some(held.clone()),
                Wait::Futex(f) => match f.kind {
                    FutexKind::Mutex { owner: Owner::Thread { pid: p, tid: t } }
                    | FutexKind::RwLock { writer: Owner::Thread { pid: p, tid: t } } => {
                        cycle.push(edge(hp, ht, &held, t, sure));
                        behind = (hp, ht);
                        (hp, ht) = (p, t);
                    }
                    _ => break Some(held),
                },
                Wait::FileLock { owner: Some(o), .. } => {
                    cycle.push(edge(hp, ht, &held, *o, sure));
                    known &= alone(*o);
                    behind = (hp, ht);
                    (hp, ht) = (*o, *o);
                }
                _ => break Some(held),
            }
        };
        if told == Told::Rings {
            return None;
        }
        let for_work = last.as_ref().is_some_and(waits_for_work) || self.serves(hp, ht);
        if told == Told::AtTheLimit && for_work && !self.is_away(pid, tid) {
            return None;
        }
        // One that lives may give it back yet.
        let sure = if last == Some(Wait::Ended) && known { least } else { least.min(Sure::Likely) };
        let excused = match last {
            Some(Wait::Stopped | Wait::Traced { .. } | Wait::Disk { .. } | Wait::Fault { .. } | Wait::Hidden(_)) => {
                true
            }
            // It runs: a hang only once it had the limit's worth of CPU meanwhile.
            Some(Wait::Running) => !self.had_its_share(behind, (hp, ht)),
            Some(Wait::Child { pids: peers } | Wait::Pipe { peers, .. } | Wait::Socket { peers, .. }) => {
                self.at_work((hp, ht), &peers)
            }
            _ => false,
        };
        let allowed = self.config.limit;
        (!excused).then_some(Verdict { why, of: tid, sure, others, cycle: Vec::new(), allowed, joint: false })
    }

    /// Whether nobody before this thread was woken for half the limit at a lock that keeps no owner. Else it goes from hand to hand, and whoever
    /// waits for long lacks luck or a CPU.
    fn queue_stands(&mut self, pid: i32, tid: i32, wait: &FutexWait) -> bool {
        let wanted = self.config.limit / 2;
        let Some(p) = self.processes.get_mut(&pid) else { return false };
        let waiters = p.asleep_at(wait);
        p.queues.stands(wait.call.addr, tid, &waiters, Instant::now()) >= wanted
    }

    /// The other threads of this process that sleep at this lock as long as what is hopeless, and were not told.
    fn at_the_same_lock(&mut self, pid: i32, tid: i32, wait: &FutexWait) -> Vec<(i32, i32)> {
        let hopeless = self.config.hopeless();
        let Some(p) = self.processes.get_mut(&pid) else { return Vec::new() };
        let queue = p.waits().map(|watched| watched.queue(wait)).unwrap_or_default();
        let rests = |t: &&Thread| t.still >= hopeless && t.told.is_none() && t.involved.is_none();
        let tids = queue.into_iter().map(|(t, _)| t).filter(|&t| t != tid);
        tids.filter(|t| p.threads.get(t).as_ref().is_some_and(rests)).map(|t| (pid, t)).collect()
    }

    /// Whether this thread has a main loop and waits where it hardly ever does: it is held up, whatever the lock is usually held for.
    fn is_away(&self, pid: i32, tid: i32) -> bool {
        let call = self.processes.get(&pid).and_then(|p| p.dir.call(tid).ok().flatten());
        call.is_some_and(|call| self.thread(pid, tid).is_some_and(|t| t.points.away(&call)))
    }

    /// Whether this thread takes its work by a loop, and has run within the limit: then it may hold a lock for as long as it
    /// lives. If it does not get back to its loop it is a hang of its own.
    fn serves(&self, pid: i32, tid: i32) -> bool {
        self.thread(pid, tid)
            .is_some_and(|t| t.still < self.config.limit && t.points.events().is_some_and(|(nr, _)| takes_work(nr)))
    }

    /// Whether one of these processes works, or is held up by the machine, a tracer or a stop, while this thread waits for them.
    pub(crate) fn at_work(&mut self, waiter: (i32, i32), peers: &[i32]) -> bool {
        peers.iter().filter(|&&peer| peer != waiter.0).any(|&peer| {
            let Ok((dir, tids)) = proc::Dir::open(peer).and_then(|d| d.tids().map(|t| (d, t))) else {
                return false;
            };
            tids.iter().take(MAX_CHAIN).any(|&t| match dir.status(t).map(|s| s.state) {
                Some(b'D' | b'T' | b't') => true,
                Some(b'R') => !self.had_its_share(waiter, (peer, t)),
                _ => false,
            })
        })
    }

    /// The same for a section, which is not to wait for so long whoever holds the lock. `does`: what all the others do.
    pub(crate) fn held_by(
        &mut self,
        (pid, tid): (i32, i32),
        wait: &Wait,
        owner: (i32, i32),
        sure: Sure,
        does: &str,
    ) -> Option<HeldUp> {
        let Verdict { why, sure, others, cycle, .. } = self.chain(pid, tid, wait, owner, sure, Told::InSection)?;
        let others = others.into_iter().map(|(p, t)| (p, t, does.to_owned())).collect();
        Some(HeldUp { why, sure, others, cycle })
    }

    /// Whether a holder has used CPU time as long as the limit since it was first asked about in this wait for it.
    fn had_its_share(&mut self, waiter: (i32, i32), holder: (i32, i32)) -> bool {
        let sched = |(pid, tid): (i32, i32)| {
            let file = std::fs::File::open(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
            Some((tid, proc::sched(&file)?))
        };
        let (Some(waiter), Some(holder)) = (sched(waiter), sched(holder)) else {
            return false;
        };
        self.shares.got(waiter, holder) >= self.config.limit.as_nanos() as u64
    }

    pub(crate) fn wait_of(&mut self, pid: i32, tid: i32) -> Option<Wait> {
        let mut now = Ends::default();
        let ends = self.ends.as_mut().unwrap_or(&mut now);
        match self.processes.get_mut(&pid) {
            Some(p) => Some(p.waits()?.wait_of_by(tid, ends)),
            None => Some(Watched::new(pid).ok()?.wait_of_by(tid, ends)),
        }
    }

    /// How far it can be trusted that no other process holds the end of the pipe that would end this wait.
    fn deserted(&mut self, pid: i32, tid: i32, wait: &Wait) -> Sight {
        let sight = sight(&[pid]);
        if sight == Sight::Doubtful {
            return sight;
        }
        // Whoever has just received it was passed by when the holders were looked for.
        let before = self.ends.take();
        let same = self.wait_of(pid, tid).as_ref() == Some(wait);
        self.ends = before;
        if same { sight } else { Sight::Doubtful }
    }

    /// Whether every thread of the process waits, without a time limit, for another one: then nobody is left to wake any.
    fn each_waits(&mut self, pid: i32, tid: i32) -> Option<Verdict> {
        let hopeless = self.config.hopeless();
        let p = self.processes.get_mut(&pid)?;
        // Those who wait for members of a ring that was told wait with it.
        if p.threads.values().any(|t| t.still < hopeless || t.in_ring) {
            return None;
        }
        let status = p.dir.status(pid)?;
        if handlers(pid, &status, false) == Handlers::MayWake {
            return None;
        }
        let tids: Vec<i32> = p.threads.keys().copied().collect();
        let (mut at_a_pipe, mut asleep) = (None, Vec::new());
        let mut ends = Ends::default();
        for &t in &tids {
            asleep.push(t);
            match p.waits()?.wait_of_by(t, &mut ends) {
                Wait::Futex(f) if !f.call.timed && matches!(f.key, orbit_inspect::waits::Key::Private { .. }) => {}
                wait @ Wait::Pipe { named: false, .. } if matches!(&wait, Wait::Pipe { peers, .. } if *peers == [pid]) =>
                {
                    at_a_pipe = Some((t, wait));
                }
                Wait::Ended => {
                    asleep.pop();
                }
                _ => return None,
            }
        }
        // One may have woken another, and gone to sleep, between the looks at both.
        if asleep.iter().any(|&t| self.rests(pid, t).is_none()) {
            return None;
        }
        if let Some((t, wait)) = &at_a_pipe
            && (handlers(pid, &status, true) == Handlers::MayWake || self.deserted(pid, *t, wait) == Sight::Doubtful)
        {
            return None;
        }
        // Another process may wake them, by memory that is its own as well.
        let shared = shares_memory(pid, tid);
        if shared == Some(true) {
            return None;
        }
        let n = asleep.len();
        let mut why = match n {
            1 => format!("process {pid} has one thread, which waits for another one: nobody is there to wake it"),
            _ => format!(
                "each of the {n} threads of process {pid} waits for another one, and nobody is left to wake them"
            ),
        };
        let mut sure = Sure::Likely;
        if shared.is_none() {
            why += "; whether another process shares its memory cannot be seen";
            sure = Sure::Guess;
        }
        let mut of = tid;
        if let Some((t, wait)) = at_a_pipe.filter(|(t, _)| *t != tid) {
            why += &format!("; thread {t} {}", words(&wait));
            of = t;
        }
        let others = asleep.into_iter().filter(|&t| t != of).map(|t| (pid, t)).collect();
        Some(Verdict { why, of, sure, others, cycle: Vec::new(), allowed: hopeless, joint: true })
    }

    /// Notes the call that a thread is told to be blocked in: as long as it sleeps there it has not got on.
    pub(crate) fn remember_call(&mut self, pid: i32, tid: i32) {
        if let Some(p) = self.processes.get_mut(&pid)
            && let Some(t) = p.threads.get_mut(&tid)
        {
            t.told_in = p.dir.call(tid).unwrap_or_default();
            t.stirred = false;
        }
    }

    fn thread(&self, pid: i32, tid: i32) -> Option<&Thread> {
        self.processes.get(&pid)?.threads.get(&tid)
    }

    fn thread_mut(&mut self, pid: i32, tid: i32) -> Option<&mut Thread> {
        self.processes.get_mut(&pid)?.threads.get_mut(&tid)
    }

    /// A hang from now on; tells nothing yet.
    fn case(&mut self, pid: i32, v: Verdict) -> Case {
        let (tid, now) = (v.of, Instant::now());
        let mut who = vec![(pid, tid)];
        who.extend(v.others);
        let together = if v.joint { &who[..] } else { &who[..1] };
        let rest = together.iter().filter_map(|&(p, t)| Some(self.thread(p, t)?.rest)).max().unwrap_or(now);
        // Before stacks are taken: that makes them run.
        for &(p, t) in &who {
            self.remember_call(p, t);
            if let Some(t) = self.thread_mut(p, t) {
                t.involved = Some(tid);
            }
        }
        let members = v.cycle.iter().map(|e| (e.pid, e.tid));
        for (p, t) in members.chain([(pid, tid)]) {
            if let Some(t) = self.thread_mut(p, t) {
                t.told = Some((Kind::Blocked, now));
                t.in_ring = !v.cycle.is_empty();
            }
        }
        who.truncate(MAX_STACKS);
        let who = who
            .into_iter()
            .map(|(p, t)| (p, t, self.wait_of(p, t).as_ref().map_or_else(|| "has ended".into(), words)))
            .collect();
        Case { hang: Hang::blocked((pid, tid), v.allowed, v.why, v.sure, v.cycle), who, rest }
    }

    /// Takes the stacks of all and tells one after the other.
    pub(crate) fn tell_all(&mut self, mut cases: Vec<Case>, hand: &mut dyn FnMut(Event)) {
        let counts: Vec<usize> = cases.iter().map(|c| c.who.len()).collect();
        let who: Vec<_> = cases.iter_mut().flat_map(|c| std::mem::take(&mut c.who)).collect();
        self.will_stop(&who);
        let mut threads = self.stacks.involve(who, false).into_iter();
        for (Case { mut hang, rest, .. }, count) in cases.into_iter().zip(counts) {
            hang.threads = threads.by_ref().take(count).collect();
            hang.waited(rest);
            self.report(hang);
            self.hand_over(hand);
        }
    }
}

/// The sentence of a ring.
fn in_a_ring(members: usize, first: i32, waits: &dyn std::fmt::Display) -> String {
    match members {
        1 => format!("thread {first} waits for itself: {waits}"),
        n => format!("{n} threads wait for each other in a ring: {waits}"),
    }
}

/// How many others wait for the same lock.
fn also_waiting(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => "; another thread waits for it, too".into(),
        n => format!("; {n} other threads wait for it, too"),
    }
}

/// Whether a wait for a lock ends by itself.
fn timed(wait: &Wait) -> bool {
    matches!(wait, Wait::Futex(f) if f.call.timed)
}

/// How sure it is who holds up a thread in this wait.
fn certainty(wait: &Wait) -> Sure {
    match wait {
        Wait::Futex(f) => match f.kind {
            FutexKind::Mutex { owner: Owner::Unknown } | FutexKind::RwLock { writer: Owner::Unknown } => {
                f.sure.min(Sure::Likely)
            }
            _ => f.sure,
        },
        Wait::FileLock { owner: None, .. } => Sure::Likely,
        _ => Sure::Certain,
    }
}

/// Whether work is waited for: connections, events or signals, which may stay away for any time. A poll of nothing with a time limit is a
/// sleep.
fn waits_for_work(wait: &Wait) -> bool {
    match wait {
        Wait::Epoll { .. } | Wait::Signal => true,
        Wait::Poll { fds, timed } => *fds > 0 || !timed,
        Wait::Socket { call, .. } => matches!(*call, "accept" | "accept4"),
        Wait::Other(call) => takes_work(call.nr),
        _ => false,
    }
}

/// Whether the only thread that takes the process' events waits in a call in which it was never seen before.
fn astray(p: &crate::thread::Process, tid: i32, call: &proc::Call) -> bool {
    let Some(t) = p.threads.get(&tid) else {
        return false;
    };
    let Some(events) = t.points.events() else {
        return false;
    };
    // Threads that take turns at the events wait for their turn, for as long as there are none.
    let shared = p.threads.values().any(|o| o.tid != tid && o.points.events() == Some(events));
    !shared && t.points.new_to(call)
}

/// Whether a control group's freezer holds the thread.
pub(crate) fn frozen(p: &crate::thread::Process, tid: i32) -> bool {
    p.dir.text(format_args!("task/{tid}/wchan")).is_ok_and(|w| w.contains("freez"))
}
