//! The thread behind interception: signals (P_SIG) and system calls (P_SYSC, P_FILE, P_NET, P_IPC).
//! All ptrace requests come from it, as the kernel demands; others send it orders. There is one a
//! core, for a program has one tracer.
//!
//! It polls for stops without a pause while calls are followed and some came in the last 50 us,
//! every 100 us for ten milliseconds after a stop, every millisecond otherwise, and sleeps while
//! nothing is traced. Several modules may intercept in one process: each gets the event, and the
//! strictest verdict holds ([`rules`]). What is held continues when what holds it is released, at
//! the latest with the pin's last user, and at once if none of those it concerns could be notified.
//! When the thread ends the kernel frees what it still traced: held calls are made, held signals
//! are dropped.
//!
//! Only a stopped thread can be let go before, and one that waits in the kernel may not stop
//! indefinitely: it is asked to, and let go when it does. An order waits for that for
//! [`MAX_WAIT_FOR_STOPS`] at most.

mod interception;
mod rules;

pub(super) use interception::Interception;
pub(super) use rules::What;

use super::{calls, proc};
use orbit_linux::{ptrace, status::Status};
use orbit_rmk::{CallVerdict, Env, Event, Kind, PinError, Shared, Subscription, Verdict, lock, now};
use rules::{Concerned, Of, Rule};
use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long an order waits for threads to stop.
const MAX_WAIT_FOR_STOPS: Duration = Duration::from_millis(100);
/// How long after a stop it polls for the next one without a pause, where calls are followed.
const POLL_WITHOUT_PAUSE: Duration = Duration::from_micros(50);
/// And with short pauses.
const POLL_WITH_PAUSES: Duration = Duration::from_millis(10);

enum Order {
    Intercept { of: Of, pid: u32, what: What },
    Decide { of: Of, ticket: u64, decision: Decision },
    Release { of: Of, pid: Option<u32> },
}

/// What becomes of something held.
pub(crate) enum Decision {
    Signal(Verdict),
    Call(CallVerdict),
}

type Answer = Result<(), PinError>;
type Listeners = Arc<Mutex<Vec<(&'static str, Arc<Subscription>)>>>;

/// See the module's head. Dropping it ends the thread.
pub(crate) struct Tracer {
    orders: Option<Sender<(Order, Sender<Answer>)>>,
    thread: Option<JoinHandle<()>>,
    listeners: Listeners,
}

impl Shared for Tracer {}

impl Tracer {
    /// The core's, started now if no pin has it yet.
    pub(crate) fn of(env: &Env) -> Result<Arc<Tracer>, PinError> {
        env.shared(|| Tracer::start().map_err(|error| PinError::of("starting the tracer's thread", error)))
    }

    fn start() -> io::Result<Arc<Tracer>> {
        let (orders, inbox) = mpsc::channel();
        let listeners = Listeners::default();
        let traces = Traces {
            listeners: listeners.clone(),
            classes: calls::classes().into_iter().collect(),
            rules: HashMap::new(),
            threads: HashMap::new(),
            held: HashMap::new(),
            next: 1,
            last: Instant::now(),
        };
        let thread = std::thread::Builder::new().name("rmk-tracer".into()).spawn(move || traces.run(&inbox))?;
        Ok(Arc::new(Tracer { orders: Some(orders), thread: Some(thread), listeners }))
    }

    fn order(&self, order: Order) -> Answer {
        let gone = || PinError::Refused("the tracer's thread ended".into());
        let (answer, wait) = mpsc::channel();
        self.orders.as_ref().ok_or_else(gone)?.send((order, answer)).map_err(|_| gone())?;
        wait.recv().map_err(|_| gone())?
    }

    /// From now on, in place of what the same pin and user wanted there before.
    fn intercept(&self, of: Of, pid: u32, what: What) -> Answer {
        self.order(Order::Intercept { of, pid, what })
    }

    fn decide(&self, of: Of, ticket: u64, decision: Decision) -> Answer {
        self.order(Order::Decide { of, ticket, decision })
    }

    /// In this process, or in all.
    fn release(&self, of: Of, pid: Option<u32>) -> Answer {
        self.order(Order::Release { of, pid })
    }

    fn subscribe(&self, pin: &'static str, subscription: &Arc<Subscription>) {
        lock(&self.listeners).push((pin, subscription.clone()));
    }

    fn unsubscribe(&self, subscription: &Subscription) {
        lock(&self.listeners).retain(|(_, sub)| sub.id != subscription.id);
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Held {
    tid: i32,
    before: Before,
    /// Its holders, which may decide.
    holders: Vec<Of>,
}

/// What a held thread stands before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Signal(i32),
    Call,
}

struct Thread {
    pid: u32,
    /// It is to be let go at its next stop, for which it was asked.
    leaves: bool,
    /// It was asked to stop, and has not.
    asked: bool,
    /// It continued up to its next call.
    followed: bool,
}

impl Thread {
    fn new(pid: u32, leaves: bool) -> Thread {
        Thread { pid, leaves, asked: false, followed: false }
    }
}

struct Traces {
    listeners: Listeners,
    classes: HashMap<u32, u32>,
    /// Rules of a process; none: its threads leave.
    rules: HashMap<u32, Vec<Rule>>,
    threads: HashMap<i32, Thread>,
    held: HashMap<u64, Held>,
    next: u64,
    /// When the last stop was seen.
    last: Instant,
}

impl Traces {
    fn run(mut self, inbox: &Receiver<(Order, Sender<Answer>)>) {
        loop {
            let order = match self.threads.is_empty() {
                true => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => inbox.recv_timeout(self.pause()),
            };
            match order {
                Ok((order, answer)) => {
                    // The caller may have gone; the order is done all the same.
                    let _ = answer.send(self.obey(order));
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.stops();
        }
    }

    fn pause(&self) -> Duration {
        let quiet = self.last.elapsed();
        if quiet < POLL_WITHOUT_PAUSE && self.rules.keys().any(|pid| self.follows(*pid)) {
            Duration::ZERO
        } else if quiet < POLL_WITH_PAUSES {
            Duration::from_micros(100)
        } else {
            Duration::from_millis(1)
        }
    }

    /// Whether calls of the process are intercepted.
    fn follows(&self, pid: u32) -> bool {
        self.rules.get(&pid).is_some_and(|rules| rules.iter().any(|rule| matches!(rule.what, What::Calls { .. })))
    }

    fn obey(&mut self, order: Order) -> Answer {
        match order {
            Order::Intercept { of, pid, what } => {
                if !self.rules.contains_key(&pid) {
                    self.seize(pid)?;
                }
                let rules = self.rules.entry(pid).or_default();
                rules.retain(|rule| rule.of != of);
                rules.push(Rule { of, what });
                self.follow(pid);
                Ok(())
            }
            Order::Decide { of, ticket, decision } => match (self.held.get(&ticket), decision) {
                (Some(held), decision) if held.holders.contains(&of) => {
                    let (tid, before) = (held.tid, held.before);
                    match (before, decision) {
                        (Before::Signal(signal), Decision::Signal(verdict)) => self.after_signal(tid, &verdict, signal),
                        (Before::Call, Decision::Call(verdict)) => self.after_call(tid, &verdict),
                        (_, _) => {
                            return Err(PinError::Refused(format!(
                                "ticket {ticket} is of something else that is held"
                            )));
                        }
                    }
                    self.held.remove(&ticket);
                    Ok(())
                }
                _ => Err(PinError::Refused(format!("this module holds nothing at this pin with ticket {ticket}"))),
            },
            Order::Release { of, pid } => {
                let at: Vec<u32> =
                    self.rules.keys().copied().filter(|known| pid.is_none_or(|pid| pid == *known)).collect();
                for pid in at {
                    let Some(rules) = self.rules.get_mut(&pid) else { continue };
                    rules.retain(|rule| rule.of != of);
                    if rules.is_empty() {
                        self.let_go(pid);
                        continue;
                    }
                    for held in self.held.values_mut() {
                        if self.threads.get(&held.tid).is_some_and(|thread| thread.pid == pid) {
                            held.holders.retain(|holder| *holder != of);
                        }
                    }
                    self.free_unheld();
                }
                self.wait_while(|thread| thread.leaves);
                Ok(())
            }
        }
    }

    /// Handles stops until no thread is like that any more, or [`MAX_WAIT_FOR_STOPS`] is at its
    /// end.
    fn wait_while(&mut self, waits: impl Fn(&Thread) -> bool) {
        let until = Instant::now() + MAX_WAIT_FOR_STOPS;
        while self.threads.values().any(&waits) && Instant::now() < until {
            if !self.stops() {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Becomes the tracer of every thread of the process, also of those it makes from now on.
    fn seize(&mut self, pid: u32) -> Answer {
        let what = || format!("intercepting in process {pid} (it may have a debugger, or the right to trace it lacks)");
        let mut seized = 0;
        // Those that have not left yet stay; they continue at the stop that they were asked for.
        for thread in self.threads.values_mut().filter(|thread| thread.pid == pid) {
            thread.leaves = false;
            seized += 1;
        }
        // Threads made while the first ones are seized are found by the next pass.
        loop {
            let new: Vec<u32> =
                proc::threads(pid)?.into_iter().filter(|tid| !self.threads.contains_key(&(*tid as i32))).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                match ptrace::seize(tid as i32, ptrace::CLONES | ptrace::CALLS_MARKED) {
                    Ok(()) => {
                        self.threads.insert(tid as i32, Thread::new(pid, false));
                        seized += 1;
                    }
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => {
                        self.let_go(pid);
                        return Err(PinError::of(what(), error));
                    }
                }
            }
            if seized == 0 {
                break;
            }
        }
        match seized {
            0 => Err(PinError::of(what(), io::Error::from_raw_os_error(libc::ESRCH))),
            _ => Ok(()),
        }
    }

    /// If calls of the process are intercepted: has its threads stop, to continue up to their next
    /// call each.
    fn follow(&mut self, pid: u32) {
        if !self.follows(pid) {
            return;
        }
        let held: Vec<i32> = self.held.values().map(|held| held.tid).collect();
        for (tid, thread) in self.threads.iter_mut().filter(|(tid, _)| !held.contains(tid)) {
            if thread.pid == pid && !thread.followed && !thread.asked {
                // One that is gone already answers with an error, and its end is seen with the next
                // stops.
                thread.asked = ptrace::interrupt(*tid).is_ok();
            }
        }
        self.wait_while(|thread| thread.pid == pid && thread.asked);
    }

    /// Has a stopped thread continue, with a signal unless that is 0.
    fn go(&mut self, tid: i32, signal: i32) -> io::Result<()> {
        let Some(pid) = self.threads.get(&tid).map(|thread| thread.pid) else { return Ok(()) };
        let followed = self.follows(pid);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.followed = followed;
        }
        if followed { ptrace::go_to_call(tid, signal) } else { ptrace::go_on(tid, signal) }
    }

    /// Has a thread that stands before a signal continue as decided; with the signal itself if the
    /// kernel rejects that. One that was killed meanwhile needs no decision.
    fn after_signal(&mut self, tid: i32, verdict: &Verdict, signal: i32) {
        let delivered = match verdict {
            Verdict::Drop => 0,
            Verdict::Replace { signal } => *signal as i32,
            Verdict::Pass | Verdict::Hold => signal,
        };
        if let Err(error) = self.go(tid, delivered)
            && error.raw_os_error() != Some(libc::ESRCH)
        {
            let _ = self.go(tid, signal);
        }
    }

    /// The same of one that stands before a call.
    fn after_call(&mut self, tid: i32, verdict: &CallVerdict) {
        #[cfg(target_arch = "x86_64")]
        if let CallVerdict::Refuse { errno } = verdict {
            let _ = ptrace::refuse(tid, *errno as i32);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = verdict;
        let _ = self.go(tid, 0);
    }

    /// Frees every thread of the process, now or when it stops; what is held continues.
    fn let_go(&mut self, pid: u32) {
        self.rules.remove(&pid);
        let mut threads = Vec::new();
        for (tid, thread) in self.threads.iter_mut().filter(|(_, thread)| thread.pid == pid) {
            thread.leaves = true;
            threads.push(*tid);
        }
        for tid in threads {
            let held = self.held.iter().find(|(_, held)| held.tid == tid).map(|(ticket, held)| (*ticket, held.before));
            if let Some((ticket, before)) = held {
                // Its stop was seen: there comes no other.
                self.held.remove(&ticket);
                self.detach(tid, if let Before::Signal(signal) = before { signal } else { 0 });
            } else if let Some(thread) = self.threads.get_mut(&tid) {
                // One that is gone already answers with an error, and its end is seen with the next
                // stops.
                thread.asked = ptrace::interrupt(tid).is_ok();
            }
        }
    }

    /// What nobody holds any more continues.
    fn free_unheld(&mut self) {
        let free: Vec<u64> =
            self.held.iter().filter(|(_, held)| held.holders.is_empty()).map(|(ticket, _)| *ticket).collect();
        for ticket in free {
            let Some(held) = self.held.remove(&ticket) else { continue };
            match held.before {
                Before::Signal(signal) => self.after_signal(held.tid, &Verdict::Pass, signal),
                Before::Call => self.after_call(held.tid, &CallVerdict::Pass),
            }
        }
    }

    /// Lets a stopped thread go. One that was killed meanwhile is kept until its end comes: nothing
    /// else can collect that.
    fn detach(&mut self, tid: i32, signal: i32) {
        match ptrace::detach(tid, signal) {
            Ok(()) => drop(self.threads.remove(&tid)),
            Err(_) => {
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.leaves = true;
                }
            }
        }
    }

    /// Handles the stops there are; true: there were some.
    fn stops(&mut self) -> bool {
        let mut some = false;
        for tid in self.threads.keys().copied().collect::<Vec<_>>() {
            let status = match what_came(tid) {
                Came::Nothing => continue,
                Came::Stopped(status) => status,
                Came::Ended => {
                    some = true;
                    self.gone(tid);
                    continue;
                }
            };
            some = true;
            self.stopped(tid, libc::WSTOPSIG(status), status >> 16);
        }
        if some {
            self.last = Instant::now();
        }
        some
    }

    fn stopped(&mut self, tid: i32, signal: i32, event: i32) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let leaves = thread.leaves;
        // Whichever stop comes first takes the place of the one that was asked for.
        if std::mem::take(&mut thread.asked) {
            #[cfg(target_arch = "x86_64")]
            ptrace::begin_again(tid);
        }
        if event == libc::PTRACE_EVENT_CLONE {
            self.cloned(tid);
        }
        match event {
            0 if signal == ptrace::CALL && !leaves => self.call(tid),
            0 if signal == ptrace::CALL => self.detach(tid, 0),
            0 if leaves => self.detach(tid, signal),
            0 => self.signal(tid, signal),
            _ if leaves => self.detach(tid, 0),
            // A stop by SIGSTOP and its like is the program's own affair and lasts until SIGCONT.
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => drop(ptrace::listen(tid)),
            _ => drop(self.go(tid, 0)),
        }
    }

    /// A traced thread made another: a thread of the same process stays traced, or leaves with it;
    /// a process goes free.
    fn cloned(&mut self, parent: i32) {
        let Ok(tid) = ptrace::made(parent) else { return };
        let Some(Thread { pid, leaves, .. }) = self.threads.get(&parent) else { return };
        let (pid, leaves) = (*pid, *leaves);
        if std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists() {
            self.threads.insert(tid, Thread::new(pid, leaves));
            return;
        }
        // The kernel attached the new process to this thread and stops it at once.
        if ptrace::state::wait_status(tid).is_ok() {
            self.threads.insert(tid, Thread::new(tid as u32, true));
            self.detach(tid, 0);
        }
    }

    fn gone(&mut self, tid: i32) {
        self.held.retain(|_, held| held.tid != tid);
        if let Some(Thread { pid, .. }) = self.threads.remove(&tid)
            && !self.threads.values().any(|thread| thread.pid == pid)
        {
            self.rules.remove(&pid);
        }
    }

    /// A signal is about to be delivered to a traced thread.
    fn signal(&mut self, tid: i32, signal: i32) {
        let pid = self.threads.get(&tid).map_or(0, |thread| thread.pid);
        let rules = self.rules.get(&pid).map_or(&[][..], Vec::as_slice);
        let Some((verdict, users)) = rules::on_signal(rules, signal) else {
            let _ = self.go(tid, signal);
            return;
        };
        let (code, sender) = ptrace::signal(tid).map_or((0, 0), |info| {
            // SAFETY: for codes up to 0 the sender's pid is what the field holds; it is not asked
            // for others.
            (info.si_code, if info.si_code <= 0 { unsafe { info.si_pid() } } else { 0 })
        });
        let ticket = self.ticket(verdict == Verdict::Hold);
        let values = [ticket, signal as u64, code as u32 as u64, sender as u64];
        if ticket == 0 {
            self.after_signal(tid, &verdict, signal);
            self.tell(Kind::SignalIntercepted, (pid, tid), values, &users);
        } else {
            self.hold(Kind::SignalIntercepted, (pid, tid), values, Before::Signal(signal), &users);
        }
    }

    /// A traced thread has stopped at a call, before it is made or after.
    fn call(&mut self, tid: i32) {
        let pid = self.threads.get(&tid).map_or(0, |thread| thread.pid);
        let rules = self.rules.get(&pid).map_or(&[][..], Vec::as_slice);
        let call = ptrace::call(tid);
        let Some((call, (verdict, users))) =
            call.and_then(|call| Some((call, rules::on_call(rules, &self.classes, pid, &call)?)))
        else {
            let _ = self.go(tid, 0);
            return;
        };
        let ticket = self.ticket(verdict == CallVerdict::Hold);
        let values = [ticket, call.number as u64, call.arguments[0], call.arguments[1]];
        if ticket == 0 {
            self.after_call(tid, &verdict);
            self.tell(Kind::CallIntercepted, (pid, tid), values, &users);
        } else {
            self.hold(Kind::CallIntercepted, (pid, tid), values, Before::Call, &users);
        }
    }

    /// A new ticket where something is held; else 0.
    fn ticket(&mut self, holds: bool) -> u64 {
        let ticket = self.next;
        self.next += u64::from(holds);
        if holds { ticket } else { 0 }
    }

    /// Keeps a thread stopped until one of its holders decides, as far as they could be
    /// notified: else it continues.
    fn hold(&mut self, kind: Kind, (pid, tid): (u32, i32), values: [u64; 4], before: Before, users: &[Concerned]) {
        let holders = self.tell(kind, (pid, tid), values, users);
        // One that was notified can answer only after this is noted: orders come to this thread.
        self.held.insert(values[0], Held { tid, before, holders });
        self.free_unheld();
    }

    /// Tells those concerned; gives those of them that hold it and have the event.
    fn tell(&self, kind: Kind, (pid, tid): (u32, i32), values: [u64; 4], users: &[Concerned]) -> Vec<Of> {
        let mut event = Event::new(kind, now());
        (event.pid, event.tid, event.values) = (pid, tid as u32, values);
        let mut notified = Vec::new();
        for (pin, sub) in lock(&self.listeners).iter().filter(|(_, sub)| sub.kind == kind) {
            let of = Of { pin, user: sub.client };
            let concerned = users.iter().find(|user| user.of == of);
            if concerned.is_some_and(|user| sub.offer(event) && user.holds) {
                notified.push(of);
            }
        }
        notified
    }
}

/// What a traced thread came to.
enum Came {
    /// Nothing yet.
    Nothing,
    /// A stop, with this status.
    Stopped(libc::c_int),
    Ended,
}

/// What came of a traced thread. How a child of this very process ended is left to whoever here
/// waits for that; of any other thread only its tracer can collect it.
fn what_came(tid: i32) -> Came {
    match ptrace::state::waits_to_be_collected(tid) {
        Ok(None) => return Came::Nothing,
        Ok(Some(ends)) if !ends || !is_own_child(tid) => {}
        _ => return Came::Ended,
    }
    // Only threads that this one traces are waited for, and what it is to collect came just now.
    match ptrace::state::collect_status(tid) {
        Ok(Some(status)) if libc::WIFSTOPPED(status) => Came::Stopped(status),
        _ => Came::Ended,
    }
}

/// Whether this is a child of this process, and not one of such a child's other threads, which
/// nobody waits for.
fn is_own_child(tid: i32) -> bool {
    let status = Status::of(tid).unwrap_or_default();
    status.process() == Some(tid) && status.parent() == Some(std::process::id() as i32)
}
