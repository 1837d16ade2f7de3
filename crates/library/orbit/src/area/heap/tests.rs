//! The books balance after every step of a random history.

use super::*;
use orbit_testing::Random;
use std::collections::{BTreeMap, BTreeSet};

impl Heap {
    /// Checks every invariant stated at the head of the module.
    fn check(&self) {
        assert_eq!(self.owner.len(), self.top.get());
        let mut pages = Pages::ZERO;
        let mut free_pages = Pages::ZERO;
        let owners = |first: Page, len: Pages| &self.owner[first.get()..(first + len).get()];
        let mut last_end = None;
        for (first, len, dirty) in self.runs.iter() {
            assert_ne!(last_end, Some(first), "two free runs touch");
            last_end = Some(first + len);
            assert!(first + len <= self.top);
            assert_eq!(dirty, self.touched.count_in(first, len));
            assert!(owners(first, len).iter().all(|&id| id == FREE));
            free_pages += len;
        }
        let spare: std::collections::HashSet<u32> = self.spare.iter().copied().collect();
        for (id, span) in self.spans.iter().enumerate().filter(|(id, _)| !spare.contains(&(*id as u32))) {
            let (first, len) = (span.first(), span.pages());
            assert!(owners(first, len).iter().all(|&owner| owner == id as u32));
            assert_eq!(self.touched.count_in(first, len), len);
            pages += len;
            let free: u32 = span.bits.iter().map(|bits| bits.count_ones()).sum();
            assert_eq!(free, u32::from(span.free));
        }
        assert_eq!(pages, self.pages);
        assert_eq!(Page::ZERO + pages + free_pages, self.top);
        for class in 0..CLASSES {
            let (mut id, mut prev) = (self.lists[class], NIL);
            while id != NIL {
                let span = &self.spans[id as usize];
                assert!(span.free > 0 && span.class as usize == class && span.prev == prev);
                prev = id;
                id = span.next;
            }
        }
    }
}

/// Random allocation, resizing and freeing against a map of what lives where.
#[test]
fn books_balance() {
    let mut drawn = Random::new(0x1234_5678_9abc_def1);
    let mut random = move |below: usize| drawn.index(below);
    for round in 0..8 {
        let base = Address::new(0x7000_0000_0000) + Pages::new(random(1000)).bytes(PAGE);
        let mut heap = Heap::new(base, Bytes::new((2 + round) << 20));
        let mut living: BTreeMap<Bytes, Bytes> = BTreeMap::new();
        // Pages written to without an object there.
        let mut stained: BTreeSet<Page> = BTreeSet::new();
        for step in 0..6000 {
            match random(11) {
                0..6 => {
                    let size = if random(20) == 0 {
                        random(200_000)
                    } else {
                        let most = 1 << (3 + random(10));
                        random(most)
                    };
                    let size = Bytes::new(size);
                    let shift = if random(8) == 0 { random(16) } else { random(5) };
                    let align = 1 << shift;
                    if let Some(object) = heap.alloc(size, align) {
                        assert!(object.size >= size && (base + object.offset).is_multiple_of(Bytes::new(align)));
                        assert!(object.offset + object.size <= heap.high_water());
                        let before = living.range(..object.offset + object.size).next_back();
                        assert!(before.is_none_or(|(&at, &len)| at + len <= object.offset), "objects overlap");
                        let end = (object.offset + object.size).next_page(PAGE);
                        let mut pages = object.offset.page(PAGE).until(end);
                        assert!(!object.zero || !pages.any(|page| stained.contains(&page)), "not zero");
                        living.insert(object.offset, object.size);
                    } else {
                        let fits = size.max(PAGE) <= heap.longest();
                        assert!(!fits || align > PAGE.get() || size.get() <= classes::LARGEST);
                    }
                }
                6..9 => {
                    if let Some((&at, _)) = living.range(Bytes::new(random(heap.high_water().get() + 1))..).next() {
                        living.remove(&at);
                        let run = heap.free(at).unwrap();
                        assert!(heap.free(at).is_err());
                        if let Some(run) = run {
                            heap.check();
                            heap.now_zero(run, run.first, run.pages);
                            stained.retain(|page| !(run.first..run.first + run.pages).contains(page));
                        }
                    }
                }
                9 => {
                    let first = Page::new(random(heap.high_water().page(PAGE).get() + 8));
                    let pages = Pages::new(1 + random(3));
                    heap.written(first, pages);
                    stained.extend(first.run(pages));
                    heap.check();
                }
                _ => {
                    if let Some((&at, &old)) = living.range(Bytes::new(random(heap.high_water().get() + 1))..).next() {
                        let size = Bytes::new(random(old.get() * 2 + 1));
                        if let Some((new, run)) = heap.resize(at, size).unwrap() {
                            assert!(new >= size);
                            living.insert(at, new);
                            if let Some(run) = run {
                                heap.now_zero(run, run.first, run.pages);
                                stained.retain(|page| !(run.first..run.first + run.pages).contains(page));
                            }
                        }
                        assert!(heap.free(at + Bytes::new(8)).is_err());
                    }
                }
            }
            if step % 50 == 0 {
                heap.check();
                assert_eq!(heap.used(), living.values().copied().sum());
                assert_eq!(heap.objects(), living.len());
            }
        }
        for (at, size) in living {
            assert_eq!(heap.size_of(at), Ok(size));
            if let Some(run) = heap.free(at).unwrap() {
                heap.now_zero(run, run.first, run.pages);
            }
        }
        heap.check();
        assert_eq!((heap.used(), heap.objects()), (Bytes::ZERO, 0));
        // Nothing lives, so all of it is available as one object.
        let whole = heap.alloc(heap.limit.offset(PAGE), 1).unwrap();
        assert_eq!(whole.offset, Bytes::ZERO);
        heap.check();
    }
}
