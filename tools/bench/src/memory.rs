//! Memory to measure with: ballast that makes a program as large as is asked, and areas whose pages
//! are all there.

use super::machine;
use orbit::{Area, Engine, Orbit};
use orbit_console::out::Failure;
use orbit_linux::map::{self, Mapping};

/// A page, as the benches count.
pub const PAGE: usize = 4096;

/// Memory that a program only has: pages of 4 KiB, all present, each with a content of its own.
pub struct Ballast(Vec<Mapping>);

impl Ballast {
    /// None yet.
    pub fn none() -> Ballast {
        Ballast(Vec::new())
    }

    /// Makes the program as large as this, in bytes of resident memory. Never smaller.
    pub fn fill_up_to(&mut self, footprint: u64) -> Result<(), Failure> {
        let missing = footprint.saturating_sub(machine::resident()) as usize / PAGE * PAGE;
        if missing == 0 {
            return Ok(());
        }
        let mapping = Mapping::anonymous(missing, false)?;
        // SAFETY: an own mapping; the advice changes no content. A kernel without huge pages
        // rejects it, rightly.
        let _ = unsafe { map::advise(mapping.addr(), missing, libc::MADV_NOHUGEPAGE) };
        for page in 0..missing / PAGE {
            // SAFETY: inside the own mapping.
            unsafe { mapping.as_ptr().add(page * PAGE).cast::<usize>().write_volatile(page + 1) };
        }
        self.0.push(mapping);
        Ok(())
    }
}

/// An area with one object that fills it, all of its pages present.
pub struct Field {
    pub area: Area,
    at: *mut u8,
    pages: usize,
    stamp: u64,
}

impl Field {
    /// An area of this many bytes.
    pub fn new(name: &str, bytes: usize, engine: Engine) -> Result<Field, Failure> {
        let area = Area::builder(name).size(bytes).limit(bytes).engine(engine).build()?;
        let at = area.alloc(bytes, PAGE)?.as_ptr();
        let mut field = Field { area, at, pages: bytes / PAGE, stamp: 0 };
        field.write_all();
        Ok(field)
    }

    /// How many pages it has.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Where its bytes are.
    pub fn bytes(&self) -> *mut u8 {
        self.at
    }

    /// Writes a word to each of these pages.
    #[inline]
    pub fn write(&mut self, pages: &[usize]) {
        self.stamp += 1;
        for &page in pages {
            debug_assert!(page < self.pages);
            // SAFETY: the object has that page, and only this thread uses it.
            unsafe { self.at.add(page * PAGE).cast::<u64>().write_volatile(self.stamp) };
        }
    }

    /// Writes a word to every page.
    pub fn write_all(&mut self) {
        let all: Vec<usize> = (0..self.pages).collect();
        self.write(&all);
    }

    /// Does something that forks, and keeps the field out of the child: else the fork would leave
    /// all of its pages write-protected, and the next turn of the orbit would pay for that.
    pub fn kept_from<T>(&self, forking: impl FnOnce() -> T) -> T {
        let (base, len) = (self.area.base(), self.area.limit());
        // SAFETY: the field's own memory; the advice is about children only, and taken back below.
        let _ = unsafe { map::advise(base, len, libc::MADV_DONTFORK) };
        let result = forking();
        // SAFETY: as above.
        let _ = unsafe { map::advise(base, len, libc::MADV_DOFORK) };
        result
    }

    /// So many pages, spread evenly.
    pub fn spread(&self, count: usize) -> Vec<usize> {
        (0..count).map(|nth| nth * self.pages / count).collect()
    }
}

/// As many pages of plain memory, which nobody tracks: what a rival of the field writes to.
pub struct Twin {
    mapping: Mapping,
    stamp: u64,
}

impl Twin {
    /// With all of its pages present.
    pub fn new(bytes: usize) -> Result<Twin, Failure> {
        let mapping = Mapping::anonymous(bytes, false)?;
        // SAFETY: an own mapping; the advice changes no content. A kernel without huge pages
        // rejects it, rightly.
        let _ = unsafe { map::advise(mapping.addr(), bytes, libc::MADV_NOHUGEPAGE) };
        let mut twin = Twin { mapping, stamp: 0 };
        twin.write(&(0..bytes / PAGE).collect::<Vec<_>>());
        Ok(twin)
    }

    /// Writes a word to each of these pages, as [`Field::write`] does.
    #[inline]
    pub fn write(&mut self, pages: &[usize]) {
        self.stamp += 1;
        for &page in pages {
            debug_assert!(page < self.mapping.len() / PAGE);
            // SAFETY: inside the own mapping.
            unsafe { self.mapping.as_ptr().add(page * PAGE).cast::<u64>().write_volatile(self.stamp) };
        }
    }
}

/// Calls until a call ships next to nothing: after the first, and after one that shipped nearly
/// all, the library checks for a few calls whether that continues before it tracks single pages
/// again.
pub fn settle(orbit: &Orbit, area: &Area) -> Result<(), Failure> {
    for _ in 0..64 {
        let before = orbit.stats().pages;
        orbit.call(&[area], &[])?;
        if orbit.stats().pages - before <= 16 {
            return Ok(());
        }
    }
    Err(Failure::text(format!("area \"{}\": calls continue to ship pages that nobody wrote", area.name())))
}
