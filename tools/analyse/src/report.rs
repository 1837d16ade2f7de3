//! What was found, with names.

use crate::Error;
use crate::copy::{Caller, End};
use crate::likely::{Found, Likely};
use crate::names::CARGOS;
use crate::tally::{Tally, Use};
use crate::wait::Status;
use libc::user_regs_struct as Registers;
use orbit_inspect::globals::Global;
use orbit_inspect::stacks::{Frame, Unwinder, of_c_library};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// A place in the code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// Function, demangled, or `FILE+0xOFFSET`.
    pub function: String,
    /// Source file, where there is debug information.
    pub file: Option<String>,
    /// Line in it, from 1.
    pub line: Option<u32>,
}

/// An allocation point that the task needs in an area, by one call path.
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    /// The innermost place of the call path that is not in a library of C, C++ or Rust, nor in a
    /// wrapper of an allocator as `xmalloc`: the line to change.
    pub at: Place,
    /// The call path from there outwards, without what is in such libraries.
    pub path: Vec<Place>,
    /// Distinct objects that were accessed.
    pub objects: u64,
    /// Bytes of the smallest and the largest.
    pub sizes: [u64; 2],
    /// Accesses that read.
    pub reads: u64,
    /// Accesses that wrote.
    pub writes: u64,
    /// Bytes read: first and last of each run, from the object's first, of all objects together.
    pub read: Vec<[u64; 2]>,
    /// The same for writes.
    pub written: Vec<[u64; 2]>,
    /// Where objects were accessed that had been freed.
    pub after_free: Vec<Place>,
}

/// A global variable that the task accesses.
#[derive(Clone, Debug, Serialize)]
pub struct GlobalUse {
    /// Its name.
    pub name: String,
    /// The program or library that has it.
    pub module: String,
    /// Its size, bytes.
    pub size: u64,
    /// Accesses that read.
    pub reads: u64,
    /// Accesses that wrote.
    pub writes: u64,
    /// As in [`Site::read`].
    pub read: Vec<[u64; 2]>,
    /// As in [`Site::written`].
    pub written: Vec<[u64; 2]>,
}

/// What a task accesses of a caller's own variables: they lie on main's stack, which an orbit has
/// not.
#[derive(Clone, Debug, Serialize)]
pub struct StackUse {
    /// The caller, and the line of its call.
    pub at: Place,
    /// Accesses that read.
    pub reads: u64,
    /// Accesses that wrote.
    pub writes: u64,
    /// Distinct bytes of its frame that were read.
    pub bytes_read: u64,
    /// Distinct bytes that were written.
    pub bytes_written: u64,
}

/// What a task needs. [`fmt::Display`] shows it as text.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The task's entry.
    pub entry: String,
    /// Calls that were watched.
    pub calls: u64,
    /// Instructions that were stepped.
    pub steps: u64,
    /// Allocation points, the most objects first.
    pub sites: Vec<Site>,
    /// Allocation points that the sources make likely and no watched call needed; see
    /// [`Report::add_likely`].
    pub likely: Vec<Likely>,
    /// Lines that may be such points, but of which the sources do not say it: [`Found::unclear`].
    pub unclear: usize,
    /// Global variables, by name.
    pub globals: Vec<GlobalUse>,
    /// Variables of the functions that called the task, by their place.
    pub stack: Vec<StackUse>,
    /// What this report does not show.
    pub notes: Vec<String>,
    /// The program's exit status; 128 and the signal that killed it.
    pub status: i32,
}

/// Whether a file is a library of C's or C++'s implementation.
pub(crate) fn is_library(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    of_c_library(path) || ["libstdc++", "libgcc_s", "libc++", "libm.so"].iter().any(|begin| file.starts_with(begin))
}

/// Whether a frame is not the program's own: of a library, or of a language's own source that was
/// compiled into the program.
fn is_foreign(frame: &Frame) -> bool {
    is_languages(frame) || frame.file.as_ref().is_some_and(|f| CARGOS.iter().any(|s| f.contains(s)))
}

/// Whether a frame is of the C library, or of a language's own.
fn is_languages(frame: &Frame) -> bool {
    let sources = ["/usr/include/", "/usr/lib/gcc/", "/usr/lib/llvm-", "/rustc/", "/rust/deps/"];
    let names =
        ["std::", "void std::", "char* std::", "__gnu_cxx::", "operator new", "alloc::", "core::", "__rust", "_start"];
    let named = |f: &String| names.iter().any(|n| f.trim_start_matches('<').starts_with(n));
    is_library(&frame.module)
        || frame.file.as_ref().is_some_and(|f| sources.iter().any(|s| f.starts_with(s)))
        || frame.file.is_none() && frame.function.as_ref().is_some_and(named)
}

/// Whether a function of C only wraps an allocator, by its name: `zmalloc`, `xstrdup`. The line
/// that calls it is the one to change.
pub(crate) fn is_wrappers_name(name: &str) -> bool {
    const WORDS: [&str; 5] = ["malloc", "calloc", "realloc", "strdup", "memdup"];
    let name = name.to_lowercase();
    !name.contains("::") && WORDS.iter().any(|word| name.contains(word))
}

fn is_wrapper(frame: &Frame) -> bool {
    frame.function.as_deref().is_some_and(is_wrappers_name)
}

fn place(frame: &Frame) -> Place {
    let module = frame.module.rsplit('/').next().unwrap_or_default();
    let function = frame.function.clone().unwrap_or_else(|| format!("{module}+{:#x}", frame.offset));
    Place { function, file: frame.file.clone(), line: frame.line }
}

/// Gives names while the program lives.
pub(crate) struct Namer {
    unwinder: Unwinder,
    stacks: HashMap<usize, Vec<Frame>>,
    instructions: HashMap<u64, Place>,
    globals: BTreeMap<u64, Global>,
}

impl Namer {
    pub(crate) fn new(pid: i32) -> Result<Namer, Error> {
        let (stacks, instructions, globals) = (HashMap::new(), HashMap::new(), BTreeMap::new());
        Ok(Namer { unwinder: Unwinder::new(pid)?, stacks, instructions, globals })
    }

    pub(crate) fn know(&mut self, globals: &BTreeMap<u64, Global>) {
        self.globals.extend(globals.iter().map(|(&at, g)| (at, g.clone())));
    }

    /// Names what is new.
    pub(crate) fn name(&mut self, tally: &Tally) -> Result<(), Error> {
        for (number, stack) in tally.stacks() {
            if !self.stacks.contains_key(&number) {
                let frames = self.unwinder.returns(stack)?.into_iter().flatten().collect();
                self.stacks.insert(number, frames);
            }
        }
        for &at in tally.sites.values().flat_map(|used| &used.after_free) {
            if !self.instructions.contains_key(&at) {
                // By an address in it: names are those of what comes ahead of a return address.
                let frames = self.unwinder.returns(&[at + 1])?.into_iter().flatten().next();
                let unknown = || Place { function: format!("{at:#x}"), file: None, line: None };
                self.instructions.insert(at, frames.as_ref().map_or_else(unknown, place));
            }
        }
        Ok(())
    }

    /// The frames of those that called the function at whose first instruction a thread stands.
    /// Where the tables do not say for certain where a frame ends, no frame beyond it is known.
    pub(crate) fn callers(&mut self, tid: i32, r: &Registers) -> Vec<Caller> {
        let registers = [
            r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14,
            r.r15, r.rip,
        ];
        let copied = self.unwinder.copy_from(tid, registers);
        let frames = self.unwinder.name(copied).pop().map(|stack| stack.frames).unwrap_or_default();
        // Behind the return address.
        let mut start = r.rsp.saturating_add(8);
        let mut callers = Vec::new();
        for frame in frames.into_iter().filter(|frame| !frame.inlined).skip(1) {
            let Some(end) = frame.cfa.filter(|&cfa| cfa > start) else { break };
            callers.push(Caller { start, end, back: frame.address });
            self.instructions.entry(frame.address).or_insert_with(|| place(&frame));
            start = end;
        }
        callers
    }

    fn site(&self, number: usize, used: &Use) -> Site {
        let frames = self.stacks.get(&number).map(Vec::as_slice).unwrap_or_default();
        let first = |wanted: &dyn Fn(&Frame) -> bool| frames.iter().position(wanted);
        let own = first(&|f| !is_foreign(f) && !is_wrapper(f)).or_else(|| first(&|f| !is_foreign(f)));
        // In a deep recursion of a crate's no line of the user's is near.
        let own = own.or_else(|| first(&|f| !is_languages(f))).unwrap_or(0);
        let outwards = frames[own.min(frames.len())..].iter();
        let path: Vec<Place> = outwards.filter(|f| !is_foreign(f)).map(place).collect();
        let unknown = Place { function: "unknown".into(), file: None, line: None };
        let at = frames.get(own).map_or(unknown, place);
        let (least, most) = used.sizes.unwrap_or_default();
        Site {
            at,
            path,
            objects: used.objects.len() as u64,
            sizes: [least, most],
            reads: used.reads,
            writes: used.writes,
            read: used.read.runs(),
            written: used.written.runs(),
            after_free: used.after_free.iter().filter_map(|at| self.instructions.get(at).cloned()).collect(),
        }
    }
}

pub(crate) fn make(
    entry: String,
    tally: Tally,
    namer: Namer,
    ends: &[End],
    lost: u64,
    ended: Option<Status>,
) -> Report {
    let mut sites: Vec<Site> = tally.sites.iter().map(|(&number, used)| namer.site(number, used)).collect();
    sites.sort_by(|a, b| (b.objects, &a.at.file, a.at.line).cmp(&(a.objects, &b.at.file, b.at.line)));
    let global = |(at, used): (&u64, &Use)| {
        let g = namer.globals.get(at)?;
        Some(GlobalUse {
            name: g.name.clone(),
            module: g.module.clone(),
            size: g.size,
            reads: used.reads,
            writes: used.writes,
            read: used.read.runs(),
            written: used.written.runs(),
        })
    };
    let mut globals: Vec<GlobalUse> = tally.globals.iter().filter_map(global).collect();
    globals.sort_by(|a, b| a.name.cmp(&b.name));
    let caller = |(back, used): (&u64, &Use)| {
        let at = namer.instructions.get(back)?.clone();
        let (bytes_read, bytes_written) = (used.read.count(), used.written.count());
        Some(StackUse { at, reads: used.reads, writes: used.writes, bytes_read, bytes_written })
    };
    let mut stack: Vec<StackUse> = tally.callers.iter().filter_map(caller).collect();
    stack.sort_by(|a, b| a.at.cmp(&b.at));
    let mut notes = Vec::new();
    if ends.is_empty() {
        let why = "the entry was never called by the process that was started";
        notes.push(format!("{why}; what it forks, and programs that it executes, are not watched"));
    }
    for (i, end) in ends.iter().enumerate() {
        let why = match end {
            End::Returned => continue,
            End::Exited(status) => format!("the process ended in it with status {status}"),
            End::Signal(signal) => format!("it got signal {signal}"),
            End::TooLong => "it took longer than the limit; raise --limit".into(),
            End::Replaced => "it was about to run another program".into(),
        };
        notes.push(format!("call {} was not watched to its end: {why}", i + 1));
    }
    if lost > 0 {
        notes.push(format!("{lost} allocations were not recorded: the table is full"));
    }
    if tally.unknown > 0 {
        notes.push(format!("{} accesses (gathers and scatters) have addresses that are not known", tally.unknown));
    }
    let status = match ended {
        Some(Status::Exited(status)) => status,
        Some(Status::Killed(signal)) => 128 + signal,
        _ => 0,
    };
    Report {
        entry,
        calls: ends.len() as u64,
        steps: tally.steps,
        sites,
        likely: Vec::new(),
        unclear: 0,
        globals,
        stack,
        notes,
        status,
    }
}

impl Report {
    /// Allocation points, each with its call paths, in the order of [`Report::sites`].
    fn by_place(&self) -> Vec<(&Place, Vec<&Site>)> {
        let mut found: Vec<(&Place, Vec<&Site>)> = Vec::new();
        for site in &self.sites {
            match found.iter_mut().find(|(place, _)| *place == &site.at) {
                Some((_, sites)) => sites.push(site),
                None => found.push((&site.at, vec![site])),
            }
        }
        found
    }

    fn write_likely(&self, f: &mut fmt::Formatter<'_>, title: &str) -> fmt::Result {
        writeln!(f, "\n{title}: {}", self.likely.len())?;
        for likely in &self.likely {
            writeln!(f, "  {}\n    for {}", likely.at, likely.holds)?;
        }
        if self.unclear > 0 {
            let what = "more lines allocate for such types; where to is not clear from the sources";
            writeln!(f, "  {} {what}", self.unclear)?;
        }
        Ok(())
    }

    fn write_notes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }

    /// Adds the points that [`crate::likely`] found, but for those that a watched call needed.
    pub fn add_likely(&mut self, found: Found) {
        let is_known = |at: &Place| self.sites.iter().any(|site| is_same(&site.at, at));
        self.likely.extend(found.likely.into_iter().filter(|likely| !is_known(&likely.at)));
        self.unclear += found.unclear;
    }
}

/// Whether two places are one line: a compiler and a debugger may give a path from different
/// directories, so one has to be the end of the other.
fn is_same(a: &Place, b: &Place) -> bool {
    let (Some(first), Some(second)) = (&a.file, &b.file) else { return false };
    let (first, second) = (plain_path(Path::new(first)), plain_path(Path::new(second)));
    a.line == b.line && (first.ends_with(&second) || second.ends_with(&first))
}

/// A path without its root and `.` and `..`.
pub(crate) fn plain_path(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => {
                plain.pop();
            }
            _ => {}
        }
    }
    plain
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{} ({file}:{line})", self.function),
            _ => f.write_str(&self.function),
        }
    }
}

/// Runs of bytes as text.
struct Runs<'a>(&'a [[u64; 2]]);

impl fmt::Display for Runs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (i, [first, last]) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            if first == last { write!(f, "{comma}{first}")? } else { write!(f, "{comma}{first}-{last}")? }
        }
        Ok(())
    }
}

/// Call paths of a place that the text shows.
const SHOWN_PATHS: usize = 3;

/// What was accessed of the objects of a call path, and the path.
fn write_use(f: &mut fmt::Formatter<'_>, site: &Site) -> fmt::Result {
    let [least, most] = site.sizes;
    let size = if least == most { format!("{least}") } else { format!("{least} to {most}") };
    writeln!(f, "    {} objects of {size} bytes", site.objects)?;
    writeln!(f, "    bytes read {}; written {}", Runs(&site.read), Runs(&site.written))?;
    for caller in site.path.iter().skip(1) {
        writeln!(f, "    called by {caller}")?;
    }
    for place in &site.after_free {
        writeln!(f, "    accessed after it was freed, in {place}")?;
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.calls == 0 {
            // Nothing is known of a run: no sentence may read as if nothing were needed.
            writeln!(f, "{}: no call was watched", self.entry)?;
            if !self.likely.is_empty() || self.unclear > 0 || self.notes.is_empty() {
                self.write_likely(f, "Likely to need areas, by the sources alone")?;
            }
            return self.write_notes(f);
        }
        writeln!(f, "{}: {} calls watched, {} instructions", self.entry, self.calls, self.steps)?;
        let by_place = self.by_place();
        let paths = if self.sites.len() > by_place.len() {
            format!(", by {} call paths", self.sites.len())
        } else {
            String::new()
        };
        writeln!(f, "\nAllocation points that must move into areas: {}{paths}", by_place.len())?;
        for (place, sites) in by_place {
            writeln!(f, "  {place}")?;
            for site in sites.iter().take(SHOWN_PATHS) {
                write_use(f, site)?;
            }
            if let Some(more) = sites.len().checked_sub(SHOWN_PATHS).filter(|more| *more > 0) {
                writeln!(f, "    and by {more} more call paths: --json has them")?;
            }
        }
        if !self.likely.is_empty() || self.unclear > 0 {
            self.write_likely(f, "Likely too, by the sources; no watched call needed them")?;
        }
        writeln!(f, "\nGlobal variables: {}", self.globals.len())?;
        for g in &self.globals {
            writeln!(f, "  {} of {} bytes: read {}; written {}", g.name, g.size, Runs(&g.read), Runs(&g.written))?;
        }
        if !self.stack.is_empty() {
            writeln!(f, "\nVariables of callers, on main's stack: {}", self.stack.len())?;
        }
        for s in &self.stack {
            writeln!(f, "  {}: {} bytes read; {} written", s.at, s.bytes_read, s.bytes_written)?;
        }
        self.write_notes(f)
    }
}
