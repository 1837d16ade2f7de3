//! Many system calls of a stopped program in one go: a leaf of machine code makes them one after
//! the other, without a stop in between.
//!
//! An injected call costs two stops of its thread, 20 to 40 us; a call of a batch costs what the
//! call itself does. The calls lie in memory that the program shares with this process, and so do
//! their results: the program can write there as soon as it runs again, but not before.
//!
//! The leaf keeps the rule of [`crate::call`]: wherever it stands, the thread could finish the
//! calls and go home alone. Its last call sends the thread `SIGURG`, where the tracer stops it;
//! without a tracer that signal is one that programs ignore unless they ask for it.

use crate::leaf::{Patience, ran_into_a_fault};
use crate::thread::CODE_64;
use crate::{Error, Protection, Source, Stopped};
use orbit_linux::map::Mapping;
use orbit_linux::memfd;
use orbit_linux::ptrace::{self, state::Stop};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// One call: its number, which is not 0 (`read`), and its arguments.
pub type Call = (i64, [u64; 6]);

const PAGE: usize = 4096;
/// Calls that fit, the one that ends the batch not counted.
pub const MOST_CALLS: usize = 1000;
/// Bytes for arguments: see [`Batch::room`].
pub const ROOM: usize = 64 << 10;
/// In the data: where the next call is, where the thread goes in the end, the calls, the room.
const CURSOR: usize = 0;
const HOME: usize = 8;
const CALLS: usize = 64;
const CALL_BYTES: usize = 64;
const RESULT: usize = 56;
const ROOM_AT: usize = (CALLS + (MOST_CALLS + 2) * CALL_BYTES).next_multiple_of(PAGE);
const LEN: usize = PAGE + ROOM_AT + ROOM;

/// As the mappings name it.
const NAME: &str = "/memfd:orbit-keep-calls";

/// How long a batch may take before it is given up.
const BATCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The direction flag has no meaning here; the signal that ends a batch.
const END: i32 = libc::SIGURG;

/// Memory for batches, mapped into one program. It stays mapped until the program's end.
#[derive(Debug)]
pub struct Batch {
    map: Mapping,
    code: u64,
    data: u64,
    /// A thread, and the numbers of its process and itself as the program sees them.
    known: Option<(i32, [u64; 2])>,
}

/// The machine code, for data at address `data`. Registers: see [`crate::Leaf`]; flags stay.
fn code(data: u64) -> Vec<u8> {
    let cursor = (data + CURSOR as u64).to_le_bytes();
    let mut code = Vec::with_capacity(PAGE);
    // mov $cursor,%rdx; mov (%rdx),%rcx; then the registers of the call from there.
    code.extend([0x48, 0xba]);
    code.extend(cursor);
    code.extend([0x48, 0x8b, 0x0a, 0x48, 0x8b, 0x01, 0x48, 0x8b, 0x79, 0x08, 0x48, 0x8b, 0x71, 0x10]);
    code.extend([0x48, 0x8b, 0x51, 0x18, 0x4c, 0x8b, 0x51, 0x20, 0x4c, 0x8b, 0x41, 0x28, 0x4c, 0x8b, 0x49, 0x30]);
    code.extend([0x0f, 0x05]);
    // mov $cursor,%rdx; mov (%rdx),%rcx; mov %rax,56(%rcx); lea 64(%rcx),%rcx; mov %rcx,(%rdx); mov
    // (%rcx),%rcx
    code.extend([0x48, 0xba]);
    code.extend(cursor);
    code.extend([0x48, 0x8b, 0x0a, 0x48, 0x89, 0x41, RESULT as u8, 0x48, 0x8d, 0x49, CALL_BYTES as u8]);
    code.extend([0x48, 0x89, 0x0a, 0x48, 0x8b, 0x09]);
    // jrcxz over the jump to the start
    let back = -(code.len() as i8 + 4);
    code.extend([0xe3, 0x02, 0xeb, back as u8]);
    // mov $home,%r8; mov (%r8),%r8; mov $SYS_close,%eax; mov $-1,%rdi; jmp *%r8
    code.extend([0x49, 0xb8]);
    code.extend((data + HOME as u64).to_le_bytes());
    code.extend([0x4d, 0x8b, 0x00, 0xb8, 0x03, 0, 0, 0, 0x48, 0xc7, 0xc7, 0xff, 0xff, 0xff, 0xff, 0x41, 0xff, 0xe0]);
    code
}

impl Batch {
    /// Maps the memory into the program. Children that it forks do not get it.
    ///
    /// # Errors
    /// Those of [`Stopped::map`]; [`Error::Io`] if there is no memory for it.
    pub fn new(stopped: &mut Stopped<'_>) -> Result<Batch, Error> {
        let failed = |e| Error::Io { id: stopped.pid(), what: "making memory for calls of", source: e };
        let file = memfd::create("orbit-keep-calls", LEN, true).map_err(failed)?;
        memfd::seal_size(file.as_fd()).map_err(failed)?;
        let map = Mapping::shared(file.as_fd(), LEN, true, false).map_err(failed)?;
        let part = |offset: usize| Source::File { file: file.as_fd(), offset: offset as u64, shared: true };
        let data = stopped.map(None, (LEN - PAGE) as u64, Protection::READ_WRITE, part(PAGE))?;
        let bytes = code(data.start);
        // SAFETY: the first page of a live mapping that nothing else refers to yet; the code is
        // shorter.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_ptr(), bytes.len()) };
        let code = stopped.map(None, PAGE as u64, Protection::READ_EXECUTE, part(0))?;
        for region in [code, data] {
            stopped.call(libc::SYS_madvise, [region.start, region.len, libc::MADV_DONTFORK as u64, 0, 0, 0])?;
            stopped.leave(region)?;
        }
        Ok(Batch { map, code: code.start, data: data.start, known: None })
    }

    /// Whether it is still among the program's mappings, which the program can change.
    pub fn is_mapped(&self, mappings: &[crate::Entry]) -> bool {
        let is_at = |start: u64| mappings.iter().any(|entry| entry.start == start && entry.name.starts_with(NAME));
        is_at(self.code) && is_at(self.data)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= LEN - PAGE, "within the data");
        // SAFETY: aligned and within the live mapping; the program may write it at any time, so it
        // is an atomic.
        unsafe { &*self.map.as_ptr().add(PAGE + at).cast() }
    }

    /// The address, in the program, of byte `offset` of the 64 KiB for arguments.
    pub fn room(&self, offset: usize) -> u64 {
        self.data + (ROOM_AT + offset) as u64
    }

    /// Writes words of the room, from byte `offset` (a multiple of 8) on.
    ///
    /// # Panics
    /// If they do not lie within the 64 KiB for arguments.
    pub fn put(&self, offset: usize, words: &[u64]) {
        assert!(offset + words.len() * 8 <= ROOM, "within the room");
        for (nth, word) in words.iter().enumerate() {
            self.word(ROOM_AT + offset + nth * 8).store(*word, SeqCst);
        }
    }

    /// Reads a word of the room, at byte `offset` (a multiple of 8).
    ///
    /// # Panics
    /// If it does not lie within the 64 KiB for arguments.
    pub fn get(&self, offset: usize) -> u64 {
        assert!(offset + 8 <= ROOM, "within the room");
        self.word(ROOM_AT + offset).load(SeqCst)
    }

    /// Makes the calls, in order, in one thread of the program; returns what each has returned,
    /// errors as negative numbers. Calls that fail do not end the batch. Meant for calls that
    /// return at once.
    ///
    /// # Errors
    /// Those of [`Stopped::call`]; [`Error::Unsuitable`] for more than 1,000 calls, or if the batch
    /// came to no end: then it is not known how many calls were made.
    pub fn run(&mut self, stopped: &mut Stopped<'_>, calls: &[Call]) -> Result<Vec<i64>, Error> {
        let id = stopped.pid();
        if calls.len() > MOST_CALLS || calls.iter().any(|(number, _)| *number == 0) {
            return Err(Error::Unsuitable { id, why: format!("{} calls of at most {MOST_CALLS}", calls.len()) });
        }
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let tid = stopped.caller()?;
        stopped.go_away(tid)?;
        calls.iter().try_for_each(|(number, arguments)| stopped.passes(tid, *number, *arguments))?;
        let [process, thread] = match self.known {
            Some((known, ids)) if known == tid => ids,
            _ => {
                let ids = [stopped.call(libc::SYS_getpid, [0; 6])?, stopped.call(libc::SYS_gettid, [0; 6])?];
                self.known = Some((tid, ids));
                ids
            }
        };
        let end = (libc::SYS_tgkill, [process, thread, END as u64, 0, 0, 0]);
        for (nth, (number, arguments)) in calls.iter().chain([&end]).enumerate() {
            let at = CALLS + nth * CALL_BYTES;
            self.word(at).store(*number as u64, SeqCst);
            for (word, argument) in arguments.iter().enumerate() {
                self.word(at + 8 + word * 8).store(*argument, SeqCst);
            }
        }
        self.word(CALLS + (calls.len() + 1) * CALL_BYTES).store(0, SeqCst);
        self.word(CURSOR).store(self.data + CALLS as u64, SeqCst);
        let last = self.data + (CALLS + (calls.len()) * CALL_BYTES) as u64;
        let is_done = || self.word(CURSOR).load(SeqCst) >= last;
        if !stopped.run_batch(tid, self.code, |home| self.word(HOME).store(home, SeqCst), is_done)? {
            return Err(Error::Unsuitable { id, why: "calls that were put into it came to no end".into() });
        }
        Ok((0..calls.len()).map(|nth| self.word(CALLS + nth * CALL_BYTES + RESULT).load(SeqCst) as i64).collect())
    }
}

impl Stopped<'_> {
    /// Runs the batch's code in a thread until its last call.
    fn run_batch(
        &mut self,
        tid: i32,
        code: u64,
        set_home: impl FnOnce(u64),
        is_done: impl Fn() -> bool,
    ) -> Result<bool, Error> {
        self.go_away(tid)?;
        let held = self.threads.get(&tid).ok_or(Error::Gone { id: tid })?;
        let stub = self.away.iter().find(|away| away.tid == tid).ok_or(Error::Gone { id: tid })?;
        let (mut registers, mask, home) = (held.registers, stub.mask, stub.stub);
        if registers.cs != CODE_64 {
            return Ok(false);
        }
        *self.seen.borrow_mut() = None;
        set_home(home);
        (registers.rip, registers.rax, registers.orig_rax) = (code, 0, u64::MAX);
        self.open_while_away(tid, mask, &[END, libc::SIGSEGV, libc::SIGBUS])?;
        ptrace::set_registers(tid, &registers).map_err(|e| self.lost(tid, "setting registers of", e))?;
        ptrace::go_on(tid, 0).map_err(|e| self.lost(tid, "running calls in", e))?;
        let ended = self.end_of_batch(tid, is_done);
        self.stand_before(tid, libc::SYS_close, [u64::MAX, 0, 0, 0, 0, 0])?;
        self.open_while_away(tid, mask, &[])?;
        ended
    }

    /// Waits until the thread gets the signal of its last call.
    fn end_of_batch(&mut self, tid: i32, is_done: impl Fn() -> bool) -> Result<bool, Error> {
        let mut patience = Patience::of(BATCH_TIMEOUT);
        loop {
            let mut pass_on = 0;
            match self.next_stop(tid, &mut patience)? {
                Stop::Signal(END)
                    if is_done() && ptrace::signal(tid).is_ok_and(|info| info.si_code == libc::SI_TKILL) =>
                {
                    return Ok(true);
                }
                Stop::Signal(signal @ (libc::SIGSEGV | libc::SIGBUS)) => {
                    if ran_into_a_fault(tid) {
                        return Ok(false);
                    }
                    pass_on = self.signal_while_away(tid, signal);
                }
                Stop::Signal(signal) => pass_on = self.signal_while_away(tid, signal),
                Stop::Trap(_) if patience.is_over => return Ok(false),
                Stop::Trap(_) | Stop::Event(_) | Stop::Call | Stop::None | Stop::Ended => {}
            }
            ptrace::go_on(tid, pass_on).map_err(|e| self.lost(tid, "running calls in", e))?;
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_loop_leads_to_its_start() {
        let code = super::code(0x7000_0000_0000);
        let jump =
            code.windows(3).position(|bytes| bytes[..2] == [0xe3, 0x02] && bytes[2] == 0xeb).expect("the jump") + 2;
        assert_eq!(jump as i64 + 2 + i64::from(code[jump + 1] as i8), 0);
    }
}
