//! The ring of entries that main writes and the task reads, in an area or in main's own memory.
//!
//! Positions count bytes without end; a record lies at `position % capacity` and never across the
//! end of the ring.
//!
//! ```text
//! tail <= head <= tail + capacity        whole records lie in tail..head
//! record: length u32, kind u32, bytes, filled up to a multiple of 8; kind SKIP fills the end of the ring
//! ```
//!
//! Nothing but records is in the ring: where they begin and end travels with each call, so that a
//! call that brings one entry changes one page. Main overwrites the oldest records and never waits
//! for a reader.

const HEADER: usize = 8;
const RECORD: u32 = 1;
const SKIP: u32 = 2;

/// Where records are, as a reader gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Address of the ring.
    pub base: usize,
    /// Its bytes, a multiple of 8.
    pub capacity: usize,
    /// Position of the oldest record.
    pub tail: u64,
    /// Position after the newest.
    pub head: u64,
}

/// The ring as its writer has it.
pub struct Ring {
    span: Span,
    /// Id of the oldest record.
    first: u64,
    /// Id of the next record.
    next: u64,
}

// SAFETY: the writer alone writes to the memory, through `&mut self`.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring in this memory.
    ///
    /// # Safety
    /// `base` is aligned to 8 and `capacity` bytes from it, a multiple of 8, are the ring's own as
    /// long as it lives.
    pub unsafe fn new(base: *mut u8, capacity: usize) -> Ring {
        Ring { span: Span { base: base.expose_provenance(), capacity, tail: 0, head: 0 }, first: 0, next: 0 }
    }

    /// Where the records are.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Id of the oldest record that is still there.
    #[cfg(test)]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Id that the next record will have.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Writes a record over the oldest ones. It must be smaller than the ring.
    pub fn push(&mut self, bytes: &[u8]) {
        let need = HEADER + bytes.len().next_multiple_of(8);
        if need > self.span.capacity {
            return;
        }
        let to_end = self.span.capacity - self.offset(self.span.head);
        if need > to_end {
            self.make_room(to_end);
            self.header(self.span.head, to_end - HEADER, SKIP);
            self.span.head += to_end as u64;
        }
        self.make_room(need);
        self.header(self.span.head, bytes.len(), RECORD);
        let at = self.offset(self.span.head) + HEADER;
        // SAFETY: the record ends before the ring does, and the ring's memory is this writer's.
        unsafe { self.pointer(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.span.head += need as u64;
        self.next += 1;
    }

    fn offset(&self, position: u64) -> usize {
        (position % self.span.capacity as u64) as usize
    }

    fn pointer(&self, offset: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.span.base + offset)
    }

    fn header(&mut self, position: u64, len: usize, kind: u32) {
        let word = len as u64 | u64::from(kind) << 32;
        // SAFETY: positions are multiples of 8, so the header lies inside the ring, which is this
        // writer's.
        unsafe { self.pointer(self.offset(position)).cast::<u64>().write(word) };
    }

    /// Forgets the oldest records until `need` bytes are free.
    fn make_room(&mut self, need: usize) {
        while self.span.head + need as u64 > self.span.tail + self.span.capacity as u64 {
            // SAFETY: a header stands at `tail`, inside the ring.
            let word = unsafe { self.pointer(self.offset(self.span.tail)).cast::<u64>().read() };
            let len = word as u32 as usize;
            self.span.tail += (HEADER + len.next_multiple_of(8)) as u64;
            self.first += u64::from((word >> 32) as u32 == RECORD);
        }
    }
}

impl Span {
    /// Gives every record from position `from` on to `each`.
    ///
    /// # Safety
    /// The span came from [`Ring::span`], and the memory is as it was then: in the same process
    /// before the next push, or in the replica of a call that carried the span.
    pub unsafe fn read(&self, from: u64, mut each: impl FnMut(&[u8])) {
        let mut at = from.max(self.tail);
        while at < self.head {
            let offset = (at % self.capacity as u64) as usize;
            let record = std::ptr::with_exposed_provenance::<u8>(self.base + offset);
            // SAFETY: by contract a header stands at every position reached.
            let word = unsafe { record.cast::<u64>().read() };
            let len = word as u32 as usize;
            if (word >> 32) as u32 == RECORD {
                // SAFETY: by contract so many bytes follow inside the ring.
                each(unsafe { std::slice::from_raw_parts(record.add(HEADER), len) });
            }
            at += (HEADER + len.next_multiple_of(8)) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A random history of pushes against a list.
    #[test]
    fn holds_the_newest_records_whole() {
        let mut random = orbit_testing::Random::from_environment();
        let mut memory = vec![0u64; 64];
        let capacity = memory.len() * 8;
        // SAFETY: the vector outlives the ring and is used through it alone.
        let mut ring = unsafe { Ring::new(memory.as_mut_ptr().cast(), capacity) };
        let mut model: Vec<Vec<u8>> = Vec::new();
        let mut seen = 0;
        for _ in 0..20_000 {
            let record = vec![random.draw() as u8; random.index(200)];
            ring.push(&record);
            model.push(record);
            assert_eq!(ring.next() as usize, model.len());
            let mut found = Vec::new();
            // SAFETY: nothing was pushed since.
            unsafe { ring.span().read(0, |bytes| found.push(bytes.to_vec())) };
            assert_eq!(found[..], model[ring.first() as usize..]);
            assert!(found.iter().map(|r| HEADER + r.len().next_multiple_of(8)).sum::<usize>() <= capacity);
            let mut fresh = 0;
            // SAFETY: as above.
            unsafe { ring.span().read(seen, |_| fresh += 1) };
            assert_eq!(fresh, 1);
            seen = ring.span().head;
        }
    }
}
