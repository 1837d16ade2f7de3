//! Names for the addresses of a call stack: functions, files and lines, found outside main.
//!
//! Finding names reads debug information: up to tens of megabytes of memory and of milliseconds of
//! processor time, with allocations that end the process when they fail. So main never does it. It
//! asks the template, over a socket of their own (the *desk*), and the template has a one-shot
//! process do it, which has main's code at main's addresses. What was found is kept by address, for
//! a template's code never changes. Without an answer a frame has the file of code and the offset
//! in it, or its bare address.
//!
//! | from | message |
//! |---|---|
//! | main | number, addresses to look up: one message, at most [`MAX_FRAMES`] of them |
//! | a one-shot process, or the template in its place | number, then what was found for each, perhaps cut off |

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use orbit_linux::{pidfd, poll, process, rlimit, signals, socket};

use crate::blackbox::{Function, MAX_FRAMES, Stack, find_functions};
use crate::generation::generation;
use crate::limits;
use crate::own::{self, Own};
use crate::template::{Code, Template};

/// How long names may take before a crash goes without: finding them takes a tenth of a second of
/// processor time, of which a loaded machine gives little.
const NAMED_WITHIN: Duration = Duration::from_secs(10);
/// How often a thread that waits for names checks whether another has received them.
const RECHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Requests that wait at one time, and processes that answer them.
const MAX_REQUESTS: usize = 4;
/// Addresses whose names are kept.
const MAX_KNOWN: usize = 1024;
/// Longest answer in bytes.
const MAX_ANSWER_BYTES: usize = 32 << 10;
/// Longest name of a function or a file in bytes.
const MAX_NAME_BYTES: usize = 1024;
/// Processor time that a one-shot process may use, seconds.
const MAX_CPU_SECONDS: u64 = 5;

/// Main's end of the desk of one template.
pub(crate) struct Desk {
    socket: Own,
    code: Arc<Code>,
    /// The process that asks: a fork of main has a copy of all this, and reads nothing.
    generation: u64,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    last: u32,
    /// What is asked for, by the request's number, and when it is given up.
    asked: HashMap<u32, (Vec<u64>, Instant)>,
    known: HashMap<u64, Vec<Function>>,
}

impl Desk {
    pub fn new(socket: Own, code: Arc<Code>) -> Arc<Desk> {
        Arc::new(Desk { socket, code, generation: generation(), book: Mutex::default() })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Asks a template for the names of a call stack. Never waits.
    pub fn ask(template: &Arc<Template>, addresses: &[u64]) -> Arc<Names> {
        let desk = &template.desk;
        let mut book = desk.book();
        let now = Instant::now();
        // Of crashes that nobody asked about, whose answers nobody has taken.
        desk.receive(&mut book);
        book.asked.retain(|_, (_, until)| *until > now);
        let mut unknown: Vec<u64> = lookups(addresses).filter(|at| !book.known.contains_key(at)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        let mut request = None;
        if !unknown.is_empty() && book.asked.len() < MAX_REQUESTS {
            book.last = book.last.wrapping_add(1);
            let number = book.last;
            let mut message = number.to_le_bytes().to_vec();
            unknown.iter().for_each(|at| message.extend_from_slice(&at.to_le_bytes()));
            if desk.socket.fd().and_then(|fd| socket::send_now(fd, &message, &[])).is_ok() {
                book.asked.insert(number, (unknown, now + NAMED_WITHIN));
                request = Some(number);
            }
        }
        let template = Mutex::new(request.map(|_| template.clone()));
        Arc::new(Names { desk: desk.clone(), request, until: now + NAMED_WITHIN, template })
    }

    /// Takes the answers that have come.
    fn receive(&self, book: &mut Book) {
        while !book.asked.is_empty() {
            let mut bytes = Vec::new();
            // Main does without names where it has no memory for them.
            let received = if bytes.try_reserve_exact(MAX_ANSWER_BYTES).is_ok() {
                bytes.resize(MAX_ANSWER_BYTES, 0);
                self.socket.fd().and_then(|fd| socket::receive(fd, &mut bytes, &mut Vec::new(), true))
            } else {
                Err(std::io::Error::from_raw_os_error(libc::ENOMEM))
            };
            match received {
                Ok(n) if n >= 4 => {
                    let mut rest = &bytes[4..n];
                    let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                    let Some((asked, _)) = book.asked.remove(&number) else { continue };
                    if book.known.len() + asked.len() > MAX_KNOWN {
                        book.known.clear();
                    }
                    for at in asked {
                        let Some(functions) = take_functions(&mut rest) else { break };
                        book.known.insert(at, functions);
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                // The template is gone, or the way to it.
                _ => book.asked.clear(),
            }
        }
    }
}

/// The names of one call stack, which may be on their way.
pub(crate) struct Names {
    desk: Arc<Desk>,
    request: Option<u32>,
    until: Instant,
    /// Lives until they are settled: with it the process would end that finds them.
    template: Mutex<Option<Arc<Template>>>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("request", &self.request).finish()
    }
}

impl Names {
    /// Whether they have come, or will not come any more. Never waits.
    pub fn are_settled(&self) -> bool {
        let Some(number) = self.request.filter(|_| self.desk.generation == generation()) else { return true };
        let mut book = self.desk.book();
        self.desk.receive(&mut book);
        if Instant::now() >= self.until {
            book.asked.remove(&number);
        }
        let are_settled = !book.asked.contains_key(&number);
        drop(book);
        if are_settled {
            self.let_go();
        }
        are_settled
    }

    /// Lets go of the template.
    pub fn let_go(&self) {
        drop(self.template.lock().unwrap_or_else(|e| e.into_inner()).take());
    }

    /// Waits until they are settled, or until this time.
    pub fn wait(&self, until: Option<Instant>) {
        let until = until.map_or(self.until, |until| until.min(self.until));
        while !self.are_settled() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now()).min(RECHECK_INTERVAL);
            let _ = poll::poll(&mut [readable(self.number())], Some(left));
        }
    }

    /// The call stack with the names that are there.
    pub fn stack(&self, addresses: &[u64]) -> Stack {
        if self.desk.generation != generation() {
            return Stack::new(addresses, |_| None);
        }
        let book = self.desk.book();
        Stack::new(addresses, |at| book.known.get(&at).cloned().or_else(|| Some(vec![self.desk.code.place_of(at)?])))
    }

    /// The descriptor on which they come; -1 if it is gone.
    pub fn number(&self) -> RawFd {
        self.desk.socket.number().unwrap_or(-1)
    }

    /// When they are given up.
    pub fn until(&self) -> Instant {
        self.until
    }
}

/// What is looked up for a call stack, whose first address is exact and whose others are return
/// addresses: the place before each of these belongs to the function.
pub(crate) fn lookups(addresses: &[u64]) -> impl Iterator<Item = u64> {
    addresses.iter().enumerate().map(|(depth, &at)| if depth == 0 { at.wrapping_add(1) } else { at })
}

fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// The template's end of the desk, with the one-shot processes that work at it.
pub(crate) struct Clerks {
    /// `None` once main has hung up.
    socket: Option<RawFd>,
    running: Vec<Clerk>,
}

struct Clerk {
    pid: i32,
    fd: Own,
    number: [u8; 4],
}

impl Clerks {
    /// `socket` was inherited for this, and nothing else in this process closes it.
    pub fn new(socket: RawFd) -> Clerks {
        Clerks { socket: Some(socket), running: Vec::new() }
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the word of the caller of `new`.
        self.socket.map(|socket| unsafe { BorrowedFd::borrow_raw(socket) })
    }

    /// Says that there are no names for this request, if anybody is there to hear it.
    fn refuse(&self, number: [u8; 4]) {
        let _ = self.socket().map(|socket| socket::send_now(socket, &number, &[]));
    }

    /// What to poll: the desk, then each process.
    pub fn polled(&self) -> impl Iterator<Item = libc::pollfd> {
        let processes = self.running.iter().map(|clerk| clerk.fd.number().unwrap_or(-1));
        std::iter::once(self.socket.unwrap_or(-1)).chain(processes).map(readable)
    }

    /// The numbers of the processes.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.running.iter().map(|clerk| clerk.pid)
    }

    /// Does what the descriptors of [`Clerks::polled`] ask for. An error when main is gone.
    pub fn work(&mut self, polled: &[libc::pollfd]) -> std::io::Result<()> {
        for at in (0..self.running.len()).rev() {
            if polled[at + 1].revents != 0 {
                let clerk = self.running.swap_remove(at);
                let _ = clerk.fd.fd().and_then(|fd| pidfd::wait(fd, false));
                // Where it has answered, this one is not waited for.
                self.refuse(clerk.number);
            }
        }
        let Some(socket) = self.socket().filter(|_| polled[0].revents != 0) else { return Ok(()) };
        let mut bytes = [0; 4 + MAX_FRAMES * 8];
        let n = match socket::receive(socket, &mut bytes, &mut Vec::new(), true) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
            received => received?,
        };
        if n < 4 {
            // Hung up: the other socket says what that means.
            self.socket = None;
            return Ok(());
        }
        let number = [bytes[0], bytes[1], bytes[2], bytes[3]];
        let started = self.start(number, &bytes[4..n]);
        if started.is_err() {
            self.refuse(number);
        }
        Ok(())
    }

    fn start(&mut self, number: [u8; 4], addresses: &[u8]) -> std::io::Result<()> {
        if self.running.len() >= MAX_REQUESTS {
            return Err(std::io::Error::from_raw_os_error(libc::EAGAIN));
        }
        // SAFETY: the template has one thread; libc's fork leaves its child with libc's state in
        // order, and the child ends by `end`.
        let Some(pid) = (unsafe { process::fork() })? else {
            let failed = self.socket().is_none_or(|socket| answer(socket, number, addresses).is_err());
            process::end(i32::from(failed))
        };
        match pidfd::open(pid).and_then(Own::new) {
            Ok(fd) => self.running.push(Clerk { pid, fd, number }),
            Err(e) => {
                process::kill_child(pid);
                return Err(e);
            }
        }
        Ok(())
    }
}

/// The life of a one-shot process: finds names and answers.
fn answer(desk: BorrowedFd<'_>, number: [u8; 4], addresses: &[u8]) -> std::io::Result<()> {
    let _ = process::set_parent_death_signal(libc::SIGKILL);
    let _ = process::set_name(c"orbit-names");
    own::close_all_but(&[desk.as_raw_fd()]);
    // What it dies of is nobody's affair but its own.
    (1..32).for_each(signals::set_default);
    let _ = rlimit::set(0, rlimit::Resource::CpuSeconds, MAX_CPU_SECONDS, MAX_CPU_SECONDS);
    // Without memory for that it dies, and main does without names.
    limits::keep_below_room().map_err(|_| std::io::Error::from_raw_os_error(libc::ENOMEM))?;
    let mut message = number.to_vec();
    for at in addresses.chunks_exact(8) {
        let at = at.try_into().map_or(0, u64::from_le_bytes);
        let before = message.len();
        put_functions(&mut message, &find_functions(at));
        if message.len() > MAX_ANSWER_BYTES {
            message.truncate(before);
            break;
        }
    }
    socket::send_now(desk.as_fd(), &message, &[]).map(drop)
}

fn put_functions(to: &mut Vec<u8>, functions: &[Function]) {
    to.push(functions.len().min(255) as u8);
    for function in functions.iter().take(255) {
        to.push(u8::from(function.is_messenger));
        to.extend_from_slice(&function.line.unwrap_or(0).to_le_bytes());
        for text in [&function.name, &function.file] {
            let text = text.as_deref().unwrap_or_default();
            let mut len = text.len().min(MAX_NAME_BYTES);
            while !text.is_char_boundary(len) {
                len -= 1;
            }
            to.extend_from_slice(&(len as u16).to_le_bytes());
            to.extend_from_slice(&text.as_bytes()[..len]);
        }
    }
}

/// What [`put_functions`] has put; `None` where it was cut off.
fn take_functions(from: &mut &[u8]) -> Option<Vec<Function>> {
    let count = take::<1>(from)?[0];
    let mut functions = Vec::new();
    for _ in 0..count {
        let is_messenger = take::<1>(from)? != [0];
        let line = Some(u32::from_le_bytes(take(from)?)).filter(|line| *line != 0);
        let mut text = || {
            let len = u16::from_le_bytes(take(from)?);
            let (bytes, rest) = from.split_at_checked(len.into())?;
            *from = rest;
            Some(Some(String::from_utf8_lossy(bytes).into_owned()).filter(|text| !text.is_empty()))
        };
        functions.push(Function { name: text()?, file: text()?, line, is_messenger });
    }
    Some(functions)
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_taken_and_what_is_cut_off_is_not() {
        let function = |name: Option<&str>, line| Function {
            name: name.map(str::to_owned),
            file: Some("é".repeat(900)),
            line,
            is_messenger: line.is_none(),
        };
        let put = [function(Some("inner"), Some(7)), function(None, None)];
        let mut bytes = Vec::new();
        put_functions(&mut bytes, &put);
        let taken = take_functions(&mut &bytes[..]).expect("all of it");
        assert_eq!((taken.len(), taken[0].name.as_deref(), taken[0].line), (2, Some("inner"), Some(7)));
        assert_eq!(taken[0].file.as_ref().map(String::len), Some(MAX_NAME_BYTES));
        assert!(taken[1].name.is_none() && taken[1].is_messenger && !taken[0].is_messenger);
        for len in 0..bytes.len() {
            assert!(take_functions(&mut &bytes[..len]).is_none(), "{len} bytes");
        }
    }

    /// Main may be killed while names are being found: the template cleans up after it, and must
    /// not fail before.
    #[test]
    fn a_process_that_ends_after_main_has_hung_up_is_reaped() {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().expect("two sockets");
        let mut clerks = Clerks::new(ours.as_raw_fd());
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let pid = child.id() as i32;
        let fd = pidfd::open(pid).and_then(Own::new).expect("its descriptor");
        clerks.running.push(Clerk { pid, fd, number: [0; 4] });
        drop(theirs);
        clerks.socket = None;
        let mut polled: Vec<_> = clerks.polled().collect();
        assert_eq!(polled[0].fd, -1, "main is not asked any more");
        while polled[1].revents == 0 {
            orbit_linux::poll::poll(&mut polled, None).expect("polled");
        }
        clerks.work(&polled).expect("done");
        assert_eq!(clerks.pids().count(), 0);
        assert!(child.wait().is_err(), "it was reaped");
    }
}
