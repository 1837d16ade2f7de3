//! Areas: ranges of main's memory, at the same address in main and in every orbit, whose state an
//! orbit is shown.
//!
//! An [`Area`] hands out objects ([`Area::alloc`], [`Area::place`]) or is existing memory
//! ([`Area::adopt`]). Its parts:
//!
//! | part | question |
//! |---|---|
//! | `window` | which addresses are areas carved from |
//! | `heap` | which bytes of an area are whose |
//! | `track` | which pages were written since the last harvest |
//! | `owed` | which pages has an orbit not been sent yet |
//! | `inner` | the area itself: these together, and their locks |
//! | `born` | where in an orbit may an area of main's come to lie |
//! | `registry` | which area does an address belong to |
//! | `own` | what is locked for the whole process, and what a forked child has of it |
//!
//! ```
//! use orbit::Area;
//! let area = Area::builder("accounts").limit(1 << 20).build()?;
//! let balance = area.place(17u64)?;
//! // SAFETY: the object was just made and nothing else knows it.
//! assert_eq!(unsafe { *balance.as_ptr() }, 17);
//! // SAFETY: and nobody uses it from here on.
//! unsafe { orbit::area::free(balance.as_ptr().cast())? };
//! # Ok::<(), orbit::Error>(())
//! ```

mod adopt;
#[cfg(feature = "allocator-api2")]
mod allocator;
pub(crate) mod born;
mod engine;
#[doc(hidden)]
pub mod fault;
pub(crate) mod forks;
mod heap;
mod inner;
mod locked;
mod owed;
mod pages;
mod pin;
mod registry;
mod stay;
mod touched;
#[doc(hidden)]
pub mod track;
pub(crate) mod window;

use crate::error::{Error, Kind, Result};
#[doc(hidden)]
pub use crate::generation::generation;
use crate::own::Own;
use crate::units::{Address, Bytes, Page, Pages};
#[cfg(feature = "allocator-api2")]
pub use allocator::AreaAllocator;
pub use engine::Engine;
use inner::AreaInner;
pub(crate) use inner::Hold;
use orbit_linux::map::page_size;
#[doc(hidden)]
pub use owed::OwedSet;
#[doc(hidden)]
pub use pages::PageRuns;
pub(crate) use pin::{Merge, Pin};
pub(crate) use stay::Stay;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
pub(crate) use track::Refill;

/// The limit of an area that states none, if its size is smaller.
const DEFAULT_LIMIT: Bytes = Bytes::new(64 << 20);

/// `64 MiB`, `1.5 KiB`, `17 bytes`.
fn human(bytes: Bytes) -> String {
    let bytes = bytes.get();
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >> shift != 0 {
            let tenths = (bytes as u128 * 10) >> shift;
            return match (tenths / 10, tenths % 10) {
                (whole, 0) => format!("{whole} {unit}"),
                (whole, rest) => format!("{whole}.{rest} {unit}"),
            };
        }
    }
    format!("{bytes} bytes")
}

/// Refuses what no object and no area can be long: a negative number that became one without sign,
/// or an overflow.
fn check_size(what: impl fmt::Display, bytes: Bytes) -> Result<()> {
    if bytes.get() <= isize::MAX as usize {
        return Ok(());
    }
    let signed = bytes.get() as isize;
    let text = format!(
        "{what} cannot be {bytes} bytes, which is {signed} as a signed number: was it negative, or did it overflow?"
    );
    Err(Error::new(Kind::TooLarge, text))
}

/// An area. A handle: clones stand for the same area, which lives until the last of them and the
/// last orbit that uses it are gone, or [`Area::destroy`]. All of it may be used from any thread.
#[derive(Clone)]
pub struct Area {
    inner: Arc<AreaInner>,
}

/// What an area shall be like. Made by [`Area::builder`].
#[derive(Clone, Debug)]
pub struct AreaBuilder {
    name: String,
    size: Bytes,
    limit: Option<Bytes>,
    engine: Engine,
}

impl AreaBuilder {
    /// How many bytes it is expected to hold: the least that the limit may be. Memory is taken as
    /// objects are made. From 32 MiB on the kernel may take it in huge pages, with which a call
    /// that finds little changed costs less.
    pub fn size(mut self, bytes: usize) -> Self {
        self.size = Bytes::new(bytes);
        self
    }

    /// How many bytes it may ever hold: it grows in place up to there. Takes address space, not
    /// memory. Rounded up to whole pages; when not said 64 MiB (less where `ulimit -v` is low), or
    /// the size if that is more.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = Some(Bytes::new(bytes));
        self
    }

    /// How written pages are found; [`Engine::Auto`] when not said.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Makes the area.
    ///
    /// # Errors
    /// `Invalid` for a limit of 0 or below the size, `TooLarge` for what no size can be, `Full`
    /// when the window of address space has no room left, `Limit` when it cannot be reserved,
    /// `Unsupported` when the engine asked for is not available here.
    pub fn build(self) -> Result<Area> {
        check_size(format_args!("the size of area \"{}\"", self.name), self.size)?;
        let limit = match self.limit {
            Some(limit) => limit,
            None => self.size.max(DEFAULT_LIMIT.min(Bytes::new(window::window()?.len().get() / 4))),
        };
        check_size(format_args!("the limit of area \"{}\"", self.name), limit)?;
        if limit == Bytes::ZERO || limit < self.size {
            return Err(Error::new(
                Kind::Invalid,
                format!(
                    "area \"{}\": a limit of {limit} bytes is less than its size of {}; raise the limit",
                    self.name, self.size
                ),
            ));
        }
        let limit = limit.up_to(Bytes::new(page_size()));
        AreaInner::carve(self.name, self.size, limit, self.engine).map(|inner| Area { inner })
    }

    /// Makes existing memory the area, at its address: a table, or a section of globals. It has no
    /// allocator, and its memory stays as it is when the area goes. Size and limit do not apply.
    ///
    /// Best adopted before the library is set up ([`crate::init`]). Memory mapped later has its
    /// place kept free in orbits; where an orbit's process has memory of its own there all the
    /// same, the process ends and says so, and its next one gets the area first.
    ///
    /// # Errors
    /// `Invalid` unless `addr` and `len` are whole pages of private memory, mapped readable and
    /// writable, that no other area has, and for memory of the heap (what `malloc` gives) once the
    /// library is set up: orbits have memory of their own at such addresses; `Unsupported` for
    /// hugetlb pages, or when the engine asked for is not available here.
    ///
    /// # Safety
    /// The range stays mapped as long as the area lives. Its pages are not released to the kernel,
    /// moved or replaced meanwhile (`MADV_DONTNEED`, `mremap`, `mmap` over it): such a change is
    /// not seen.
    pub unsafe fn adopt(self, addr: *mut u8, len: usize) -> Result<Area> {
        let (base, len) = (Address::new(addr.expose_provenance()), Bytes::new(len));
        if window::existing().is_some_and(|window| window.overlaps(base, len)) {
            let text = format!(
                "cannot adopt {len} bytes at {base:#x} as area \"{}\": an area has that memory already",
                self.name
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        registry::check(&self.name, base, len)?;
        let anonymous = adopt::check(&self.name, base, len)?;
        AreaInner::adopt(self.name, base, len, self.engine, anonymous).map(|inner| Area { inner })
    }
}

impl Area {
    /// An area named "area" for `bytes` bytes, with a limit of 64 MiB or `bytes` if that is more.
    ///
    /// # Errors
    /// As [`AreaBuilder::build`].
    pub fn new(bytes: usize) -> Result<Area> {
        Area::builder("area").size(bytes).build()
    }

    /// Begins an area with this name, which messages show.
    pub fn builder(name: impl Into<String>) -> AreaBuilder {
        AreaBuilder { name: name.into(), size: Bytes::ZERO, limit: None, engine: Engine::Auto }
    }

    /// Makes existing memory an area. See [`AreaBuilder::adopt`], which also takes a name and an
    /// engine.
    ///
    /// # Errors
    /// As [`AreaBuilder::adopt`].
    ///
    /// # Safety
    /// As [`AreaBuilder::adopt`].
    pub unsafe fn adopt(addr: *mut u8, len: usize) -> Result<Area> {
        // SAFETY: the caller's promise is the same.
        unsafe { Area::builder(format!("adopted at {addr:p}")).adopt(addr, len) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its number, unique in this process.
    pub fn id(&self) -> u32 {
        self.inner.id
    }

    /// Its first address, the same in main and in every orbit.
    pub fn base(&self) -> usize {
        self.inner.base.get()
    }

    /// How many bytes it may ever hold, whole pages.
    pub fn limit(&self) -> usize {
        self.inner.limit.get()
    }

    /// Bytes of living objects, each as rounded up to its class; all bytes of adopted memory.
    pub fn used(&self) -> usize {
        self.inner.used().get()
    }

    /// Living objects (0 for adopted memory).
    pub fn objects(&self) -> usize {
        self.inner.objects()
    }

    /// Bytes from the base to the end of the last page ever used: what a first snapshot holds.
    pub fn high_water(&self) -> usize {
        self.inner.high_pages().bytes(Bytes::new(page_size())).get()
    }

    /// The engine at work: what [`Engine::Auto`] came to at the last snapshot; [`Engine::Fork`] if
    /// that was asked for.
    pub fn engine(&self) -> Engine {
        match self.inner.asked {
            Engine::Fork => Engine::Fork,
            asked => self.inner.with_tracker(|tracker| Ok(tracker.engine())).unwrap_or(asked),
        }
    }

    /// Why the engine is not the usual one, if so: which facility is missing, and the way out.
    pub fn engine_note(&self) -> Option<String> {
        self.inner.with_tracker(|tracker| Ok(tracker.note().map(str::to_owned))).unwrap_or(None)
    }

    /// Whether all `len` bytes from address `addr` on lie in the area's range.
    pub fn contains(&self, addr: usize, len: usize) -> bool {
        self.inner.offset_of(Address::new(addr), Bytes::new(len)).is_some()
    }

    /// Hands out at least `size` bytes at a multiple of `align` (a power of two; at least 16 is
    /// given). Their content is not defined. Takes tens of nanoseconds; blocks only while another
    /// thread allocates.
    ///
    /// # Errors
    /// `Full`, `TooLarge` for more than the limit, `Invalid` for the alignment, `Unsupported` for
    /// adopted memory, `Gone`, `Forked` in a child of the process that made the area, `WrongSide`
    /// in an orbit.
    pub fn alloc(&self, size: usize, align: usize) -> Result<NonNull<u8>> {
        self.inner.alloc(Bytes::new(size), align, false)
    }

    /// As [`Area::alloc`], and all bytes read as zero.
    ///
    /// # Errors
    /// As [`Area::alloc`].
    pub fn alloc_zeroed(&self, size: usize, align: usize) -> Result<NonNull<u8>> {
        self.inner.alloc(Bytes::new(size), align, true)
    }

    /// Moves `value` into the area. It is not dropped when the object is freed:
    /// `ptr::drop_in_place` does that.
    ///
    /// # Errors
    /// As [`Area::alloc`]; `value` is dropped then.
    pub fn place<T>(&self, value: T) -> Result<NonNull<T>> {
        let _held = self.hold()?;
        let object = self.alloc(size_of::<T>(), align_of::<T>())?.cast::<T>();
        // SAFETY: the bytes are new, long enough, aligned, and mapped while the area is held.
        unsafe { object.write(value) };
        Ok(object)
    }

    /// Makes an object hold `size` bytes and returns where it is now, at a multiple of `align`. The
    /// bytes that both sizes have keep their content; the old address is void unless it is the one
    /// returned.
    ///
    /// # Errors
    /// As [`Area::alloc`] and [`Area::free`]; the object is as before then.
    ///
    /// # Safety
    /// Nobody uses the object meanwhile, nor its old address afterwards.
    pub unsafe fn realloc(&self, object: NonNull<u8>, size: usize, align: usize) -> Result<NonNull<u8>> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.inner.realloc(Address::of(object.as_ptr()), Bytes::new(size), align) }
    }

    /// Frees an object of this area. Free pages are used again, and long runs of them go back to
    /// the kernel.
    ///
    /// # Errors
    /// `Foreign` for an address outside the area, `DoubleFree` where no object lives, `Invalid`
    /// inside an object, `Forked` and `WrongSide` as in [`Area::alloc`]. The area is unharmed then.
    ///
    /// # Safety
    /// Nobody uses the object from here on.
    pub unsafe fn free(&self, object: NonNull<u8>) -> Result<()> {
        self.inner.free(Address::of(object.as_ptr()))
    }

    /// How many bytes an object really has.
    ///
    /// # Errors
    /// As [`Area::free`].
    pub fn usable_size(&self, object: NonNull<u8>) -> Result<usize> {
        self.inner.size_of(Address::of(object.as_ptr())).map(Bytes::get)
    }

    /// Says that main is about to write to most of the pages of these `len` bytes: one system call
    /// (a tenth of a microsecond a page) in place of a fault for each page's first write after a
    /// snapshot (one to two microseconds). The pages count as written whether they are or not.
    /// Worth it from some pages on; never needed. Thread-safe; blocks while another thread takes a
    /// snapshot of this area.
    ///
    /// # Errors
    /// `Foreign` when the bytes are not all in the area, `Gone`, `Forked`.
    pub fn will_write(&self, start: *const u8, len: usize) -> Result<()> {
        self.inner.will_write(Address::of(start), Bytes::new(len))
    }

    /// Names a moment in which nothing writes to an area of [`Engine::Share`]: what main wrote
    /// during calls is merged into the memory that orbits share, so that the next call sends
    /// nothing. True if that is so now. False while a call that names the area is in flight, while
    /// main forks, and for about a second a GiB after a fork, while the library copies the memory
    /// that the child has. Takes about a microsecond for each page written during calls. Other
    /// areas have nothing to merge.
    ///
    /// # Errors
    /// `Gone`, `Forked`, `System`; nothing is lost.
    ///
    /// # Safety
    /// Nothing writes to the area until this returns: no other thread, no signal handler, no other
    /// process and no device. What one writes all the same is lost.
    pub unsafe fn merge(&self) -> Result<bool> {
        loop {
            // SAFETY: the caller's promise is the same.
            match unsafe { self.inner.merge(|| true) }? {
                Merge::Done => return Ok(true),
                Merge::Busy => return Ok(false),
                // Nobody copies for an area without an orbit.
                Merge::Filling(refill) if self.inner.users() == 0 => {
                    let filled = refill.fill(Bytes::new(usize::MAX));
                    filled.map_err(|error| Error::system("copying memory that a forked child has", error))?;
                }
                Merge::Filling(_) => return Ok(false),
            }
        }
    }

    /// The same in a moment that `quiet` knows to be such a one.
    ///
    /// # Safety
    /// Its answer is true.
    pub(crate) unsafe fn merge_if(&self, quiet: impl FnOnce() -> bool) -> Result<Merge> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.inner.merge(quiet) }
    }

    /// Adds the pages of a shared area that main has written and not merged.
    pub(crate) fn unmerged(&self, out: &mut PageRuns) -> Result<()> {
        self.inner.unmerged(out)
    }

    /// Ends the area now, whatever handles there are: its memory is unmapped (adopted memory
    /// stays), its objects are gone, and every later use of a handle answers `Gone`. Blocks while
    /// another thread applies an update to it or fills an object.
    ///
    /// # Errors
    /// `Invalid` while orbits use it or a [`crate::Delegated`] has its delegate in it, `Forked` in
    /// a child of the process that made it.
    pub fn destroy(&self) -> Result<()> {
        self.inner.destroy()
    }

    /// Keeps the area's memory mapped: whoever destroys the area waits until this is dropped.
    ///
    /// # Errors
    /// `Gone`, `Forked` in a child of the process that made it.
    pub(crate) fn hold(&self) -> Result<Hold> {
        Hold::on(&self.inner)
    }

    /// Keeps the area from being destroyed until this is dropped: an attempt is rejected. For
    /// objects placed from here on.
    pub(crate) fn stay(&self) -> Stay {
        Stay::in_area(&self.inner)
    }

    /// As [`Area::hold`], for a caller that writes to these bytes of the area, whether or not there
    /// is an object.
    ///
    /// # Errors
    /// As [`Area::hold`].
    pub(crate) fn hold_to_write(&self, address: Address, len: Bytes) -> Result<Hold> {
        let start = address - self.inner.base;
        Hold::to_write(&self.inner, start..start + len)
    }

    /// The engine that was asked for, which may be [`Engine::Auto`].
    #[doc(hidden)]
    pub fn asked_engine(&self) -> Engine {
        self.inner.asked
    }

    /// Whether both are handles to one area.
    #[inline(always)]
    pub(crate) fn is_same(&self, other: &Area) -> bool {
        std::sync::Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether orbits map the area's own memory: [`Engine::Share`].
    pub(crate) fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    /// That memory, and its number, see `pin`.
    pub(crate) fn shared_file(&self) -> Result<Option<(Own, u64)>> {
        self.inner.shared_file()
    }

    /// The number of that memory now, see `pin`.
    pub(crate) fn shared_number(&self) -> Result<u64> {
        self.inner.shared_number()
    }

    /// Takes the snapshot of a shared area, see `pin`.
    pub(crate) fn pin(&self, number: u64, out: &mut PageRuns) -> Result<Option<Pin>> {
        self.inner.pin(number, out)
    }

    /// Copies a small area whole, see `inner`.
    ///
    /// # Safety
    /// `to` has as many writable bytes as the area's limit, which are no part of it and which
    /// nobody uses meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn copy_small(&self, to: *mut u8, most: Pages, cold: bool) -> Option<Pages> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.inner.copy_small(to, most, cold) }
    }

    /// Pages from the base to the last one ever used.
    #[doc(hidden)]
    pub fn used_pages(&self) -> Pages {
        self.inner.high_pages()
    }

    /// Registers an orbit, which is owed every page in use. It counts as using the area while the
    /// set lives.
    #[doc(hidden)]
    pub fn attach(&self) -> Result<Arc<OwedSet>> {
        self.inner.attach()
    }

    /// The pages that the orbit of `mine` needs now, see `inner`.
    #[doc(hidden)]
    pub fn snapshot_pages(&self, mine: &OwedSet, out: &mut PageRuns) -> Result<()> {
        self.inner.snapshot_pages(mine, out)
    }

    /// About how many they would be, see `inner`.
    #[doc(hidden)]
    pub fn peek_pages(&self, mine: &OwedSet, stop_after: Pages) -> Result<Pages> {
        self.inner.peek_pages(mine, stop_after)
    }

    /// From where the first page of a snapshot is copied, and the others after it: the area itself,
    /// or a shadow of it.
    #[doc(hidden)]
    pub fn source_begins(&self) -> Result<*const u8> {
        self.inner.with_source(|source| source(Page::ZERO))
    }

    /// From where each page of a snapshot is copied, see `inner`.
    #[doc(hidden)]
    pub fn with_source<R>(&self, f: impl FnOnce(&dyn Fn(Page) -> *const u8) -> R) -> Result<R> {
        self.inner.with_source(f)
    }
}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AreaInner { name, id, base, limit, .. } = &*self.inner;
        write!(f, "Area {{ name: {name:?}, id: {id}, base: {base:#x}, limit: {limit:#x} }}")
    }
}

fn foreign(addr: Address) -> Error {
    Error::new(
        Kind::Foreign,
        format!("{addr:#x} belongs to no area; pass the address that an allocation in an area gave"),
    )
}

/// Frees an object of whichever area it is in. Null is nothing to free.
///
/// # Errors
/// `Foreign` if it is in no area, else as [`Area::free`].
///
/// # Safety
/// Nobody uses the object from here on.
pub unsafe fn free(object: *mut u8) -> Result<()> {
    if object.is_null() {
        return Ok(());
    }
    let address = Address::of(object);
    registry::with(address, |area| area.free(address)).unwrap_or_else(|| Err(foreign(address)))
}

/// How many bytes an object of whichever area really has.
///
/// # Errors
/// As [`free`].
pub fn usable_size(object: *const u8) -> Result<usize> {
    let address = Address::of(object);
    let found = registry::with(address, |area| area.size_of(address)).unwrap_or_else(|| Err(foreign(address)));
    found.map(Bytes::get)
}

/// [`Area::will_write`] for whichever area the bytes are in.
///
/// # Errors
/// As [`Area::will_write`].
pub fn will_write(start: *const u8, len: usize) -> Result<()> {
    let address = Address::of(start);
    registry::with(address, |area| area.will_write(address, Bytes::new(len))).unwrap_or_else(|| Err(foreign(address)))
}

/// Whether an address lies in the address space that areas are carved from. In an orbit too;
/// adopted memory does not count.
pub fn is_carved(addr: usize) -> bool {
    window::existing().is_some_and(|window| window.overlaps(Address::new(addr), Bytes::new(1)))
}

/// The area that address `addr` is in.
pub fn find(addr: usize) -> Option<Area> {
    registry::find(Address::new(addr)).map(|inner| Area { inner })
}

/// Reserves the window of address space for areas, before the template is made:
/// `(first address, bytes)`. One that is reserved already stays as it is.
///
/// # Errors
/// `Limit` when not even 64 MiB is available.
pub(crate) fn reserve_window(bytes: Bytes) -> Result<(Address, Bytes)> {
    window::reserve_window(bytes).map(|window| (window.base(), window.len()))
}
