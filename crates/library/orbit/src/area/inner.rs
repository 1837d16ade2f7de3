//! What stands behind an [`Area`](super::Area): its range, its heap, its tracker, and what each
//! orbit is owed of it.
//!
//! **Locks**, in the order in which they are taken: `track`, `state`, then `dropped` or `owed`.
//! Allocation takes `state` and never waits for a harvest; a harvest takes `track` and never waits
//! for an allocation, except the instant it reads the high-water mark, which is an atomic.

use super::heap::{Bad, Heap, Object, PAGE, Run};
use super::owed::OwedSet;
use super::pages::PageRuns;
use super::touched::touched;
use super::track::Tracker;
use super::window::{Window, window};
use super::{Engine, human, registry};
use crate::error::{Error, Kind, Result};
use crate::generation::generation;
use crate::side::is_own_side;
use crate::stream;
use crate::units::{Address, Bytes, Page, Pages};
use orbit_linux::map;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// The size of a huge page.
const HUGE: Bytes = Bytes::new(2 << 20);
/// An area that states at least this size may have huge pages: a harvest of 256 MiB that finds
/// nothing takes 15 us instead of 186 (`area_costs`), if the area was filled in steps larger than a
/// huge page; smaller steps split them, and cost the same as without. A small area gains nothing
/// that would pay for its first page becoming 2 MiB.
const HUGE_FROM: Bytes = Bytes::new(32 << 20);
/// What a page table of the second level maps.
const ALIKE: Bytes = Bytes::new(1 << 30);
/// Up to this many pages, it is not worth asking which of them were touched.
const FEW_PAGES: Pages = Pages::new(16);

/// Number of the next area. Never used twice in a process.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// An area. Shared by all handles to it; usable from any thread. What the usual call needs lies
/// together, first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct AreaInner {
    /// Bytes from the base to the end of the last page ever used. Written under `state`, only ever
    /// grows.
    high: AtomicUsize,
    /// The same as the tracker knows it, if each harvest reports all of these pages, whatever was
    /// written; else 0, or more than the area has. Written under `track`.
    whole: AtomicUsize,
    /// Its first address, the same in main and in every orbit.
    pub base: Address,
    /// Its number, unique in this process.
    pub id: u32,
    /// Its name, for messages.
    pub name: String,
    /// Its length, whole pages; it never uses more.
    pub limit: Bytes,
    /// The engine asked for.
    pub asked: Engine,
    /// The size of a page.
    page: Bytes,
    /// The process that made it, see [`super::forked`].
    generation: u64,
    /// Whether pages that were never touched read as zeros.
    zeroes: bool,
    /// The window that the range came from; `None` for adopted memory.
    window: Option<&'static Window>,
    state: Mutex<State>,
    /// Notified when the last [`Hold`] is gone.
    let_go: Condvar,
    /// Pages released to the kernel, which the tracker cannot see, since the last harvest.
    dropped: Mutex<PageRuns>,
    /// `None` once the area is gone.
    pub track: Mutex<Option<Tracker>>,
    owed: Mutex<Vec<Weak<OwedSet>>>,
    /// [`super::Pin`]s that live. Raised under `track`.
    pub pins: AtomicUsize,
    /// [`super::Stay`]s that live.
    pub stays: AtomicUsize,
}

#[derive(Debug)]
struct State {
    /// `None` for adopted memory.
    heap: Option<Heap>,
    /// Holds that live: the memory stays mapped as long as there is one. None begins once `gone` is
    /// set.
    holds: usize,
    gone: bool,
}

/// Keeps an area's memory mapped while it lives, whoever destroys the area meanwhile. For short:
/// they wait.
#[derive(Debug)]
pub(crate) struct Hold {
    area: Arc<AreaInner>,
    /// From the base on, what its holder may write to without having an object there.
    writes: std::ops::Range<Bytes>,
}

impl Hold {
    /// Takes hold of an area.
    ///
    /// # Errors
    /// `Gone`, `Forked`.
    pub(super) fn on(area: &Arc<AreaInner>) -> Result<Hold> {
        Hold::to_write(area, Bytes::ZERO..Bytes::ZERO)
    }

    /// Takes hold of an area to write to these bytes from its base on, whosever objects are there
    /// by then.
    ///
    /// # Errors
    /// `Gone`, `Forked`.
    pub(super) fn to_write(area: &Arc<AreaInner>, writes: std::ops::Range<Bytes>) -> Result<Hold> {
        area.check_process()?;
        let mut state = lock(&area.state);
        if state.gone {
            return Err(area.gone());
        }
        state.holds += 1;
        Ok(Hold { area: area.clone(), writes })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = lock(&self.area.state);
        // After the writes: before them, the pages might be released to the kernel, noted as zeros,
        // and then written to.
        if let (false, Some(heap)) = (self.writes.is_empty(), &mut state.heap) {
            let (first, end) = (self.writes.start.page(PAGE), self.writes.end.next_page(PAGE));
            heap.written(first, end - first);
        }
        state.holds -= 1;
        if state.holds == 0 {
            self.area.let_go.notify_all();
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AreaInner {
    /// Carves an area of `limit` bytes (whole pages) out of the window, of which `size` are
    /// expected to be used.
    pub(super) fn carve(name: String, size: Bytes, limit: Bytes, asked: Engine) -> Result<Arc<Self>> {
        let window = window()?;
        let is_shared = asked == Engine::Share;
        // Page tables move by 1 GiB at a time then: 2 GiB in 85 us, not 425.
        let base = if is_shared && limit >= ALIKE { window.take_aligned(limit, ALIKE) } else { window.take(limit) }?;
        // SAFETY: the window just gave this range to us, and nothing else uses it.
        if let Err(error) = unsafe { map::protect(base.get(), limit.get(), libc::PROT_READ | libc::PROT_WRITE) } {
            Self::uncarve(window, base, limit);
            let doing = format!("making {} of memory accessible for area \"{name}\"", human(limit));
            return Err(Error::system(doing, error));
        }
        let huge = if size >= HUGE_FROM && !is_shared { size.down_to(HUGE) } else { Bytes::ZERO };
        // Else one page is what a write makes dirty, not the 512 of a huge page. Kernels without
        // huge pages reject both, and lose nothing but speed.
        // SAFETY: the advice changes neither content nor access.
        let _ = unsafe {
            map::advise(base.get(), limit.get(), libc::MADV_NOHUGEPAGE).and_then(|()| {
                if huge > Bytes::ZERO { map::advise(base.get(), huge.get(), libc::MADV_HUGEPAGE) } else { Ok(()) }
            })
        };
        Self::over(name, base, limit, asked, true, Some((window, huge)))
    }

    /// Makes existing memory an area, `anonymous` if all of it is. The caller has checked it.
    pub(super) fn adopt(name: String, base: Address, len: Bytes, asked: Engine, anonymous: bool) -> Result<Arc<Self>> {
        Self::over(name, base, len, asked, anonymous, None)
    }

    /// The area over a range that it owns from here on: whatever fails, dropping it gives the range
    /// back. `carved` names the window that it comes from, and how many bytes of it are advised to
    /// be huge pages.
    fn over(
        name: String,
        base: Address,
        limit: Bytes,
        asked: Engine,
        zeroes: bool,
        carved: Option<(&'static Window, Bytes)>,
    ) -> Result<Arc<Self>> {
        let window = carved.map(|(window, _)| window);
        let area = Arc::new(AreaInner {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name,
            base,
            limit,
            asked,
            page: Bytes::new(map::page_size()),
            generation: generation(),
            zeroes,
            window,
            state: Mutex::new(State { heap: window.map(|_| Heap::new(base, limit)), holds: 0, gone: false }),
            let_go: Condvar::new(),
            // No call copies a shared area whole.
            whole: AtomicUsize::new(if asked == Engine::Share { usize::MAX } else { 0 }),
            high: AtomicUsize::new(if window.is_some() { 0 } else { limit.get() }),
            dropped: Mutex::default(),
            track: Mutex::new(None),
            owed: Mutex::default(),
            pins: AtomicUsize::new(0),
            stays: AtomicUsize::new(0),
        });
        // Before the tracker, which would end the tracking of another area in the same place when
        // it goes.
        registry::enter(&area)?;
        let tracker = match carved {
            Some(_) if asked == Engine::Share => Tracker::over_shared(base, limit),
            Some((_, huge)) => Tracker::over_zeroes(base, limit, asked, huge),
            None if zeroes => Tracker::over_zeroes(base, limit, asked, Bytes::ZERO),
            None => Tracker::new(base, limit, asked),
        };
        let tracker = tracker.map_err(|error| Error::new(error.kind(), format!("area \"{}\": {error}", area.name)))?;
        *area.tracker() = Some(tracker);
        if asked == Engine::Share {
            super::forks::enter(&area);
        }
        Ok(area)
    }

    /// Gives a range back to the window.
    fn uncarve(window: &Window, base: Address, limit: Bytes) {
        // SAFETY: the range is ours, and nothing of it is in use any more. If even this fails the
        // range is not reused.
        if unsafe { map::fixed_none(base.get(), limit.get()) }.is_ok() {
            window.release_range(base, limit);
        }
    }

    /// Ends the area, unless orbits use it or delegates live in it.
    ///
    /// # Errors
    /// `Invalid` while orbits use it or delegates live in it, `Forked`.
    pub(super) fn destroy(&self) -> Result<()> {
        self.check_process()?;
        let state = lock(&self.state);
        // Under the lock under which orbits are registered: none comes between this and `gone`.
        let users = self.users();
        if users != 0 {
            let orbits = if users == 1 { "an orbit".to_owned() } else { format!("{users} orbits") };
            let text = format!("area \"{}\" is used by {orbits}; detach it or destroy the orbit first", self.name);
            return Err(Error::new(Kind::Invalid, text));
        }
        let stays = self.stays.load(Ordering::Acquire);
        if stays != 0 {
            let guests = if stays == 1 {
                "a delegate or collection lives".to_owned()
            } else {
                format!("{stays} delegates or collections live")
            };
            let text =
                format!("area \"{}\": {guests} in it; drop what is `Delegated` or allocates there first", self.name);
            return Err(Error::new(Kind::Invalid, text));
        }
        self.close(state);
        Ok(())
    }

    /// Ends the area: its memory goes back to the window (adopted memory stays as it is), its
    /// pointers are void. Waits until nobody holds it.
    fn close(&self, mut state: MutexGuard<'_, State>) {
        if state.gone {
            return;
        }
        state.gone = true;
        state.heap = None;
        while state.holds > 0 {
            state = self.let_go.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        // A look-up of an address has the registry's lock and takes this one then.
        drop(state);
        registry::leave(self);
        if self.is_shared() {
            super::forks::leave(self);
        }
        let mut track = self.tracker();
        self.whole.store(0, Ordering::Release);
        *track = None;
        if let Some(window) = self.window {
            Self::uncarve(window, self.base, self.limit);
        }
    }

    pub(super) fn gone(&self) -> Error {
        Error::new(Kind::Gone, format!("area \"{}\" was destroyed", self.name))
    }

    /// An error if this process is a fork of the one that made the area: its books are a copy
    /// there, perhaps caught in the middle of a change by another thread, and what lies in the area
    /// is the parent's.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.generation == generation() {
            return Ok(());
        }
        let name = &self.name;
        if is_own_side() {
            let text =
                format!("area \"{name}\" is main's: an orbit sees a picture of it and cannot use it; push an update");
            return Err(Error::new(Kind::WrongSide, text));
        }
        let text = format!(
            "area \"{name}\" was made by the process that this one was forked from: its objects can be read and \
             written \
             here as ordinary memory, but not allocated, freed or shown to orbits; make areas of this process's own"
        );
        Err(Error::new(Kind::Forked, text))
    }

    /// Runs `f` on the heap. Adopted memory has none.
    fn heap<R>(&self, f: impl FnOnce(&mut Heap) -> Result<R>) -> Result<R> {
        // Before the lock, which another thread may have held when this process was forked: it
        // stays held here.
        self.check_process()?;
        let mut state = lock(&self.state);
        if state.gone {
            return Err(self.gone());
        }
        let Some(heap) = &mut state.heap else {
            return Err(Error::new(
                Kind::Unsupported,
                format!("area \"{}\" is adopted memory and has no allocator; make another area for objects", self.name),
            ));
        };
        let result = f(heap);
        let high = heap.high_water().up_to(self.page).min(self.limit).get();
        if high != self.high.load(Ordering::Relaxed) {
            // Release: whoever sees an object in these pages (it got the pointer after this) sees
            // the mark as well.
            self.high.store(high, Ordering::Release);
        }
        result
    }

    /// How far from the base `[address, address + len)` begins, if it lies in the area.
    pub(super) fn offset_of(&self, address: Address, len: Bytes) -> Option<Bytes> {
        let offset = address.offset_from(self.base).filter(|offset| *offset <= self.limit)?;
        (len <= self.limit - offset).then_some(offset)
    }

    /// Where it ends.
    fn end(&self) -> Address {
        self.base + self.limit
    }

    /// Bytes of living objects; all of it for adopted memory.
    pub(super) fn used(&self) -> Bytes {
        lock(&self.state).heap.as_ref().map_or(self.limit, Heap::used)
    }

    /// Living objects.
    pub(super) fn objects(&self) -> usize {
        lock(&self.state).heap.as_ref().map_or(0, Heap::objects)
    }

    /// Pages from the base to the last one ever used.
    pub(super) fn high_pages(&self) -> Pages {
        Bytes::new(self.high.load(Ordering::Acquire)).whole_pages(self.page)
    }

    /// Hands out an object; `zeroed` if it must read as zeros.
    pub(super) fn alloc(self: &Arc<Self>, size: Bytes, align: usize, zeroed: bool) -> Result<NonNull<u8>> {
        super::check_size(format_args!("an object in area \"{}\"", self.name), size)?;
        if !align.is_power_of_two() {
            return Err(Error::new(
                Kind::Invalid,
                format!("area \"{}\": an alignment of {align} is no power of two", self.name),
            ));
        }
        let object = self.heap(|heap| heap.alloc(size, align).ok_or_else(|| self.full(heap, size, align)))?;
        let Object { offset, size, zero } = object;
        let at = (self.base + offset).pointer();
        if zeroed && !zero {
            let _held = Hold::on(self)?;
            // SAFETY: the heap just gave us these bytes of the area, which are not shared, and
            // mapped while it is held.
            unsafe { at.write_bytes(0, size.get()) };
        }
        NonNull::new(at).ok_or_else(|| self.gone())
    }

    fn full(&self, heap: &Heap, size: Bytes, align: usize) -> Error {
        let (name, held, limit) = (&self.name, human(heap.held()), human(self.limit));
        if size > self.limit {
            let text = format!(
                "area \"{name}\": an object of {} is larger than the area's limit of {limit}; make the area with a \
                 higher limit",
                human(size)
            );
            return Error::new(Kind::TooLarge, text);
        }
        let aligned = if align > 16 { format!(" aligned to {align}") } else { String::new() };
        Error::new(
            Kind::Full,
            format!(
                "area \"{name}\" is full: {held} of {limit} used, {}{aligned} asked for, longest free range {}; \
                 make the area with a higher limit, or free objects",
                human(size),
                human(heap.longest())
            ),
        )
    }

    /// The offset of a byte of this area.
    fn offset(&self, addr: Address) -> Result<Bytes> {
        self.offset_of(addr, Bytes::new(1)).ok_or_else(|| {
            let (name, base, end) = (&self.name, self.base, self.end());
            let text = format!(
                "{addr:#x} does not belong to area \"{name}\" ({base:#x} to {end:#x}); pass it to the area it came from"
            );
            Error::new(Kind::Foreign, text)
        })
    }

    /// The error for an address that is no living object.
    fn bad(&self, addr: Address, bad: Bad) -> Error {
        let name = &self.name;
        match bad {
            Bad::Freed => Error::new(
                Kind::DoubleFree,
                format!("area \"{name}\": no object lives at {addr:#x}: it was freed already, or was never handed out"),
            ),
            Bad::Never => {
                Error::new(Kind::Invalid, format!("area \"{name}\": no object was ever handed out at {addr:#x}"))
            }
            Bad::Interior { inside, size } => Error::new(
                Kind::Invalid,
                format!(
                    "area \"{name}\": {addr:#x} lies {inside} bytes inside an object of {size}; pass {:#x}, its \
                     address",
                    addr - inside
                ),
            ),
        }
    }

    /// The real size of the object at `addr`.
    pub(super) fn size_of(&self, addr: Address) -> Result<Bytes> {
        let offset = self.offset(addr)?;
        self.heap(|heap| heap.size_of(offset).map_err(|bad| self.bad(addr, bad)))
    }

    /// Frees the object at `addr`.
    pub(super) fn free(&self, addr: Address) -> Result<()> {
        let offset = self.offset(addr)?;
        self.heap(|heap| {
            if let Some(run) = heap.free(offset).map_err(|bad| self.bad(addr, bad))? {
                self.release_range(heap, run);
            }
            Ok(())
        })
    }

    /// Makes the object at `addr` hold `size` bytes, where it is or at a multiple of `align`
    /// elsewhere.
    ///
    /// # Safety
    /// Nobody uses the object meanwhile, nor its old address afterwards.
    pub(super) unsafe fn realloc(self: &Arc<Self>, addr: Address, size: Bytes, align: usize) -> Result<NonNull<u8>> {
        let offset = self.offset(addr)?;
        let old = self.heap(|heap| {
            let bad = |bad| self.bad(addr, bad);
            let old = heap.size_of(offset).map_err(bad)?;
            if !addr.is_multiple_of(Bytes::new(align.max(1))) {
                return Ok(Some(old));
            }
            match heap.resize(offset, size).map_err(bad)? {
                Some((_, run)) => {
                    if let Some(run) = run {
                        self.release_range(heap, run);
                    }
                    Ok(None)
                }
                None => Ok(Some(old)),
            }
        })?;
        let from = addr.pointer();
        let Some(old) = old else { return NonNull::new(from).ok_or_else(|| self.gone()) };
        let to = self.alloc(size, align, false)?;
        let held = Hold::on(self)?;
        // SAFETY: both objects live, in memory that is held, the new one is not the old one, and
        // both have as many bytes.
        unsafe { to.as_ptr().copy_from_nonoverlapping(from, old.min(size).get()) };
        drop(held);
        self.free(addr)?;
        Ok(to)
    }

    /// Gives the used pages of a free run back to the kernel, and notes that they changed: the
    /// kernel loses their protection.
    fn release_range(&self, heap: &mut Heap, run: Run) {
        // The memory is a file that orbits read, and which nobody may cut holes into.
        if self.is_shared() {
            return;
        }
        let mut touched = PageRuns::new();
        for (first, pages) in heap.touched_in(run) {
            let start = first.offset(PAGE).next_page(self.page);
            let end = (first + pages).offset(PAGE).page(self.page);
            touched.push(start, start.pages_to(end));
        }
        let (Some((first, _)), Some((last, count))) = (touched.iter().next(), touched.iter().last()) else { return };
        let (start, end) = (first.offset(self.page), (last + count).offset(self.page));
        // One call for all of them: what lies between is free as well, and has nothing to give.
        // SAFETY: the heap says that no object lives in these pages, and holds its lock, so none
        // comes to. Should the kernel fail, the pages simply keep what they have.
        if unsafe { map::dont_need((self.base + start).get(), (end - start).get()) }.is_ok() {
            lock(&self.dropped).extend(&touched);
            heap.now_zero(run, start.page(PAGE), (end - start).whole_pages(PAGE));
        }
    }

    /// Runs `f` with the tracker, brought up to what is in use. Blocks while another thread
    /// harvests.
    ///
    /// # Errors
    /// `Gone`, `Forked`, and those of `f`.
    pub(super) fn with_tracker<R>(&self, f: impl FnOnce(&mut Tracker) -> Result<R>) -> Result<R> {
        self.check_process()?;
        let mut track = self.tracker();
        let tracker = track.as_mut().ok_or_else(|| self.gone())?;
        tracker.grow(self.high_pages())?;
        let mut dropped = lock(&self.dropped);
        for (first, pages) in dropped.iter() {
            tracker.mark(first, pages);
        }
        dropped.clear();
        drop(dropped);
        let result = f(tracker);
        if self.is_shared() {
            return result;
        }
        self.whole.store(tracker.sends_whole().map_or(0, |pages| pages.bytes(self.page).get()), Ordering::Release);
        result
    }

    /// Main is about to write to `len` bytes at `addr`, see [`super::Area::will_write`].
    pub(super) fn will_write(&self, addr: Address, len: Bytes) -> Result<()> {
        self.check_process()?;
        let Some(offset) = self.offset_of(addr, len) else {
            let (name, base, end) = (&self.name, self.base, self.end());
            let text = format!("{len} bytes at {addr:#x} are not all in area \"{name}\" ({base:#x} to {end:#x})");
            return Err(Error::new(Kind::Foreign, text));
        };
        let (first, end) = (offset.page(self.page), (offset + len).next_page(self.page));
        let track = self.tracker();
        let tracker = track.as_ref().ok_or_else(|| self.gone())?;
        if first < end {
            tracker.announce(first, end - first);
        }
        Ok(())
    }

    /// Registers an orbit: it is owed every page in use that was ever touched. While the set lives,
    /// the area is not destroyed.
    ///
    /// # Errors
    /// `Gone`, `Forked`.
    pub(super) fn attach(&self) -> Result<Arc<OwedSet>> {
        self.check_process()?;
        // Under the tracker's lock, so that no harvest falls between the two steps.
        let _track = self.tracker();
        let set = Arc::new(OwedSet::default());
        {
            let state = lock(&self.state);
            if state.gone {
                return Err(self.gone());
            }
            lock(&self.owed).push(Arc::downgrade(&set));
        }
        if self.is_shared() {
            return Ok(set);
        }
        let used = self.high_pages();
        match self.touched(used) {
            Some(touched) => set.owe(&touched),
            None => set.owe_run(Page::ZERO, used),
        }
        Ok(set)
    }

    /// Which of the first `used` pages were ever touched, if the others are known to read as zeros.
    /// A page touched after this scan is one that the next harvest reports.
    fn touched(&self, used: Pages) -> Option<PageRuns> {
        if !self.zeroes || used <= FEW_PAGES {
            return None;
        }
        let mut found = PageRuns::new();
        touched(self.base, self.page, Page::ZERO, used, &mut found).then_some(found)
    }

    /// How many orbits are registered.
    pub(super) fn users(&self) -> usize {
        let mut owed = lock(&self.owed);
        owed.retain(|set| set.strong_count() != 0);
        owed.len()
    }

    /// Adds to `out` every page that the orbit of `mine` needs to have the area as it is now: what
    /// was written since the last harvest, and what it is owed. The same pages are then owed to all
    /// other orbits, and none to this one; if they do not reach it, the caller puts them back with
    /// [`OwedSet::owe`].
    ///
    /// # Errors
    /// Those of [`Tracker::harvest`]; nothing is lost and `mine` is as before.
    pub(super) fn snapshot_pages(&self, mine: &OwedSet, out: &mut PageRuns) -> Result<()> {
        self.with_tracker(|tracker| {
            let mut fresh = PageRuns::new();
            tracker.harvest(&mut fresh)?;
            lock(&self.owed).retain(|set| {
                let Some(set) = set.upgrade() else { return false };
                if !ptr::eq(&*set, mine) && !fresh.is_empty() {
                    set.owe(&fresh);
                }
                true
            });
            out.extend(&fresh);
            mine.take(out);
            Ok(())
        })
    }

    /// Takes the snapshot of an area of which each call is sent every page, up to `most` of them:
    /// copies them and returns their number. `None`: to be done the usual way; nothing is lost. The
    /// books of what is owed stay as they are: as long as this engine works nobody needs them, and
    /// the next one begins with every page.
    ///
    /// `cold`: caches will hardly have the pages. No lock is taken: a harvest for another orbit
    /// that goes over to another engine meanwhile owes every page to this one.
    ///
    /// # Safety
    /// `to` has as many writable bytes as the area's limit, which are no part of it and which
    /// nobody uses meanwhile. The area is in use ([`AreaInner::users`]), so that it is not
    /// destroyed.
    #[inline(always)]
    pub(super) unsafe fn copy_small(&self, to: *mut u8, most: Pages, cold: bool) -> Option<Pages> {
        let used = self.high.load(Ordering::Acquire);
        if used > most.bytes(PAGE).get() || self.whole.load(Ordering::Acquire) != used {
            return None;
        }
        let from = self.base.pointer().cast_const();
        // SAFETY: the pages in use lie below the area's limit, and are mapped as long as it is in
        // use; the rest is the caller's promise.
        unsafe { if cold { stream::copy_cold(from, to, used) } else { stream::copy_plainly(from, to, used) } };
        Some(Bytes::new(used).whole_pages(PAGE))
    }

    /// Runs `f` with the function that says from where a page of a snapshot is copied. Nobody
    /// harvests meanwhile, and the memory stays mapped.
    ///
    /// # Errors
    /// `Gone`.
    pub(super) fn with_source<R>(&self, f: impl FnOnce(&dyn Fn(Page) -> *const u8) -> R) -> Result<R> {
        let track = self.tracker();
        let tracker = track.as_ref().ok_or_else(|| self.gone())?;
        Ok(f(&|page| tracker.source(page)))
    }

    /// About how many pages the next snapshot for the orbit of `mine` has, counting no further than
    /// `stop_after`: pages both owed and written count twice.
    ///
    /// # Errors
    /// Those of [`Tracker::peek`].
    pub(super) fn peek_pages(&self, mine: &OwedSet, stop_after: Pages) -> Result<Pages> {
        let owed = mine.pages();
        if owed >= stop_after {
            return Ok(stop_after);
        }
        self.with_tracker(|tracker| tracker.peek(stop_after - owed)).map(|written| owed + written)
    }
}

impl Drop for AreaInner {
    fn drop(&mut self) {
        if self.generation == generation() {
            return self.close(lock(&self.state));
        }
        // The copy in a forked child, perhaps caught in the middle of a change: none of it is
        // followed, and the memory stays.
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(state.heap.take());
        std::mem::forget(self.track.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        std::mem::forget(std::mem::take(self.dropped.get_mut().unwrap_or_else(PoisonError::into_inner)));
        std::mem::forget(std::mem::take(self.owed.get_mut().unwrap_or_else(PoisonError::into_inner)));
        registry::leave(self);
    }
}
