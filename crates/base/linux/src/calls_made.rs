//! Counts the system calls of one process by what they do, in the kernel, from outside.
//!
//! A program of the kernel's own machine, attached to the end of all system calls, looks at the
//! calls of one process. Each number has a [`Class`]; what is not known counts as done outside. A
//! call that fails has done nothing. Calls that are under way have not ended: of a process whose
//! threads are all stopped, each call was counted.

use crate::bpf::{self, Instruction};
use crate::map::{Mapping, page_size};
use crate::{Support, check, poll};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};

/// Numbers of system calls that have a class.
pub const NUMBERS: usize = 512;
/// Descriptors that may be named as [`CallsMade::set_descriptors`] does.
pub const DESCRIPTORS: usize = 1024;

/// What a call does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Something that another process can see.
    #[default]
    Outside = 0,
    /// Nothing of that kind.
    Inside = 1,
    /// `openat`: by its third argument, flags of a file.
    OpenAt = 2,
    /// `open`: by its second argument.
    Open = 3,
    /// `fcntl`: by its command.
    Fcntl = 4,
    /// `ioctl`: by its command.
    Ioctl = 5,
    /// Writes to its first argument, a descriptor, or changes it: inside if that is
    /// [`Descriptor::Own`], and counted apart for connections and what is open for appending.
    Write = 6,
    /// Reads from its first argument, a descriptor: input if that is [`Descriptor::Taken`] or
    /// [`Descriptor::Appended`].
    Read = 7,
    /// `clone`: inside where it makes a thread.
    Clone = 8,
    /// `rt_sigreturn`: a handler has run.
    Handled = 9,
    /// Accepts a connection: outside if its first argument is no [`Descriptor::Connection`].
    Accept = 10,
    /// `socket`: a connection by TCP if its arguments say so, else outside.
    Socket = 11,
}

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Descriptor {
    /// Both its ends are the process' own.
    Own = 1,
    /// What is read from it is gone for others, and nothing else shows that.
    Taken = 2,
    /// A connection by TCP, or a socket that takes such in.
    Connection = 3,
    /// A file open for appending, or where messages for people go.
    Appended = 4,
}

/// What a process has done since it is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Calls of any kind: 0 means that nothing is seen of the process.
    pub seen: u64,
    /// Calls that another process can see, of no kind below.
    pub outside: u64,
    /// Calls that have made a connection by TCP, written to one or changed it.
    pub connections: u64,
    /// Calls that have written to a [`Descriptor::Appended`].
    pub appended: u64,
    /// The number of the last call of these three kinds.
    pub last: u64,
    /// Calls that have read from a [`Descriptor::Taken`] or [`Descriptor::Appended`].
    pub inputs: u64,
    /// Connections accepted.
    pub accepts: u64,
    /// Handlers of signals that have returned.
    pub handled: u64,
}

// The map's one value: a byte for each number, one for each descriptor, then words.
const OWN: i16 = NUMBERS as i16;
const WORDS: i16 = OWN + DESCRIPTORS as i16;
const SEEN: i16 = WORDS;
const OUTSIDE: i16 = WORDS + 8;
const LAST: i16 = WORDS + 16;
const INPUTS: i16 = WORDS + 24;
const ACCEPTS: i16 = WORDS + 32;
const HANDLED: i16 = WORDS + 40;
const CONNECTIONS: i16 = WORDS + 48;
const APPENDED: i16 = WORDS + 56;
const ARMED: i16 = WORDS + 64;
const BYTES: usize = WORDS as usize + 72;

/// Counts until it is dropped.
#[derive(Debug)]
pub struct CallsMade {
    map: Mapping,
    bell: Ring,
    _attached: OwnedFd,
}

impl CallsMade {
    /// Counts the calls of a process of this namespace from now on.
    ///
    /// # Errors
    /// `EPERM` without CAP_BPF and CAP_PERFMON, or under a filter; `ENOSYS`.
    pub fn of(pid: i32, classes: &[Class; NUMBERS]) -> io::Result<CallsMade> {
        let map = make_map()?;
        let shared = Mapping::shared(map.as_fd(), BYTES, true, false)?;
        let bell = Ring::new()?;
        let program = bpf::load(RAW_TRACEPOINT, 0, &program(pid, map.as_fd(), bell.fd.as_fd())?)?;
        let made = |attached| CallsMade { map: shared, bell, _attached: attached };
        let counts = made(bpf::attach_raw_tracepoint(program.as_fd(), c"sys_exit")?);
        for (to, class) in counts.bytes(0, NUMBERS).iter().zip(classes) {
            to.store(*class as u8, SeqCst);
        }
        Ok(counts)
    }

    /// What descriptors are from here on; of those not named nothing is known.
    pub fn set_descriptors(&self, descriptors: impl Iterator<Item = (i32, Descriptor)>) {
        let all = self.bytes(OWN as usize, DESCRIPTORS);
        all.iter().for_each(|byte| byte.store(0, SeqCst));
        for (fd, kind) in descriptors {
            if let Some(byte) = usize::try_from(fd).ok().and_then(|fd| all.get(fd)) {
                byte.store(kind as u8, SeqCst);
            }
        }
    }

    /// From here on the next call that is not only seen rings once: [`CallsMade::bell`] can be
    /// read then. A ring from before is taken back.
    pub fn arm(&self) {
        self.bell.drain();
        self.word(ARMED).store(1, SeqCst);
    }

    /// For `poll(2)`; see [`CallsMade::arm`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.fd.as_fd()
    }

    fn word(&self, at: i16) -> &AtomicU64 {
        // SAFETY: an aligned word within the mapping, which lives as long as this; the kernel
        // writes it atomically.
        unsafe { &*self.map.as_ptr().add(at as usize).cast::<AtomicU64>() }
    }

    /// What it has done.
    pub fn read(&self) -> Made {
        let word = |at: i16| self.word(at).load(SeqCst);
        Made {
            seen: word(SEEN),
            outside: word(OUTSIDE),
            connections: word(CONNECTIONS),
            appended: word(APPENDED),
            last: word(LAST),
            inputs: word(INPUTS),
            accepts: word(ACCEPTS),
            handled: word(HANDLED),
        }
    }

    fn bytes(&self, at: usize, count: usize) -> &[AtomicU8] {
        assert!(at + count <= BYTES, "within the mapping");
        // SAFETY: within the mapping, which lives as long as this; bytes may be shared as atomics.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(at).cast(), count) }
    }
}

/// Whether calls can be counted here: counts one of this process.
pub fn probe() -> Support {
    let counted = || {
        let counts = CallsMade::of(i32::try_from(std::process::id()).unwrap_or(0), &[Class::Inside; NUMBERS])?;
        // SAFETY: asks for a number.
        unsafe { libc::getppid() };
        if counts.read().seen > 0 { Ok(()) } else { Err(io::Error::other("no call is seen")) }
    };
    match counted() {
        Ok(()) => Support::Yes,
        Err(error) => Support::No(format!("counting system calls by bpf(2): {error}")),
    }
}

const RAW_TRACEPOINT: u32 = 17;

/// A ring of the kernel's, of which only matters whether something is in it (Linux 5.8).
#[derive(Debug)]
struct Ring {
    fd: OwnedFd,
    /// The page that holds how far it was read, a word.
    read: Mapping,
}

impl Ring {
    /// Bytes that the kernel writes each time: a head, and a word.
    const RECORD: u64 = 16;

    fn new() -> io::Result<Ring> {
        const RINGBUF: u32 = 27;
        let page = page_size();
        let fd = map([RINGBUF, 0, 0, page as u32, 0])?;
        let read = Mapping::shared(fd.as_fd(), page, true, false)?;
        Ok(Ring { fd, read })
    }

    /// Leaves nothing in it.
    fn drain(&self) {
        // SAFETY: an aligned word within the mapping, which lives as long as this; the kernel reads
        // it atomically.
        let read = unsafe { &*self.read.as_ptr().cast::<AtomicU64>() };
        while poll::is_readable(self.fd.as_fd()) {
            read.fetch_add(Ring::RECORD, SeqCst);
        }
    }
}

/// An array of one value that user space can map.
fn make_map() -> io::Result<OwnedFd> {
    const ARRAY: u32 = 2;
    const MMAPABLE: u32 = 1 << 10;
    map([ARRAY, 4, BYTES as u32, 1, MMAPABLE])
}

/// A map of this type, with keys and values of so many bytes, so many of them, and flags.
fn map(kind: [u32; 5]) -> io::Result<OwnedFd> {
    let mut attr = [0u32; 18];
    attr[..5].copy_from_slice(&kind);
    // SAFETY: BPF_MAP_CREATE (0) takes such an array and follows no pointer in it.
    let fd = check(unsafe { libc::syscall(libc::SYS_bpf, 0, attr.as_ptr(), size_of_val(&attr)) })?;
    // SAFETY: a new descriptor that nothing else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Instructions, with jumps to labels.
#[derive(Default)]
struct Code {
    instructions: Vec<Instruction>,
    /// Jumps, and their labels.
    jumps: Vec<(usize, &'static str)>,
    labels: Vec<(&'static str, usize)>,
}

impl Code {
    fn put(&mut self, op: u8, to: u8, from: u8, offset: i16, value: i32) {
        let (offset, value) = (offset.to_le_bytes(), value.to_le_bytes());
        let registers = to | from << 4;
        self.instructions.push([op, registers, offset[0], offset[1], value[0], value[1], value[2], value[3]]);
    }

    fn jump(&mut self, op: u8, register: u8, value: i32, label: &'static str) {
        self.jumps.push((self.instructions.len(), label));
        self.put(op, register, 0, 0, value);
    }

    fn label(&mut self, name: &'static str) {
        self.labels.push((name, self.instructions.len()));
    }

    fn wide(&mut self, to: u8, from: u8, value: u64) {
        self.put(0x18, to, from, 0, value as i32);
        self.put(0, 0, 0, 0, (value >> 32) as i32);
    }

    /// Adds 1 to a word of the map's value.
    fn count(&mut self, word: i16) {
        self.put(0xb7, 2, 0, 0, 1);
        self.put(0xdb, VALUE, 2, word, 0);
    }

    fn done(mut self) -> io::Result<Vec<Instruction>> {
        for (at, name) in &self.jumps {
            let label = self.labels.iter().find(|(label, _)| label == name);
            let (_, to) = label.ok_or_else(|| io::Error::other(format!("no label {name}")))?;
            let distance = (*to as i64 - *at as i64 - 1) as i16;
            self.instructions[*at][2..4].copy_from_slice(&distance.to_le_bytes());
        }
        Ok(self.instructions)
    }
}

// Where the program keeps what it has read of `pt_regs`.
const DX: i16 = -32;
const SI: i16 = -24;
const DI: i16 = -16;
const NUMBER: i16 = -8;

/// The part of `socket`'s second argument that is no flag.
const SOCKET_KIND: i32 = 0xf;

/// The register that holds the address of the map's value.
const VALUE: u8 = 9;

// Instructions, from <linux/bpf.h>.
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x07;
const AND: u8 = 0x57;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LOAD: u8 = 0x79;
const LOAD_INT: u8 = 0x61;
const LOAD_BYTE: u8 = 0x71;
const STORE: u8 = 0x7b;
const STORE_BYTE: u8 = 0x72;
const ALWAYS: u8 = 0x05;
const EQUAL: u8 = 0x15;
const NOT_EQUAL: u8 = 0x55;
const AT_LEAST: u8 = 0x35;
const AT_MOST: u8 = 0xb5;
const SIGNED_AT_LEAST: u8 = 0x75;

/// What is counted: see [`Class`]. Reads `pt_regs` of x86-64 from rdx to orig_rax.
fn program(pid: i32, map: BorrowedFd<'_>, bell: BorrowedFd<'_>) -> io::Result<Vec<Instruction>> {
    let namespace = fs::metadata("/proc/self/ns/pid")?;
    let mut code = Code::default();
    code.put(MOVE, 6, 1, 0, 0);
    // bpf_get_ns_current_pid_tgid(dev, ino, &{pid, tgid}, 8)
    code.wide(1, 0, namespace.dev());
    code.wide(2, 0, namespace.ino());
    code.put(MOVE, 3, 10, 0, 0);
    code.put(ADD, 3, 0, 0, -40);
    code.put(0xb7, 4, 0, 0, 8);
    code.put(CALL, 0, 0, 0, 120);
    code.jump(NOT_EQUAL, 0, 0, "out");
    code.put(LOAD_INT, 1, 10, -36, 0);
    code.jump(NOT_EQUAL, 1, pid, "out");
    // The map's value.
    code.wide(VALUE, 2, map.as_raw_fd() as u64);
    code.count(SEEN);
    // bpf_probe_read_kernel(to, 32, regs + 96)
    code.put(MOVE, 1, 10, 0, 0);
    code.put(ADD, 1, 0, 0, i32::from(DX));
    code.put(0xb7, 2, 0, 0, 32);
    code.put(LOAD, 3, 6, 0, 0);
    code.put(ADD, 3, 0, 0, 96);
    code.put(CALL, 0, 0, 0, 113);
    code.put(LOAD_INT, 8, 10, NUMBER, 0);
    code.jump(NOT_EQUAL, 0, 0, "outside");
    code.jump(AT_LEAST, 8, NUMBERS as i32, "outside");
    code.put(MOVE, 1, VALUE, 0, 0);
    code.put(0x0f, 1, 8, 0, 0);
    code.put(LOAD_BYTE, 7, 1, 0, 0);
    code.jump(EQUAL, 7, Class::Inside as i32, "out");
    code.jump(EQUAL, 7, Class::Handled as i32, "handled");
    // What has failed has done nothing, but a connection that is being made.
    code.put(LOAD, 1, 6, 8, 0);
    code.jump(SIGNED_AT_LEAST, 1, 0, "done");
    code.jump(NOT_EQUAL, 1, -libc::EINPROGRESS, "out");
    code.label("done");
    for (class, label) in [
        (Class::OpenAt, "openat"),
        (Class::Open, "open"),
        (Class::Fcntl, "fcntl"),
        (Class::Ioctl, "ioctl"),
        (Class::Write, "write"),
        (Class::Read, "read"),
        (Class::Clone, "clone"),
        (Class::Accept, "accept"),
        (Class::Socket, "socket"),
    ] {
        code.jump(EQUAL, 7, class as i32, label);
    }
    code.label("outside");
    code.count(OUTSIDE);
    code.label("last");
    code.put(STORE, VALUE, 8, LAST, 0);
    code.label("moved");
    code.put(LOAD, 1, VALUE, ARMED, 0);
    code.jump(EQUAL, 1, 0, "out");
    code.put(0xb7, 1, 0, 0, 0);
    code.put(STORE, VALUE, 1, ARMED, 0);
    // bpf_ringbuf_output(bell, &number, 8, BPF_RB_FORCE_WAKEUP)
    code.wide(1, 1, bell.as_raw_fd() as u64);
    code.put(MOVE, 2, 10, 0, 0);
    code.put(ADD, 2, 0, 0, i32::from(NUMBER));
    code.put(0xb7, 3, 0, 0, 8);
    code.put(0xb7, 4, 0, 0, 2);
    code.put(CALL, 0, 0, 0, 130);
    code.label("out");
    code.put(0xb7, 0, 0, 0, 0);
    code.put(EXIT, 0, 0, 0, 0);
    // A file is opened: outside if for writing, or made.
    code.label("openat");
    code.put(LOAD_INT, 1, 10, DX, 0);
    code.jump(ALWAYS, 0, 0, "flags");
    code.label("open");
    code.put(LOAD_INT, 1, 10, SI, 0);
    code.label("flags");
    code.put(AND, 1, 0, 0, libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY));
    code.jump(EQUAL, 1, 0, "out");
    code.jump(ALWAYS, 0, 0, "outside");
    // F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK
    code.label("fcntl");
    code.put(LOAD_INT, 1, 10, SI, 0);
    code.jump(EQUAL, 1, libc::F_DUPFD, "outside");
    code.jump(AT_MOST, 1, libc::F_GETLK, "out");
    code.jump(ALWAYS, 0, 0, "outside");
    code.label("ioctl");
    code.put(LOAD_INT, 1, 10, SI, 0);
    for command in
        [libc::FIONREAD, libc::TCGETS, libc::TIOCGWINSZ, libc::TIOCGPGRP, libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX]
    {
        code.jump(EQUAL, 1, command as i32, "out");
    }
    code.jump(ALWAYS, 0, 0, "outside");
    code.label("write");
    descriptor(&mut code, "outside");
    code.jump(EQUAL, 1, Descriptor::Own as i32, "out");
    code.jump(EQUAL, 1, Descriptor::Connection as i32, "connection");
    code.jump(NOT_EQUAL, 1, Descriptor::Appended as i32, "outside");
    code.count(APPENDED);
    code.jump(ALWAYS, 0, 0, "last");
    // socket(AF_INET or AF_INET6, SOCK_STREAM, by default TCP)
    code.label("socket");
    code.put(LOAD_INT, 1, 10, DI, 0);
    code.jump(EQUAL, 1, libc::AF_INET, "internet");
    code.jump(NOT_EQUAL, 1, libc::AF_INET6, "outside");
    code.label("internet");
    code.put(LOAD_INT, 1, 10, SI, 0);
    code.put(AND, 1, 0, 0, SOCKET_KIND);
    code.jump(NOT_EQUAL, 1, libc::SOCK_STREAM, "outside");
    code.put(LOAD_INT, 1, 10, DX, 0);
    code.jump(EQUAL, 1, 0, "made");
    code.jump(NOT_EQUAL, 1, libc::IPPROTO_TCP, "outside");
    code.label("made");
    mark_result(&mut code, Descriptor::Connection, "connection");
    code.label("connection");
    code.count(CONNECTIONS);
    code.jump(ALWAYS, 0, 0, "last");
    code.label("read");
    descriptor(&mut code, "input");
    code.jump(EQUAL, 1, Descriptor::Appended as i32, "input");
    code.jump(NOT_EQUAL, 1, Descriptor::Taken as i32, "out");
    code.label("input");
    code.count(INPUTS);
    code.jump(ALWAYS, 0, 0, "moved");
    code.label("clone");
    code.put(LOAD_INT, 1, 10, DI, 0);
    code.put(AND, 1, 0, 0, libc::CLONE_THREAD);
    code.jump(EQUAL, 1, 0, "outside");
    code.jump(ALWAYS, 0, 0, "out");
    code.label("accept");
    code.count(ACCEPTS);
    descriptor(&mut code, "outside");
    code.jump(NOT_EQUAL, 1, Descriptor::Connection as i32, "outside");
    mark_result(&mut code, Descriptor::Connection, "out");
    code.jump(ALWAYS, 0, 0, "out");
    code.label("handled");
    code.count(HANDLED);
    code.jump(ALWAYS, 0, 0, "moved");
    code.done()
}

/// The call's result is a descriptor of this kind; `beyond`: it has no place.
fn mark_result(code: &mut Code, kind: Descriptor, beyond: &'static str) {
    code.put(LOAD, 1, 6, 8, 0);
    code.jump(AT_LEAST, 1, DESCRIPTORS as i32, beyond);
    code.put(MOVE, 2, VALUE, 0, 0);
    code.put(0x0f, 2, 1, 0, 0);
    code.put(STORE_BYTE, 2, 0, OWN, kind as i32);
}

/// Loads into r1 what the first argument is as a descriptor; `beyond`: it has no place.
fn descriptor(code: &mut Code, beyond: &'static str) {
    code.put(LOAD_INT, 1, 10, DI, 0);
    code.jump(AT_LEAST, 1, DESCRIPTORS as i32, beyond);
    code.put(MOVE, 2, VALUE, 0, 0);
    code.put(0x0f, 2, 1, 0, 0);
    code.put(LOAD_BYTE, 1, 2, OWN, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// In a process of its own, in which nothing else runs.
    #[test]
    fn each_class_is_counted() {
        if let Support::No(why) = probe() {
            println!("SKIP: needs {why}");
            return;
        }
        let mut classes = [Class::Inside; NUMBERS];
        for (number, class) in [
            (libc::SYS_openat, Class::OpenAt),
            (libc::SYS_write, Class::Write),
            (libc::SYS_read, Class::Read),
            (libc::SYS_unlink, Class::Outside),
        ] {
            classes[number as usize] = class;
        }
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read a; : </dev/null; read b; echo x >/dev/null; read c; rm /nonexistent-orbit; read d"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a shell");
        let counts = CallsMade::of(child.id() as i32, &classes).expect("counted");
        counts.set_descriptors([(0, Descriptor::Taken)].into_iter());
        let mut input = child.stdin.take().expect("a pipe");
        let mut step = |until: &dyn Fn(Made) -> bool| {
            input.write_all(b"\n").expect("sent");
            let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while !until(counts.read()) {
                assert!(std::time::Instant::now() < end, "{:?}", counts.read());
                std::thread::yield_now();
            }
            counts.read()
        };
        // Two opens: /dev/null for reading, then for writing.
        let before = step(&|made| made.inputs >= 1);
        assert_eq!(before.outside, 0, "{before:?}");
        let after = step(&|made| made.outside >= 2);
        assert_eq!(after.outside, 2, "the file opened for writing, and the line: {after:?}");
        // Once it is armed, the next such call rings, and no other one.
        counts.arm();
        assert!(!poll::is_readable(counts.bell()));
        let after = step(&|made| made.inputs > after.inputs);
        // The call is counted first, and rings after that.
        let mut bell = [libc::pollfd { fd: counts.bell().as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        let rings = poll::poll(&mut bell, Some(std::time::Duration::from_secs(30)));
        assert!(rings.is_ok_and(|count| count == 1), "{after:?}");
        counts.arm();
        assert!(!poll::is_readable(counts.bell()));
        drop(input);
        let mut rest = String::new();
        child.stdout.take().expect("a pipe").read_to_string(&mut rest).expect("read");
        child.wait().expect("reaped");
    }
}
