//! The snapshot log: the ring of page contents (and long arguments) that calls bring along while
//! the orbit is busy.
//!
//! Main appends, the orbit replays. A record is a header of 16 bytes and its payload, never cut at
//! the ring's end: a run of pages that does not fit is split, a rest too short for anything is
//! skipped. Main never overwrites what a pending call still needs: [`LogWriter::room`] counts from
//! the end of the last completed call, as main itself counts it.
//!
//! ```text
//! tail <= head <= tail + bytes          positions count bytes without end; offset = position mod bytes
//! ```

use crate::channel::{DownSide, DownView};
use crate::page::{PAGE, PAGE_BYTES};
use crate::units::{Bytes, Page, Pages};

const HEADER: usize = 16;

const PAGES: u32 = 1;
const ARGS: u32 = 2;
const FORGET: u32 = 3;
const SKIP: u32 = 4;

/// A record's header. Writer: main.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    kind: u32,
    /// Number of the area (pages) or of the replica (forget).
    area: u32,
    /// First page (pages).
    first: u32,
    /// Pages (pages), or bytes (arguments).
    count: u32,
}

/// Main's end of the log.
pub(crate) struct LogWriter {
    head: u64,
    tail: u64,
}

impl LogWriter {
    pub fn new() -> LogWriter {
        LogWriter { head: 0, tail: 0 }
    }

    pub fn head(&self) -> u64 {
        self.head
    }

    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Calls `each` with each record between two positions from `tail` to `head`.
    pub fn between<'a>(&'a self, down: &'a DownSide, start: u64, end: u64, each: impl FnMut(Record<'a>)) {
        debug_assert!(start >= self.tail && end <= self.head);
        // SAFETY: main wrote the records from `tail` to `head`, and overwrites none of them while
        // this borrow lasts.
        unsafe { records(down.log(), down.log_bytes(), start, end, each) }
    }

    /// The same with the area, the first page and the count of pages of each record of pages.
    pub fn pages_between(&self, down: &DownSide, start: u64, end: u64, mut each: impl FnMut(u32, Page, Pages)) {
        self.between(down, start, end, |record| {
            if let Record::Pages { area, first, data } = record {
                each(area, first, Bytes::new(data.len()).whole_pages(PAGE_BYTES));
            }
        });
    }

    /// Everything before `position` has been replayed.
    pub fn release(&mut self, position: u64) {
        debug_assert!(position >= self.tail && position <= self.head);
        self.tail = position;
    }

    /// Forgets what was appended after `position`, which no call has been given yet, or one that
    /// was taken back.
    pub fn rewind(&mut self, position: u64) {
        debug_assert!(position >= self.tail && position <= self.head);
        self.head = position;
    }

    /// What was appended after `position`, for [`LogWriter::put_back`].
    pub fn copy_from(&self, down: &DownSide, position: u64) -> Vec<u8> {
        let mut copy = vec![0; (self.head - position) as usize];
        for (at, len, from) in pieces(down.log_bytes(), position, copy.len()) {
            // SAFETY: the piece lies inside the log, which only main writes, under the orbit's
            // lock, and inside the copy.
            unsafe { std::ptr::copy_nonoverlapping(down.log().add(at), copy.as_mut_ptr().add(from), len) };
        }
        copy
    }

    /// Appends what [`LogWriter::copy_from`] copied, at the position from which it did.
    pub fn put_back(&mut self, down: &DownSide, copy: &[u8]) {
        debug_assert!(Bytes::new(copy.len()) <= self.room(down));
        for (at, len, from) in pieces(down.log_bytes(), self.head, copy.len()) {
            // SAFETY: the piece lies inside the log, which only main writes, and where it is free;
            // and inside the copy.
            unsafe { std::ptr::copy_nonoverlapping(copy.as_ptr().add(from), down.log().add(at), len) };
        }
        self.head += copy.len() as u64;
    }

    /// What is free.
    pub fn room(&self, down: &DownSide) -> Bytes {
        Bytes::new(down.log_bytes() - (self.head - self.tail) as usize)
    }

    /// What this many pages in this many runs may take, skipped ends included.
    pub fn need_for_pages(pages: Pages, runs: usize) -> Bytes {
        match pages {
            Pages::ZERO => Bytes::ZERO,
            pages => (pages + Pages::ONE).bytes(PAGE_BYTES) + Bytes::new((runs + 3) * HEADER),
        }
    }

    /// What arguments may take, a skipped end included.
    pub const fn need_for_args(len: usize) -> Bytes {
        Bytes::new(2 * (len.next_multiple_of(HEADER) + HEADER))
    }

    /// Room for a record with `payload` bytes in one piece: skips the ring's end if the rest there
    /// is shorter. The caller has made sure of the room.
    fn place(&mut self, down: &DownSide, header: Header, payload: usize) -> *mut u8 {
        let bytes = down.log_bytes();
        let offset = self.head as usize & (bytes - 1);
        if bytes - offset < HEADER + payload {
            if bytes - offset >= HEADER {
                // SAFETY: offset + HEADER <= bytes: inside the log, which only main writes;
                // positions are multiples of 16.
                unsafe {
                    (down.log().add(offset) as *mut Header).write(Header { kind: SKIP, area: 0, first: 0, count: 0 })
                };
            }
            self.head += (bytes - offset) as u64;
        }
        let offset = self.head as usize & (bytes - 1);
        self.head += (HEADER + payload.next_multiple_of(HEADER)) as u64;
        // SAFETY: the record lies inside the ring (checked or skipped above), and the caller
        // checked that the room is free.
        unsafe {
            let at = down.log().add(offset);
            (at as *mut Header).write(header);
            at.add(HEADER)
        }
    }

    /// Appends pages `first..first + count` of an area; `source` gives where each lies.
    pub fn pages(&mut self, down: &DownSide, area: u32, first: Page, count: Pages, source: impl Fn(Page) -> *const u8) {
        let bytes = down.log_bytes();
        // Whole pages that so many bytes hold beside a header.
        let fits = |bytes: usize| Bytes::new(bytes - HEADER).whole_pages(PAGE_BYTES);
        let (mut first, mut left) = (first, count);
        while left > Pages::ZERO {
            let contiguous = bytes - (self.head as usize & (bytes - 1));
            let fit = if contiguous < HEADER + PAGE { left } else { left.min(fits(contiguous)) };
            let fit = fit.min(fits(bytes));
            let header = Header { kind: PAGES, area, first: first.get() as u32, count: fit.get() as u32 };
            let mut to = self.place(down, header, fit.bytes(PAGE_BYTES).get());
            for page in first.run(fit) {
                // SAFETY: `to` has room for `fit` pages; the source page is readable memory of the
                // area (its tracker's word).
                unsafe {
                    std::ptr::copy_nonoverlapping(source(page), to, PAGE);
                    to = to.add(PAGE);
                }
            }
            first += fit;
            left -= fit;
        }
    }

    /// Appends arguments.
    pub fn args(&mut self, down: &DownSide, args: &[u8]) {
        let to = self.place(down, Header { kind: ARGS, area: 0, first: 0, count: args.len() as u32 }, args.len());
        // SAFETY: `place` made room for args.len() bytes.
        unsafe { std::ptr::copy_nonoverlapping(args.as_ptr(), to, args.len()) };
    }

    /// Appends the word that a replica is gone.
    pub fn forget(&mut self, down: &DownSide, replica: u32) {
        self.place(down, Header { kind: FORGET, area: replica, first: 0, count: 0 }, 0);
    }
}

/// The one or two pieces of a ring of `bytes` bytes in which `len` bytes from `position` on lie:
/// offset in the ring, length, offset in the whole.
fn pieces(bytes: usize, position: u64, len: usize) -> [(usize, usize, usize); 2] {
    let at = position as usize & (bytes - 1);
    let first = len.min(bytes - at);
    [(at, first, 0), (0, len - first, first)]
}

/// A record as the orbit reads it.
pub(crate) enum Record<'a> {
    Pages { area: u32, first: Page, data: &'a [u8] },
    Args(&'a [u8]),
    Forget { replica: u32 },
}

/// Reads the records between two positions.
pub(crate) fn replay<'a>(down: &'a DownView, start: u64, end: u64, each: impl FnMut(Record<'a>)) {
    // SAFETY: main wrote the records of a call before it submitted it, and leaves them alone until
    // it is completed.
    unsafe { records(down.log(), down.log_bytes(), start, end, each) }
}

/// Reads the records between two positions of the ring of `bytes` bytes at `log`.
///
/// # Safety
/// There are whole records from `start` to `end`, which nobody overwrites during `'a`.
unsafe fn records<'a>(log: *const u8, bytes: usize, start: u64, end: u64, mut each: impl FnMut(Record<'a>)) {
    let mut at = start;
    while at < end {
        let offset = at as usize & (bytes - 1);
        if bytes - offset < HEADER {
            at += (bytes - offset) as u64;
            continue;
        }
        // SAFETY: offset + HEADER <= bytes; there is a header (the caller's word).
        let header = unsafe { (log.add(offset) as *const Header).read() };
        let payload = match header.kind {
            SKIP => {
                at += (bytes - offset) as u64;
                continue;
            }
            PAGES => header.count as usize * PAGE,
            ARGS => header.count as usize,
            _ => 0,
        };
        // SAFETY: main never cuts a record at the ring's end; nobody overwrites it (the caller's
        // word).
        let data = unsafe { std::slice::from_raw_parts(log.add(offset + HEADER), payload) };
        match header.kind {
            PAGES => each(Record::Pages { area: header.area, first: Page::new(header.first as usize), data }),
            ARGS => each(Record::Args(data)),
            _ => each(Record::Forget { replica: header.area }),
        }
        at += (HEADER + payload.next_multiple_of(HEADER)) as u64;
    }
}

pub(crate) mod fuzzing {
    //! Bodies of fuzz targets.
    use super::*;
    use std::sync::OnceLock;

    /// Whatever records go into the log, they come out the same, in order, over any number of turns
    /// of the ring.
    pub fn log(data: &[u8]) {
        const BYTES: usize = 128 << 10;
        static SHARED: OnceLock<Option<(DownSide, DownView, Vec<u8>)>> = OnceLock::new();
        let made = || {
            let down = DownSide::create(BYTES).ok()?;
            let view = DownView::map(down.fd().ok()?.try_clone_to_owned().ok()?, BYTES).ok()?;
            Some((down, view, (0..40 * PAGE).map(|at| (at / 7) as u8).collect()))
        };
        let Some((down, view, source)) = SHARED.get_or_init(made) else { return };
        let mut log = LogWriter::new();
        let mut at = 0;
        while at + 4 <= data.len() {
            // One call: a run of pages, arguments, a replica that is gone.
            let (pages, first) = (usize::from(data[at] % 24), usize::from(data[at + 1] % 16));
            let args = usize::from(data[at + 2]) * 64 + usize::from(data[at + 3] % 64);
            at += 4;
            let (pages, first) = (Pages::new(pages), Page::new(first));
            let need = LogWriter::need_for_pages(pages, 1) + LogWriter::need_for_args(args) + Bytes::new(2 * HEADER);
            if need > log.room(down) {
                continue;
            }
            let start = log.head();
            log.pages(down, 9, first, pages, |page| source[page.offset(PAGE_BYTES).get()..].as_ptr());
            log.args(down, &source[..args]);
            log.forget(down, first.get() as u32);
            assert!(log.head() - start <= need.get() as u64);
            let (mut next, mut seen) = (first, 0);
            replay(view, start, log.head(), |record| match record {
                Record::Pages { area, first, data } => {
                    assert_eq!((area, first), (9, next));
                    assert_eq!(data, &source[next.offset(PAGE_BYTES).get()..][..data.len()]);
                    next += Bytes::new(data.len()).whole_pages(PAGE_BYTES);
                }
                Record::Args(bytes) => {
                    assert_eq!(bytes, &source[..args]);
                    seen += 1;
                }
                Record::Forget { replica } => {
                    assert_eq!(replica as usize, first.get());
                    seen += 1;
                }
            });
            assert_eq!((next, seen), (first + pages, 2));
            log.release(log.head());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_testing::Random;

    /// Every record that goes in comes out, in order and unharmed, over many turns of a small ring.
    #[test]
    fn what_goes_in_comes_out_over_many_turns() {
        let down = DownSide::create(64 * 1024).expect("channel");
        let view = DownView::map(down.fd().expect("open").try_clone_to_owned().expect("dup"), 64 * 1024).expect("view");
        let mut log = LogWriter::new();
        let page: Vec<u8> = (0..PAGE).map(|i| i as u8).collect();
        let mut random = Random::new(7);
        for turn in 0..5_000u32 {
            let (first, pages) = (Page::new(turn as usize), Pages::new(random.index(7)));
            let args: Vec<u8> = (0..random.index(3000)).map(|i| (i as u32 ^ turn) as u8).collect();
            let need = LogWriter::need_for_pages(pages, 1) + LogWriter::need_for_args(args.len());
            let need = need + Bytes::new(HEADER);
            assert!(need <= log.room(&down), "an empty ring has room for {need}");
            let start = log.head();
            log.pages(&down, 3, first, pages, |_| page.as_ptr());
            log.args(&down, &args);
            let (mut seen_pages, mut seen_args) = (Pages::ZERO, None);
            replay(&view, start, log.head(), |record| match record {
                Record::Pages { area, first, data } => {
                    assert_eq!((area, first), (3, Page::new(turn as usize) + seen_pages));
                    for one in data.chunks(PAGE) {
                        assert_eq!(one, page);
                        seen_pages += Pages::ONE;
                    }
                }
                Record::Args(data) => seen_args = Some(data.to_vec()),
                Record::Forget { .. } => panic!("nobody wrote this"),
            });
            assert_eq!(seen_pages, pages);
            assert_eq!(seen_args.as_deref(), Some(&args[..]));
            log.release(log.head());
        }
    }
}
