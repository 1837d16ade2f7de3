//! The system calls of x86-64: numbers, names, kinds of arguments (`data/calls.tsv`,
//! `data/names.tsv`).

use crate::rules;
use crate::shared::{Capture, Description, MAX_CALLS};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Bytes shown of a buffer.
pub const BUFFER_BYTES: u16 = 32;
/// Bytes captured of a path.
const PATH_BYTES: u16 = 512;
/// Bytes captured of a socket address.
const ADDRESS_BYTES: u16 = 128;

/// What an argument means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not described: a hexadecimal number.
    Unknown,
    /// A signed 32-bit number.
    Int,
    /// An unsigned number of 32 bits.
    Uint,
    /// Bits in hexadecimal.
    Hex,
    /// Bits in octal: a file mode.
    Octal,
    /// A 64-bit size.
    Size,
    /// A 64-bit offset, signed.
    Offset,
    /// An address: NULL or hexadecimal.
    Address,
    /// A descriptor.
    Fd,
    /// A descriptor of a directory, or `AT_FDCWD`.
    DirFd,
    /// A process or thread.
    Pid,
    /// A signal.
    Signal,
    /// A string; true: a path.
    Text(bool),
    /// An array of strings; true: the environment, of which only the number counts.
    Vector(bool),
    /// Bytes that the call reads; the argument with this index has the length.
    In(u8),
    /// Bytes that the call writes; the result is the length.
    Out,
    /// Buffers that the call reads; the argument with this index has their number.
    Buffers(u8),
    /// A socket address that the call reads, with its length's index.
    Address4(u8),
    /// A socket address that the call writes; its length is behind the argument with this index.
    OutAddress(u8),
    /// Two descriptors that the call writes.
    OutPair,
    /// A `struct timespec`.
    Time,
    /// A set of signals.
    Set,
    /// A futex operation with its options.
    Futex,
    /// Bits with names, of this table.
    Flags(&'static str),
    /// One of the values of this table.
    Enum(&'static str),
}

/// One system call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its number.
    pub number: u16,
    /// Its name.
    pub name: &'static str,
    /// Its arguments; at most 6.
    pub arguments: Vec<Kind>,
}

static CALLS: LazyLock<BTreeMap<u16, Call>> = LazyLock::new(|| parse_calls(include_str!("../data/calls.tsv")));
static NAMES: LazyLock<BTreeMap<&'static str, Vec<(u64, &'static str)>>> =
    LazyLock::new(|| parse_names(include_str!("../data/names.tsv")));

fn parse_calls(text: &'static str) -> BTreeMap<u16, Call> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let calls = lines.filter_map(|line| {
        let mut words = line.split('\t');
        let number = words.next()?.parse().ok()?;
        let name = words.next()?;
        let mut arguments: Vec<Kind> = words.map(kind).collect();
        if arguments == [Kind::Unknown] {
            arguments = vec![Kind::Unknown; 6];
        }
        Some((number, Call { number, name, arguments }))
    });
    calls.collect()
}

/// The kind that a word of the table names. Words that are unknown are found by the test of the
/// table.
fn kind(word: &'static str) -> Kind {
    let (head, tail) = word.split_once([':', '=']).unwrap_or((word, ""));
    let index = || tail.parse().unwrap_or(0);
    match head {
        "int" => Kind::Int,
        "uint" => Kind::Uint,
        "hex" => Kind::Hex,
        "oct" | "mode" => Kind::Octal,
        "size" => Kind::Size,
        "off" => Kind::Offset,
        "addr" | "ptr" => Kind::Address,
        "fd" => Kind::Fd,
        "dirfd" => Kind::DirFd,
        "pid" => Kind::Pid,
        "sig" => Kind::Signal,
        "path" => Kind::Text(true),
        "str" => Kind::Text(false),
        "argv" => Kind::Vector(false),
        "envp" => Kind::Vector(true),
        "in" => Kind::In(index()),
        "out" => Kind::Out,
        "iov" => Kind::Buffers(index()),
        "sockaddr" => Kind::Address4(index()),
        "outaddr" => Kind::OutAddress(index()),
        "outints" => Kind::OutPair,
        "time" => Kind::Time,
        "set" => Kind::Set,
        "futex" => Kind::Futex,
        "flags" => Kind::Flags(tail),
        "enum" => Kind::Enum(tail),
        _ => Kind::Unknown,
    }
}

fn parse_names(text: &'static str) -> BTreeMap<&'static str, Vec<(u64, &'static str)>> {
    let mut tables: BTreeMap<&str, Vec<(u64, &str)>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split('\t');
        if let (Some(table), Some(Ok(value)), Some(name)) = (words.next(), words.next().map(str::parse), words.next()) {
            tables.entry(table).or_default().push((value, name));
        }
    }
    tables
}

/// The call with this number, if the table has it.
pub fn by_number(number: u64) -> Option<&'static Call> {
    CALLS.get(&u16::try_from(number).ok()?)
}

/// The call with this name.
pub fn by_name(name: &str) -> Option<&'static Call> {
    CALLS.values().find(|call| call.name == name)
}

/// All calls, by number.
pub fn all() -> impl Iterator<Item = &'static Call> {
    CALLS.values()
}

/// The values and names of a table.
pub fn names(table: &str) -> &'static [(u64, &'static str)] {
    NAMES.get(table).map_or(&[], Vec::as_slice)
}

/// The name of a value of a table.
pub fn name_of(table: &str, value: u64) -> Option<&'static str> {
    names(table).iter().find(|(known, _)| *known == value).map(|(_, name)| *name)
}

/// The value of a name of a table.
pub fn value_of(table: &str, name: &str) -> Option<u64> {
    names(table).iter().find(|(_, known)| *known == name).map(|(value, _)| *value)
}

/// What the executive knows of each call.
pub(crate) fn descriptions() -> [Description; MAX_CALLS] {
    let mut all = [Description::default(); MAX_CALLS];
    for call in CALLS.values().filter(|call| usize::from(call.number) < MAX_CALLS) {
        let to = &mut all[usize::from(call.number)];
        to.roles = rules::roles(call);
        for (capture, kind) in to.arguments.iter_mut().zip(&call.arguments) {
            *capture = capture_of(*kind);
        }
    }
    all
}

/// Codes of `executive/abi.h`.
fn capture_of(kind: Kind) -> Capture {
    let capture = |kind, length, size| Capture { kind, length, size };
    match kind {
        Kind::Text(_) => capture(1, 0, PATH_BYTES),
        Kind::In(length) => capture(2, length, BUFFER_BYTES),
        Kind::Address4(length) => capture(2, length, ADDRESS_BYTES),
        Kind::Time => capture(3, 0, 16),
        Kind::Set => capture(3, 0, 8),
        Kind::Vector(false) => capture(4, 0, 0),
        Kind::Out => capture(5, 0, BUFFER_BYTES),
        Kind::OutPair => capture(6, 0, 8),
        Kind::OutAddress(length) => capture(7, length, ADDRESS_BYTES),
        Kind::Buffers(length) => capture(8, length, BUFFER_BYTES),
        _ => Capture::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_table_is_known() {
        for line in include_str!("../data/calls.tsv").lines().filter(|line| !line.starts_with('#')) {
            for word in line.split('\t').skip(2).filter(|word| *word != "?") {
                assert_ne!(kind(word), Kind::Unknown, "{line}");
                if let Kind::Flags(table) | Kind::Enum(table) = kind(word) {
                    assert!(!names(table).is_empty(), "no table {table}: {line}");
                }
            }
        }
    }

    #[test]
    fn numbers_and_names_agree_with_the_c_library() {
        for (number, name) in [
            (libc::SYS_read, "read"),
            (libc::SYS_clone3, "clone3"),
            (libc::SYS_openat, "openat"),
            (libc::SYS_exit_group, "exit_group"),
            (libc::SYS_process_madvise, "process_madvise"),
        ] {
            assert_eq!(by_name(name).map(|call| i64::from(call.number)), Some(number));
            assert_eq!(by_number(number as u64).map(|call| call.name), Some(name));
        }
        assert_eq!(value_of("errno", "ENOSPC"), Some(libc::ENOSPC as u64));
    }
}
