//! Blocked hangs: rings of locks, and waits that nobody ends.
//!
//! Owns: the decision. Promises: a ring is told as soon as it stood still
//! in two looks; a wait that nobody can end (a lost wake-up, a dead holder, a pipe with no one at the other end, a process in
//! which every thread waits for another) after a second; a lock that is held too long after the limit. Refuses: waits with a time limit, rings through
//! such a wait, waits at a thread's usual place (but for [`crate::old::standstill`], and a pipe that only its process holds), and holders that are stopped, traced, in an uninterruptible wait, short of CPU or, outside of sections, waiting for work.

mod chain;
mod family;
mod tell;
mod turns;
use chain::{Told, in_a_ring, timed};
pub(crate) use tell::{Case, TOLD_TOGETHER};
pub(crate) use turns::price_of;

use crate::Ahd;
use crate::event::{Edge, Event};
use crate::old::at_lock::AtLock;
use crate::old::common_memory::shares_memory;
use crate::old::describe::{edges, words};
use crate::old::proc;
use crate::old::sight::{Sight, sight};
use crate::old::signals::{Handlers, handlers};
use crate::old::thread::Thread;
use crate::old::watch::cpu_time;
use orbit_inspect::Sure;
use orbit_inspect::rings::{Member, Ring, RingWatch};
use orbit_inspect::waits::{Ends, FutexKind, FutexWait, Key, Owner, Wait, Watched, stays_lost};
use std::time::{Duration, Instant};

/// A suspected lost wake-up must stay so for this long more.
const STAYS: Duration = Duration::from_millis(60);
/// Nobody may be woken for so long at a lock that is free, nor a holder be seen of one on a file: whoever was to be, or to wake, may have lost
/// its CPU without the kernel's knowledge.
const SETTLES: Duration = Duration::from_millis(300);
/// A thread that has not run for so long though it does not sleep is held up.
const HELD_UP: Duration = Duration::from_millis(300);
/// Scans for rings take at most this part of the time.
const SCAN_SHARE: u32 = 300;
/// Scans are never further apart than this.
const SCAN_SLOWEST: Duration = Duration::from_secs(3);

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
    /// Whether there may be a ring: a thread went to sleep on a futex.
    pub(crate) fn rings_due(&self, now: Instant) -> bool {
        self.ring_due && now >= self.next_scan
    }

    /// Scans for rings.
    pub(crate) fn look_for_rings(&mut self, now: Instant, hand: &mut dyn FnMut(Event)) {
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
        let single = p.threads.len() == 1 && p.dir.count() == Some(1);
        let usual = p.threads.get(&tid)?.points.usual(&call);
        let status = p.dir.status(tid)?;
        let held = status.tracer != 0 || status.state != b'S' || frozen(p, tid);
        if usual && !(single && turns::may_be_of_pipe(call.nr)) {
            // Where all wait for each other it is no matter that each usually does.
            let all = !held && (call.nr == libc::SYS_futex || turns::may_be_of_pipe(call.nr));
            return self.standstill(pid, tid).or_else(|| if all { self.all_wait(pid, tid) } else { None });
        }
        if held {
            return None;
        }
        let caught = handlers(pid, &status, true);
        let astray = late && astray(p, tid, &call);
        let strange = late && p.threads.get(&tid)?.points.away(&call);
        if turns::for_a_process(&call, &p.dir) {
            return self.standstill(pid, tid);
        }
        let wait = self.wait_of(pid, tid)?;
        // Nobody else can end a wait at a pipe of one's own, however often it was one for others before.
        if usual && !matches!(&wait, Wait::Pipe { peers, named: false, .. } if *peers == [pid]) {
            return self.standstill(pid, tid);
        }
        if !late {
            self.changed_hands(pid, tid, &wait);
        }
        let unsaid = matches!(
            &wait,
            Wait::Futex(FutexWait {
                kind: FutexKind::Mutex { owner: Owner::Unknown } | FutexKind::RwLock { writer: Owner::Unknown },
                ..
            })
        );
        // Whom it waits for is not known: it may be one that the machine holds up.
        if late && (unsaid || astray || strange) && self.another_held_up(pid, tid) {
            return None;
        }
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
                let stood = if unsaid || f.free { self.queue_stood(pid, tid, f) } else { Duration::ZERO };
                let stands = stood >= self.config.limit / 2;
                let p = self.processes.get_mut(&pid)?;
                // The first thread of a child is the copy of the one that made it, which may be who held the lock.
                let forked = matches!(
                    f.kind,
                    FutexKind::Mutex { owner: Owner::Forked { .. } }
                        | FutexKind::RwLock { writer: Owner::Forked { .. } }
                );
                if forked
                    && tid != pid
                    && p.dir.status(pid)?.state != b'Z'
                    && !p.asleep_at(f).iter().any(|w| w.0 == pid)
                {
                    return self.chain(pid, tid, &wait, (pid, pid), Sure::Guess, Told::InSection).filter(|_| late);
                }
                let settled = !f.free || stood >= SETTLES;
                if lock && f.lost() && !settled {
                    let t = p.threads.get_mut(&tid)?;
                    t.judge_soon = Some(t.still + SETTLES);
                }
                if lock && f.lost() && settled && stays_lost(p.waits()?, tid, STAYS) {
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
                    FutexKind::Condvar | FutexKind::Semaphore
                        if astray && matches!(f.key, Key::Private { .. }) && !self.another_will_wake(pid, tid) =>
                    {
                        only(
                            Sure::Guess,
                            format!("thread {tid} {} and does not get back to its main loop", words(&wait)),
                        )
                    }
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
                let sight = self.deserted(pid, tid, &wait);
                let guess = sight == Sight::Doubtful || caught == Handlers::MayWake;
                let sure = if guess { Sure::Guess } else { Sure::Likely };
                only(sure, format!("thread {tid} {}: no other process is at the other end", words(&wait)))
            }
            Wait::Pipe { peers, named: false, .. } if *peers == [pid] && !single => self.all_wait(pid, tid),
            Wait::FileLock { owner: Some(o), .. } => {
                let told = if late { Told::AtTheLimit } else { Told::Rings };
                self.chain(pid, tid, &wait, (*o, *o), Sure::Certain, told)
            }
            // Between two holders it has none, for a moment.
            Wait::FileLock { owner: None, path } if late && self.stays_unknown(pid, tid, path) => {
                only(Sure::Likely, format!("thread {tid} {}", words(&wait)))
            }
            Wait::Pipe { .. } | Wait::Socket { .. } | Wait::Child { .. } => self.standstill(pid, tid),
            _ => None,
        }
    }

    /// Whether another thread of the process has not run for a while and is kept from it by the machine, a stop or a tracer.
    fn another_held_up(&self, pid: i32, tid: i32) -> bool {
        let Some(p) = self.processes.get(&pid) else { return false };
        let mut still = p.threads.values().filter(|t| t.tid != tid && t.still >= HELD_UP);
        still.any(|t| p.dir.status(t.tid).is_some_and(|s| matches!(s.state, b'D' | b'R' | b'T' | b't')))
    }

    /// For how long nobody before this thread was woken at a lock that keeps no owner. If not for long, it goes from hand to hand, and whoever
    /// waits for long lacks luck or a CPU.
    fn queue_stood(&mut self, pid: i32, tid: i32, wait: &FutexWait) -> Duration {
        let Some(p) = self.processes.get_mut(&pid) else { return Duration::ZERO };
        let waiters = p.asleep_at(wait);
        p.queues.stands(wait.call.addr, tid, &waiters, Instant::now())
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
                Wait::Futex(f) if !f.call.timed && matches!(f.key, Key::Private { .. }) => {}
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
        // Or have made another, and ended: one that takes the place of one is not noticed before the next look.
        let p = self.processes.get(&pid)?;
        let lives = |t: i32| p.dir.status(t).is_some_and(|s| s.state != b'Z');
        if p.dir.tids().ok()?.into_iter().any(|t| tids.binary_search(&t).is_err() && lives(t)) {
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

    fn thread(&self, pid: i32, tid: i32) -> Option<&Thread> {
        self.processes.get(&pid)?.threads.get(&tid)
    }

    fn thread_mut(&mut self, pid: i32, tid: i32) -> Option<&mut Thread> {
        self.processes.get_mut(&pid)?.threads.get_mut(&tid)
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

/// Whether the only thread that takes the process' events waits in a call in which it was never seen before.
fn astray(p: &crate::old::thread::Process, tid: i32, call: &proc::Call) -> bool {
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
pub(crate) fn frozen(p: &crate::old::thread::Process, tid: i32) -> bool {
    p.dir.text(format_args!("task/{tid}/wchan")).is_ok_and(|w| w.contains("freez"))
}
