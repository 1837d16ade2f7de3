//! Where CPython keeps what is needed, version by version.
//!
//! Owns: the offsets, in bytes, of CPython 3.9 to 3.12 as their own headers give them on 64-bit
//! Linux, and from 3.13 on the table that the interpreter publishes about itself. Refuses: other
//! versions, debug builds (`--with-trace-refs`), builds without the global lock.

use crate::Memory;

/// How line numbers are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    /// Pairs of bytes (3.9).
    Lnotab,
    /// Pairs with ranges (3.10).
    Ranges,
    /// Entries of several sizes with columns (3.11 on).
    Locations,
}

/// How a thread state leads to its innermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Top {
    /// It points there.
    Direct(u64),
    /// It points to a structure that points there.
    Through(u64, u64),
}

/// Where the global lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gil {
    /// In the runtime.
    Runtime,
    /// Behind a pointer in the interpreter.
    Interpreter(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) interp_head: u64,
    pub(super) interp_next: u64,
    pub(super) threads_head: u64,
    pub(super) gil: Gil,
    pub(super) gil_holder: u64,
    pub(super) gil_locked: u64,
    pub(super) thread_next: u64,
    /// The kernel's thread id; before 3.11 there is only the address of the C library's thread
    /// block.
    pub(super) native_id: Option<u64>,
    pub(super) thread_id: u64,
    pub(super) top: Top,
    pub(super) previous: u64,
    pub(super) code: u64,
    /// Where the frame stands: a pointer into the code, or an index.
    pub(super) instruction: u64,
    pub(super) owner: Option<u64>,
    pub(super) code_start: u64,
    pub(super) filename: u64,
    pub(super) name: u64,
    pub(super) first_line: u64,
    pub(super) line_table: u64,
    pub(super) table: Table,
    /// Size of the header of a text of ASCII, and of other text.
    pub(super) ascii: u64,
    pub(super) compact: u64,
}

/// Owner of frames that stand for C code between Python frames.
pub(super) const OWNED_BY_C: u8 = 3;

const V39: Layout = Layout {
    interp_head: 32,
    interp_next: 0,
    threads_head: 8,
    gil: Gil::Runtime,
    gil_holder: 360,
    gil_locked: 368,
    thread_next: 8,
    native_id: None,
    thread_id: 176,
    top: Top::Direct(24),
    previous: 24,
    code: 32,
    instruction: 104,
    owner: None,
    code_start: 0,
    filename: 104,
    name: 112,
    first_line: 40,
    line_table: 120,
    table: Table::Lnotab,
    ascii: 48,
    compact: 72,
};

const V310: Layout = Layout { instruction: 96, table: Table::Ranges, ..V39 };

const V311: Layout = Layout {
    interp_head: 40,
    threads_head: 16,
    gil_holder: 368,
    gil_locked: 376,
    native_id: Some(160),
    thread_id: 152,
    top: Top::Through(56, 8),
    previous: 48,
    code: 32,
    instruction: 56,
    owner: None,
    code_start: 184,
    filename: 112,
    name: 128,
    first_line: 72,
    line_table: 136,
    table: Table::Locations,
    ..V310
};

const V312: Layout = Layout {
    threads_head: 72,
    gil: Gil::Interpreter(384),
    gil_holder: 8,
    gil_locked: 16,
    native_id: Some(144),
    thread_id: 136,
    top: Top::Through(56, 0),
    previous: 8,
    code: 0,
    instruction: 56,
    owner: Some(70),
    code_start: 192,
    first_line: 68,
    ascii: 40,
    compact: 56,
    ..V311
};

impl Layout {
    /// For a version; for 3.13 read from the process. `Err` says what is the matter.
    pub(super) fn of(minor: u8, memory: Memory, runtime: u64) -> Result<Layout, String> {
        match minor {
            9 => Ok(V39),
            10 => Ok(V310),
            11 => Ok(V311),
            12 => Ok(V312),
            13 => published(memory, runtime),
            _ => Err(format!("CPython 3.{minor}; known are 3.9 to 3.13")),
        }
    }
}

/// The interpreter's table about itself: 64-bit numbers behind a cookie, in the order of 3.13.
fn published(memory: Memory, runtime: u64) -> Result<Layout, String> {
    let bytes: [u8; 71 * 8] = memory.bytes(runtime).ok_or("CPython 3.13 whose runtime cannot be read")?;
    if &bytes[..8] != b"xdebugpy" {
        return Err("CPython 3.13 without its table of offsets".into());
    }
    let field = |i: usize| crate::stacks::elf::u64_at(&bytes, 8 * i).unwrap_or(0);
    if field(2) != 0 {
        return Err("CPython 3.13 built without the global lock".into());
    }
    if (3..71).any(|i| field(i) > 1 << 24) {
        return Err("CPython 3.13 with a damaged table of offsets".into());
    }
    Ok(Layout {
        interp_head: field(5),
        interp_next: field(8),
        threads_head: field(9),
        gil: Gil::Interpreter(field(14)),
        gil_holder: field(18).saturating_sub(field(15)),
        gil_locked: field(17).saturating_sub(field(15)),
        thread_next: field(21),
        top: Top::Direct(field(23)),
        thread_id: field(24),
        native_id: Some(field(25)),
        previous: field(29),
        code: field(30),
        instruction: field(31),
        owner: Some(field(33)),
        filename: field(35),
        name: field(37),
        line_table: field(38),
        first_line: field(39),
        code_start: field(43),
        ..V312
    })
}
