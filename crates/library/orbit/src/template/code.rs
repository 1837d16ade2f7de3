//! The code that was loaded when a template was made, and whether main has it still: a library may
//! have been unloaded since, and another one, or another build of it, may lie where it lay.
//!
//! The program itself is never unloaded. Nothing is checked before something was, which the loader
//! counts, and then once for each change of what is loaded. A library is known again by its
//! addresses, its name and its build id; if it has none, then by its place in the loader's list,
//! where what is loaded comes last: what stands farther from the end than so many things were
//! loaded since has been there all the time.

use std::ffi::CStr;
use std::sync::Mutex;

use crate::blackbox::Function;

/// The type of the note with the build id, and its owner's name as it stands there.
const BUILD_ID: u32 = 3;
const GNU: &[u8] = b"GNU\0";

/// How often the loader has loaded and unloaded something.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Counts {
    loaded: u64,
    unloaded: u64,
}

/// Whether main has code at this address.
pub(crate) fn is_loaded(address: usize) -> bool {
    Loaded::now().find(address).is_some()
}

/// The file of main's code that has this address, and the offset in it.
pub(crate) fn place_of(address: usize) -> Option<String> {
    Loaded::now().place_of(address)
}

/// An executable range of a loaded object.
struct Range {
    start: usize,
    end: usize,
    /// The object's in the loader's list; the program is first.
    place: u64,
    /// The object's, as the loader has it.
    name: Vec<u8>,
    /// The object's; empty if it has none.
    build_id: Vec<u8>,
    /// Where the object's addresses count from.
    base: usize,
}

/// All that is loaded at one moment, in order of address.
struct Loaded {
    counts: Counts,
    objects: u64,
    ranges: Vec<Range>,
}

/// The code that was there at a template's birth.
pub(crate) struct Code {
    born: Loaded,
    still: Mutex<Still>,
}

/// Which of the ranges main still had at the last check.
struct Still {
    counts: Counts,
    there: Vec<bool>,
}

impl Code {
    /// What is loaded now.
    pub fn now() -> Code {
        let born = Loaded::now();
        let still = Still { counts: born.counts, there: vec![true; born.ranges.len()] };
        Code { born, still: Mutex::new(still) }
    }

    /// Whether this is the address of code that was loaded then, and that main has there now.
    pub fn is_at(&self, address: usize) -> bool {
        let Some(at) = self.born.find(address) else { return false };
        if self.born.ranges[at].place == 0 {
            return true;
        }
        let counts = Counts::now();
        if counts.unloaded == self.born.counts.unloaded {
            return true;
        }
        let mut still = self.still.lock().unwrap_or_else(|e| e.into_inner());
        if still.counts != counts {
            *still = self.check();
        }
        still.there[at]
    }

    /// The file of code that had this place then (a return address, or one more than an exact
    /// one), and the offset in it. Reads nothing but what was noted.
    pub fn place_of(&self, lookup: u64) -> Option<Function> {
        let at = lookup.wrapping_sub(1) as usize;
        let name = Some(self.born.place_of(at)?);
        Some(Function { name, file: None, line: None, is_messenger: true })
    }

    fn check(&self) -> Still {
        let now = Loaded::now();
        let since = now.counts.loaded - self.born.counts.loaded;
        let there = |born: &Range| {
            let Some(found) = now.find(born.start).map(|at| &now.ranges[at]) else { return false };
            let same_build = !born.build_id.is_empty() && found.build_id == born.build_id;
            let stayed = now.objects - found.place > since;
            (found.start, found.end, &found.name) == (born.start, born.end, &born.name) && (same_build || stayed)
        };
        Still { counts: now.counts, there: self.born.ranges.iter().map(there).collect() }
    }
}

impl Loaded {
    fn now() -> Loaded {
        let mut loaded = Loaded { counts: Counts { loaded: 0, unloaded: 0 }, objects: 0, ranges: Vec::new() };
        each_object(|object| {
            loaded.counts = Counts::of(object);
            loaded.ranges.extend(ranges_of(object, loaded.objects));
            loaded.objects += 1;
            true
        });
        loaded.ranges.sort_unstable_by_key(|range| range.start);
        loaded
    }

    /// The file of code that has this address, and the offset in it.
    fn place_of(&self, address: usize) -> Option<String> {
        let range = &self.ranges[self.find(address)?];
        let name = String::from_utf8_lossy(range.name.rsplit(|byte| *byte == b'/').next().unwrap_or_default());
        let name = if name.is_empty() { "the program".into() } else { name };
        Some(format!("{name}+{:#x}", address - range.base))
    }

    /// Which of the ranges it is this address lies in.
    fn find(&self, address: usize) -> Option<usize> {
        let at = self.ranges.partition_point(|range| range.start <= address).checked_sub(1)?;
        (address < self.ranges[at].end).then_some(at)
    }
}

impl Counts {
    fn now() -> Counts {
        let mut counts = Counts { loaded: 0, unloaded: 0 };
        each_object(|object| {
            counts = Counts::of(object);
            false
        });
        counts
    }

    fn of(object: &libc::dl_phdr_info) -> Counts {
        Counts { loaded: object.dlpi_adds, unloaded: object.dlpi_subs }
    }
}

/// Shows the loaded objects, the program first, until the visitor has seen enough. The loader's
/// lock is held meanwhile, so that none of them is unloaded.
fn each_object<F: FnMut(&libc::dl_phdr_info) -> bool>(mut visit: F) {
    unsafe extern "C" fn each<F: FnMut(&libc::dl_phdr_info) -> bool>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        visit: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: the loader calls this with a valid description, and `visit` is the function given
        // below.
        unsafe { i32::from(!(*visit.cast::<F>())(&*info)) }
    }
    // SAFETY: `each` matches the signature wanted and is given the visitor, which outlives the
    // call.
    unsafe { libc::dl_iterate_phdr(Some(each::<F>), (&raw mut visit).cast()) };
}

fn headers(object: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if object.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the loader's own description of an object that stays loaded while it is read.
    unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum as usize) }
}

/// The executable ranges of an object.
fn ranges_of(object: &libc::dl_phdr_info, place: u64) -> Vec<Range> {
    // SAFETY: the name is a string of the loader's, or null.
    let name = unsafe { object.dlpi_name.as_ref().map_or(&[][..], |name| CStr::from_ptr(name).to_bytes()) };
    let build_id = build_id(object);
    let executable = headers(object).iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0);
    executable
        .map(|header| {
            let start = object.dlpi_addr as usize + header.p_vaddr as usize;
            let end = start + header.p_memsz as usize;
            Range {
                start,
                end,
                place,
                name: name.to_vec(),
                build_id: build_id.to_vec(),
                base: object.dlpi_addr as usize,
            }
        })
        .collect()
}

/// The build id in an object's notes; empty if it has none.
fn build_id(object: &libc::dl_phdr_info) -> &[u8] {
    let readable = |h: &libc::Elf64_Phdr| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_R != 0;
    let notes = headers(object).iter().filter(|h| h.p_type == libc::PT_NOTE).filter(|note| {
        headers(object)
            .iter()
            .filter(|h| readable(h))
            .any(|h| h.p_vaddr <= note.p_vaddr && note.p_vaddr.saturating_add(note.p_filesz) <= h.p_vaddr + h.p_filesz)
    });
    let mut found = notes.filter_map(|note| {
        let start = (object.dlpi_addr as usize + note.p_vaddr as usize) as *const u8;
        // SAFETY: the notes lie in a part of the object that is mapped to be read, and stay while
        // they are read.
        let bytes = unsafe { std::slice::from_raw_parts(start, note.p_filesz as usize) };
        build_id_in(bytes, if note.p_align == 8 { 8 } else { 4 })
    });
    found.next().unwrap_or_default()
}

/// The build id among notes, each of which is the sizes of name and contents, a type, the name and
/// the contents, with name and contents filled up to the alignment.
fn build_id_in(mut notes: &[u8], align: usize) -> Option<&[u8]> {
    while let Some((head, _)) = notes.split_first_chunk::<12>() {
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let name_end = 12 + word(0) as usize;
        let begin = name_end.next_multiple_of(align);
        let end = begin + word(4) as usize;
        if word(8) == BUILD_ID && notes.get(12..name_end)? == GNU {
            return notes.get(begin..end);
        }
        notes = notes.get(end.next_multiple_of(align)..)?;
    }
    None
}
