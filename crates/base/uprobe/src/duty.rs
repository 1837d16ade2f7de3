//! Probes that keep their own cost below a bound.
//!
//! Owns: a thread that attaches and detaches. Each function in each process has an account: the
//! bound's share of the CPU time that the process has used comes in, hits times what a hit costs
//! here go out. While there is credit the function is probed; once it is used up the probes are
//! taken away until there is enough for another window. So a function that is entered seldom is
//! probed all the time, and a hot one now and then for some milliseconds. Promises: nothing here
//! blocks the caller but [`Duty::settle`], for as long as that takes. The bound holds for the time
//! since the start, but for what is spent in advance ([`FIRST_CREDIT_NS`]) and what a delay of this
//! thread costs, which is paid back before the next window.

use crate::callers::{Behind, Callers};
use crate::code::Shape;
use crate::copies::Copies;
use crate::prober::{Prober, Probes, Reader, Slot};
use crate::{CodeFile, Costs, Error, Hits, Record};
use orbit_linux::sched;
use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// CPU time that each function may cost before its process has used any, ns.
pub const FIRST_CREDIT_NS: f64 = 1e6;
/// A window begins only with credit for so long at the rate last seen.
const MIN_WINDOW: Duration = Duration::from_millis(10);
/// Credit a window needs at least, ns.
const MIN_CREDIT_NS: f64 = 0.5e6;
/// Time between two checks of an account, at least and at most.
const CHECK_INTERVALS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// Time after which a failed attempt to probe is repeated.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Time between two removals of the records of exited threads.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A function in a process.
#[derive(Clone, Debug)]
pub struct Target {
    /// The process.
    pub pid: i32,
    /// The file that holds it.
    pub file: Arc<CodeFile>,
    /// Offset of the function in the file, bytes.
    pub start: u64,
    /// Where to probe.
    pub shape: Shape,
    /// Whoever watches it says where its callers continue ([`Duty::returned`]), so that the kernel
    /// need not step its returns.
    pub callers: bool,
}

/// Whether there are probes.
#[derive(Clone, Debug)]
pub enum State {
    /// The kernel half is being loaded.
    Starting,
    /// At work; what a hit costs.
    Ready(Costs),
    /// There are none.
    Failed(Error),
}

/// The account of one target.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Hits of all windows.
    pub hits: Hits,
    /// What they cost, ns of CPU.
    pub spent: f64,
    /// It is probed now.
    pub attached: bool,
    /// Windows so far: with each the records begin anew.
    pub windows: u64,
    /// Return addresses of which nobody has said yet where it is seen that it returned there.
    pub callers: Vec<u64>,
    /// Why it could not be probed when that was tried last. What may pass is tried again after some
    /// seconds.
    pub error: Option<Error>,
    /// Where this or the last window counts.
    slot: Option<Arc<Slot>>,
    /// CPU time its process has used, ns.
    cpu: u64,
}

struct Shared {
    state: State,
    reader: Option<Arc<Reader>>,
    tallies: BTreeMap<u64, Tally>,
}

enum Job {
    Watch(u64, Target),
    Leave(u64),
    Returned(u64, u64, Option<Behind>),
    /// Says that all before was done.
    Done(Sender<()>),
}

/// Probes of functions; they go soon after it is dropped. Nobody waits for that: the kernel takes
/// its time.
pub struct Duty {
    shared: Arc<Mutex<Shared>>,
    /// The thread ends once this is gone.
    to: Sender<Job>,
    next: u64,
}

impl std::fmt::Debug for Duty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Duty").field("state", &self.state()).finish_non_exhaustive()
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Duty {
    /// Begins to load the kernel half. `bound`: what all hits may cost each process, as a share of
    /// the CPU time it uses, for each function (0.02 is 2 %); nothing for no bound.
    pub fn start(bound: Option<f64>) -> Duty {
        let shared = Arc::new(Mutex::new(Shared { state: State::Starting, reader: None, tallies: BTreeMap::new() }));
        let (to, from) = mpsc::channel();
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("sections".into()).spawn(move || work(&of_thread, &from, bound));
        if let Err(e) = &thread {
            lock(&shared).state = State::Failed(Error::Failed(format!("no thread for sections by name: {e}")));
        }
        Duty { shared, to, next: 0 }
    }

    /// Whether there are probes.
    pub fn state(&self) -> State {
        lock(&self.shared).state.clone()
    }

    /// Probes a function from now on, when there is credit; its number.
    pub fn watch(&mut self, target: Target) -> u64 {
        let id = self.next;
        self.next += 1;
        lock(&self.shared).tallies.insert(id, Tally::default());
        // Without the thread there are no probes, and the state says so.
        let _ = self.to.send(Job::Watch(id, target));
        id
    }

    /// Says where it is seen that a function has returned to this address ([`Tally::callers`]);
    /// nothing if that cannot be seen there.
    pub fn returned(&self, id: u64, back: u64, behind: Option<Behind>) {
        // As above.
        let _ = self.to.send(Job::Returned(id, back, behind));
    }

    /// Takes its probes away; its account so far.
    pub fn leave(&mut self, id: u64) -> Option<Tally> {
        // As above.
        let _ = self.to.send(Job::Leave(id));
        lock(&self.shared).tallies.remove(&id)
    }

    /// Waits until there are no probes, this long at most; whether that is so. While the state is
    /// [`State::Starting`] there may be some, of a child, that measure what a hit costs. Where
    /// nobody waits, or this process is killed, they go a little later all the same, unless the one
    /// that sets and takes them away is killed too.
    pub fn settle(&self, most: Duration) -> bool {
        let until = Instant::now() + most;
        let (done, settled) = mpsc::channel();
        // A thread that is still starting answers once those that measure what a hit costs are on
        // their way out; without it there will be no more.
        if self.to.send(Job::Done(done)).is_ok() && settled.recv_timeout(most) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        // Loading failed, and took what it had attached away.
        let Some(reader) = lock(&self.shared).reader.clone() else { return true };
        while reader.probed() && Instant::now() < until {
            std::thread::sleep(CHECK_INTERVALS.0);
        }
        !reader.probed()
    }

    /// How much CPU its process has used so far, ns.
    pub fn used(&self, id: u64, cpu: u64) {
        if let Some(t) = lock(&self.shared).tallies.get_mut(&id) {
            t.cpu = t.cpu.max(cpu);
        }
    }

    /// Its account.
    pub fn tally(&self, id: u64) -> Option<Tally> {
        lock(&self.shared).tallies.get(&id).cloned()
    }

    /// What a thread did in this or the last window; nothing if it has not entered the function in
    /// it.
    pub fn record(&self, id: u64, tid: i32) -> Option<Record> {
        let (reader, slot) = {
            let shared = lock(&self.shared);
            (shared.reader.clone()?, shared.tallies.get(&id)?.slot.clone()?)
        };
        reader.record(slot.number, tid)
    }
}

/// What the thread keeps of a target.
struct Account {
    target: Target,
    probes: Option<Probes>,
    callers: Callers,
    /// The function's returns are among what is probed, though the kernel steps them.
    steps: bool,
    /// They go once the tally says so: what they wrote down stands still then.
    leaving: Option<Probes>,
    /// Hits of earlier windows.
    before: Hits,
    /// What it cost while it was probed last, ns of CPU a ns.
    rate: f64,
    began: Instant,
    /// When probes were put in place last: their cost is checked soon.
    paced: Instant,
    swept: Instant,
    /// When its callers were listed last.
    listed: Instant,
    /// There is no use in trying to probe it.
    failed: bool,
    /// It is not tried before.
    again: Instant,
}

fn work(shared: &Mutex<Shared>, from: &Receiver<Job>, bound: Option<f64>) {
    // A delay of this thread costs the program time. Ordinary users may not hurry.
    let _ = sched::set_nice(0, -15);
    let _end = End(shared);
    let (mut prober, costs) = match Prober::load() {
        Ok(p) => p,
        Err(e) => {
            lock(shared).state = State::Failed(e);
            return;
        }
    };
    let reader = prober.reader();
    {
        let mut s = lock(shared);
        s.reader = Some(reader.clone());
        s.state = State::Ready(costs);
    }
    let mut accounts: BTreeMap<u64, Account> = BTreeMap::new();
    let mut copies = Copies::new();
    let mut pause = CHECK_INTERVALS.1;
    loop {
        match from.recv_timeout(pause) {
            Ok(Job::Watch(id, target)) => {
                let now = Instant::now();
                let account = Account {
                    target,
                    probes: None,
                    callers: Callers::default(),
                    steps: false,
                    leaving: None,
                    before: Hits::default(),
                    rate: 0.0,
                    began: now,
                    paced: now,
                    swept: now,
                    listed: now,
                    failed: false,
                    again: now,
                };
                accounts.insert(id, account);
            }
            Ok(Job::Leave(id)) => {
                accounts.remove(&id);
            }
            Ok(Job::Returned(id, back, behind)) => {
                if let Some(a) = accounts.get_mut(&id) {
                    a.returned(&mut prober, back, behind);
                }
                if let Some(t) = lock(shared).tallies.get_mut(&id) {
                    t.callers.retain(|known| *known != back);
                }
            }
            Ok(Job::Done(done)) => {
                // Whoever asked may have stopped waiting.
                let _ = done.send(());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        pause = CHECK_INTERVALS.1;
        for (&id, a) in &mut accounts {
            let Some(mut tally) = lock(shared).tallies.get(&id).cloned() else {
                continue;
            };
            pause = pause.min(a.check(&mut prober, &reader, costs, bound, &mut tally));
            if let Some(t) = lock(shared).tallies.get_mut(&id) {
                *t = Tally { cpu: t.cpu, ..tally };
            }
            a.leaving = None;
        }
        let probed = || accounts.values().filter(|a| a.probes.is_some()).map(|a| a.target.pid).collect();
        for pid in copies.more(probed) {
            let probes = accounts.values().filter(|a| a.target.pid == pid).filter_map(|a| a.probes.as_ref());
            probes.for_each(|p| prober.free_copies(p, pid));
        }
    }
}

/// However the thread ends, whoever asks hears that there are no probes.
struct End<'a>(&'a Mutex<Shared>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut s = lock(self.0);
        for t in s.tallies.values_mut() {
            t.attached = false;
        }
        if !matches!(s.state, State::Failed(_)) {
            s.state = State::Failed(Error::Failed("the thread that probes has ended".into()));
        }
    }
}

impl Account {
    /// The callers that were seen, of which nothing is known yet.
    fn list(&mut self, reader: &Reader, slot: u32) -> Vec<u64> {
        self.listed = Instant::now();
        let wanted = !self.steps && self.target.shape.stepped();
        if wanted { self.callers.unknown(reader.callers(slot)) } else { Vec::new() }
    }

    /// Where it is seen that the function has returned to this address; in this window too, if
    /// there is one.
    fn returned(&mut self, prober: &mut Prober, back: u64, behind: Option<Behind>) {
        if !self.callers.add(back, behind.clone()) {
            return;
        }
        let Some(probes) = self.probes.as_mut().filter(|_| !self.steps) else { return };
        let t = &self.target;
        let more = behind.filter(|_| !self.callers.step()).is_some_and(|b| {
            let place = self.callers.place(&b, &t.shape);
            place.is_some_and(|place| prober.attach_behind(probes, t, &b.file, &[place]).is_ok())
        });
        // It is not known how often it is passed.
        self.paced = Instant::now();
        if !more {
            self.callers.fail();
            // Where that fails too, these executions are not seen to end.
            self.steps = prober.attach_ends(probes, t, |end| !end.emulated).is_ok();
        }
    }

    /// Checks the account; returns when to check again at the latest.
    fn check(
        &mut self,
        prober: &mut Prober,
        reader: &Reader,
        costs: Costs,
        bound: Option<f64>,
        tally: &mut Tally,
    ) -> Duration {
        let now = Instant::now();
        if self.failed || now < self.again {
            return CHECK_INTERVALS.1;
        }
        // The last window's probes count until they are gone.
        let hits = tally.slot.as_ref().map_or_else(Hits::default, |slot| reader.hits(slot.number));
        if let Some(p) = &self.probes {
            let open = (now - self.began).as_nanos() as f64;
            self.rate = costs.of(&self.target.shape, hits) / open.max(1.0);
            if now - self.swept > SWEEP_INTERVAL {
                self.swept = now;
                let pid = self.target.pid;
                let lives = |tid| std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists();
                reader.retain(p.slot.number, lives);
            }
            if self.listed.elapsed() > CHECK_INTERVALS.1 {
                tally.callers = self.list(reader, p.slot.number);
            }
        }
        tally.hits = self.before.and(hits);
        tally.spent = costs.of(&self.target.shape, tally.hits);
        let credit = bound.map_or(f64::MAX, |b| FIRST_CREDIT_NS + tally.cpu as f64 * b - tally.spent);
        let price = self.rate.max(1e-9);
        let crowded = self.probes.is_some() && !self.steps && self.callers.crowded(hits);
        if crowded {
            // Without them it costs less.
            self.rate = 0.0;
        }
        if (credit < 0.0 || crowded)
            && let Some(probes) = self.probes.take()
        {
            tally.attached = false;
            tally.callers = self.list(reader, probes.slot.number);
            self.leaving = Some(probes);
        } else if self.probes.is_none()
            && credit >= MIN_CREDIT_NS.max(price.min(1.0) * MIN_WINDOW.as_nanos() as f64)
            && tally.slot.as_ref().is_none_or(|slot| !slot.probed())
        {
            self.before = tally.hits;
            let t = &self.target;
            let steps = !t.callers || self.callers.step();
            let places = if steps { Vec::new() } else { self.callers.places(&t.shape) };
            let slot = tally.slot.clone().map_or_else(|| prober.slot(), Ok);
            match slot.and_then(|slot| prober.attach(slot, t, &places, steps)) {
                Ok((p, stepped)) => {
                    if stepped && !steps {
                        self.callers.fail();
                    }
                    self.steps = stepped;
                    tally.attached = true;
                    tally.error = None;
                    tally.windows += 1;
                    tally.slot = Some(p.slot.clone());
                    self.probes = Some(p);
                    self.began = Instant::now();
                    self.paced = self.began;
                }
                Err(e) => {
                    self.failed = matches!(e, Error::Ended | Error::NotPermitted(_) | Error::Unsupported(_));
                    self.again = now + RETRY_AFTER;
                    // One that ends meanwhile lacks nothing.
                    tally.error = Some(e).filter(|e| *e != Error::Ended);
                }
            }
            return CHECK_INTERVALS.0;
        }
        if self.probes.is_none() {
            return CHECK_INTERVALS.1;
        }
        // Half the time in which the credit would be used up; of a window just begun little is
        // known.
        let left = Duration::from_nanos((credit / price / 2.0).min(1e9) as u64);
        left.min((now - self.paced).max(CHECK_INTERVALS.0)).clamp(CHECK_INTERVALS.0, CHECK_INTERVALS.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn without_probes_nothing_blocks_and_the_state_says_why() {
        let mut duty = Duty::start(Some(0.02));
        let is = std::fs::metadata("/proc/self/exe").expect("this program");
        let file = CodeFile::open("/proc/self/exe".as_ref(), (is.dev(), is.ino())).expect("this program");
        let id = duty.watch(Target { pid: -1, file: file.into(), start: 0, shape: Shape::default(), callers: false });
        let start = Instant::now();
        loop {
            match (duty.state(), duty.tally(id).and_then(|t| t.error)) {
                (State::Failed(e), _) | (State::Ready(_), Some(e)) => {
                    println!("{e}");
                    break;
                }
                _ => assert!(start.elapsed() < Duration::from_secs(60)),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(duty.record(id, 1).is_none());
        assert!(duty.leave(id).is_some() && duty.tally(id).is_none());
    }

    #[test]
    fn nothing_is_probed_any_more_when_the_thread_has_ended() {
        let tallies = BTreeMap::from([(1, Tally { attached: true, ..Tally::default() })]);
        let shared = Mutex::new(Shared { state: State::Ready(Costs::default()), reader: None, tallies });
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _end = End(&shared);
            panic!("the thread ends");
        }));
        let s = lock(&shared);
        assert!(matches!(s.state, State::Failed(_)) && !s.tallies[&1].attached);
    }
}
