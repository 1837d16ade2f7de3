//! The allocator of an area: which bytes of it are whose. It keeps its books outside the area, and
//! never reads or writes the area itself: a wild write into the area cannot corrupt it, and it
//! makes no page dirty.
//!
//! **Vocabulary.** A *span* is a run of pages with one purpose: objects of one class side by side,
//! or one large object. A page belongs to one span, or to a free run, or lies at or above the *top*
//! and was never used. A span with a free object is in its class's list. Objects of one size share
//! pages, so that few pages change between two calls.
//!
//! **Invariants.** `owner[p]` names the span of page `p`, or `FREE`. A span's bits set = its free
//! objects = `free`. A page not in `touched` reads as zeros. `used` = sum of the sizes of living
//! objects; `pages` = pages in spans.
//!
//! The heap does no system call: `free` may answer with a run worth giving back to the kernel, and
//! the caller reports what became of it with [`Heap::now_zero`]. It is not thread-safe; the area
//! holds it in a mutex.

mod classes;
mod runs;

use super::pages::Bitmap;
use crate::units::{Address, Bytes, Page, Pages};
pub(super) use classes::PAGE;
use classes::{CLASSES, TABLE, class_for};
use runs::FreeRuns;

/// `owner` of a page that no span has.
const FREE: u32 = u32::MAX;
/// The end of a list of spans.
const NIL: u32 = u32::MAX;
/// `class` of a span that is one large object.
const LARGE: u8 = u8::MAX;
/// A free run with this many pages to release is released (64 KiB).
const RELEASE_FROM: Pages = Bytes::new(64 << 10).whole_pages(PAGE);

/// A run of pages with one purpose.
#[derive(Clone, Debug)]
struct Span {
    /// Its first page.
    first: u32,
    /// Its pages.
    pages: u32,
    /// Index into the class table, or `LARGE`.
    class: u8,
    /// Free objects.
    free: u16,
    /// Neighbours in the class's list of spans with a free object, or `NIL`.
    prev: u32,
    next: u32,
    /// One bit for each free object.
    bits: [u64; 4],
}

impl Span {
    fn first(&self) -> Page {
        Page::new(self.first as usize)
    }

    fn pages(&self) -> Pages {
        Pages::new(self.pages as usize)
    }
}

/// Why an address is not a living object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// It lies `inside` bytes into the slot of `size` bytes.
    Interior { inside: Bytes, size: Bytes },
    /// An object began here, or could have, and is free.
    Freed,
    /// No object was ever here.
    Never,
}

/// An object about to be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Object {
    /// Its offset from the area's base.
    pub offset: Bytes,
    /// The bytes it really has.
    pub size: Bytes,
    /// Whether all of them read as zeros already.
    pub zero: bool,
}

/// A run of pages, `first` relative to the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub first: Page,
    pub pages: Pages,
}

/// The books of one area.
#[derive(Debug)]
pub(super) struct Heap {
    /// The number of the area's first page in the whole address space, for alignments above a page.
    skew: Pages,
    /// Where the last page ends.
    limit: Page,
    /// Pages below it are in `owner`; pages from it on were never used.
    top: Page,
    owner: Vec<u32>,
    /// Pages that may hold something else than zeros.
    touched: Bitmap,
    spans: Vec<Span>,
    /// Places in `spans` that are free to take.
    spare: Vec<u32>,
    /// The first span with a free object, for each class.
    lists: [u32; CLASSES],
    runs: FreeRuns,
    used: Bytes,
    pages: Pages,
    objects: usize,
}

impl Heap {
    /// The heap of `len` bytes at `base`.
    pub fn new(base: Address, len: Bytes) -> Self {
        Heap {
            skew: (base - Address::ZERO).whole_pages(PAGE),
            limit: len.page(PAGE),
            top: Page::ZERO,
            owner: Vec::new(),
            touched: Bitmap::new(),
            spans: Vec::new(),
            spare: Vec::new(),
            lists: [NIL; CLASSES],
            runs: FreeRuns::default(),
            used: Bytes::ZERO,
            pages: Pages::ZERO,
            objects: 0,
        }
    }

    /// Bytes of living objects, as rounded up.
    pub fn used(&self) -> Bytes {
        self.used
    }

    /// Living objects.
    pub fn objects(&self) -> usize {
        self.objects
    }

    /// Bytes of all pages that hold objects.
    pub fn held(&self) -> Bytes {
        self.pages.bytes(PAGE)
    }

    /// Bytes from the base to the end of the last page ever used.
    pub fn high_water(&self) -> Bytes {
        self.top.offset(PAGE)
    }

    /// The longest object that still fits as whole pages, in bytes.
    pub fn longest(&self) -> Bytes {
        let at_top = self.limit - self.runs.begin_of(self.top);
        at_top.max(self.runs.longest()).bytes(PAGE)
    }

    /// Hands out `size` bytes at a multiple of `align` (a power of two). `None`: no room.
    pub fn alloc(&mut self, size: Bytes, align: usize) -> Option<Object> {
        let object = match class_for(size.get(), align) {
            Some(class) => self.alloc_small(class)?,
            None => self.alloc_large(size, align)?,
        };
        self.used += object.size;
        self.objects += 1;
        Some(object)
    }

    fn alloc_small(&mut self, class: usize) -> Option<Object> {
        let mut id = self.lists[class];
        if id == NIL {
            id = self.new_span(class)?;
        }
        let span = &mut self.spans[id as usize];
        let word = span.bits.iter().position(|&bits| bits != 0)?;
        let bit = span.bits[word].trailing_zeros() as usize;
        span.bits[word] &= span.bits[word] - 1;
        span.free -= 1;
        let size = TABLE[class].size as usize;
        let offset = span.first().offset(PAGE) + Bytes::new((word * 64 + bit) * size);
        if span.free == 0 {
            self.unlink(id);
        }
        Some(Object { offset, size: Bytes::new(size), zero: false })
    }

    fn new_span(&mut self, class: usize) -> Option<u32> {
        let about = TABLE[class];
        let pages = Pages::new(about.pages as usize);
        let first = self.take_pages(pages, Pages::ONE)?;
        let mut bits = [0u64; 4];
        for (word, bits) in bits.iter_mut().enumerate() {
            let objects = (about.objects as usize).saturating_sub(word * 64).min(64);
            *bits = if objects == 64 { u64::MAX } else { (1 << objects) - 1 };
        }
        self.touched.set(first, pages);
        let id = self.add_span(Span {
            first: first.get() as u32,
            pages: pages.get() as u32,
            class: class as u8,
            free: about.objects as u16,
            prev: NIL,
            next: NIL,
            bits,
        });
        self.link(id);
        Some(id)
    }

    fn alloc_large(&mut self, size: Bytes, align: usize) -> Option<Object> {
        let pages = size.pages(PAGE).max(Pages::ONE);
        let first = self.take_pages(pages, Bytes::new(align).pages(PAGE))?;
        let zero = self.touched.count_in(first, pages) == Pages::ZERO;
        self.touched.set(first, pages);
        self.add_span(Span {
            first: first.get() as u32,
            pages: pages.get() as u32,
            class: LARGE,
            free: 0,
            prev: NIL,
            next: NIL,
            bits: [0; 4],
        });
        Some(Object { offset: first.offset(PAGE), size: pages.bytes(PAGE), zero })
    }

    fn add_span(&mut self, span: Span) -> u32 {
        let (first, pages) = (span.first(), span.pages());
        let id = match self.spare.pop() {
            Some(id) => {
                self.spans[id as usize] = span;
                id
            }
            None => {
                self.spans.push(span);
                (self.spans.len() - 1) as u32
            }
        };
        self.owned(first, pages).fill(id);
        self.pages += pages;
        id
    }

    /// The owners of these pages.
    fn owned(&mut self, first: Page, pages: Pages) -> &mut [u32] {
        &mut self.owner[first.get()..(first + pages).get()]
    }

    fn link(&mut self, id: u32) {
        let class = self.spans[id as usize].class as usize;
        let next = self.lists[class];
        self.spans[id as usize].prev = NIL;
        self.spans[id as usize].next = next;
        if next != NIL {
            self.spans[next as usize].prev = id;
        }
        self.lists[class] = id;
    }

    fn unlink(&mut self, id: u32) {
        let Span { prev, next, class, .. } = self.spans[id as usize];
        if prev == NIL {
            self.lists[class as usize] = next;
        } else {
            self.spans[prev as usize].next = next;
        }
        if next != NIL {
            self.spans[next as usize].prev = prev;
        }
    }

    /// Takes `pages` pages, the first at a multiple of `align` pages: from a free run, else from
    /// the top, else after letting go of the empty spans that classes keep.
    fn take_pages(&mut self, pages: Pages, align: Pages) -> Option<Page> {
        self.find_pages(pages, align).or_else(|| {
            self.drop_empty_spans();
            self.find_pages(pages, align)
        })
    }

    fn find_pages(&mut self, pages: Pages, align: Pages) -> Option<Page> {
        if let Some(first) = self.runs.take(pages, align, self.skew, &self.touched) {
            return Some(first);
        }
        let begin = self.runs.begin_of(self.top);
        // An alignment and a size are the program's: their sums may be beyond any number.
        let first = (begin + self.skew).get().checked_next_multiple_of(align.get())?;
        let first = Page::new(first) - self.skew;
        let end = first.get().checked_add(pages.get()).map(Page::new).filter(|&end| end <= self.limit)?;
        // The free run below the top, if there is one, is taken whole and what alignment skips is
        // put back.
        if begin < self.top {
            self.runs.take_at(begin, self.top - begin, &self.touched);
        }
        self.top = self.top.max(end);
        self.owner.resize(self.top.get(), FREE);
        if first > begin {
            self.runs.put(begin, first - begin, &self.touched);
        }
        Some(first)
    }

    /// Lets go of every span without a living object.
    fn drop_empty_spans(&mut self) {
        for (class, about) in TABLE.iter().enumerate() {
            let mut id = self.lists[class];
            while id != NIL {
                let next = self.spans[id as usize].next;
                if u32::from(self.spans[id as usize].free) == about.objects {
                    self.unlink(id);
                    self.release_span(id);
                }
                id = next;
            }
        }
    }

    /// Returns a span's pages to the free runs. It is in no list.
    fn release_span(&mut self, id: u32) -> Option<Run> {
        let span = &self.spans[id as usize];
        let (first, pages) = (span.first(), span.pages());
        self.spare.push(id);
        self.release_pages(first, pages)
    }

    /// Returns pages of a span to the free runs; answers with the whole run if it is worth giving
    /// back.
    fn release_pages(&mut self, first: Page, pages: Pages) -> Option<Run> {
        self.owned(first, pages).fill(FREE);
        self.pages -= pages;
        let (first, pages, dirty) = self.runs.put(first, pages, &self.touched);
        (dirty >= RELEASE_FROM).then_some(Run { first, pages })
    }

    /// The living object at `offset`: its span and, in a span of small ones, its index.
    fn find(&self, offset: Bytes) -> Result<(u32, usize, Bytes), Bad> {
        let Some(&id) = self.owner.get(offset.page(PAGE).get()) else { return Err(Bad::Never) };
        if id == FREE {
            return Err(Bad::Freed);
        }
        let span = &self.spans[id as usize];
        let inside = offset - span.first().offset(PAGE);
        if span.class == LARGE {
            let size = span.pages().bytes(PAGE);
            return if inside == Bytes::ZERO { Ok((id, 0, size)) } else { Err(Bad::Interior { inside, size }) };
        }
        let class = &TABLE[span.class as usize];
        let inside = inside.get();
        let index = ((inside as u64 * u64::from(class.reciprocal)) >> 32) as usize;
        let size = class.size as usize;
        if index * size != inside {
            return Err(Bad::Interior { inside: Bytes::new(inside % size), size: Bytes::new(size) });
        }
        if index >= class.objects as usize {
            return Err(Bad::Never);
        }
        if span.bits[index / 64] >> (index % 64) & 1 == 1 {
            return Err(Bad::Freed);
        }
        Ok((id, index, Bytes::new(size)))
    }

    /// The size of the living object at `offset`.
    pub fn size_of(&self, offset: Bytes) -> Result<Bytes, Bad> {
        self.find(offset).map(|(_, _, size)| size)
    }

    /// Frees the object at `offset`. A run in the answer is free and worth giving back to the
    /// kernel.
    pub fn free(&mut self, offset: Bytes) -> Result<Option<Run>, Bad> {
        let (id, index, size) = self.find(offset)?;
        self.used -= size;
        self.objects -= 1;
        let span = &mut self.spans[id as usize];
        if span.class == LARGE {
            return Ok(self.release_span(id));
        }
        let class = span.class as usize;
        span.bits[index / 64] |= 1 << (index % 64);
        span.free += 1;
        let free = u32::from(span.free);
        let first_free = free == 1;
        let all_free = free == TABLE[class].objects;
        if first_free {
            self.link(id);
        }
        // The last span of a class with room stays, or a single object made and freed in turn would
        // make and free it too.
        let span = &self.spans[id as usize];
        if all_free && (span.prev != NIL || span.next != NIL) {
            self.unlink(id);
            return Ok(self.release_span(id));
        }
        Ok(None)
    }

    /// Tries to make the object at `offset` hold `size` bytes where it is, and a large one release
    /// what it has too much. `Ok(None)`: it has to move. The run is as for `free`.
    pub fn resize(&mut self, offset: Bytes, size: Bytes) -> Result<Option<(Bytes, Option<Run>)>, Bad> {
        let (id, _, old) = self.find(offset)?;
        if self.spans[id as usize].class != LARGE {
            // Moving is worth it only when at least half would be saved.
            let stays = size <= old && (size.get() > old.get() / 2 || old.get() <= 64);
            return Ok(stays.then_some((old, None)));
        }
        if class_for(size.get(), 1).is_some() {
            return Ok(None);
        }
        let (first, have) = (self.spans[id as usize].first(), old.whole_pages(PAGE));
        let want = size.pages(PAGE);
        let mut run = None;
        if want < have {
            self.spans[id as usize].pages = want.get() as u32;
            run = self.release_pages(first + want, have - want);
        } else if want > have {
            if !self.extend(first + have, want - have) {
                return Ok(None);
            }
            self.spans[id as usize].pages = want.get() as u32;
            self.owned(first + have, want - have).fill(id);
            self.pages += want - have;
            self.touched.set(first + have, want - have);
        }
        self.used = self.used - old + want.bytes(PAGE);
        Ok(Some((want.bytes(PAGE), run)))
    }

    /// Takes the `more` pages from `at` on if they are free.
    fn extend(&mut self, at: Page, more: Pages) -> bool {
        if self.runs.take_at(at, more, &self.touched) {
            return true;
        }
        let below_top = self.runs.len_at(at);
        if at + below_top != self.top || at + more > self.limit {
            return false;
        }
        self.runs.take_at(at, below_top, &self.touched);
        self.top = at + more;
        self.owner.resize(self.top.get(), FREE);
        true
    }

    /// The pages of a free run that may hold something else than zeros, as runs.
    pub fn touched_in(&self, run: Run) -> impl Iterator<Item = (Page, Pages)> + '_ {
        self.touched.runs_in(run.first, run.pages)
    }

    /// Notes that something was written to `pages` pages from `first` on, whosever they are, or
    /// nobody's.
    pub fn written(&mut self, first: Page, pages: Pages) {
        self.runs.dirtied(first, pages, &self.touched);
        self.touched.set(first, pages);
    }

    /// Notes that `pages` pages from `first` on, part of the free run `of`, read as zeros again.
    pub fn now_zero(&mut self, of: Run, first: Page, pages: Pages) {
        self.touched.unset(first, pages);
        self.runs.cleaned(of.first, self.touched.count_in(of.first, of.pages));
    }
}

#[cfg(test)]
mod tests;
