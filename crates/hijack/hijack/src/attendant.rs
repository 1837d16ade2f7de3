//! The host's thread that guests need while they run: it answers their questions, and ends
//! functions of the policy object that take too much CPU time.
//!
//! It trusts nothing that guests write: a question is copied, and a signal goes only to threads
//! whose executable is the executive of this session.

use crate::calls;
use crate::control::Registers;
use crate::rules::Asked;
use crate::session::{ASK_LIMIT, Options};
use crate::shared::{MAX_RULES, Memory, QUESTIONS, RawQuestion, SLOT_USED, split_state};
use orbit_linux::child::Exit;
use orbit_linux::{futex, poll, sched, signals};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Values of the signals to threads; see `executive/abi.h`.
pub(crate) const VALUE_STOP: usize = 0x6_f726_2697_4001;
const VALUE_LIMIT: usize = 0x6_f726_2697_4002;

const ASKED: u32 = 2;
const ANSWERED: u32 = 3;
/// How often functions of the policy object are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// CPU time of one function of the policy object, if nothing else is set.
const OBJECT_LIMIT: Duration = Duration::from_millis(100);

/// A question of a guest about one of its calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Question {
    /// The thread.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// Index of the rule that asks; `None`: the policy object asks.
    pub rule: Option<usize>,
    /// The name behind `ask` or `ask service` in the rule; empty: none.
    pub name: String,
    /// Number of the call.
    pub number: u64,
    /// Name of the call; empty: none is known.
    pub call: &'static str,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// Address of the syscall instruction.
    pub site: u64,
    /// Registers of the guest at the call; `rip` is where it continues, rcx, r11 and the flags are
    /// not kept.
    #[serde(skip)]
    pub registers: Registers,
    /// The call's first path, at most 255 bytes of it; empty: it has none.
    pub path: String,
}

/// What becomes of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is made, unless a later rule says otherwise.
    Pass,
    /// It is not made; this is its result (an error as its negative number).
    Result(i64),
}

impl Answer {
    /// `pass`, a number, or the name of an error.
    pub fn parse(text: &str) -> Option<Answer> {
        if text == "pass" {
            return Some(Answer::Pass);
        }
        let error = calls::value_of("errno", text).map(|errno| -(errno as i64));
        error.or_else(|| text.parse().ok()).map(Answer::Result)
    }
}

/// A program that is killed and reaped when it is dropped.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // Both fail only where it has ended and was reaped.
        let _ = self.0.kill();
        let _ = self.0.wait_for_exit();
    }
}

/// A program that decides: a line of JSON each question, a line each answer.
struct Program {
    to: ChildStdin,
    from: ChildStdout,
    /// What was read and is no whole line yet.
    read: Vec<u8>,
    /// Whether the answer to an earlier question is still to come; it is nobody's then.
    owes: bool,
    // Both pipes close with this value, which ends the program; then it is reaped.
    _child: Reaped,
}

impl Program {
    /// `None`: it has ended, wrote nonsense, or nothing within `limit`.
    fn ask(&mut self, question: &Question, limit: Duration) -> Option<Answer> {
        let end = Instant::now() + limit;
        if self.owes {
            self.line(end)?;
        }
        let mut line = serde_json::to_vec(question).ok()?;
        line.push(b'\n');
        // There is room in the pipe: a question is sent when the one before was read.
        self.to.write_all(&line).ok()?;
        self.owes = true;
        let answer = self.line(end)?;
        self.owes = false;
        Answer::parse(answer.trim())
    }

    fn line(&mut self, end: Instant) -> Option<String> {
        loop {
            if let Some(at) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=at).collect();
                return Some(String::from_utf8_lossy(&line).into_owned());
            }
            let left = end.saturating_duration_since(Instant::now());
            let mut ends = [libc::pollfd { fd: self.from.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            if left.is_zero() || poll::poll(&mut ends, Some(left)).is_err() || ends[0].revents == 0 {
                return None;
            }
            let mut bytes = [0; 4096];
            match self.from.read(&mut bytes) {
                Ok(count @ 1..) => self.read.extend_from_slice(&bytes[..count]),
                Ok(0) | Err(_) => return None,
            }
        }
    }
}

/// `None`: no answer. It takes not much longer than the time given.
type Function = dyn FnMut(&Question, Duration) -> Option<Answer> + Send;

/// A function that decides about calls. It runs on a thread of the host, one question at a time;
/// the guest waits.
#[derive(Clone)]
pub struct Decider(Arc<Mutex<Function>>);

impl Decider {
    /// From a function. It may ask an orbit, or whatever else; a guest waits for
    /// `Options::ask_limit`.
    pub fn new(mut decide: impl FnMut(&Question) -> Answer + Send + 'static) -> Decider {
        Decider::bounded(move |question: &Question, _| Some(decide(question)))
    }

    /// From a function that gets the time a guest waits, takes not much longer, and returns `None`
    /// where it has no answer.
    pub fn bounded(decide: impl FnMut(&Question, Duration) -> Option<Answer> + Send + 'static) -> Decider {
        Decider(Arc::new(Mutex::new(decide)))
    }

    /// A program, started by the shell, that gets each question as a line of JSON and answers by a
    /// line: `pass`, a number, or the name of an error. Its end, an answer that makes no sense, and
    /// one that is not there within `Options::ask_limit`, let the call pass and count as no answer.
    ///
    /// # Errors
    /// Those of starting it.
    pub fn command(line: &str) -> io::Result<Decider> {
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", line]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipes to the decider"));
        };
        let mut program = Program { to, from, read: Vec::new(), owes: false, _child: Reaped(child) };
        Ok(Decider::bounded(move |question: &Question, limit| program.ask(question, limit)))
    }

    fn decide(&self, question: &Question, limit: Duration) -> Option<Answer> {
        let mut decide = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A decider that panics has no opinion.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| decide(question, limit))).unwrap_or(None)
    }
}

impl fmt::Debug for Decider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decider")
    }
}

/// The thread; dropped, it ends.
pub(crate) struct Attendant {
    memory: Arc<Memory>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Attendant {
    /// Starts it if the options need it.
    pub fn start(memory: &Arc<Memory>, image: (u64, u64), options: &Options) -> io::Result<Option<Attendant>> {
        if options.object.is_none() && options.decider.is_none() && options.services.is_none() {
            return Ok(None);
        }
        let ends = Arc::new(AtomicBool::new(false));
        let mut work = Work {
            memory: Arc::clone(memory),
            image,
            decider: options.decider.clone(),
            services: options.services.clone(),
            asked: options.rules.iter().map(|rule| rule.asks().cloned()).collect(),
            limit: options.object_limit.unwrap_or(OBJECT_LIMIT),
            ask_limit: options.ask_limit.unwrap_or(ASK_LIMIT),
            running: HashMap::new(),
        };
        let (memory, ended) = (Arc::clone(memory), Arc::clone(&ends));
        let thread = std::thread::Builder::new().name("hijack".into()).spawn(move || work.run(&ended))?;
        Ok(Some(Attendant { memory, ends, thread: Some(thread) }))
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        self.memory.bell().fetch_add(1, Ordering::SeqCst);
        futex::wake(self.memory.bell(), i32::MAX);
        if let Some(thread) = self.thread.take() {
            // Its panics were reported on stderr.
            let _ = thread.join();
        }
    }
}

/// A function of the policy object that was seen running.
struct Running {
    busy: u32,
    /// CPU time of the thread when it was seen first.
    began: u64,
}

struct Work {
    memory: Arc<Memory>,
    image: (u64, u64),
    decider: Option<Decider>,
    services: Option<Decider>,
    /// For each rule whom it asks.
    asked: Vec<Option<Asked>>,
    limit: Duration,
    /// How long a guest waits for an answer.
    ask_limit: Duration,
    running: HashMap<usize, Running>,
}

impl Work {
    fn run(&mut self, ends: &AtomicBool) {
        while !ends.load(Ordering::SeqCst) {
            let bell = self.memory.bell().load(Ordering::Acquire);
            for index in 0..QUESTIONS {
                self.answer(index);
            }
            self.check_limits();
            // A wait that ends early or late makes no difference.
            let _ = futex::wait(self.memory.bell(), bell, Some(POLL_INTERVAL));
        }
    }

    fn answer(&self, index: usize) {
        let raw = self.memory.question(index);
        let state = raw.state.load(Ordering::Acquire);
        if state & 3 != ASKED {
            return;
        }
        let mut question = copy(raw);
        let asked = question.rule.and_then(|rule| self.asked.get(rule)?.as_ref());
        let decider = match asked {
            Some(Asked::Service(_)) => &self.services,
            _ => &self.decider,
        };
        if let Some(Asked::Service(name) | Asked::Decider(name)) = asked {
            question.name.clone_from(name);
        }
        let answer = decider.as_ref().and_then(|decider| decider.decide(&question, self.ask_limit));
        let (verdict, result) = match answer {
            Some(Answer::Pass) => (0, 0),
            Some(Answer::Result(result)) => (1, result),
            None => (2, 0),
        };
        raw.verdict.store(verdict, Ordering::Relaxed);
        raw.result.store(result as u64, Ordering::Relaxed);
        // The state has the question's number: a later question in the same place takes no answer
        // of an earlier one.
        let answered = state & !3 | ANSWERED;
        if raw.state.compare_exchange(state, answered, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            futex::wake(&raw.state, i32::MAX);
        }
    }

    /// Ends functions of the policy object whose thread used more CPU time than the limit since
    /// they were seen first.
    fn check_limits(&mut self) {
        for slot in 0..self.memory.slot_limit() {
            let busy = self.memory.inspection(slot).busy.load(Ordering::Relaxed);
            let thread = self.memory.slot(slot);
            if busy.is_multiple_of(2) || split_state(thread.state.load(Ordering::Acquire)).0 != SLOT_USED {
                self.running.remove(&slot);
                continue;
            }
            let (pid, tid) = (thread.pid.load(Ordering::Relaxed), thread.tid.load(Ordering::Relaxed));
            let Some(used) = cpu_ns(pid, tid) else { continue };
            let running = self.running.entry(slot).or_insert(Running { busy, began: used });
            if running.busy != busy {
                *running = Running { busy, began: used };
            } else if u128::from(used.saturating_sub(running.began)) >= self.limit.as_nanos()
                && is_guest(pid, tid, self.image)
            {
                // A thread that has ended meanwhile needs no signal; one that missed it gets the
                // next.
                let _ = signals::queue_to_thread(pid as i32, tid as i32, libc::SIGSYS, VALUE_LIMIT);
            }
        }
    }
}

fn copy(raw: &RawQuestion) -> Question {
    let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
    let number = raw.number.load(Ordering::Relaxed);
    let rule = word(&raw.rule) as usize;
    Question {
        tid: word(&raw.tid),
        pid: word(&raw.pid),
        rule: (rule < MAX_RULES).then_some(rule),
        name: String::new(),
        number,
        call: calls::by_number(number).map_or("", |call| call.name),
        arguments: std::array::from_fn(|nth| raw.arguments[nth].load(Ordering::Relaxed)),
        site: raw.site.load(Ordering::Relaxed),
        registers: registers(raw),
        path: String::from_utf8_lossy(&raw.path()).into_owned(),
    }
}

fn registers(raw: &RawQuestion) -> Registers {
    let word = |nth: usize| raw.registers.get(nth).map_or(0, |word| word.load(Ordering::Relaxed));
    Registers::from_words(std::array::from_fn(word))
}

/// CPU time of a thread. `None`: there is no such thread.
fn cpu_ns(pid: u32, tid: u32) -> Option<u64> {
    Some(sched::schedstat(pid as i32, tid as i32).ok()?.run_ns)
}

/// Whether the thread runs the executive that has this device and inode. Guests could name any
/// thread of the user.
pub(crate) fn is_guest(pid: u32, tid: u32, image: (u64, u64)) -> bool {
    let about = std::fs::metadata(format!("/proc/{pid}/task/{tid}/exe"));
    about.is_ok_and(|about| (about.dev(), about.ino()) == image)
}
