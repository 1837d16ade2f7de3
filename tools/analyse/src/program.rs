//! The program under analysis: its start, the breakpoint at the entry, a copy for each call.
//!
//! Promises: the program is this thread's child and dies with it. Threads and processes that it
//! makes continue as ever; the breakpoint is taken out of processes that it forks.
//!
//! An entry in a library that is loaded later (a server's module, an extension) is found when the
//! dynamic linker says that it has loaded one: glibc calls an empty function for debuggers then,
//! `_dl_debug_state`, with its lock held, so that one thread at a time is there
//! (<https://sourceware.org/git/?p=glibc.git;a=blob;f=elf/dl-debug.c>).

use crate::copy::{Caller, Copy, End, Ground};
use crate::keyboard::Keyboard;
use crate::report::{self, Namer, Report};
use crate::table::{MODE_COPY, Table, Word};
use crate::tally::Tally;
use crate::wait::{self, Status};
use crate::{Error, Wanted};
use libc::user_regs_struct as Registers;
use orbit_inspect::functions::{self, Function, Missing, Search};
use orbit_inspect::stacks::of_c_library;
use orbit_inspect::{Maps, globals};
use orbit_linux::{memfd, ptrace, remote, signals};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

const RECORDER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/record.so"));
/// What the recorder's file is called in the program.
const RECORDER_NAME: &str = "orbit-analyse-record";
/// The recorder must be there after this time.
const START: Duration = Duration::from_secs(30);
const BREAKPOINT: u8 = 0xcc;
/// The function that the dynamic linker calls for debuggers.
const LINKER: &str = "ld-linux-x86-64.so.2";
const LOADED: &str = "_dl_debug_state";
/// Bytes of the gate's system call instruction and its breakpoint.
const GATE: u64 = 3;

/// What to analyse.
#[derive(Clone, Debug)]
pub struct Options {
    /// The task's entry function.
    pub entry: Wanted,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// Calls of the entry that are watched, from the first on; those after them run unseen.
    pub calls: u64,
    /// One call is watched no longer than this: some ten thousand instructions are stepped a
    /// second.
    pub limit: Duration,
}

/// Runs a program to its end and watches what its task accesses. Blocks as long; the program uses
/// this process' standard streams. Meanwhile SIGINT does nothing in this process: Ctrl-C ends the
/// program, and the report is of what it did until then.
///
/// Where the entry is in no file that the program has at its start, and no name there is near it,
/// `waits` learns it once, and each library is searched when it is loaded.
///
/// # Errors
/// See [`Error`]; then the program is killed.
pub fn analyse(options: &Options, waits: impl FnOnce(&Missing)) -> Result<Report, Error> {
    let table = Table::new().map_err(|source| Error::Trace { what: "making the table of allocations", source })?;
    let recorder = memfd::program(RECORDER_NAME, RECORDER);
    let recorder = recorder.map_err(|source| Error::Trace { what: "making the recorder's file", source })?;
    let name = options.program.first().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
    let mut preload = OsString::from(format!("/proc/{}/fd/{}", std::process::id(), recorder.as_raw_fd()));
    if let Some(others) = std::env::var_os("LD_PRELOAD") {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(options.program.first().map_or("".as_ref(), OsString::as_os_str));
    command.args(options.program.iter().skip(1)).env("LD_PRELOAD", preload).env("ORBIT_ANALYSE_TABLE", table.path());
    let _keyboard = Keyboard::left_to_the_program();
    let child = command.spawn().map_err(|source| Error::Start { program: name.clone(), source })?;
    let pid = child.id() as i32;
    let mut program = Program { pid, ended: None, table: &table };
    let report = program.wait_for_recorder(name).and_then(|()| program.watch(options, waits));
    if program.ended.is_none() {
        wait::end(pid);
    }
    report
}

struct Program<'a> {
    pid: i32,
    ended: Option<Status>,
    table: &'a Table,
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Trace { what, source }
}

impl Program<'_> {
    fn wait_for_recorder(&mut self, program: String) -> Result<(), Error> {
        let deadline = Instant::now() + START;
        while !self.table.ready() {
            let soon = Instant::now() + Duration::from_millis(2);
            if let Some((_, status)) = wait::next(self.pid, Some(soon)).map_err(failed("waiting for the program"))? {
                self.ended = Some(status);
                return Err(Error::NoRecorder { program });
            }
            if Instant::now() >= deadline {
                return Err(Error::NoRecorder { program });
            }
        }
        Ok(())
    }

    fn watch(&mut self, options: &Options, waits: impl FnOnce(&Missing)) -> Result<Report, Error> {
        let traced = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
        let traced = traced | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
        ptrace::seize(self.pid, traced).map_err(failed("tracing the program"))?;
        ptrace::interrupt(self.pid).map_err(failed("stopping the program"))?;
        wait::next(self.pid, None).map_err(failed("stopping the program"))?;
        let maps = Maps::of(self.pid)?;
        let mut search = Search::new(options.entry.clone());
        let (breakpoint, at) = match search.look(self.pid, &maps) {
            Some(found) => (Breakpoint::at_entry(self.pid, &found)?, At::Entry(found.name)),
            None => {
                let linker = linker(self.pid, &maps, &search).ok_or_else(|| missing(options, &search))?;
                waits(search.missing());
                let breakpoint = Breakpoint::new(self.pid, linker.address);
                (breakpoint.map_err(failed("reading the dynamic linker"))?, At::Linker(search))
            }
        };
        breakpoint.set(self.pid, true).map_err(failed("setting the breakpoint"))?;
        self.table.set(Word::Go, 1);
        ptrace::go_on(self.pid, 0).map_err(failed("starting the program"))?;
        let mut session = Session {
            options,
            breakpoint,
            at,
            table: self.table,
            tally: Tally::default(),
            namer: Namer::new(self.pid)?,
            ends: Vec::new(),
            early: HashSet::new(),
            replaced: false,
        };
        loop {
            let (tid, status) = wait::next(-1, None).map_err(failed("waiting for the program"))?.expect("it blocks");
            match status {
                Status::Stopped(signal, event) => session.stopped(self.pid, tid, signal, event)?,
                status if tid == self.pid => {
                    self.ended = Some(status);
                    break;
                }
                _ => {}
            }
        }
        let lost = self.table.get(Word::Lost);
        match session.at {
            At::Entry(name) => Ok(report::make(name, session.tally, session.namer, &session.ends, lost, self.ended)),
            At::Linker(search) => Err(missing(options, &search)),
        }
    }
}

fn missing(options: &Options, search: &Search) -> Error {
    Error::Missing { entry: options.entry.clone(), why: search.missing().clone() }
}

/// The dynamic linker's function to wait at; nothing where waiting would only hide a mistake.
fn linker(pid: i32, maps: &Maps, search: &Search) -> Option<Function> {
    let wanted = Wanted { file: Some(LINKER.into()), name: LOADED.into() };
    search.may_still_come().then(|| functions::find(pid, maps, &wanted).ok()).flatten()
}

/// What the breakpoint stands at.
enum At {
    /// The task's entry, of this name.
    Entry(String),
    /// The dynamic linker's function: the entry is not loaded yet.
    Linker(Search),
}

/// The first byte of a function.
struct Breakpoint {
    address: u64,
    was: u8,
}

impl Breakpoint {
    fn at_entry(pid: i32, entry: &Function) -> Result<Breakpoint, Error> {
        Breakpoint::new(pid, entry.address).map_err(failed("reading the entry"))
    }

    fn new(pid: i32, address: u64) -> io::Result<Breakpoint> {
        let mut was = [0u8];
        remote::read(pid, address, &mut was)?;
        Ok(Breakpoint { address, was: was[0] })
    }

    /// In the process of a stopped thread.
    fn set(&self, tid: i32, on: bool) -> io::Result<()> {
        let mut word = [0u8; 8];
        remote::read(tid, self.address, &mut word)?;
        word[0] = if on { BREAKPOINT } else { self.was };
        ptrace::state::poke(tid, self.address, u64::from_ne_bytes(word))
    }
}

struct Session<'a> {
    options: &'a Options,
    breakpoint: Breakpoint,
    at: At,
    table: &'a Table,
    tally: Tally,
    namer: Namer,
    /// How each watched call ended.
    ends: Vec<End>,
    /// Processes that stopped before their maker said so.
    early: HashSet<i32>,
    /// The program runs another one now.
    replaced: bool,
}

impl Session<'_> {
    /// Has a stopped thread continue. One that was killed meanwhile is no failure.
    fn stopped(&mut self, pid: i32, tid: i32, signal: i32, event: i32) -> Result<(), Error> {
        let done = match event {
            libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => {
                if tid == pid || std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists() {
                    ptrace::go_on(tid, 0)
                } else {
                    self.early.insert(tid);
                    Ok(())
                }
            }
            libc::PTRACE_EVENT_STOP => ptrace::listen(tid),
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                self.let_go(tid, event == libc::PTRACE_EVENT_FORK).and_then(|()| ptrace::go_on(tid, 0))
            }
            libc::PTRACE_EVENT_EXEC => {
                self.replaced = true;
                ptrace::go_on(tid, 0)
            }
            0 if signal == libc::SIGTRAP && self.is_at_breakpoint(tid) => match self.at {
                At::Entry(_) => self.at_entry(pid, tid)?,
                At::Linker(_) => self.at_linker(pid, tid)?,
            },
            0 => ptrace::go_on(tid, signal),
            _ => ptrace::go_on(tid, 0),
        };
        match done {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(failed("tracing a thread")(error)),
            _ => Ok(()),
        }
    }

    /// A process that the program made is not traced.
    fn let_go(&mut self, tid: i32, own_memory: bool) -> io::Result<()> {
        let made = ptrace::made(tid)?;
        if !self.early.remove(&made) && !matches!(wait::next(made, None)?, Some((_, Status::Stopped(..)))) {
            return Ok(());
        }
        if own_memory && !self.replaced {
            self.breakpoint.set(made, false)?;
        }
        ptrace::detach(made, 0)
    }

    fn is_at_breakpoint(&self, tid: i32) -> bool {
        !self.replaced && ptrace::registers(tid).is_ok_and(|r| r.rip == self.breakpoint.address + 1)
    }

    /// A thread has come to the entry: watches the call in a copy, then lets the thread make it.
    fn at_entry(&mut self, pid: i32, tid: i32) -> Result<io::Result<()>, Error> {
        let watching = failed("watching a call");
        let mut registers = ptrace::registers(tid).map_err(&watching)?;
        registers.rip = self.breakpoint.address;
        let mut pending = Vec::new();
        if (self.ends.len() as u64) < self.options.calls {
            let callers = self.namer.callers(tid, &registers);
            let copy = self.copy(tid, &registers, &mut pending).map_err(failed("copying the program"))?;
            let end = self.call(pid, copy, &callers);
            wait::end(copy);
            self.ends.push(end?);
            self.namer.name(&self.tally)?;
        }
        let rest = self.ends.len() as u64 >= self.options.calls;
        self.go_past(pid, tid, &registers, pending, !rest)
    }

    /// The program has loaded a library, or is about to: searches what is new.
    fn at_linker(&mut self, pid: i32, tid: i32) -> Result<io::Result<()>, Error> {
        let mut registers = ptrace::registers(tid).map_err(failed("waiting for a library"))?;
        registers.rip = self.breakpoint.address;
        let At::Linker(search) = &mut self.at else { unreachable!("the breakpoint is the linker's") };
        let Some(found) = search.look(pid, &Maps::of(pid)?) else {
            if !search.missing().several.is_empty() {
                return Err(missing(self.options, search));
            }
            return self.go_past(pid, tid, &registers, Vec::new(), true);
        };
        let entry = Breakpoint::at_entry(pid, &found)?;
        entry.set(tid, true).map_err(failed("setting the breakpoint"))?;
        let went = self.go_past(pid, tid, &registers, Vec::new(), false)?;
        self.breakpoint = entry;
        self.at = At::Entry(found.name);
        Ok(went)
    }

    /// Has a thread at the breakpoint continue there with these registers and with the signals
    /// that it was to get; `stays`: the breakpoint is there again for the next one.
    fn go_past(
        &self,
        pid: i32,
        tid: i32,
        registers: &Registers,
        mut pending: Vec<i32>,
        stays: bool,
    ) -> Result<io::Result<()>, Error> {
        let going = failed("passing the breakpoint");
        ptrace::set_registers(tid, registers).map_err(&going)?;
        self.breakpoint.set(tid, false).map_err(&going)?;
        if !stays {
            return Ok(pass(pid, tid, pending));
        }
        ptrace::step(tid).map_err(&going)?;
        match wait::next(tid, None).map_err(&going)? {
            Some((_, Status::Stopped(libc::SIGTRAP, 0))) => {}
            Some((_, Status::Stopped(signal, 0))) => pending.push(signal),
            Some((_, Status::Stopped(..))) => {}
            // Killed.
            _ => return Ok(Ok(())),
        }
        self.breakpoint.set(tid, true).map_err(&going)?;
        Ok(pass(pid, tid, pending))
    }

    /// Has a thread at the entry make a copy of its process, stopped at the entry. Signals that the
    /// thread gets meanwhile are kept.
    fn copy(&self, tid: i32, registers: &Registers, pending: &mut Vec<i32>) -> io::Result<i32> {
        let gate = self.table.get(Word::Gate);
        // This process' child, like the program itself: so the program never sees it.
        let call = Registers {
            rip: gate,
            rax: libc::SYS_clone as u64,
            orig_rax: u64::MAX,
            rdi: libc::CLONE_PARENT as u64,
            rsi: 0,
            rdx: 0,
            r10: 0,
            r8: 0,
            ..*registers
        };
        ptrace::set_registers(tid, &call)?;
        let mut made = None;
        loop {
            ptrace::go_on(tid, 0)?;
            match wait::next(tid, None)? {
                Some((_, Status::Stopped(_, libc::PTRACE_EVENT_CLONE))) => made = Some(ptrace::made(tid)?),
                Some((_, Status::Stopped(libc::SIGTRAP, 0))) => {
                    let now = ptrace::registers(tid)?;
                    if now.rip == gate + GATE {
                        break;
                    }
                }
                Some((_, Status::Stopped(signal, 0))) => pending.push(signal),
                Some((_, Status::Stopped(..))) => {}
                _ => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        }
        let Some(copy) = made else {
            let result = ptrace::registers(tid)?.rax as i64;
            return Err(io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EIO)));
        };
        wait::next(copy, None)?;
        ptrace::state::set_options(copy, libc::PTRACE_O_EXITKILL)?;
        ptrace::set_registers(copy, &Registers { orig_rax: u64::MAX, ..*registers })?;
        self.breakpoint.set(copy, false)?;
        self.table.set(Word::Inside, 0);
        remote::write(copy, self.table.get(Word::Mode), &MODE_COPY.to_ne_bytes())?;
        Ok(copy)
    }

    /// Watches the call in the copy, in which these frames are the callers'.
    fn call(&mut self, pid: i32, copy: i32, callers: &[Caller]) -> Result<End, Error> {
        let maps = Maps::of(pid)?;
        let recorder = |path: &str| path.contains(RECORDER_NAME);
        let mut globals = globals::of(pid, &maps, |path| !report::is_library(path) && !recorder(path));
        // What cannot be written need not be in an area.
        globals.retain(|address, _| maps.at(*address).is_some_and(|m| m.write));
        self.namer.know(&globals);
        let code = maps.iter().filter(|m| m.exec && of_c_library(&m.path));
        let c_library: Vec<(u64, u64)> = code.map(|m| (m.start, m.end)).collect();
        let ground = Ground { table: self.table, globals: &globals, c_library: &c_library, callers };
        let deadline = Instant::now() + self.options.limit;
        Copy::new(copy, &ground, &mut self.tally).run(deadline).map_err(failed("stepping the copy"))
    }
}

/// Lets a thread continue with the signals that it was to get.
fn pass(pid: i32, tid: i32, mut pending: Vec<i32>) -> io::Result<()> {
    let last = pending.pop().unwrap_or(0);
    for signal in pending {
        // The thread is stopped by this one, so its number is its own.
        signals::send_to_thread(pid, tid, signal)?;
    }
    ptrace::go_on(tid, last)
}
