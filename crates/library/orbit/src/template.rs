//! The template: a small process, forked from main early, that does nothing but make orbits and
//! report how they ended.
//!
//! It has one thread, so `PR_SET_PDEATHSIG` ties its orbits to it without the trap that signal has
//! for threads; it watches main by a pidfd, so it goes (with its orbits, whatever they left behind,
//! and their control groups) when main goes, however main goes. Main never sees any of them in its
//! own `wait`, nor does a program that it becomes by exec: the template is forked twice, by raw
//! clones with exit signal 0 where main has one thread, by libc where it has more. Where that would
//! be of no use or too dear, main with one thread makes it by one such clone, as its own child.
//!
//! Messages are datagrams over a socket pair:
//!
//! | from | message | with |
//! |---|---|---|
//! | main | `Clone` | |
//! | main | `Kill { pid }`, where main itself may not: a process of this template | |
//! | main | `LetGo`, where main may not kill the template: main lives on, and its control groups may be others' | |
//! | main | `Inspect { pid }`: what do all its threads sleep on | |
//! | template | `Seen { pid, words }`: addresses of futexes, see [`crate::stuck`] | |
//! | main | `Finish`, where main may not kill the template: nothing is to be left | |
//! | template | `Cloned { pid }` | a pidfd, main's end of the orbit's own socket |
//! | template | `Failed { errno }` | |
//! | template | `Ended { pid, code, status }`, as `waitid` says | |

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use orbit_linux::{descriptors, map, pidfd, poll, process, procfs, signals, socket, stdio};

use crate::area::{born, forks};
use crate::error::{Error, Kind, Result};
use crate::mains_shared::{self, SharedMemory};
use crate::names::{Clerks, Desk};
use crate::own::Own;
use crate::runtime::Config;
use crate::units::{Address, Bytes};
use crate::{inherited, limits, shared, side, stuck, task};

pub(crate) use code::{Code, is_loaded, place_of};
use strays::{end_strays, list_strays};

mod code;
mod strays;

const CLONE: u8 = 1;
const KILL: u8 = 2;
const CLONED: u8 = 3;
const FAILED: u8 = 4;
const ENDED: u8 = 5;
const RELEASED: u8 = 6;
const FINISH: u8 = 7;
const INSPECT: u8 = 8;
const SEEN: u8 = 9;

/// Longest message in bytes.
const MAX_MESSAGE_BYTES: usize = 4096;

/// How often a thread that waits for the template checks whether main has closed the socket, and
/// opened another file in its place.
const SOCKET_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long main may take from closing its end of the socket, as the kernel does for a program that
/// ends, to its end.
const MAIN_ENDS_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of its own that main may hold for its page tables to be copied twice: some milliseconds.
const COPIED_TWICE: u64 = 32 << 20;

/// How a process ended, as `waitid` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub code: i32,
    pub status: i32,
}

/// A process made for an orbit, waiting on its socket for its identity.
pub(crate) struct Clone {
    pub pid: i32,
    pub pidfd: Own,
    pub socket: Own,
}

/// Main's hold on one template. Dropping it ends the template and what orbits it still has.
pub(crate) struct Template {
    pidfd: Own,
    /// Main's end of the socket.
    socket: Own,
    link: Mutex<Link>,
    gone: AtomicBool,
    code: Arc<Code>,
    /// Where names for call stacks are asked for.
    pub desk: Arc<Desk>,
    /// Whether somebody wanted code that main has and this template lacks.
    outdated: AtomicBool,
    /// Whether a task has slept for ever on a lock that was held at its birth.
    distrusted: AtomicBool,
    /// Not none if the template is main's own child, to be reaped by it.
    child: Option<i32>,
}

/// What came by the socket. Whoever reads it for one kind of message keeps what others wait for.
struct Link {
    ended: HashMap<i32, Ended>,
    /// Answers to [`Template::asleep_on`], the last of each process.
    seen: HashMap<i32, Vec<usize>>,
    /// Answers to requests for a process, for whoever takes them.
    answers: VecDeque<std::result::Result<Clone, i32>>,
}

impl Template {
    /// An error where a template must not be made.
    pub fn check_place() -> Result<()> {
        if process::has_children_elsewhere() {
            let why = "this process has called unshare(CLONE_NEWPID): its next child would be process 1 of the new \
                       namespace, which ends with it, and the program could make no further child; set the library up \
                       before that, or in a child";
            return Err(Error::new(Kind::Unsupported, why));
        }
        Ok(())
    }

    /// Makes a template of the process as it is now. `window` is the reserved range of areas, which
    /// orbits get empty.
    pub fn make(window: (Address, Bytes), config: &Config) -> Result<Template> {
        let doing = "making the template";
        Template::check_place()?;
        let (ours, theirs) = own_pair().map_err(|e| Error::system(doing, e))?;
        let main = pidfd::open(std::process::id() as i32).and_then(Own::new).map_err(|e| Error::system(doing, e))?;
        let code = Arc::new(Code::now());
        let (desk, clerks) = own_pair().map_err(|e| Error::system(doing, e))?;
        let threads = process::thread_count().unwrap_or(2);
        let life = Life {
            socket: number_of(&theirs)?,
            desk: number_of(&clerks)?,
            main: number_of(&main)?,
            main_pid: std::process::id() as i32,
            window,
            shared: config.shared,
            killed_first: config.killed_first,
        };
        let (fd, child) = if threads > 1 {
            // SAFETY: libc's fork leaves libc's locks in order in the child, whatever other threads
            // hold.
            (fork_twice(life, &ours, || unsafe { libc_fork() }).map_err(|e| Error::system(doing, e))?, None)
        } else if better_own_child() {
            // SAFETY: this process has one thread, so its copy finds no lock held by a thread that
            // is not there.
            match unsafe { process::raw_fork(0) }.map_err(|e| Error::system(doing, e))? {
                None => live(life),
                Some(child) => {
                    let fd = child.pidfd.map_or_else(|| pidfd::open(child.pid), Ok).and_then(Own::new);
                    (fd.map_err(|e| Error::system(doing, e))?, Some(child.pid))
                }
            }
        } else {
            // SAFETY: as above.
            (fork_twice(life, &ours, || unsafe { raw_fork() }).map_err(|e| Error::system(doing, e))?, None)
        };
        let link = Link { ended: HashMap::new(), seen: HashMap::new(), answers: VecDeque::new() };
        Ok(Template {
            pidfd: fd,
            socket: ours,
            link: Mutex::new(link),
            gone: AtomicBool::new(false),
            desk: Desk::new(desk, code.clone()),
            code,
            outdated: AtomicBool::new(false),
            distrusted: AtomicBool::new(false),
            child,
        })
    }

    /// Whether orbits of this template have the code that main has at this address.
    pub fn knows(&self, code: usize) -> bool {
        self.code.is_at(code)
    }

    /// Whether new orbits may come from it, which are to have the code that main has at these
    /// addresses.
    pub fn serves(&self, code: &[usize]) -> bool {
        !self.outdated.load(Ordering::Relaxed)
            && !self.distrusted.load(Ordering::Relaxed)
            && code.iter().all(|at| self.knows(*at))
    }

    /// No new orbit comes from it any more: code was wanted that it lacks.
    pub fn outdate(&self) {
        self.outdated.store(true, Ordering::Relaxed);
    }

    /// No process comes from it any more, not even for an orbit that it has made: it has a lock
    /// that was held when it was made.
    pub fn distrust(&self) {
        self.distrusted.store(true, Ordering::Relaxed);
    }

    /// Whether an orbit that it has made may come from it again.
    pub fn makes_again(&self) -> bool {
        !self.distrusted.load(Ordering::Relaxed) && !self.is_gone()
    }

    /// Asks for a new process, to be taken by [`Template::answer`] some hundred microseconds later,
    /// whatever the size of main: the caller has time for something else meanwhile. Who asks must
    /// take an answer; which of several callers gets which process is all the same.
    pub fn ask(&self) -> Result<()> {
        if self.is_gone() {
            return Err(not_answered(std::io::Error::from_raw_os_error(libc::EPIPE)));
        }
        if let Err(e) = self.socket.fd().and_then(|socket| socket::send(socket, &[CLONE], &[])) {
            self.gone.store(true, Ordering::Relaxed);
            return Err(not_answered(e));
        }
        Ok(())
    }

    /// The process asked for.
    pub fn answer(&self) -> Result<Clone> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut link = self.lock();
        loop {
            match link.answers.pop_front() {
                Some(Ok(clone)) => return Ok(clone),
                Some(Err(errno)) => {
                    return Err(Error::system("making a process", std::io::Error::from_raw_os_error(errno)));
                }
                None => {}
            }
            match link.read(&self.socket, deadline.saturating_duration_since(Instant::now())) {
                Ok(true) => {}
                Ok(false) => {
                    self.gone.store(true, Ordering::Relaxed);
                    return Err(Error::new(Kind::TimedOut, "the template did not answer within 20 s"));
                }
                Err(e) => {
                    self.gone.store(true, Ordering::Relaxed);
                    return Err(not_answered(e));
                }
            }
        }
    }

    /// How a process of this template ended, once its pidfd says that it has. `None` if the
    /// template is gone, or has not said it within `patience`.
    pub fn how_ended(&self, pid: i32, patience: Duration) -> Option<Ended> {
        let deadline = Instant::now() + patience;
        let mut link = self.lock();
        loop {
            if let Some(ended) = link.ended.remove(&pid) {
                return Some(ended);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match link.read(&self.socket, left) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(_) => {
                    self.gone.store(true, Ordering::Relaxed);
                    return None;
                }
            }
        }
    }

    /// What [`stuck::asleep_on`] says of a process of this template; nothing if the template does
    /// not say it within `patience`.
    pub fn asleep_on(&self, pid: i32, patience: Duration) -> Vec<usize> {
        let mut message = [INSPECT; 5];
        message[1..].copy_from_slice(&pid.to_le_bytes());
        let deadline = Instant::now() + patience;
        let mut link = self.lock();
        link.seen.remove(&pid);
        if self.socket.fd().and_then(|socket| socket::send_now(socket, &message, &[])).is_err() {
            return Vec::new();
        }
        loop {
            if let Some(seen) = link.seen.remove(&pid) {
                return seen;
            }
            match link.read(&self.socket, deadline.saturating_duration_since(Instant::now())) {
                Ok(true) => {}
                _ => return Vec::new(),
            }
        }
    }

    /// Kills a process that this template made. Main may have given up the right to do so since it
    /// made the template, or have closed the handle: the template, which has both still, is asked
    /// then.
    ///
    /// # Errors
    /// `EPIPE` if the template, too, is gone, `EAGAIN` if it does not read what it is asked; that
    /// main has closed the way to it.
    pub fn kill(&self, pid: i32, process: &Own) -> std::io::Result<()> {
        match process.fd().and_then(|process| pidfd::send_signal(process, libc::SIGKILL)) {
            // No errno: main has closed the handle.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM) | None) => {
                let mut message = [KILL; 5];
                message[1..].copy_from_slice(&pid.to_le_bytes());
                self.socket.fd().and_then(|socket| socket::send_now(socket, &message, &[])).map(|_| ())
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            sent => sent,
        }
    }

    /// Kills the template, or, where main may not, hangs up: then it ends of itself, and removes
    /// main's control groups unless others may live in them.
    fn dismiss(&self, others: bool) {
        if self.pidfd.fd().and_then(|fd| pidfd::send_signal(fd, libc::SIGKILL)).is_ok() {
            return;
        }
        if let Ok(socket) = self.socket.fd() {
            // Read before the end of what comes by the socket, also after the shutdown.
            let _ = socket::send_now(socket, &[if others { RELEASED } else { FINISH }], &[]);
            socket::shut_down(socket);
        }
    }

    /// Whether the template has ended, or main has closed what leads to it, upon which it ends.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed) || !self.socket.is_there() || has_ended(&self.pidfd)
    }

    /// Ends it, and the orbits it still has, and waits until it has ended.
    pub fn end(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.dismiss(false);
        if let Some(number) = self.pidfd.number() {
            let _ = poll::poll(&mut [poll_in(number)], Some(Duration::from_secs(5)));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        self.dismiss(true);
        match (self.child, self.pidfd.fd()) {
            (Some(_), Ok(pidfd)) => drop(pidfd::wait(pidfd, false)),
            // A child of this process that only this reaps; it ends, since nothing leads to it any
            // more.
            (Some(child), Err(_)) => process::wait_child(child),
            (None, _) => {}
        }
    }
}

/// Whether the process of this handle has ended, or main has closed the handle.
pub(crate) fn has_ended(process: &Own) -> bool {
    process.fd().map_or(true, pidfd::has_ended)
}

/// Two ends of a connection.
fn own_pair() -> std::io::Result<(Own, Own)> {
    let (ours, theirs) = socket::pair()?;
    Ok((Own::new(ours)?, Own::new(theirs)?))
}

fn number_of(own: &Own) -> Result<RawFd> {
    own.fd().map(|fd| fd.as_raw_fd()).map_err(|e| Error::system("making the template", e))
}

impl Link {
    /// Waits for the template's next message and keeps it; false after `patience`; an error when
    /// the template is gone.
    fn read(&mut self, socket: &Own, patience: Duration) -> std::io::Result<bool> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if poll::poll(&mut [poll_in(socket.fd()?.as_raw_fd())], Some(left.min(SOCKET_CHECK_INTERVAL)))? > 0 {
                break;
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
        let mut bytes = [0u8; MAX_MESSAGE_BYTES];
        let mut fds = Vec::new();
        let n = match socket::receive(socket.fd()?, &mut bytes, &mut fds, true) {
            // A process whose descriptors this one has no room for; the template lives.
            Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
                self.answers.push_back(Err(libc::EMFILE));
                return Ok(true);
            }
            received => received?,
        };
        let word = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        match (n, bytes[0], fds.pop(), fds.pop()) {
            (5.., CLONED, Some(socket), Some(pidfd)) => {
                let made =
                    Own::new(pidfd).and_then(|pidfd| Ok(Clone { pid: word(1), pidfd, socket: Own::new(socket)? }));
                self.answers.push_back(made.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO)));
            }
            // Descriptors that did not arrive: this process has no room for them.
            (5.., CLONED, ..) => self.answers.push_back(Err(libc::EMFILE)),
            (5.., FAILED, ..) => self.answers.push_back(Err(word(1))),
            (13.., ENDED, ..) => {
                self.ended.insert(word(1), Ended { code: word(5), status: word(9) });
            }
            (5.., SEEN, ..) => {
                let word = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_le_bytes);
                self.seen.insert(word_at(&bytes, 1), bytes[5..n].chunks_exact(8).map(word).collect());
            }
            (0, ..) => return Err(std::io::Error::from_raw_os_error(libc::EPIPE)),
            _ => {}
        }
        Ok(true)
    }
}

/// The number at this place of a message.
fn word_at(bytes: &[u8; MAX_MESSAGE_BYTES], at: usize) -> i32 {
    i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Why the template made no process.
fn not_answered(e: std::io::Error) -> Error {
    match e.raw_os_error() {
        Some(libc::EPIPE | libc::ECONNRESET) => {
            Error::new(Kind::Down, "the template process has ended; a new one is made with the next try")
        }
        _ => Error::system("asking the template for a process", e),
    }
}

fn poll_in(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// What a template needs to live.
#[derive(Clone, Copy)]
struct Life {
    socket: RawFd,
    desk: RawFd,
    main: RawFd,
    main_pid: i32,
    window: (Address, Bytes),
    shared: SharedMemory,
    killed_first: bool,
}

/// Whether a template is better main's own child than nobody's. A child of a child would come to
/// main all the same if main is process 1 of a container, or has asked for orphans; and a main that
/// holds much would wait for two copies of its page tables.
fn better_own_child() -> bool {
    let statm = procfs::own_text("statm").unwrap_or_default();
    let mut pages = statm.split(' ').skip(1).filter_map(|pages| pages.parse::<u64>().ok());
    // Pages of files are not copied.
    let own = pages.next().unwrap_or(0).saturating_sub(pages.next().unwrap_or(0)) * map::page_size() as u64;
    std::process::id() == 1 || process::adopts_orphans() || own > COPIED_TWICE
}

/// The child's number in the parent, 0 in the child.
///
/// # Safety
/// The child ends by [`process::end`].
unsafe fn libc_fork() -> std::io::Result<i32> {
    // SAFETY: the caller's contract.
    let forked = forks::of_the_library(|| unsafe { process::fork() });
    Ok(forked?.unwrap_or(0))
}

/// The same by a raw clone, whose child ends without a signal.
///
/// # Safety
/// That of [`process::raw_fork`].
unsafe fn raw_fork() -> std::io::Result<i32> {
    // SAFETY: the caller's contract.
    Ok(unsafe { process::raw_fork(0) }?.map_or(0, |child| child.pid))
}

/// A double-forked template, so nobody reaps it.
fn fork_twice(life: Life, ours: &Own, fork: impl Fn() -> std::io::Result<i32>) -> std::io::Result<Own> {
    match fork()? {
        0 => {
            match fork() {
                Ok(0) => live(life),
                forked => {
                    // SAFETY: a descriptor this process holds.
                    let socket = unsafe { BorrowedFd::borrow_raw(life.socket) };
                    let made = forked.and_then(|pid| {
                        pidfd::open(pid).inspect_err(|_| {
                            let _ = signals::send(pid, libc::SIGKILL);
                        })
                    });
                    let _ = match made {
                        Ok(fd) => socket::send(socket, &[CLONED], &[fd.as_fd()]),
                        Err(e) => {
                            let errno = e.raw_os_error().unwrap_or(libc::EIO).to_le_bytes();
                            socket::send(socket, &[FAILED, errno[0], errno[1], errno[2], errno[3]], &[])
                        }
                    };
                    process::end(0)
                }
            }
        }
        pid => {
            // A program that ignores SIGCHLD, or waits for any child in another thread, may have
            // reaped it: no matter.
            process::wait_child(pid);
            let (mut bytes, mut fds) = ([0u8; 16], Vec::new());
            let ready = poll::poll(&mut [poll_in(ours.fd()?.as_raw_fd())], Some(Duration::from_secs(10)))?;
            if ready > 0 {
                socket::receive(ours.fd()?, &mut bytes, &mut fds, true)?;
            }
            let errno = match bytes[0] {
                FAILED => i32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]),
                // A descriptor that did not arrive: this process has no room for it.
                CLONED => libc::EMFILE,
                _ => libc::EAGAIN,
            };
            fds.pop().ok_or_else(|| std::io::Error::from_raw_os_error(errno)).and_then(Own::new)
        }
    }
}

/// The template's life. One thread; ends with main.
fn live(life: Life) -> ! {
    side::enter_template();
    // SAFETY: this process is a copy of the one thread of main that sets the library up.
    unsafe { stdio::drop_unwritten(&mains_shared::ranges()) };
    // SAFETY: a copy of main's calling thread alone, and it returns to nothing of main's.
    if unsafe { shared::shut_out() }.is_err() {
        // No template rather than one whose orbits could write other orbits' memory.
        process::end(1)
    }
    // SAFETY: as above.
    if unsafe { mains_shared::take_away(life.shared) }.is_err() {
        process::end(1)
    }
    if inherited::occupy(&[life.socket, life.main, life.desk]).is_err() {
        // Nor one whose orbits could write to other files than main does.
        process::end(1)
    }
    let _ = process::set_name(c"orbit-template");
    if life.killed_first {
        // All that is made here has it too. This process shares no memory with main: the kernel
        // would give main the same.
        let _ = process::be_killed_first();
    }
    // Its own session, so that a terminal's signals to main's group pass it by; what an orbit
    // leaves behind comes to it; signals as a fresh process has them.
    let _ = process::new_session();
    let _ = process::adopt_orphans();
    (1..32).for_each(signals::set_default);
    [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTSTP, libc::SIGPIPE].into_iter().for_each(signals::ignore);
    signals::Set::of([]).set_mask();
    // SAFETY: main's areas, which nothing in this process uses.
    let _ = unsafe { map::fixed_none(life.window.0.get(), life.window.1.get()) };
    born::note_places();
    // SAFETY: both descriptors were inherited for this, and nothing else in this process closes
    // them.
    let (socket, main) = unsafe { (BorrowedFd::borrow_raw(life.socket), BorrowedFd::borrow_raw(life.main)) };
    let mut children: Vec<(i32, Own)> = Vec::new();
    let mut clerks = Clerks::new(life.desk);
    // Whether main's control groups are left alone.
    let mut let_go = false;
    // When what orbits left behind is to be ended.
    let mut strays: Option<Instant> = None;
    // The next orbit's socket: made while nobody waits for it.
    let mut next = own_pair().ok();
    loop {
        let mut fds = vec![poll_in(socket.as_raw_fd()), poll_in(main.as_raw_fd())];
        fds.extend(children.iter().map(|(_, fd)| poll_in(fd.number().unwrap_or(-1))));
        fds.extend(clerks.polled());
        if poll::poll(&mut fds, strays.map(|due| due.saturating_duration_since(Instant::now()))).is_err() {
            break;
        }
        if strays.is_some_and(|due| due <= Instant::now()) {
            end_strays(&children, &clerks, Duration::ZERO);
            strays = None;
        }
        if fds[1].revents != 0 {
            break;
        }
        if clerks.work(&fds[2 + children.len()..]).is_err() {
            break;
        }
        for at in (0..children.len()).rev() {
            if fds[at + 2].revents == 0 {
                continue;
            }
            let (pid, fd) = children.swap_remove(at);
            let ended = fd.fd().and_then(|fd| pidfd::wait(fd, false)).ok().flatten();
            strays = strays
                .or_else(|| (!list_strays(&children, &clerks).is_empty()).then(|| Instant::now() + limits::GRACE));
            let (code, status) = ended.map_or((libc::CLD_KILLED, libc::SIGKILL), |e| (e.code, e.status));
            let mut message = vec![ENDED];
            for word in [pid, code, status] {
                message.extend_from_slice(&word.to_le_bytes());
            }
            let _ = socket::send(socket, &message, &[]);
        }
        if fds[0].revents != 0 {
            let mut bytes = [0u8; MAX_MESSAGE_BYTES];
            let mut received = Vec::new();
            match socket::receive(socket, &mut bytes, &mut received, true) {
                Ok(0) => {
                    // Main ends, or has closed the socket and lives on: then it may have set the
                    // library up anew.
                    end_all(&mut children);
                    let_go = poll::poll(&mut [poll_in(main.as_raw_fd())], Some(MAIN_ENDS_WITHIN)).is_ok_and(|n| n == 0);
                    break;
                }
                Ok(_) if bytes[0] == RELEASED => {
                    let_go = true;
                    break;
                }
                Ok(_) if bytes[0] == FINISH => break,
                Ok(_) if bytes[0] == CLONE => {
                    if clone_orbit(socket, next.take(), &mut children).is_err() {
                        break;
                    }
                    next = own_pair().ok();
                }
                Ok(5..) if bytes[0] == INSPECT => {
                    let pid = word_at(&bytes, 1);
                    let mut message = vec![SEEN];
                    message.extend_from_slice(&pid.to_le_bytes());
                    if children.iter().any(|(child, _)| *child == pid) {
                        message.extend(stuck::asleep_on(pid).into_iter().flat_map(u64::to_le_bytes));
                    }
                    let _ = socket::send_now(socket, &message, &[]);
                }
                Ok(5..) if bytes[0] == KILL => {
                    let wanted = i32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
                    for (_, fd) in children.iter().filter(|(pid, _)| *pid == wanted) {
                        let _ = fd.fd().and_then(|fd| pidfd::send_signal(fd, libc::SIGKILL));
                    }
                }
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(_) => break,
            }
        }
    }
    // Nobody is left to read it: a library preloaded into main (fakeroot) complains here of its
    // server, which has ended with main.
    descriptors::close_number(2);
    end_all(&mut children);
    end_strays(&[], &Clerks::new(-1), limits::GRACE);
    if !let_go {
        limits::remove_groups_of(life.main_pid);
    }
    process::end(0)
}

/// Kills these processes and waits until they have ended.
fn end_all(children: &mut Vec<(i32, Own)>) {
    for (_, fd) in children.iter() {
        let _ = fd.fd().and_then(|fd| pidfd::send_signal(fd, libc::SIGKILL));
    }
    for (_, fd) in children.drain(..) {
        let _ = fd.fd().and_then(|fd| pidfd::wait(fd, false));
    }
}

/// One orbit, with this pair of sockets if there is one: its socket's other end and its pidfd go to
/// main.
fn clone_orbit(socket: BorrowedFd, pair: Option<(Own, Own)>, children: &mut Vec<(i32, Own)>) -> std::io::Result<()> {
    let fail = |e: std::io::Error| {
        let mut message = [FAILED; 5];
        message[1..].copy_from_slice(&e.raw_os_error().unwrap_or(libc::EIO).to_le_bytes());
        socket::send(socket, &message, &[]).map(|_| ())
    };
    let (ours, theirs) = match pair.map_or_else(own_pair, Ok) {
        Ok(pair) => pair,
        Err(e) => return fail(e),
    };
    // SAFETY: the template has one thread; libc's fork leaves its child with libc's state in order.
    match unsafe { process::fork() } {
        Err(e) => fail(e),
        Ok(None) => {
            drop(ours);
            task::live(theirs)
        }
        Ok(Some(pid)) => {
            let fd = match pidfd::open(pid).and_then(Own::new) {
                Ok(fd) => fd,
                Err(e) => {
                    process::kill_child(pid);
                    return fail(e);
                }
            };
            let mut message = [CLONED; 5];
            message[1..].copy_from_slice(&pid.to_le_bytes());
            let fds = fd.fd().and_then(|fd| Ok([fd, ours.fd()?]));
            let sent = fds.and_then(|fds| socket::send(socket, &message, &fds)).map(|_| ());
            drop(theirs);
            children.push((pid, fd));
            sent
        }
    }
}
