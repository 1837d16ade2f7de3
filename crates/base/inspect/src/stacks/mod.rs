//! Stacks of the threads of another process.
//!
//! Owns: the files mapped into the process, parsed once and kept. Promises: each thread is stopped
//! by itself, only while its registers and at most [`MAX_STACK`] bytes of its stack are copied
//! (some 30 us), and let go before the next one; the stacks are unwound afterwards, from the
//! copies. How long each was stopped is reported. What the threads did when stopped they continue
//! with: a stop would end some calls early (`epoll_wait`), or after a part (`write` to a pipe,
//! `read` of `/dev/urandom`). So only those are stopped that sleep in a call known to be harmless,
//! or run in their own code ([`place()`]); where one goes to sleep in that very moment the call is
//! made again ([`orbit_linux::ptrace::begin_again`]). Refuses: goroutines that are on no thread.
//! Code generated at run time is passed by frame pointer, and has the names that its maker writes
//! for profilers (`jit`).
//!
//! What happens in [`Unwinder::capture`]: read the map; parse files not yet known; in a thread of
//! its own, for each thread of the process: seize, interrupt, wait at most [`MAX_WAIT_FOR_STOP`],
//! registers, stack, detach; then unwind by `.eh_frame` or `.debug_frame` (else by frame pointer,
//! and say so), and name by Go's table, symbols and DWARF.

pub(crate) mod elf;
pub mod fold;
pub(crate) mod go;
mod jit;
mod lines;
pub(crate) mod module;
mod place;
mod stop;
pub(crate) mod symbols;
mod unwind;

pub use module::of_c_library;
pub use place::{Clock, Place, place};
pub use stop::{MAX_STACK, MAX_WAIT_FOR_STOP};
pub use symbols::MAX_NAME;
pub(crate) use symbols::{object, readable};

use crate::{Error, Mapping, Maps, Memory, Sure, procfs};
use elf::Room;
use module::Module;
use orbit_linux::procfs::ids;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use stop::{Copied, Does};
use unwind::{Regs, Stuck};

/// Frames of one stack at most.
pub const MAX_FRAMES: usize = 512;
/// Files kept parsed at most.
const MAX_MODULES: usize = 4096;
/// Samples of a thread that goes in and out of its calls, at most.
const MAX_SAMPLES: u32 = 20;
/// Threads that got too little CPU for a sample are sampled again for so long, all of a copy
/// together: on a loaded machine a report is better late than without a place.
const MAX_TIME_FOR_CPU: Duration = Duration::from_millis(1500);
/// CPU time inside the kernel after which a thread is in a long call, or in one after the other: it
/// is not stopped.
const LONG_CALL: Duration = Duration::from_millis(2);
/// Bytes of all files of a process kept at most; what is beyond has no names or lines.
pub const MAX_KEPT: usize = 3 << 30;

/// One frame: a function and where in it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Frame {
    /// Address in the process; for all but the innermost frame a return address. 0 where only the
    /// program's own runtime knows the frame.
    pub address: u64,
    /// File it belongs to, by the name the process knows it, or a name such as `[vdso]`; empty for
    /// code in no file.
    pub module: String,
    /// Function, demangled; nothing if no symbol covers the address.
    pub function: Option<String>,
    /// Source file, where there is debug information.
    pub file: Option<String>,
    /// Line in it, from 1.
    pub line: Option<u32>,
    /// Bytes from the start of the function; without a function, from the start of the file as
    /// linked.
    pub offset: u64,
    /// Inlined into the next frame of this list.
    pub inlined: bool,
    /// How sure it is that this frame is on the stack and has this name.
    pub sure: Sure,
    /// The stack pointer behind this frame: the return address lies in the eight bytes before. Only
    /// where the tables say so, for certain.
    #[serde(skip)]
    pub cfa: Option<u64>,
}

/// The function of a frame that the kernel put on the stack for a signal handler, whatever the C
/// library calls it.
const SIGNAL_RETURN: &str = "__restore_rt";

impl Frame {
    /// Whether the kernel put it there for a signal handler: what comes after it was interrupted.
    pub fn is_signal(&self) -> bool {
        self.function.as_deref() == Some(SIGNAL_RETURN)
    }
}

impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_signal() {
            return write!(f, "<signal: what follows was interrupted by the handler above>");
        }
        let module = if self.module.is_empty() { "generated code (JIT)" } else { &self.module };
        match &self.function {
            Some(n) if self.inlined => write!(f, "{n} (inlined)")?,
            Some(n) if self.address == 0 => write!(f, "{n}")?,
            Some(n) => write!(f, "{n}+{:#x}", self.offset)?,
            None if self.module.is_empty() => write!(f, "{module} at {:#x}", self.address)?,
            None => write!(f, "{module}+{:#x}", self.offset)?,
        }
        if let Some(file) = &self.file {
            write!(f, " at {file}:{}", self.line.unwrap_or(0))?;
        } else if self.function.is_some() {
            write!(f, " in {module}")?;
        }
        if self.sure < Sure::Certain { write!(f, " ({})", self.sure) } else { Ok(()) }
    }
}

/// How a stack was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The thread was stopped; all registers are known.
    Stopped,
    /// The thread slept and was left alone; only stack pointer and program counter are known, so
    /// the stack may end early.
    Asleep,
    /// The thread ran inside the kernel and was left alone; all registers are known, as they were
    /// in its own code.
    Inside,
    /// The thread got too little CPU to be met twice; the registers are those of one moment in its
    /// own code, the stack is of a later one: callers are guesses.
    Met,
    /// Not at all.
    Not,
}

/// How a stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At its outermost frame.
    Complete,
    /// Early: the next frame could not be found.
    Lost,
    /// At [`MAX_FRAMES`].
    TooDeep,
}

/// The stack of one thread.
#[derive(Debug)]
pub struct ThreadStack {
    /// Thread id.
    pub tid: i32,
    /// The thread's name.
    pub comm: String,
    /// Frames, innermost first. Empty if there is an error and the thread could not be seen asleep
    /// either.
    pub frames: Vec<Frame>,
    /// How it was come by.
    pub how: How,
    /// Whether it is whole.
    pub end: End,
    /// How long the thread was stopped.
    pub stopped: Duration,
    /// A number for all its registers and its copied stack, if [`Unwinder::states`] asked for it
    /// and it was stopped: where two captures by this process give the same number, nothing the
    /// thread has to itself had changed, but memory elsewhere may have.
    pub state: Option<u64>,
    /// Why the thread could not be stopped, if so.
    pub error: Option<Error>,
}

/// Takes stacks of one process. Use from one thread at a time; may be moved between threads.
pub struct Unwinder {
    pid: i32,
    modules: HashMap<Identity, Option<Module>>,
    /// Names of code that is in no file.
    jit: jit::PerfMap,
    room: Room,
    gentle: bool,
    states: bool,
    stopped: Duration,
}

impl std::fmt::Debug for Unwinder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pid, modules) = (self.pid, self.modules.len());
        f.debug_struct("Unwinder").field("pid", &pid).field("modules", &modules).finish_non_exhaustive()
    }
}

/// Threads' registers and stacks as they were, not unwound yet.
pub struct Copies {
    threads: Vec<(i32, OneCopy)>,
    maps: Maps,
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

/// How one thread was copied, the copy, and why it could not be stopped, if so.
type OneCopy = (How, Result<Copied, Error>, Option<Error>);

/// What distinguishes a mapped file from another: device, inode, name.
type Identity = (u64, u64, String);

fn identity(m: &Mapping) -> Identity {
    (m.dev, m.ino, m.path.clone())
}

impl Unwinder {
    /// For this process. Fails if it is gone or may not be inspected.
    pub fn new(pid: i32) -> Result<Unwinder, Error> {
        Maps::of(pid)?;
        let (modules, room) = (HashMap::new(), Room::of(MAX_KEPT));
        Ok(Unwinder {
            pid,
            modules,
            jit: jit::PerfMap::default(),
            room,
            gentle: false,
            states: false,
            stopped: Duration::ZERO,
        })
    }

    /// The process' id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Stop no thread that can be seen asleep without it. Its stack may then end early where code
    /// keeps frame pointers.
    pub fn gentle(&mut self, on: bool) {
        self.gentle = on;
    }

    /// Take down the [`ThreadStack::state`] of threads too; lengthens a stop by some microseconds.
    pub fn states(&mut self, on: bool) {
        self.states = on;
    }

    /// Time for which threads were stopped in the last capture, all added up. They are never
    /// stopped together.
    pub fn stopped(&self) -> Duration {
        self.stopped
    }

    /// Parses the files mapped now, so that a later capture need not. Takes some milliseconds the
    /// first time.
    pub fn prepare(&mut self) -> Result<(), Error> {
        let maps = Maps::of(self.pid)?;
        self.follow(&maps);
        Ok(())
    }

    /// Stacks of these threads (all, if none are named), in their order. A thread that cannot be
    /// inspected has an error and no frames. Blocks for some 50 us a thread, at most ten times
    /// [`MAX_WAIT_FOR_STOP`], and for the time to parse new files.
    pub fn capture(&mut self, tids: &[i32]) -> Vec<ThreadStack> {
        let copies = self.copy(tids);
        self.name(copies)
    }

    /// The first half of [`Unwinder::capture`]: copies the threads' registers and stacks, and names
    /// nothing yet.
    pub fn copy(&mut self, tids: &[i32]) -> Copies {
        let pid = self.pid;
        let maps = Maps::of(pid).unwrap_or_default();
        self.follow(&maps);
        let tids = match tids {
            [] => ids(format!("/proc/{pid}/task")),
            some => some.to_vec(),
        };
        let (gentle, states) = (self.gentle, self.states);
        let begun = Instant::now();
        let one = |tid: i32| -> OneCopy {
            let since = Instant::now();
            let mut met = None;
            // One that wakes up during the sample may fall asleep again.
            for last in (0..MAX_SAMPLES).map(|i| i + 1 == MAX_SAMPLES) {
                let does = stop::does(pid, tid);
                let _clock;
                if does == Does::Runs {
                    let (place, inside, clock) = place::with_stack(pid, tid, LONG_CALL, &maps);
                    _clock = clock;
                    match (place, inside) {
                        (Place::Asleep, _) => continue,
                        (Place::Kernel, Some(c)) => return (How::Inside, Ok(c), None),
                        (Place::Kernel, None) => return (How::Not, Err(Error::InKernel { tid }), None),
                        (Place::Unknown, of_tick) => {
                            met = of_tick.or(met);
                            if !last && begun.elapsed() < MAX_TIME_FOR_CPU {
                                continue;
                            }
                            let waited_ms = since.elapsed().as_millis() as u64;
                            let why = Error::NotStopped { tid, waited_ms };
                            return match met {
                                Some(c) => (How::Met, Ok(c), Some(why)),
                                None => (How::Not, Err(why), None),
                            };
                        }
                        (Place::Own, _) => {}
                    }
                } else if does == Does::Waits || gentle && !last {
                    match stop::asleep(pid, tid, &maps) {
                        Ok(Some(c)) => return (How::Asleep, Ok(c), None),
                        _ => continue,
                    }
                }
                return match stop::stopped(pid, tid, &maps, states) {
                    Ok(c) => (How::Stopped, Ok(c), None),
                    Err(e) => match stop::asleep(pid, tid, &maps) {
                        Ok(Some(c)) => (How::Asleep, Ok(c), Some(e)),
                        _ => (How::Not, Err(e), None),
                    },
                };
            }
            (How::Not, Err(Error::Restless { tid }), None)
        };
        // A thread of its own: when it ends, the kernel lets go of whatever it still traces.
        let threads: Vec<_> = std::thread::scope(|s| {
            s.spawn(|| {
                stop::hurry();
                tids.iter().map(|&t| (t, one(t))).collect()
            })
            .join()
            .unwrap_or_default()
        });
        // A library may have come while the threads were copied.
        let maps = Maps::of(pid).unwrap_or(maps);
        Copies { threads, maps }
    }

    /// As [`Unwinder::copy`] for one thread that stands still by itself, with these registers, as a
    /// signal's handler has them: in DWARF's order (rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to
    /// r15, rip). It is not stopped.
    pub fn copy_from(&mut self, tid: i32, registers: [u64; 17]) -> Copies {
        let maps = Maps::of(self.pid).unwrap_or_default();
        let (base, stack) = stop::copy(self.pid, registers[7], &maps);
        let copied = Copied { regs: Regs(registers.map(Some)), base, stack, stopped: Duration::ZERO, vectors: None };
        Copies { threads: vec![(tid, (How::Stopped, Ok(copied), None))], maps }
    }

    /// The second half: unwinds and names what was copied, without the threads. The first time that
    /// a file's lines are asked for takes a tenth of a second for one of some megabytes, and longer
    /// for larger ones.
    pub fn name(&mut self, copies: Copies) -> Vec<ThreadStack> {
        self.stopped = Duration::ZERO;
        let Copies { threads, maps } = copies;
        self.follow(&maps);
        threads.into_iter().map(|(tid, (how, copied, error))| self.stack(tid, how, copied, error, &maps)).collect()
    }

    /// Names return addresses of the process, as it has its files mapped now: of each the function
    /// it is in, after those inlined there. Takes as long as [`Unwinder::name`].
    ///
    /// # Errors
    /// As [`Unwinder::new`].
    pub fn returns(&mut self, addresses: &[u64]) -> Result<Vec<Vec<Frame>>, Error> {
        let maps = Maps::of(self.pid)?;
        self.follow(&maps);
        let named = addresses.iter().map(|&address| {
            let lookup = address.wrapping_sub(1);
            let mut frames = Vec::new();
            self.frame(address, lookup, maps.at(lookup).filter(|m| m.exec), Sure::Certain, &mut frames);
            frames
        });
        Ok(named.collect())
    }

    /// Parses what is new in the map and forgets what is gone.
    fn follow(&mut self, maps: &Maps) {
        let code = |m: &&Mapping| m.exec && (m.ino != 0 || m.path == "[vdso]");
        let now: std::collections::HashSet<Identity> = maps.iter().filter(code).map(identity).collect();
        self.modules.retain(|k, _| now.contains(k));
        for m in maps.iter().filter(code) {
            if self.modules.len() < MAX_MODULES && !self.modules.contains_key(&identity(m)) {
                self.modules.insert(identity(m), Module::load(self.pid, m, &self.room));
            }
        }
        // Code that is in no program: generated, in memory of its maker's own or in a file without
        // a name.
        let generated = |m: &&Mapping| m.exec && m.path != "[vdso]" && m.path != "[vsyscall]";
        if maps.iter().filter(generated).any(|m| !matches!(self.modules.get(&identity(m)), Some(Some(_)))) {
            self.jit.follow(self.pid);
        }
    }

    fn stack(
        &mut self,
        tid: i32,
        how: How,
        copied: Result<Copied, Error>,
        error: Option<Error>,
        maps: &Maps,
    ) -> ThreadStack {
        let comm = procfs::text(&format!("/proc/{}/task/{tid}/comm", self.pid), 64).unwrap_or_default();
        let comm = comm.trim_end().to_owned();
        match copied {
            Ok(c) => {
                self.stopped += c.stopped;
                let (mut frames, end) = self.unwind(&c, maps);
                if how == How::Met {
                    frames.iter_mut().skip(1).for_each(|frame| frame.sure = Sure::Guess);
                }
                ThreadStack { tid, comm, frames, how, end, stopped: c.stopped, state: c.state(), error }
            }
            Err(e) => ThreadStack {
                tid,
                comm,
                frames: Vec::new(),
                how,
                end: End::Lost,
                stopped: Duration::ZERO,
                state: None,
                error: Some(e),
            },
        }
    }

    fn unwind(&mut self, c: &Copied, maps: &Maps) -> (Vec<Frame>, End) {
        let memory = Memory::of(self.pid);
        // Words outside the copy are read from the living process: then no frame from there on is
        // certain.
        let outside = std::cell::Cell::new(false);
        let mut read = |addr: u64| {
            let at = addr.checked_sub(c.base).and_then(|o| usize::try_from(o).ok());
            if let Some(w) = at.and_then(|o| elf::u64_at(&c.stack, o)) {
                return Some(w);
            }
            outside.set(true);
            memory.u64(addr)
        };
        let mut frames = Vec::new();
        let mut regs = c.regs;
        let mut sure = Sure::Certain;
        let mut exact = true; // the pc is where the thread was, not where it will return to
        for depth in 0..MAX_FRAMES {
            let pc = regs.pc();
            let lookup = if exact { pc } else { pc.wrapping_sub(1) };
            let mapping = maps.at(lookup).filter(|m| m.exec);
            let first = frames.len();
            // What is behind the innermost frame has called it, so it is code.
            if mapping.is_some() || depth == 0 {
                self.frame(pc, lookup, mapping, sure, &mut frames);
            }
            let Some(mapping) = mapping else {
                if depth > 0 {
                    return (frames, End::Lost);
                }
                // A call through a wild pointer: its caller is on top of the stack.
                match unwind::by_top_word(&regs, &mut read) {
                    Some(next) => {
                        (regs, sure, exact) = (next, Sure::Guess, false);
                        continue;
                    }
                    None => return (frames, End::Lost),
                }
            };
            let module = self.modules.get(&identity(mapping)).and_then(Option::as_ref);
            let linked = module.and_then(|m| m.linked(mapping, lookup));
            let by_table = match (module, linked) {
                (Some(m), Some(at)) => m.tables.step(at, &regs, &mut read),
                _ => Err(Stuck::NoEntry),
            };
            let tables = by_table.is_ok();
            let (next, signal) = match by_table {
                Ok(step) => (step.regs, step.signal),
                Err(Stuck::Outermost) => return (frames, End::Complete),
                Err(_) => match unwind::by_frame_pointer(&regs, &mut read) {
                    Ok(r) => {
                        // Go keeps frame pointers everywhere; other code perhaps not.
                        if module.is_none_or(|m| m.go.is_none()) {
                            sure = Sure::Guess;
                        }
                        (r, false)
                    }
                    Err(Stuck::Outermost) => return (frames, End::Complete),
                    Err(_) => return (frames, End::Lost),
                },
            };
            if !moved(&regs, &next, signal) {
                return (frames, End::Lost);
            }
            if outside.get() {
                sure = sure.min(Sure::Likely);
            }
            if signal {
                frames[first..].iter_mut().for_each(|f| f.function = Some(SIGNAL_RETURN.to_owned()));
            }
            if tables && !signal && sure == Sure::Certain {
                frames[first..].iter_mut().for_each(|f| f.cfa = Some(next.sp()));
            }
            (regs, exact) = (next, signal);
        }
        (frames, End::TooDeep)
    }

    /// Adds the frame of an address, and those inlined into it.
    fn frame(&mut self, pc: u64, lookup: u64, mapping: Option<&Mapping>, sure: Sure, out: &mut Vec<Frame>) {
        let mut frame = Frame {
            address: pc,
            module: mapping.map_or_else(String::new, |m| m.path.clone()),
            function: None,
            file: None,
            line: None,
            offset: mapping.map_or(pc, |m| pc.wrapping_sub(m.start).wrapping_add(m.offset)),
            inlined: false,
            sure: if mapping.is_some() { sure } else { sure.min(Sure::Likely) },
            cfa: None,
        };
        let module = mapping.and_then(|m| self.modules.get_mut(&identity(m))?.as_mut());
        let (Some(module), Some(mapping)) = (module, mapping) else {
            if mapping.is_some()
                && let Some((name, distance)) = self.jit.at(lookup)
            {
                frame.function = Some(name.to_owned());
                frame.offset = distance.wrapping_add(pc.wrapping_sub(lookup));
                frame.sure = frame.sure.min(Sure::Likely);
            }
            out.push(frame);
            return;
        };
        let Some(at) = module.linked(mapping, lookup) else {
            out.push(frame);
            return;
        };
        let back = pc.wrapping_sub(lookup);
        frame.offset = at.wrapping_add(back);
        if let Some(f) = module.go.as_ref().and_then(|g| g.at(at)) {
            frame.function = Some(f.name);
            frame.offset = f.offset.wrapping_add(back);
            (frame.file, frame.line) = f.line.unzip();
            out.push(frame);
            return;
        }
        if let Some((name, distance, named)) = module.symbols.at(at) {
            frame.function = Some(symbols::readable(name));
            frame.offset = distance.wrapping_add(back);
            frame.sure = frame.sure.min(named);
        }
        let mut places = module.lines().map_or_else(Vec::new, |l| l.at(at));
        if let Some(own) = places.pop() {
            for p in places {
                out.push(Frame { function: p.function, file: p.file, line: p.line, inlined: true, ..frame.clone() });
            }
            (frame.file, frame.line) = (own.file, own.line);
            if frame.function.is_none() {
                frame.function = own.function;
            }
        }
        out.push(frame);
    }
}

/// Whether a step went anywhere: up the stack, or, out of a signal handler, to another one.
fn moved(from: &Regs, to: &Regs, signal: bool) -> bool {
    if signal {
        return (from.pc(), from.sp()) != (to.pc(), to.sp());
    }
    to.sp() > from.sp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use elf::{Elf, Source};
    use gimli::BaseAddresses;

    /// All that is read of a file, on one that has been damaged.
    fn read_all(bytes: Vec<u8>, places: &[u64]) {
        let Some(elf) = Elf::open(Source::Bytes(bytes), &Room::of(1 << 28)) else {
            return;
        };
        let mut tables = unwind::Tables {
            eh_frame: elf.named(".eh_frame", 1 << 24).unwrap_or_default(),
            eh_frame_hdr: elf.named(".eh_frame_hdr", 1 << 24).unwrap_or_default(),
            debug_frame: elf.named(".debug_frame", 1 << 24).unwrap_or_default(),
            bases: BaseAddresses::default()
                .set_eh_frame(elf.section(".eh_frame").map_or(0, |s| s.addr))
                .set_eh_frame_hdr(elf.section(".eh_frame_hdr").map_or(0, |s| s.addr)),
            ..Default::default()
        };
        tables.index();
        let symbols = symbols::Symbols::of(&elf);
        let go = go::GoTable::of(&elf);
        let mut lines = lines::Lines::of(&elf);
        let _ = (elf.build_id(), symbols::object(&elf, b"nothing"));
        for &at in places {
            let regs = Regs([Some(at); 17]);
            let _ = tables.step(at, &regs, &mut |a| Some(a ^ 0x5555));
            let _ = symbols.at(at).map(|(n, ..)| symbols::readable(n));
            let _ = go.as_ref().and_then(|g| g.at(at));
            let _ = lines.as_mut().map(|l| l.at(at));
        }
    }

    #[test]
    fn damaged_files_do_no_harm() {
        let folder = orbit_testing::Folder::new("damaged");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/deep.c");
        orbit_testing::compile("cc", source.as_ref(), &folder.join("deep"), &["-g", "-O2", "-pthread"]);
        let whole = std::fs::read(folder.join("deep")).unwrap();
        let elf = Elf::open(Source::Bytes(whole.clone()), &Room::of(1 << 28)).unwrap();
        let text = elf.section(".text").unwrap();
        let places: Vec<u64> = (text.addr..text.addr + text.size).step_by(97).collect();
        let mut random = orbit_testing::Random::from_environment_or(7);
        let mut next = move || random.draw();
        for round in 0..400 {
            let mut b = whole.clone();
            for _ in 0..1 + next() % 60 {
                // A third of the damage in the headers, at the start and the end of the file.
                let len = b.len();
                let at = match next() % 6 {
                    0 => next() as usize % 1024,
                    1 => len - 1 - next() as usize % 2600,
                    _ => next() as usize % len,
                };
                b[at] = if next() % 3 == 0 { 0xff } else { next() as u8 };
            }
            if round % 10 == 0 {
                b.truncate(next() as usize % whole.len());
            }
            read_all(b, &places);
        }
    }

    #[test]
    fn room_is_given_back() {
        let mut file = vec![0u8; 64 + 3 * 64 + 5000];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[40] = 64; // section headers
        (file[58], file[60], file[62]) = (64, 3, 9);
        for s in [1usize, 2] {
            let at = 64 + 64 * s;
            file[at + 4] = 1;
            file[at + 24] = 255; // offset
            file[at + 32..at + 34].copy_from_slice(&2000u16.to_le_bytes());
        }
        let room = Room::of(3000);
        for _ in 0..3 {
            let elf = Elf::open(Source::Bytes(file.clone()), &room).unwrap();
            assert_eq!(elf.content(&elf.sections[1], 5000).map(|c| c.len()), Some(2000));
            assert_eq!(elf.content(&elf.sections[2], 5000), None, "no room left");
            assert_eq!(elf.content(&elf.sections[2], 1999), None, "over the limit");
        }
    }
}
