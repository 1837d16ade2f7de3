//! The thread behind P_SIG's interception. All ptrace requests come from it, as the kernel demands; others send it orders.
//!
//! It looks for stops every 100 us while there are some, every millisecond otherwise, and sleeps while nothing is traced.
//! Several modules may intercept signals of one process: each gets the event, and the strictest verdict holds
//! (hold, drop, replace, pass). Held signals are delivered when what holds them is released, at the latest with the pin's last
//! user. When the thread ends the kernel frees what it still traced, but drops held signals: one that is killed loses them.
//!
//! Only a stopped thread can be let go before, and one that waits in the kernel may not stop for as long as it likes: it is asked to,
//! and let go when it does. An order waits for that for [`PATIENCE`] at most.

use super::{proc, sig::Listeners};
use crate::{
    command::Verdict,
    core::lock,
    error::PinError,
    event::{Event, Kind, now},
};
use std::{
    collections::HashMap,
    io,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long a release waits for threads to stop.
const PATIENCE: Duration = Duration::from_millis(100);

enum Order {
    Intercept { user: u64, pid: u32, mask: u64, verdict: Verdict },
    Decide { user: u64, ticket: u64, verdict: Verdict },
    Release { user: u64, pid: Option<u32> },
}

type Answer = Result<(), PinError>;

/// See the module's head. Dropping it ends the thread.
pub(super) struct Tracer {
    orders: Option<Sender<(Order, Sender<Answer>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    pub(super) fn start(listeners: Listeners) -> io::Result<Tracer> {
        let (orders, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new().name("rmk-tracer".into()).spawn(move || {
            Traces { listeners, rules: HashMap::new(), threads: HashMap::new(), held: HashMap::new(), next: 1 }
                .run(&inbox);
        })?;
        Ok(Tracer { orders: Some(orders), thread: Some(thread) })
    }

    fn order(&self, order: Order) -> Answer {
        let gone = || PinError::Refused("the tracer's thread ended".into());
        let (answer, wait) = mpsc::channel();
        self.orders.as_ref().ok_or_else(gone)?.send((order, answer)).map_err(|_| gone())?;
        wait.recv().map_err(|_| gone())?
    }

    pub(super) fn intercept(&self, user: u64, pid: u32, mask: u64, verdict: Verdict) -> Answer {
        self.order(Order::Intercept { user, pid, mask, verdict })
    }

    pub(super) fn decide(&self, user: u64, ticket: u64, verdict: Verdict) -> Answer {
        self.order(Order::Decide { user, ticket, verdict })
    }

    pub(super) fn release(&self, user: u64, pid: Option<u32>) -> Answer {
        self.order(Order::Release { user, pid })
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

struct Rule {
    user: u64,
    mask: u64,
    verdict: Verdict,
}

struct Held {
    tid: i32,
    signal: i32,
    users: Vec<u64>,
}

struct Thread {
    pid: u32,
    /// It is to be let go at its next stop, for which it was asked.
    leaves: bool,
}

struct Traces {
    listeners: Listeners,
    /// Rules of a process; none: its threads leave.
    rules: HashMap<u32, Vec<Rule>>,
    threads: HashMap<i32, Thread>,
    held: HashMap<u64, Held>,
    next: u64,
}

fn ask(request: libc::c_uint, tid: i32, data: usize) -> io::Result<()> {
    // SAFETY: the requests used here pass a number, or the address of a siginfo_t that the caller keeps alive for the call.
    match unsafe { libc::ptrace(request, tid, 0usize, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn strictness(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Pass {} => 0,
        Verdict::Replace { .. } => 1,
        Verdict::Drop {} => 2,
        Verdict::Hold {} => 3,
    }
}

/// Has a thread that stands before a signal go on as decided; with the signal itself if the kernel refuses that. One that was
/// killed meanwhile needs no decision.
fn decided(tid: i32, verdict: &Verdict, signal: i32) {
    if let Err(error) = ask(libc::PTRACE_CONT, tid, outcome(verdict, signal))
        && error.raw_os_error() != Some(libc::ESRCH)
    {
        let _ = ask(libc::PTRACE_CONT, tid, signal as usize);
    }
}

/// The signal that a thread goes on with.
fn outcome(verdict: &Verdict, signal: i32) -> usize {
    match verdict {
        Verdict::Drop {} => 0,
        Verdict::Replace { signal } => *signal as usize,
        Verdict::Pass {} | Verdict::Hold {} => signal as usize,
    }
}

impl Traces {
    fn run(mut self, inbox: &Receiver<(Order, Sender<Answer>)>) {
        let mut pause = Duration::from_millis(1);
        loop {
            let order = match self.threads.is_empty() {
                true => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => inbox.recv_timeout(pause),
            };
            match order {
                Ok((order, answer)) => {
                    // Who asked may have gone; the order is done all the same.
                    let _ = answer.send(self.obey(order));
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            pause = if self.stops() { Duration::from_micros(100) } else { Duration::from_millis(1) };
        }
    }

    fn obey(&mut self, order: Order) -> Answer {
        match order {
            Order::Intercept { user, pid, mask, verdict } => {
                if !self.rules.contains_key(&pid) {
                    self.seize(pid)?;
                }
                let rules = self.rules.entry(pid).or_default();
                rules.retain(|rule| rule.user != user);
                rules.push(Rule { user, mask, verdict });
                Ok(())
            }
            Order::Decide { user, ticket, verdict } => match self.held.get(&ticket) {
                Some(held) if held.users.contains(&user) => {
                    decided(held.tid, &verdict, held.signal);
                    self.held.remove(&ticket);
                    Ok(())
                }
                _ => Err(PinError::Refused(format!("this module holds no signal with ticket {ticket}"))),
            },
            Order::Release { user, pid } => {
                let of: Vec<u32> =
                    self.rules.keys().copied().filter(|known| pid.is_none_or(|pid| pid == *known)).collect();
                for pid in of {
                    let Some(rules) = self.rules.get_mut(&pid) else { continue };
                    rules.retain(|rule| rule.user != user);
                    if rules.is_empty() {
                        self.let_go(pid);
                    }
                }
                let until = Instant::now() + PATIENCE;
                while self.threads.values().any(|thread| thread.leaves) && Instant::now() < until {
                    if !self.stops() {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
                Ok(())
            }
        }
    }

    /// Becomes the tracer of every thread of the process, also of those it makes from now on.
    fn seize(&mut self, pid: u32) -> Answer {
        let what = || {
            format!("intercepting signals of process {pid} (it may have a debugger, or the right to trace it lacks)")
        };
        let mut seized = 0;
        // Those that have not left yet stay; they go on at the stop that they were asked for.
        for thread in self.threads.values_mut().filter(|thread| thread.pid == pid) {
            thread.leaves = false;
            seized += 1;
        }
        // Threads made while the first ones are seized are found by the next look.
        loop {
            let new: Vec<u32> =
                proc::threads(pid)?.into_iter().filter(|tid| !self.threads.contains_key(&(*tid as i32))).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                match ask(libc::PTRACE_SEIZE, tid as i32, libc::PTRACE_O_TRACECLONE as usize) {
                    Ok(()) => {
                        self.threads.insert(tid as i32, Thread { pid, leaves: false });
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

    /// Frees every thread of the process, now or when it stops; held signals are delivered.
    fn let_go(&mut self, pid: u32) {
        self.rules.remove(&pid);
        let mut threads = Vec::new();
        for (tid, thread) in self.threads.iter_mut().filter(|(_, thread)| thread.pid == pid) {
            thread.leaves = true;
            threads.push(*tid);
        }
        for tid in threads {
            let held = self.held.iter().find(|(_, held)| held.tid == tid).map(|(ticket, held)| (*ticket, held.signal));
            if let Some((ticket, signal)) = held {
                // Its stop was seen: there comes no other.
                self.held.remove(&ticket);
                self.detach(tid, signal);
            } else {
                // One that is gone already answers with an error, and its end is seen with the next stops.
                let _ = ask(libc::PTRACE_INTERRUPT, tid, 0);
            }
        }
    }

    /// Lets a stopped thread go. One that was killed meanwhile is kept until its end comes: nobody else can collect that.
    fn detach(&mut self, tid: i32, signal: i32) {
        match ask(libc::PTRACE_DETACH, tid, signal as usize) {
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
            let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
            let leaves = self.threads.get(&tid).is_some_and(|thread| thread.leaves);
            match event {
                libc::PTRACE_EVENT_CLONE if leaves => {
                    self.cloned(tid);
                    self.detach(tid, 0);
                }
                0 if leaves => self.detach(tid, signal),
                _ if leaves => self.detach(tid, 0),
                0 => self.signal(tid, signal),
                libc::PTRACE_EVENT_CLONE => {
                    self.cloned(tid);
                    let _ = ask(libc::PTRACE_CONT, tid, 0);
                }
                // A stop by SIGSTOP and its like is the program's own affair and lasts until SIGCONT.
                libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => drop(ask(libc::PTRACE_LISTEN, tid, 0)),
                _ => drop(ask(libc::PTRACE_CONT, tid, 0)),
            }
        }
        some
    }

    /// A traced thread made another: a thread of the same process stays traced, or leaves with it; a process goes free.
    fn cloned(&mut self, parent: i32) {
        let mut child: libc::c_ulong = 0;
        if ask(libc::PTRACE_GETEVENTMSG, parent, (&raw mut child) as usize).is_err() {
            return;
        }
        let Some(Thread { pid, leaves }) = self.threads.get(&parent) else { return };
        let (tid, pid, leaves) = (child as i32, *pid, *leaves);
        if std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists() {
            self.threads.insert(tid, Thread { pid, leaves });
            return;
        }
        let mut status = 0;
        // SAFETY: `status` is live; the kernel attached the new process to this thread and stops it at once.
        if unsafe { libc::waitpid(tid, &mut status, libc::__WALL) } == tid {
            self.threads.insert(tid, Thread { pid: child as u32, leaves: true });
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
        let rules: Vec<&Rule> =
            self.rules.get(&pid).into_iter().flatten().filter(|rule| rule.mask >> (signal - 1) & 1 == 1).collect();
        let Some(verdict) = rules.iter().map(|rule| &rule.verdict).max_by_key(|verdict| strictness(verdict)).cloned()
        else {
            let _ = ask(libc::PTRACE_CONT, tid, signal as usize);
            return;
        };
        let users: Vec<u64> = rules.iter().map(|rule| rule.user).collect();
        // SAFETY: an all-zero siginfo_t is a value; the kernel fills it.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let known = ask(libc::PTRACE_GETSIGINFO, tid, (&raw mut info) as usize).is_ok();
        // SAFETY: for codes up to 0 the sender's pid is what the field holds; it is not asked for others.
        let sender = if known && info.si_code <= 0 { unsafe { info.si_pid() } } else { 0 };
        let holds = verdict == Verdict::Hold {};
        let ticket = if holds { self.next } else { 0 };
        if holds {
            self.next += 1;
            self.held.insert(ticket, Held { tid, signal, users: users.clone() });
        } else {
            decided(tid, &verdict, signal);
        }
        let mut event = Event::new(Kind::SignalIntercepted, now());
        (event.pid, event.tid) = (pid, tid as u32);
        event.values = [ticket, signal as u64, info.si_code as u32 as u64, sender as u64];
        for sub in lock(&self.listeners).iter().filter(|sub| users.contains(&sub.client)) {
            sub.offer(event);
        }
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

/// What came of a traced thread. How a child of this very process ended is left to whoever here waits
/// for that; of any other thread only its tracer can collect it.
fn what_came(tid: i32) -> Came {
    // SAFETY: all-zero bytes are a valid siginfo.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::__WALL | libc::WNOHANG;
    // SAFETY: `info` outlives the call, which collects nothing.
    while unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, &raw mut info, options) } != 0 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Came::Ended;
        }
    }
    // SAFETY: waitid has filled the field or left zero.
    if unsafe { info.si_pid() } == 0 {
        return Came::Nothing;
    }
    if matches!(info.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) && is_own_child(tid) {
        return Came::Ended;
    }
    let mut status = 0;
    // SAFETY: `status` is live. Only threads that this one traces are waited for, and what it is to collect came just now.
    let got = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) };
    if got == tid && libc::WIFSTOPPED(status) { Came::Stopped(status) } else { Came::Ended }
}

/// Whether this is a child of this process, and not one of such a child's other threads, which nobody waits for.
fn is_own_child(tid: i32) -> bool {
    let status = orbit_linux::procfs::text(format!("/proc/{tid}/status")).unwrap_or_default();
    let number = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok());
    number("Tgid:") == Some(tid as u32) && number("PPid:") == Some(std::process::id())
}
