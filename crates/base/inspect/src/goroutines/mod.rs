//! What the goroutines of a Go program wait for, from the runtime's own list of them; [`locks`]:
//! which wait for locks of package sync.
//!
//! Owns: reading `runtime.allgs`. Promises: the process is not stopped, so one that runs meanwhile
//! may be read torn; at most [`MAX_GOROUTINES`] are read, and [`MAX_FRAMES`] frames of each, by
//! frame pointers. Refuses: programs without symbols and DWARF (built with `-ldflags=-s` or `-w`),
//! as their runtime's layout is not known; goroutines that run, whose stacks are those of threads.

pub mod locks;

use crate::stacks::elf::{Elf, Room};
use crate::stacks::module::open_elf;
use crate::stacks::{Frame, Unwinder};
use crate::{Maps, Memory, globals};
use gimli::{EndianArcSlice, LittleEndian, Reader};
use std::collections::HashMap;
use std::sync::Arc;

/// Goroutines read at most.
pub const MAX_GOROUTINES: u64 = 20_000;
/// Frames of one at most.
pub const MAX_FRAMES: usize = 24;
/// Bytes of a DWARF section at most.
const MAX_SECTION: usize = 256 << 20;
/// The bit of a goroutine's status that says that the collector scans it.
const SCANS: u32 = 0x1000;

/// Goroutines that wait for the same at the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// How many.
    pub count: usize,
    /// What for, in the runtime's words: `sync.Mutex.Lock`, `chan receive`.
    pub reason: String,
    /// Innermost first.
    pub frames: Vec<Frame>,
}

/// Where the runtime keeps what of a goroutine, bytes from its beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    status: u64,
    reason: u64,
    id: u64,
    /// A count of the times that it stopped running; older runtimes have none.
    turn: Option<u64>,
    /// The bounds of its stack.
    stack: u64,
    pc: u64,
    sp: u64,
    bp: u64,
    /// Of the record of one that sleeps at a semaphore: the goroutine, the semaphore, both branches
    /// of a tree of such records, the next one at the same semaphore.
    sleeper: u64,
    element: u64,
    previous: u64,
    next: u64,
    link: u64,
}

/// The goroutines that wait, those that are most alike first; nothing if the process is no Go
/// program, or one without symbols. Takes some tens of milliseconds.
pub fn parked(pid: i32, unwinder: &mut Unwinder) -> Option<Vec<Parked>> {
    let maps = Maps::of(pid).ok()?;
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let file = maps.iter().find(|m| m.exec && m.ino != 0 && exe.as_os_str() == m.path.as_str())?;
    let elf = open_elf(pid, file, &Room::of(MAX_SECTION))?;
    elf.section(".gopclntab")?;
    let layout = layout(&elf)?;
    let variables = globals::of(pid, &maps, |path| path == file.path);
    let address = |name: &str| variables.values().find(|v| v.name == name).map(|v| v.address);
    let (memory, reasons) = (Memory::of(pid), address("runtime.waitReasonStrings"));
    let all = address("runtime.allgs")?;
    let (list, count) = (memory.u64(all)?, memory.u64(all + 8)?);
    let mut alike: HashMap<(u32, u8, Vec<u64>), usize> = HashMap::new();
    for nth in 0..count.min(MAX_GOROUTINES) {
        let Some(g) = memory.u64(list.wrapping_add(8 * nth)).filter(|g| *g != 0) else { continue };
        let at = |offset: u64| g.wrapping_add(offset);
        let Some(status) = memory.u32(at(layout.status)).map(|s| s & !SCANS) else { continue };
        if state(status).is_some()
            && let (Some([reason]), Some(pc), Some(bp)) =
                (memory.bytes::<1>(at(layout.reason)), memory.u64(at(layout.pc)), memory.u64(at(layout.bp)))
        {
            *alike.entry((status, reason, returns(&memory, pc, bp))).or_default() += 1;
        }
    }
    let mut found: Vec<Parked> = Vec::new();
    for ((status, reason, addresses), count) in alike {
        let text = || reason_text(&memory, reasons? + 16 * u64::from(reason));
        let waits = (status == WAITING).then(text).flatten();
        let frames = unwinder.returns(&addresses).ok()?.into_iter().flatten().collect();
        found.push(Parked { count, reason: waits.unwrap_or_else(|| state(status).unwrap_or("?").into()), frames });
    }
    found.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.reason.cmp(&b.reason)));
    Some(found)
}

const WAITING: u32 = 4;

/// A status in which a goroutine does not run.
fn state(status: u32) -> Option<&'static str> {
    Some(match status {
        1 => "waits for a CPU",
        3 => "in a system call",
        WAITING => "waits",
        _ => return None,
    })
}

fn reason_text(memory: &Memory, at: u64) -> Option<String> {
    let (text, len) = (memory.u64(at)?, memory.u64(at + 8)?);
    (1..100).contains(&len).then(|| String::from_utf8_lossy(&memory.vec(text, len as usize)).into_owned())
}

/// Return addresses by frame pointers, which lie ever higher.
fn returns(memory: &Memory, pc: u64, mut bp: u64) -> Vec<u64> {
    let mut all = vec![pc];
    while all.len() < MAX_FRAMES
        && let Some(back) = memory.u64(bp.wrapping_add(8)).filter(|back| *back != 0)
    {
        all.push(back);
        match memory.u64(bp) {
            Some(up) if up > bp => bp = up,
            _ => break,
        }
    }
    all
}

type Bytes = EndianArcSlice<LittleEndian>;

/// The structures whose layout is read.
const STRUCTURES: [&str; 3] = ["runtime.g", "runtime.gobuf", "runtime.sudog"];

/// Reads the layout from the program's DWARF: `runtime.g`, `runtime.gobuf`, which is a part of it,
/// and `runtime.sudog`.
fn layout(elf: &Elf) -> Option<Layout> {
    let load = |id: gimli::SectionId| -> Result<Bytes, gimli::Error> {
        Ok(EndianArcSlice::new(Arc::from(elf.named(id.name(), MAX_SECTION).unwrap_or_default()), LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(load).ok()?;
    let mut units = dwarf.units();
    let mut found: HashMap<String, HashMap<String, u64>> = HashMap::new();
    while let Ok(Some(header)) = units.next()
        && found.len() < STRUCTURES.len()
    {
        let unit = dwarf.unit(header).ok()?;
        let name = |entry: &gimli::DebuggingInformationEntry<'_, '_, Bytes>| {
            let value = entry.attr_value(gimli::DW_AT_name).ok()??;
            Some(dwarf.attr_string(&unit, value).ok()?.to_string_lossy().ok()?.into_owned())
        };
        let mut entries = unit.entries();
        let mut within: Option<String> = None;
        while let Ok(Some((_, entry))) = entries.next_dfs() {
            if entry.tag() == gimli::DW_TAG_member {
                if let Some(structure) = &within
                    && let (Some(name), Ok(Some(at))) =
                        (name(entry), entry.attr_value(gimli::DW_AT_data_member_location))
                    && let Some(at) = at.udata_value()
                {
                    found.entry(structure.clone()).or_default().insert(name, at);
                }
                continue;
            }
            within = None;
            if entry.tag() == gimli::DW_TAG_structure_type {
                within = name(entry).filter(|name| STRUCTURES.contains(&name.as_str()));
            }
        }
    }
    let [goroutine, registers, record] = STRUCTURES.map(|name| found.get(name));
    let (goroutine, registers, record) = (goroutine?, registers?, record?);
    let sched = goroutine.get("sched")?;
    Some(Layout {
        status: *goroutine.get("atomicstatus")?,
        reason: *goroutine.get("waitreason")?,
        id: *goroutine.get("goid")?,
        turn: goroutine.get("trackingSeq").copied(),
        stack: *goroutine.get("stack")?,
        pc: sched + registers.get("pc")?,
        sp: sched + registers.get("sp")?,
        bp: sched + registers.get("bp")?,
        sleeper: *record.get("g")?,
        element: *record.get("elem")?,
        previous: *record.get("prev")?,
        next: *record.get("next")?,
        link: *record.get("waitlink")?,
    })
}
