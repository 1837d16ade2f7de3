//! Copies of pages, reused: a page that was touched before costs no fault in the pause of a
//! checkpoint.

use std::collections::HashMap;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// Pages in a table of an [`Image`].
const TABLE: u64 = 512;

/// The bytes of one page.
pub(crate) type Bytes = [u8; PAGE as usize];

/// Pages that are free.
#[derive(Default)]
pub(crate) struct Pool {
    free: Vec<Box<Bytes>>,
}

impl Pool {
    /// Free pages of which more than this are given back.
    const MOST_FREE: usize = 64 << 10;

    /// Has at least `count` pages ready.
    pub fn reserve(&mut self, count: usize) {
        while self.free.len() < count {
            // Not zero: the page shall be there.
            self.free.push(Box::new([1; PAGE as usize]));
        }
    }

    /// Takes `count` pages; what they hold is not defined.
    pub fn take(&mut self, count: usize) -> Vec<Box<Bytes>> {
        self.reserve(count);
        self.free.split_off(self.free.len() - count)
    }

    /// Takes pages back.
    pub fn give(&mut self, pages: impl IntoIterator<Item = Box<Bytes>>) {
        self.free.extend(pages);
        self.free.truncate(Self::MOST_FREE);
    }
}

/// What the memory of a program held at a checkpoint: pages by their address. A page that is not in
/// it held what its mapping holds by itself: zeros, or the file.
#[derive(Default)]
pub(crate) struct Image {
    tables: HashMap<u64, Vec<Option<Box<Bytes>>>>,
    pages: usize,
}

impl Image {
    fn place(address: u64) -> (u64, usize) {
        let page = address / PAGE;
        (page / TABLE, (page % TABLE) as usize)
    }

    /// Replaces a page; returns the one that was there.
    pub fn replace(&mut self, address: u64, page: Option<Box<Bytes>>) -> Option<Box<Bytes>> {
        let (table, index) = Self::place(address);
        if page.is_none() && !self.tables.contains_key(&table) {
            return None;
        }
        let table = self.tables.entry(table).or_insert_with(|| (0..TABLE).map(|_| None).collect());
        let is_there = page.is_some();
        let before = std::mem::replace(&mut table[index], page);
        self.pages = self.pages + usize::from(is_there) - usize::from(before.is_some());
        before
    }

    /// The page at this address.
    pub fn get(&self, address: u64) -> Option<&Bytes> {
        let (table, index) = Self::place(address);
        self.tables.get(&table)?[index].as_deref()
    }

    /// Addresses of the pages within `start..end`.
    pub fn within(&self, start: u64, end: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let mut take = |number: u64, table: &[Option<Box<Bytes>>]| {
            let base = number * TABLE * PAGE;
            found.extend(
                table
                    .iter()
                    .enumerate()
                    .filter_map(|(i, page)| page.as_ref().map(|_| base + i as u64 * PAGE))
                    .filter(|address| (start..end).contains(address)),
            );
        };
        let (first, last) = (start / PAGE / TABLE, end.saturating_sub(1) / PAGE / TABLE);
        if last - first > self.tables.len() as u64 {
            self.tables.iter().for_each(|(number, table)| take(*number, table));
        } else {
            (first..=last).for_each(|number| {
                if let Some(table) = self.tables.get(&number) {
                    take(number, table);
                }
            });
        }
        found
    }

    /// How many pages it holds.
    pub fn len(&self) -> usize {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_by_address_and_range() {
        let mut image = Image::default();
        let page = |n: u8| Some(Box::new([n; PAGE as usize]));
        assert!(image.replace(0x7f00_0000_1000, page(1)).is_none());
        assert!(image.replace(0x1000, page(2)).is_none());
        assert_eq!(image.replace(0x1000, page(3)).expect("the one before")[0], 2);
        assert_eq!((image.get(0x1000).expect("there")[7], image.len()), (3, 2));
        assert!(image.get(0x2000).is_none());
        assert_eq!(image.within(0, 0x10_0000), [0x1000]);
        assert_eq!(image.within(0, 1 << 47).len(), 2);
        assert!(image.within(0x2000, 0x3000).is_empty());
        assert!(image.replace(0x1000, None).is_some() && image.len() == 1);
    }

    #[test]
    fn a_pool_gives_what_it_got() {
        let mut pool = Pool::default();
        let pages = pool.take(3);
        pool.give(pages);
        assert_eq!(pool.take(2).len(), 2);
        assert_eq!(pool.free.len(), 1);
    }
}
