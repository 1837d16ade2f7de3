//! ELF files, as far as stacks need them: segments, sections, build id.
//!
//! Promises: reads by `pread` and never maps a file (its owner could shorten it meanwhile, which
//! would kill the reader); every count and size is checked against the file and against a limit
//! before memory is taken for it, and what all files of a process take together against one more.
//! Refuses: 32-bit and big-endian files, sections compressed with zstd.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const MAX_SECTIONS: usize = 8192;
const MAX_SEGMENTS: usize = 1024;
const COMPRESSED: u64 = 0x800;
const NOBITS: u32 = 8;

/// Where the bytes come from.
#[derive(Debug)]
pub(crate) enum Source {
    File(File),
    Bytes(Vec<u8>),
}

impl Source {
    /// Up to `len` bytes at an offset; fewer at the end.
    fn at(&self, offset: u64, len: usize) -> Vec<u8> {
        match self {
            Source::Bytes(b) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(b.len());
                b[from..from.saturating_add(len).min(b.len())].to_vec()
            }
            Source::File(f) => {
                let there = f.metadata().map_or(0, |m| m.len()).saturating_sub(offset);
                let mut v = vec![0u8; len.min(usize::try_from(there).unwrap_or(usize::MAX))];
                let mut done = 0;
                while done < v.len() {
                    match f.read_at(&mut v[done..], offset + done as u64) {
                        Ok(n) if n > 0 => done += n,
                        _ => break,
                    }
                }
                v.truncate(done);
                v
            }
        }
    }
}

/// A part of the file that is loaded.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) addr: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// A section.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) kind: u32,
    flags: u64,
    pub(crate) addr: u64,
    offset: u64,
    pub(crate) size: u64,
    pub(crate) link: usize,
}

/// Bytes that may still be read and kept, shared by all files of a process.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<AtomicUsize>);

impl Room {
    pub(crate) fn of(bytes: usize) -> Room {
        Room(Arc::new(AtomicUsize::new(bytes)))
    }
}

/// An opened file. What was read of it counts against the room until it is dropped, so it is to
/// live as long as that.
#[derive(Debug)]
pub(crate) struct Elf {
    source: Source,
    room: Room,
    taken: AtomicUsize,
    pub(crate) segments: Vec<Segment>,
    pub(crate) sections: Vec<Section>,
}

/// Little-endian numbers out of bytes; nothing behind the end.
pub(crate) fn u16_at(b: &[u8], i: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(i..i.checked_add(2)?)?.try_into().ok()?))
}
pub(crate) fn u32_at(b: &[u8], i: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(i..i.checked_add(4)?)?.try_into().ok()?))
}
pub(crate) fn u64_at(b: &[u8], i: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(i..i.checked_add(8)?)?.try_into().ok()?))
}

/// The text up to the next zero byte, at most 64 KiB of it.
pub(crate) fn text_at(b: &[u8], i: usize) -> Option<&[u8]> {
    let rest = b.get(i..)?;
    let rest = &rest[..rest.len().min(1 << 16)];
    Some(&rest[..rest.iter().position(|&c| c == 0)?])
}

impl Drop for Elf {
    fn drop(&mut self) {
        self.room.0.fetch_add(*self.taken.get_mut(), Relaxed);
    }
}

impl Elf {
    /// Reads the headers; nothing if this is no 64-bit little-endian ELF file.
    pub(crate) fn open(source: Source, room: &Room) -> Option<Elf> {
        let h = source.at(0, 64);
        if h.len() < 64 || !h.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let number = |i| u16_at(&h, i).map(usize::from);
        let (ph, sh) = (u64_at(&h, 32)?, u64_at(&h, 40)?);
        let (ph_size, ph_count) = (number(54)?, number(56)?.min(MAX_SEGMENTS));
        let (sh_size, sh_count, names) = (number(58)?, number(60)?.min(MAX_SECTIONS), number(62)?);
        let mut segments = Vec::new();
        if ph_size >= 56 {
            for p in source.at(ph, ph_size * ph_count).chunks_exact(ph_size) {
                if u32_at(p, 0)? == 1 {
                    segments.push(Segment { offset: u64_at(p, 8)?, addr: u64_at(p, 16)?, size: u64_at(p, 32)? });
                }
            }
        }
        let mut elf = Elf { source, room: room.clone(), taken: AtomicUsize::new(0), segments, sections: Vec::new() };
        if sh_size >= 64 && sh != 0 {
            elf.read_sections(sh, sh_size, sh_count, names);
        }
        Some(elf)
    }

    fn read_sections(&mut self, at: u64, size: usize, count: usize, names: usize) {
        let table = self.source.at(at, size * count);
        let mut name_at = Vec::new();
        for s in table.chunks_exact(size) {
            let (w, q) = (|i| u32_at(s, i).unwrap_or(0), |i| u64_at(s, i).unwrap_or(0));
            name_at.push(w(0) as usize);
            self.sections.push(Section {
                name: String::new(),
                kind: w(4),
                flags: q(8),
                addr: q(16),
                offset: q(24),
                size: q(32),
                link: w(40) as usize,
            });
        }
        let Some(strings) = self.sections.get(names).map(|s| self.source.at(s.offset, (s.size as usize).min(1 << 20)))
        else {
            return;
        };
        for (s, at) in self.sections.iter_mut().zip(name_at) {
            let name = text_at(&strings, at).unwrap_or_default();
            s.name = String::from_utf8_lossy(&name[..name.len().min(256)]).into_owned();
        }
    }

    /// A section by name.
    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// Counts bytes against the room; `false` if there is not so much.
    fn take(&self, bytes: usize) -> bool {
        let taken = self.room.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok();
        if taken {
            self.taken.fetch_add(bytes, Relaxed);
        }
        taken
    }

    /// A section's content, unpacked if need be; nothing if it is missing, empty or larger than
    /// `limit` bytes or than the room left.
    pub(crate) fn content(&self, s: &Section, limit: usize) -> Option<Vec<u8>> {
        let size = usize::try_from(s.size).ok()?;
        if s.kind == NOBITS || size == 0 || size > limit || !self.take(size) {
            return None;
        }
        let raw = self.source.at(s.offset, size);
        if raw.len() < size {
            return None;
        }
        if s.flags & COMPRESSED == 0 {
            return Some(raw);
        }
        let unpacked = usize::try_from(u64_at(&raw, 8)?).ok()?;
        if u32_at(&raw, 0)? != 1 || unpacked > limit || !self.take(unpacked) {
            return None;
        }
        let mut out = Vec::new();
        flate2::read::ZlibDecoder::new(raw.get(24..)?).take(unpacked as u64).read_to_end(&mut out).ok()?;
        (out.len() == unpacked).then_some(out)
    }

    /// Bytes of the file; fewer at its end, none if there is no room for them.
    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        if self.take(len) { self.source.at(offset, len) } else { Vec::new() }
    }

    /// A section's content by name.
    pub(crate) fn named(&self, name: &str, limit: usize) -> Option<Vec<u8>> {
        self.content(self.section(name)?, limit)
    }

    /// The build id, if the file has one.
    pub(crate) fn build_id(&self) -> Option<Vec<u8>> {
        let note = self.named(".note.gnu.build-id", 4096)?;
        let (name, size) = (u32_at(&note, 0)? as usize, u32_at(&note, 4)? as usize);
        let from = 12usize.checked_add(name.checked_add(3)? & !3)?;
        let id = note.get(from..from.checked_add(size)?)?;
        (u32_at(&note, 8)? == 3 && (2..=64).contains(&id.len())).then(|| id.to_vec())
    }

    /// Address as linked of a byte at this offset in the file.
    pub(crate) fn linked(&self, offset: u64) -> Option<u64> {
        // Mappings begin on a page, so the segment may begin a little behind.
        self.segments
            .iter()
            .find(|s| s.offset & !4095 <= offset && offset < s.offset.saturating_add(s.size))
            .map(|s| s.addr.wrapping_sub(s.offset).wrapping_add(offset))
    }
}
