//! The process that sets probes and takes them away.
//!
//! Whoever is killed while it does either leaves breakpoints in the program, for the kernel changes
//! no memory on behalf of a process that is about to exit. So a child does both, which makes system
//! calls only, has all signals blocked, and outlives its parent until that is done. Owns: the
//! links' descriptors, and which are taken. Promises: what was begun is done to its end however the
//! parent ends; then all probes go, and the child too. Taking away blocks nobody: each link is
//! closed by a thread of its own, as far as there can be one. Refuses: to say why a child that
//! somebody kills with its parent left something.

use crate::CodeFile;
use orbit_linux::map::Mapping;
use orbit_linux::process::{self, RawChild};
use orbit_linux::signals::Blocked;
use orbit_linux::{descriptors, memfd, pidfd, poll, socket, uprobes};
use std::ffi::CStr;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

/// Links at a time.
const LINKS: usize = 4096;
/// Places of a link.
const PLACES: usize = 512;
/// Links that are closed at a time without holding up others.
const CLOSERS: usize = 64;
/// Bytes of stack of each thread that closes one.
const CLOSER_STACK_BYTES: usize = 16 << 10;
/// Bytes of a message: the request, offsets and cookies. The program and the file come with it.
const MAX_MESSAGE_BYTES: usize = REQUEST_BYTES + PLACES * 16;
/// Bytes of a name in `/proc/self/fd`, at most.
const MAX_NAME_BYTES: usize = 32;
/// Bytes of a request: link, process, kind, places.
const REQUEST_BYTES: usize = 16;
/// Kind of a link of many places; others are those of single events.
const MANY_PLACES: u32 = 0;
/// Time between two checks whether all is closed.
const CLOSED_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The child, as its parent has it.
pub(crate) struct Keeper {
    asks: Arc<OwnedFd>,
    links: Arc<Links>,
    /// Where the search for the next free link begins.
    next: usize,
}

/// Which links there are; may be shared.
#[derive(Debug)]
pub(crate) struct Links {
    /// Of each by its number: whose it is, zero for nobody's. The parent takes, the child frees.
    shared: Mapping,
    process: OwnedFd,
}

/// One use of a link's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    number: u32,
    turn: u32,
}

/// Probes at one or more places of a file. When it is dropped they are out of the program at once,
/// and gone some tenths of a second later ([`Links::there`]).
#[derive(Debug)]
pub(crate) struct Link {
    token: Token,
    asks: Arc<OwnedFd>,
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut ask = [0; REQUEST_BYTES];
        ask[..4].copy_from_slice(&self.token.number.to_ne_bytes());
        // Without the child there are no probes.
        let _ = socket::send(self.asks.as_fd(), &ask, &[]);
    }
}

impl Links {
    fn turns(&self) -> &[AtomicU32] {
        turns(&self.shared)
    }

    /// Whether its probes may be there yet.
    pub(crate) fn there(&self, token: Token) -> bool {
        let turn = self.turns().get(token.number as usize).map(|t| t.load(Ordering::Acquire));
        turn == Some(token.turn) && self.lives()
    }

    /// Whether there may be probes.
    pub(crate) fn any(&self) -> bool {
        self.turns().iter().any(|t| t.load(Ordering::Acquire) != 0) && self.lives()
    }

    fn lives(&self) -> bool {
        !pidfd::has_ended(self.process.as_fd())
    }
}

fn turns(shared: &Mapping) -> &[AtomicU32] {
    // SAFETY: the mapping has room for as many words, is writable and aligned, and lives as long as
    // the slice. Both processes use it by atomics only.
    unsafe { std::slice::from_raw_parts(shared.as_ptr().cast(), LINKS) }
}

/// How places are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// All with one link.
    Many,
    /// A link each, as events of this kind.
    One(u32),
}

impl Keeper {
    /// Makes the child. It is a copy of this process: to be made while that is small.
    pub(crate) fn begin() -> io::Result<Keeper> {
        let (asks, answers) = socket::pair()?;
        let words = memfd::create("orbit-probes", LINKS * size_of::<AtomicU32>(), false)?;
        let shared = Mapping::shared(words.as_fd(), LINKS * size_of::<AtomicU32>(), true, true)?;
        let parent = pidfd::open(std::process::id() as i32)?;
        let mut room = Room {
            bytes: vec![0; MAX_MESSAGE_BYTES],
            passed: Vec::with_capacity(socket::MAX_FDS),
            held: vec![-1; LINKS],
            stacks: Mapping::anonymous(CLOSERS * CLOSER_STACK_BYTES, false)?,
            busy: [const { AtomicI32::new(0) }; CLOSERS],
        };
        let blocked = Blocked::all();
        // SAFETY: the child makes system calls only, on memory that was allocated before, and does
        // not return from `keep`.
        let child = unsafe { process::raw_fork(0) }?;
        let Some(RawChild { pidfd, .. }) = child else {
            keep(answers.as_raw_fd(), parent.as_raw_fd(), turns(&shared), &mut room)
        };
        drop(blocked);
        // Where the kernel half can be loaded (Linux 5.15) a fork gives one.
        let process = pidfd.ok_or(io::ErrorKind::Unsupported)?;
        Ok(Keeper { asks: Arc::new(asks), links: Arc::new(Links { shared, process }), next: 0 })
    }

    pub(crate) fn links(&self) -> Arc<Links> {
        self.links.clone()
    }

    /// Attaches a program to places of a file in a process, each given by its offset in bytes and
    /// its cookie. `note` hears of each link before it is made, also of those that go again since a
    /// later one cannot be.
    pub(crate) fn attach(
        &mut self,
        (program, how): (BorrowedFd<'_>, How),
        pid: i32,
        file: &CodeFile,
        places: &[(u64, u64)],
        note: &dyn Fn(Token),
    ) -> io::Result<Vec<Link>> {
        uprobes::read_ahead(&file.here(), places.iter().map(|p| p.0));
        let (kind, most) = match how {
            How::Many => (MANY_PLACES, PLACES),
            How::One(kind) => (kind, 1),
        };
        let mut links = Vec::new();
        for some in places.chunks(most) {
            let token = self.take()?;
            note(token);
            // From here on dropping it informs the child.
            let link = Link { token, asks: self.asks.clone() };
            self.link(&link, &[program, file.as_fd()], (kind, pid), some)?;
            links.push(link);
        }
        Ok(links)
    }

    fn link(
        &self,
        link: &Link,
        passed: &[BorrowedFd<'_>; 2],
        (kind, pid): (u32, i32),
        places: &[(u64, u64)],
    ) -> io::Result<()> {
        let mut ask = Vec::with_capacity(MAX_MESSAGE_BYTES);
        for word in [link.token.number, pid as u32, kind, places.len() as u32] {
            ask.extend(word.to_ne_bytes());
        }
        ask.extend(places.iter().flat_map(|p| p.0.to_ne_bytes()));
        ask.extend(places.iter().flat_map(|p| p.1.to_ne_bytes()));
        let gone = |_| io::Error::other("the process that sets probes has ended");
        socket::send(self.asks.as_fd(), &ask, passed).map_err(gone)?;
        let mut errno = [0; 4];
        let got = socket::receive(self.asks.as_fd(), &mut errno, &mut Vec::new(), false).map_err(gone)?;
        match (got, i32::from_ne_bytes(errno)) {
            (4, 0) => Ok(()),
            (4, errno) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(gone(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// A number that nobody has.
    fn take(&mut self) -> io::Result<Token> {
        let turns = self.links.turns();
        for i in 0..LINKS {
            let number = (self.next + i) % LINKS;
            if turns[number].load(Ordering::Acquire) == 0 {
                let turn = ((self.next + i) / LINKS) as u32 + 1;
                turns[number].store(turn, Ordering::Relaxed);
                self.next += i + 1;
                return Ok(Token { number: number as u32, turn });
            }
        }
        Err(io::Error::other(format!("there are {LINKS} links of probes, and no more can be")))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The child sees it whoever holds the other end; it takes all probes away and ends, which
        // takes some tenths of a second.
        socket::shut_down(self.asks.as_fd());
        let _ = pidfd::wait(self.links.process.as_fd(), false);
    }
}

/// What the child works with, had before it was made: it may ask for no memory.
struct Room {
    bytes: Vec<u8>,
    /// The program and the file of a message.
    passed: Vec<OwnedFd>,
    held: Vec<RawFd>,
    stacks: Mapping,
    /// Which of the stacks are in use: the thread's id, which the kernel clears when it has ended.
    busy: [AtomicI32; CLOSERS],
}

/// What the child does: as it is asked, until its parent has ended or has closed the socket.
fn keep(asks: RawFd, parent: RawFd, turns: &[AtomicU32], room: &mut Room) -> ! {
    let _ = process::set_name(c"orbit-probes");
    process::close_all_but(&[asks, parent]);
    // SAFETY: open, and stays so: nothing else closes descriptors here.
    let from = unsafe { BorrowedFd::borrow_raw(asks) };
    while asked(asks, parent) {
        let answer = match socket::receive(from, &mut room.bytes, &mut room.passed, false) {
            Ok(0) => break,
            Ok(len) => room.answer(len, turns),
            // No descriptors are available for the program and the file.
            Err(e) if e.raw_os_error() == Some(libc::EMFILE) => Some(libc::EMFILE),
            Err(_) => break,
        };
        room.passed.clear();
        if answer.is_some_and(|errno| socket::send(from, &errno.to_ne_bytes(), &[]).is_err()) {
            break;
        }
    }
    for (number, turn) in turns.iter().enumerate() {
        room.close(number, turn);
    }
    while room.busy.iter().any(|b| b.load(Ordering::Acquire) != 0) {
        // Nothing else to wait for it with; that it is woken early does no harm.
        let _ = poll::poll(&mut [], Some(CLOSED_CHECK_INTERVAL));
    }
    process::end(0)
}

/// Waits until something is asked; whether the parent lives. Where another child of it holds the
/// socket too, only its own end shows that it has ended.
fn asked(asks: RawFd, parent: RawFd) -> bool {
    let wait = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        let mut fds = [wait(asks), wait(parent)];
        match poll::poll(&mut fds, None) {
            Err(_) => return false,
            Ok(_) if fds[1].revents != 0 => return false,
            Ok(_) if fds[0].revents != 0 => return true,
            Ok(_) => {}
        }
    }
}

impl Room {
    /// Does what the message asks for; what is to be answered, if anything is: 0, or why not.
    fn answer(&mut self, len: usize, turns: &[AtomicU32]) -> Option<i32> {
        let word = |i: usize| u32::from_ne_bytes(std::array::from_fn(|b| self.bytes[i * 4 + b]));
        let [number, pid, kind, count] = [0, 1, 2, 3].map(word);
        let (number, count) = (number as usize, count as usize);
        if count == 0 {
            if let Some(turn) = turns.get(number) {
                self.close(number, turn);
            }
            return None;
        }
        let done = self.attach(len, number, (pid as i32, kind, count));
        Some(done.err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EINVAL)))
    }

    fn attach(&mut self, len: usize, number: usize, (pid, kind, count): (i32, u32, usize)) -> io::Result<()> {
        let (mut offsets, mut cookies) = ([0; PLACES], [0; PLACES]);
        let bad = || io::Error::from_raw_os_error(libc::EINVAL);
        let lists = self.bytes.get(REQUEST_BYTES..len).filter(|_| count <= PLACES).ok_or_else(bad)?;
        let lists = lists.get(..count * 16).ok_or_else(bad)?;
        for (to, from) in offsets[..count].iter_mut().chain(&mut cookies[..count]).zip(lists.as_chunks().0) {
            *to = u64::from_ne_bytes(*from);
        }
        let [program, file] = &self.passed[..] else { return Err(bad()) };
        let program = program.as_fd();
        // By the descriptor, which leads to the file that was found, whatever has its name by now.
        let mut path = [0u8; MAX_NAME_BYTES];
        write!(&mut path[..], "/proc/self/fd/{}", file.as_raw_fd())?;
        let path = CStr::from_bytes_until_nul(&path).map_err(|_| bad())?;
        let held = self.held.get_mut(number).filter(|fd| **fd < 0).ok_or_else(bad)?;
        let link = match kind {
            MANY_PLACES => uprobes::attach(program, path, &offsets[..count], &cookies[..count], pid)?,
            kind => uprobes::attach_one(program, path, (offsets[0], cookies[0]), pid, kind)?,
        };
        *held = link.into_raw_fd();
        Ok(())
    }

    /// Closes a link, in a thread of its own if there can be one. One that could not be made is
    /// nobody's from now on.
    fn close(&mut self, number: usize, turn: &AtomicU32) {
        let fd = std::mem::replace(&mut self.held[number], -1);
        if fd < 0 {
            turn.store(0, Ordering::Release);
            return;
        }
        let closer = Closer { fd, turn };
        let free = self.busy.iter().position(|b| b.load(Ordering::Acquire) == 0);
        if free.is_none_or(|i| !self.thread(i, &closer)) {
            closer.close();
        }
    }

    /// Has a thread on this stack, which is nobody's, close it; whether there is one.
    fn thread(&self, i: usize, closer: &Closer) -> bool {
        let busy = self.busy[i].as_ptr();
        // SAFETY: the stack is nobody's, as `busy` is 0, and large enough for a function that makes
        // one system call; what it is to do is written to its lower end, where the thread reads it.
        // The kernel keeps `busy` set until the thread has left the stack. It shares its maker's
        // thread-local memory, of which it may write errno only, which nobody reads after a call
        // that another thread may make meanwhile.
        unsafe {
            let stack = self.stacks.as_ptr().add(i * CLOSER_STACK_BYTES);
            let mine = stack.cast::<Closer>();
            mine.write(Closer { ..*closer });
            process::start_thread_on(stack.add(CLOSER_STACK_BYTES), close, mine.cast(), busy)
        }
    }
}

/// A link to be closed.
struct Closer {
    fd: RawFd,
    turn: *const AtomicU32,
}

impl Closer {
    fn close(&self) {
        // By number, since libc's own may be watched by a sanitizer.
        descriptors::close_number(self.fd);
        // SAFETY: it points into the mapping, which stays as long as the child.
        unsafe { &*self.turn }.store(0, Ordering::Release);
    }
}

extern "C" fn close(closer: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `Room::thread` wrote it there for this thread.
    unsafe { &*closer.cast::<Closer>() }.close();
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_linux::bpf;
    use std::os::unix::fs::MetadataExt;
    use std::time::Instant;

    const KPROBE: u32 = 2;

    fn until(what: &str, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn links_come_and_go_in_both_ways() {
        let Ok(one) = bpf::load(KPROBE, 0, &bpf::NOTHING) else {
            println!("SKIP: needs CAP_BPF and CAP_PERFMON");
            return;
        };
        let Ok(kind) = uprobes::kind() else {
            println!("SKIP: needs uprobes");
            return;
        };
        let mut ways = vec![(one, How::One(kind))];
        if uprobes::probe().is_yes() {
            ways.push((uprobes::load(&bpf::NOTHING).expect("a program"), How::Many));
        }
        let me = std::process::id() as i32;
        // Of a file that nobody has mapped.
        let file = std::env::temp_dir().join(format!("orbit-keeper-{me}"));
        std::fs::write(&file, [0x90u8; PLACES + 1]).expect("a file");
        let is = std::fs::metadata(&file).expect("it is there");
        let code = CodeFile::open(&file, (is.dev(), is.ino())).expect("a file");
        let places: Vec<(u64, u64)> = (0..PLACES as u64 + 1).map(|at| (at, 1)).collect();
        for (program, how) in &ways {
            let mut keeper = Keeper::begin().expect("a child");
            let links = keeper.links();
            let tokens = std::cell::RefCell::new(Vec::new());
            let note = |token| tokens.borrow_mut().push(token);
            let way = (program.as_fd(), *how);
            let held = keeper.attach(way, me, &code, &places[..3], &note).expect("links");
            assert_eq!(held.len(), if *how == How::Many { 1 } else { 3 });
            assert_eq!(tokens.borrow().len(), held.len());
            assert!(tokens.borrow().iter().all(|t| links.there(*t)));
            drop(held);
            until("links stay", || !links.any());
            assert!(!tokens.borrow().iter().any(|t| links.there(*t)));
            // What cannot be attached leaves none.
            let none = keeper.attach(way, me, &code, &[(1 << 40, 1)], &note);
            assert_eq!(none.expect_err("behind its end").kind(), io::ErrorKind::InvalidInput);
            until("a link that failed stays", || !links.any());
            if *how == How::Many {
                let more = keeper.attach(way, me, &code, &places, &note).expect("links");
                assert_eq!(more.len(), 2, "more than fit one message");
                // What is held is let go with the keeper, which waits for it.
                std::mem::forget(more);
            }
            assert!(links.lives());
            drop(keeper);
            assert!(!links.lives() && !links.any());
        }
        std::fs::remove_file(&file).expect("it is there");
    }
}
