//! One call of the task, in a copy of the process, by single steps.

use crate::access::{self, Access, Decoded, LONGEST};
use crate::objects::{Object, Objects};
use crate::table::{Event, Table, Word};
use crate::tally::Tally;
use crate::wait::{self, Status};
use libc::user_regs_struct as Registers;
use orbit_inspect::globals::Global;
use orbit_linux::{ptrace, remote};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::Instant;

/// How far behind an object's end the C library's vector loads may go, bytes.
const BEYOND: u64 = 4096;

/// How the call in the copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Returned,
    /// The process ended in it, with this status.
    Exited(i32),
    /// By this signal.
    Signal(i32),
    /// It took longer than the limit.
    TooLong,
    /// It was about to run another program.
    Replaced,
}

/// The part of the calling thread's stack that a function outside of the task has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) start: u64,
    /// Behind its last byte.
    pub(crate) end: u64,
    /// The return address of its call.
    pub(crate) back: u64,
}

/// What is known of the process.
pub(crate) struct Ground<'a> {
    pub(crate) table: &'a Table,
    pub(crate) globals: &'a BTreeMap<u64, Global>,
    /// Code of the C library: first address, first behind.
    pub(crate) c_library: &'a [(u64, u64)],
    /// In the order of their addresses.
    pub(crate) callers: &'a [Caller],
}

/// The stopped copy, at the first instruction of the task.
pub(crate) struct Copy<'a> {
    pub(crate) pid: i32,
    pub(crate) ground: &'a Ground<'a>,
    pub(crate) objects: Objects,
    pub(crate) tally: &'a mut Tally,
    /// Pointers passed with the last call instruction.
    passed: [u64; 3],
    code: HashMap<u64, Option<Decoded>>,
}

impl<'a> Copy<'a> {
    pub(crate) fn new(pid: i32, ground: &'a Ground<'a>, tally: &'a mut Tally) -> Copy<'a> {
        let mut records = ground.table.records();
        // What is freed first, each in order: memory that is in use is not taken for what it was
        // before.
        records.sort_by_key(|r| (r.live, r.sequence));
        let mut objects = Objects::default();
        for r in records {
            let (start, end) = (r.address, r.address.saturating_add(r.size));
            objects.insert(Object { start, end, site: Some(tally.number(r.stack)), live: r.live, stale: !r.live });
        }
        Copy { pid, ground, objects, tally, passed: [0; 3], code: HashMap::new() }
    }

    /// Runs it until the function returns.
    pub(crate) fn run(&mut self, deadline: Instant) -> io::Result<End> {
        let mut seen = self.ground.table.get(Word::Events);
        let mut registers = ptrace::registers(self.pid)?;
        let top = registers.rsp;
        let mut back = [0u8; 8];
        remote::read(self.pid, top, &mut back)?;
        let back = u64::from_ne_bytes(back);
        self.passed = [registers.rdi, registers.rsi, registers.rdx];
        // A stack that the program allocated itself is no object.
        if let Some(stack) = self.objects.at(top) {
            self.objects.forget(stack.start);
        }
        while registers.rip != back || registers.rsp <= top {
            self.follow_heap(&mut seen);
            let call = self.note_accesses(&registers);
            if call && matches!(registers.rax as i64, libc::SYS_execve | libc::SYS_execveat) {
                return Ok(End::Replaced);
            }
            if Instant::now() >= deadline {
                return Ok(End::TooLong);
            }
            ptrace::step(self.pid)?;
            self.tally.steps += 1;
            // Only a system call can sleep.
            match wait::next(self.pid, call.then_some(deadline))? {
                None => return Ok(End::TooLong),
                Some((_, Status::Exited(status))) => return Ok(End::Exited(status)),
                Some((_, Status::Killed(signal))) => return Ok(End::Signal(signal)),
                Some((_, Status::Stopped(libc::SIGTRAP, _))) => {}
                Some((_, Status::Stopped(signal, _))) => return Ok(End::Signal(signal)),
            }
            let after = ptrace::registers(self.pid)?;
            if call && let Some(access) = access::of_call(&registers, after.rax as i64) {
                self.note(access, registers.rip, false);
            }
            registers = after;
        }
        Ok(End::Returned)
    }

    /// Takes over what the task allocated and freed itself.
    fn follow_heap(&mut self, seen: &mut u64) {
        if self.ground.table.get(Word::Events) == *seen {
            return;
        }
        for event in self.ground.table.events(seen) {
            match event {
                Event::Made { address, size } => {
                    let end = address.saturating_add(size);
                    self.objects.insert(Object { start: address, end, site: None, live: true, stale: false });
                }
                Event::Freed { address } => self.objects.free(address),
            }
        }
    }

    /// Notes what the next instruction accesses; whether it is a system call.
    fn note_accesses(&mut self, registers: &Registers) -> bool {
        let (pid, at) = (self.pid, registers.rip);
        let decoded = self.code.entry(at).or_insert_with(|| {
            let mut code = [0u8; LONGEST];
            let n = remote::read(pid, at, &mut code).unwrap_or(0);
            Decoded::of(&code[..n], at)
        });
        let Some(decoded) = decoded else { return false };
        if decoded.is_call() {
            self.passed = [registers.rdi, registers.rsi, registers.rdx];
        }
        let call = decoded.is_system_call();
        if self.ground.table.get(Word::Inside) == 0 {
            let (accesses, unknown) = decoded.accesses(registers);
            self.tally.unknown += unknown as u64;
            let in_library = self.ground.c_library.iter().any(|&(from, until)| (from..until).contains(&at));
            for access in accesses {
                self.note(access, at, in_library && access.is_wide());
            }
        }
        call
    }

    /// Adds an access to what it touches. A loose one, by a vector load of the C library, may go
    /// beyond what was asked for: it counts for what a pointer that was passed is in, from there
    /// on.
    fn note(&mut self, access: Access, instruction: u64, loose: bool) {
        let until = access.address.saturating_add(access.size);
        if loose {
            for pointer in self.passed {
                let Some((start, end)) = self.extent(pointer) else { continue };
                if access.address < end && until > pointer.max(start) {
                    let address = access.address.max(pointer);
                    return self.add(
                        Access { address, size: until - address, ..access },
                        instruction,
                        Some((start, end)),
                    );
                }
                if until > start && access.address < end.saturating_add(BEYOND) {
                    return;
                }
            }
        }
        self.add(access, instruction, None);
    }

    /// The object or variable that holds an address.
    fn extent(&self, address: u64) -> Option<(u64, u64)> {
        let object = self.objects.at(address).map(|o| (o.start, o.end));
        object.or_else(|| {
            let (_, g) = self.ground.globals.range(..=address).next_back()?;
            let end = g.address.saturating_add(g.size);
            (address < end).then_some((g.address, end))
        })
    }

    /// Adds an access to all that it touches, or to this one only.
    fn add(&mut self, access: Access, instruction: u64, only: Option<(u64, u64)>) {
        let until = access.address.saturating_add(access.size);
        let mut heap = false;
        let mut reused = Vec::new();
        for object in self.objects.overlapping(access.address, until) {
            heap = true;
            // Libraries allocate unseen: memory that was free before the call and that is written
            // first is in use again.
            if object.stale && access.write && !access.read {
                reused.push(object.start);
                continue;
            }
            if only.is_none_or(|(start, _)| start == object.start) {
                self.tally.note(object, access, instruction);
            }
        }
        for start in reused {
            self.objects.forget(start);
        }
        if heap {
            return;
        }
        for (&at, g) in self.ground.globals.range(..until).rev().take(4) {
            let end = at.saturating_add(g.size);
            if end > access.address && only.is_none_or(|(start, _)| start == at) {
                self.tally.globals.entry(at).or_default().note(at, end, access);
            }
        }
        for caller in self.ground.callers.iter().filter(|c| c.start < until && c.end > access.address) {
            self.tally.callers.entry(caller.back).or_default().note(caller.start, caller.end, access);
        }
    }
}
