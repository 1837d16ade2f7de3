//! The Python stacks of another process' threads.
//!
//! Owns: reading CPython's own structures, versions 3.9 to 3.13. Promises: the process is not
//! stopped; a thread that ran meanwhile may be read torn, so only threads that stood still are
//! [`Sure::Certain`]. However damaged the structures are, one call follows at most [`MAX_THREADS`]
//! threads and [`MAX_FRAMES`] frames of each, makes at most [`MAX_READS`] reads, and handles at
//! most [`MAX_BYTES`] of names and line tables. Refuses: other Python implementations and builds
//! without the global lock; says which version it met.

mod held;
mod layout;
mod lines;
mod objects;
mod tasks;

pub use held::HeldLock;
pub use tasks::{Awaits, MAX_TASKS, Task};

use crate::stacks::MAX_KEPT;
use crate::stacks::elf::{Elf, Room};
use crate::stacks::module;
use crate::waits::Watched;
use crate::{Error, Mapping, Maps, Memory, Sure, procfs};
use layout::{Gil, Layout, OWNED_BY_C, Top};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Threads followed at most.
pub const MAX_THREADS: usize = 4096;
/// Frames of one thread at most.
pub const MAX_FRAMES: usize = 512;
/// Reads of the process' memory in one call at most.
pub const MAX_READS: usize = 400_000;
/// Bytes of names and line tables in one call at most: of those read, and of those that frames are
/// made of.
pub const MAX_BYTES: usize = 64 << 20;
/// Characters of a name at most.
const MAX_TEXT: u64 = 1024;
/// Bytes of a line table at most.
const MAX_TABLE: u64 = 1 << 16;
/// Interpreters followed at most.
const MAX_INTERPRETERS: usize = 64;

/// A Python function on the stack.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct PyFrame {
    /// Its name; from 3.11 on with the class or function it is defined in.
    pub function: String,
    /// The source file, as Python names it.
    pub file: String,
    /// The line it is at, where the line table has one.
    pub line: Option<u32>,
}

/// The Python stack of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PyThread {
    /// Thread id; 0 if it is not known.
    pub tid: i32,
    /// Innermost first.
    pub frames: Vec<PyFrame>,
    /// The stack continues, but could not be followed.
    pub cut: bool,
    /// Certain if the thread did not run while it was read.
    pub sure: Sure,
}

/// A Python interpreter in another process.
#[derive(Debug)]
pub struct Python {
    pid: i32,
    memory: Memory,
    runtime: u64,
    version: (u8, u8),
    layout: Layout,
}

/// Finds an interpreter. `Ok(None)`: there is none. `Err` names an interpreter that cannot be
/// read.
pub fn find(pid: i32) -> Result<Option<Python>, PythonError> {
    let maps = Maps::of(pid)?;
    let exe = std::fs::read_link(format!("/proc/{}/exe", procfs::living(pid))).unwrap_or_default();
    let memory = Memory::of(pid);
    let room = Room::of(MAX_KEPT);
    let mut seen = HashSet::new();
    for m in maps.iter().filter(|m| m.exec && m.ino != 0) {
        let file = m.path.rsplit('/').next().unwrap_or_default();
        let likely = file.contains("python") || exe.to_str() == Some(m.path.as_str());
        if !likely || !seen.insert((m.dev, m.ino)) {
            continue;
        }
        let Some(elf) = module::open_elf(pid, m, &room) else {
            continue;
        };
        let Some(runtime) = address(&elf, m, b"_PyRuntime") else {
            continue;
        };
        // From 3.11 on the version is a variable; before, only the file's name says.
        let version = address(&elf, m, b"Py_Version")
            .and_then(|at| memory.u32(at))
            .map(|v| ((v >> 24) as u8, (v >> 16) as u8))
            .or_else(|| named(file))
            .ok_or_else(|| PythonError::Unknown(format!("an interpreter of unknown version in {}", m.path)))?;
        if version.0 != 3 {
            return Err(PythonError::Unknown(format!("CPython {}.{}", version.0, version.1)));
        }
        let layout = Layout::of(version.1, memory, runtime).map_err(PythonError::Unknown)?;
        return Ok(Some(Python { pid, memory, runtime, version, layout }));
    }
    Ok(None)
}

/// Why Python stacks were not available.
#[derive(Debug)]
pub enum PythonError {
    /// The process cannot be inspected.
    Process(Error),
    /// An interpreter that is not known; the text names it.
    Unknown(String),
}

impl From<Error> for PythonError {
    fn from(e: Error) -> Self {
        PythonError::Process(e)
    }
}

impl std::fmt::Display for PythonError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PythonError::Process(e) => e.fmt(f),
            PythonError::Unknown(what) => write!(f, "cannot read Python stacks: {what}"),
        }
    }
}

impl std::error::Error for PythonError {}

fn address(elf: &Elf, m: &Mapping, name: &[u8]) -> Option<u64> {
    let (linked, _) = crate::stacks::object(elf, name)?;
    Some(linked.wrapping_sub(elf.linked(m.offset)?).wrapping_add(m.start))
}

/// The version in `python3.9` or `libpython3.10.so.1.0`.
fn named(file: &str) -> Option<(u8, u8)> {
    let (_, rest) = file.split_once("python3.")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((3, digits.parse().ok()?))
}

/// Reads of memory, counted.
struct Reader {
    memory: Memory,
    left: usize,
    /// Bytes of names and tables that may still be handled.
    room: usize,
}

impl Reader {
    fn of(memory: Memory, left: usize) -> Reader {
        Reader { memory, left, room: MAX_BYTES }
    }
    /// Takes so many bytes of the room; nothing if there are no more so many.
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.room = self.room.checked_sub(bytes)?;
        Some(())
    }
    fn bytes<const N: usize>(&mut self, addr: u64) -> Option<[u8; N]> {
        self.left = self.left.checked_sub(1)?;
        self.memory.bytes(addr)
    }
    fn u64(&mut self, addr: u64) -> Option<u64> {
        self.bytes(addr).map(u64::from_le_bytes)
    }
    /// A pointer: not null, aligned.
    fn pointer(&mut self, addr: u64) -> Option<u64> {
        self.u64(addr).filter(|&p| p > 4096 && p & 7 == 0)
    }
    fn vec(&mut self, addr: u64, len: u64) -> Option<Vec<u8>> {
        self.left = self.left.checked_sub(1)?;
        self.take(len as usize)?;
        let v = self.memory.vec(addr, len as usize);
        (v.len() as u64 == len).then_some(v)
    }
}

/// What does not change in a code object.
struct Code {
    function: String,
    file: String,
    first: u32,
    table: Vec<u8>,
}

impl Python {
    /// Its version, such as (3, 11).
    pub fn version(&self) -> (u8, u8) {
        self.version
    }

    /// The Python stacks of all threads that Python knows. The process is not stopped; costs some
    /// 10 us a thread.
    pub fn stacks(&self) -> Vec<PyThread> {
        let mut reader = Reader::of(self.memory, MAX_READS);
        let mut watched = Watched::new(self.pid).ok();
        let mut codes = HashMap::new();
        let mut out = Vec::new();
        for state in self.states(&mut reader) {
            let tid = self.tid(&mut reader, state, watched.as_ref());
            let mut progress = || watched.as_mut().and_then(|w| w.still(tid));
            let before = progress();
            let (frames, cut) = self.frames(&mut reader, state, &mut codes);
            let still = before.is_some() && before == progress();
            let sure = if still { Sure::Certain } else { Sure::Likely };
            out.push(PyThread { tid, frames, cut, sure });
        }
        out
    }

    /// The thread that holds the global lock of the main interpreter, if one does.
    pub fn lock_holder(&self) -> Option<i32> {
        let mut reader = Reader::of(self.memory, 64);
        let l = &self.layout;
        let gil = self.lock(&mut reader)?;
        let locked: [u8; 4] = reader.bytes(gil.checked_add(l.gil_locked)?)?;
        if i32::from_le_bytes(locked) != 1 {
            return None;
        }
        let holder = reader.pointer(gil.checked_add(l.gil_holder)?)?;
        let watched = Watched::new(self.pid).ok();
        Some(self.tid(&mut reader, holder, watched.as_ref())).filter(|&t| t != 0)
    }

    /// The words at which threads sleep that wait for that lock: behind its state and a counter its
    /// condition variable and its mutex lie, as `struct _gil_runtime_state` has them.
    pub fn lock_words(&self) -> Option<std::ops::Range<u64>> {
        const CONDITION: u64 = 16;
        const BOTH: u64 = 48 + 40;
        let gil = self.lock(&mut Reader::of(self.memory, 64))?;
        let from = gil.checked_add(self.layout.gil_locked)?.checked_add(CONDITION)?;
        Some(from..from.checked_add(BOTH)?)
    }

    /// Where the global lock of the main interpreter is.
    fn lock(&self, reader: &mut Reader) -> Option<u64> {
        match self.layout.gil {
            Gil::Runtime => Some(self.runtime),
            Gil::Interpreter(at) => {
                let interpreter = reader.pointer(self.runtime.checked_add(self.layout.interp_head)?)?;
                reader.pointer(interpreter.checked_add(at)?)
            }
        }
    }

    /// The thread states of all interpreters.
    fn states(&self, r: &mut Reader) -> Vec<u64> {
        let l = &self.layout;
        let mut out = Vec::new();
        let mut known = HashSet::new();
        let mut interpreter = r.pointer(self.runtime.wrapping_add(l.interp_head));
        for _ in 0..MAX_INTERPRETERS {
            let Some(i) = interpreter.filter(|&i| known.insert(i)) else {
                break;
            };
            let mut state = r.pointer(i.wrapping_add(l.threads_head));
            while let Some(s) = state.filter(|&s| out.len() < MAX_THREADS && known.insert(s)) {
                out.push(s);
                state = r.pointer(s.wrapping_add(l.thread_next));
            }
            interpreter = r.pointer(i.wrapping_add(l.interp_next));
        }
        out
    }

    /// The kernel's id of a thread state, as this process sees it; 0 if it is not known.
    fn tid(&self, r: &mut Reader, state: u64, watched: Option<&Watched>) -> i32 {
        let own = (|| match self.layout.native_id {
            Some(at) => i32::try_from(r.u64(state.wrapping_add(at))?).ok(),
            None => {
                let block = r.pointer(state.wrapping_add(self.layout.thread_id))?;
                let id: [u8; 4] = r.bytes(block.wrapping_add(crate::waits::GLIBC_TID))?;
                Some(i32::from_le_bytes(id))
            }
        })();
        own.and_then(|id| watched?.translated(id)).unwrap_or(0)
    }

    fn frames(&self, r: &mut Reader, state: u64, codes: &mut HashMap<u64, Option<Rc<Code>>>) -> (Vec<PyFrame>, bool) {
        let l = &self.layout;
        let top = match l.top {
            Top::Direct(at) => r.u64(state.wrapping_add(at)),
            Top::Through(at, then) => {
                let Some(c) = r.pointer(state.wrapping_add(at)) else {
                    return (Vec::new(), true);
                };
                r.u64(c.wrapping_add(then))
            }
        };
        let mut out = Vec::new();
        let mut next = top;
        let mut known = HashSet::new();
        loop {
            let frame = match next {
                Some(0) => return (out, false),
                Some(f) if f & 7 == 0 && known.len() < MAX_FRAMES && known.insert(f) => f,
                _ => return (out, true),
            };
            next = r.u64(frame.wrapping_add(l.previous));
            if let Some(at) = l.owner {
                match r.bytes::<1>(frame.wrapping_add(at)) {
                    Some([OWNED_BY_C]) => continue,
                    Some(_) => {}
                    None => return (out, true),
                }
            }
            match self.frame(r, frame, codes) {
                Some(frame) => out.push(frame),
                None => return (out, true),
            }
        }
    }

    /// One frame.
    fn frame(&self, r: &mut Reader, frame: u64, codes: &mut HashMap<u64, Option<Rc<Code>>>) -> Option<PyFrame> {
        let l = &self.layout;
        let code = r.pointer(frame.wrapping_add(l.code))?;
        let known = match codes.get(&code) {
            Some(c) => c.clone(),
            None => {
                let c = self.code(r, code).map(Rc::new);
                codes.insert(code, c.clone());
                c
            }
        };
        let c = known?;
        // Each frame has names of its own, and the table is gone through for its line.
        r.take(c.function.len() + c.file.len() + c.table.len())?;
        let at = r.u64(frame.wrapping_add(l.instruction));
        let line = at.and_then(|at| lines::line(l.table, &c.table, c.first, self.offset(code, at)));
        Some(PyFrame { function: c.function.clone(), file: c.file.clone(), line })
    }

    /// The offset in the code where a frame stands, in bytes.
    fn offset(&self, code: u64, instruction: u64) -> u64 {
        match self.layout.table {
            layout::Table::Lnotab => (instruction as i32).max(0) as u64,
            layout::Table::Ranges => 2 * (instruction as i32).max(0) as u64,
            // Before its first instruction a frame stands one in front of the code.
            layout::Table::Locations => {
                let offset = instruction.wrapping_sub(code.wrapping_add(self.layout.code_start));
                if offset > i64::MAX as u64 { 0 } else { offset }
            }
        }
    }

    fn code(&self, r: &mut Reader, code: u64) -> Option<Code> {
        let l = &self.layout;
        let mut field = |at: u64| r.pointer(code.wrapping_add(at));
        let (name, file, table) = (field(l.name)?, field(l.filename)?, field(l.line_table)?);
        let first: [u8; 4] = r.bytes(code.wrapping_add(l.first_line))?;
        let function = self.text(r, name)?;
        let file = self.text(r, file)?;
        let size = r.u64(table.wrapping_add(16))?.min(MAX_TABLE);
        let table = r.vec(table.wrapping_add(32), size)?;
        Some(Code { function, file, first: u32::from_le_bytes(first), table })
    }

    /// A Python text, at most [`MAX_TEXT`] characters of it.
    fn text(&self, r: &mut Reader, addr: u64) -> Option<String> {
        let head: [u8; 40] = r.bytes(addr)?;
        let word = |i: usize| crate::stacks::elf::u64_at(&head, i).unwrap_or(0);
        let (len, state) = (word(16).min(MAX_TEXT), word(32) as u32);
        let (width, compact, ascii) = (u64::from(state >> 2 & 7), state & 32 != 0, state & 64 != 0);
        if !compact || !matches!(width, 1 | 2 | 4) {
            return None;
        }
        let from = addr.wrapping_add(if ascii { self.layout.ascii } else { self.layout.compact });
        let bytes = r.vec(from, len * width)?;
        let number = |c: &[u8]| c.iter().rev().fold(0u32, |n, &b| n << 8 | u32::from(b));
        let letter = |c: &[u8]| char::from_u32(number(c)).unwrap_or('\u{fffd}');
        Some(bytes.chunks_exact(width as usize).map(letter).collect())
    }
}
