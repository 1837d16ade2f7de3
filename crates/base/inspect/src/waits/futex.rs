//! Which lock hides behind a futex wait.
//!
//! Owns: the rules that distinguish a mutex from a condition variable by the call's arguments and
//! the bytes around the word. Promises: pure functions over bytes; any bytes give an answer.
//! Refuses: guessing an owner; `Owner::Unknown` is the answer where the lock does not keep one.
//!
//! What the rules rest on (x86_64; offsets in bytes):
//!
//! | library, lock | call | where the holder stands |
//! |---|---|---|
//! | glibc mutex | WAIT, value 2, at +0 | +8, kind at +16 |
//! | glibc robust mutex | WAIT, the holder's id of that moment with the waiters bit | the word itself; +8, kind at +16 |
//! | priority-inheriting mutex | LOCK_PI | the word itself |
//! | glibc rwlock | WAIT_BITSET on the wall clock, value 2 or 3, at +8 or +12 | writer at +24; readers are not kept |
//! | glibc condition variable | the same, on +40 or +44 (from 2.41: +32 or +36) | none |
//! | glibc semaphore | the same, value 0, waiters at +4 | none |
//! | glibc, a mutex given up (see `given_up`) | the same, value 0, on its own stack | none |
//! | pthread_join | the same, not private, value is the thread's id, in its thread block at +720 | the word itself |
//! | stdio | WAIT, value 2 | thread block's address at +8, which holds the id at +720 |
//! | Rust std | WAIT_BITSET on the steady clock | none |
//! | Rust RwLock | the same; readers on the state at +0, writers on +4, a number of their own | none |
//! | musl mutex | WAIT, at +4, what the word was with the waiters bit | the word, unless it is a plain mutex |
//! | musl condition variable | WAIT, value 2, on its own stack | none: reported as a bare lock |
//!
//! A lock is free where its word says so, and only there ([`free`]).

use crate::Sure;

/// Bytes needed in front of the futex word and, with it, behind.
pub(crate) const WINDOW: usize = 48;

const PRIVATE: u32 = 128;
const REALTIME: u32 = 256;
const WAITERS: u32 = 0x8000_0000;
const TID: u32 = 0x3fff_ffff;
/// In the state of Rust's lock for readers and writers: how many hold it, all ones for a writer.
const COUNT: u32 = (1 << 30) - 1;
/// There: readers wait.
const READERS: u32 = 1 << 30;
/// Thread ids are not larger on any kernel.
const MAX_TID: u32 = 1 << 22;
/// Where glibc's thread block keeps the thread's id.
pub(crate) const GLIBC_TID: u64 = 720;

/// A futex wait as called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Address of the futex word.
    pub addr: u64,
    /// Operation with its flags, as given to the kernel.
    pub op: u32,
    /// The value the word had for the waiter when it went to sleep (for LOCK_PI it means nothing).
    pub expected: u32,
    /// Has a time limit.
    pub timed: bool,
}

impl Waiting {
    /// From the arguments of `futex`; nothing if this operation does not wait.
    pub(crate) fn of(args: &[u64; 6]) -> Option<Waiting> {
        let op = args[1] as u32;
        matches!(op & 127, 0 | 6 | 9 | 11 | 13).then_some(Waiting {
            addr: args[0],
            op,
            expected: args[2] as u32,
            timed: args[3] != 0,
        })
    }

    /// Waits for a priority-inheriting mutex.
    pub fn pi(&self) -> bool {
        matches!(self.op & 127, 6 | 13)
    }

    /// By glibc's own way to wait, which all of its locks but plain mutexes take.
    pub(crate) fn by_wall_clock(&self) -> bool {
        self.op & !PRIVATE == 9 | REALTIME
    }

    /// Only threads of one process use the word.
    pub fn private(&self) -> bool {
        self.op & PRIVATE != 0
    }
}

/// The holder by the lock's word, before a check whether there is such a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// By the thread with this id in the program's own pid namespace.
    By(i32),
    /// By the thread whose glibc thread block is here.
    Block(u64),
    /// It does not say.
    Unsaid,
}

/// What kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Mutex(Held),
    RwLock(Held),
    Condvar,
    Join(i32),
    Semaphore,
    Parked,
    Unknown,
}

/// The bytes around a futex word, as far as they could be read, and what is known of the place.
pub(crate) struct Around {
    pub(crate) before: Option<[u8; WINDOW]>,
    pub(crate) after: Option<[u8; WINDOW]>,
    /// The word is the id of a thread of this process, where glibc's block of that thread keeps it.
    /// The number alone says nothing: the words of rwlocks are 1, 2 and 3, and there are threads
    /// with these ids, most of all in a container.
    pub(crate) id_of_thread: bool,
}

impl Around {
    /// The 32-bit word at a distance from the futex word; nothing outside what was read.
    pub(crate) fn u32(&self, off: isize) -> Option<u32> {
        let (half, at) =
            if off < 0 { (self.before.as_ref()?, off + WINDOW as isize) } else { (self.after.as_ref()?, off) };
        let at = usize::try_from(at).ok()?;
        Some(u32::from_le_bytes(half.get(at..at + 4)?.try_into().ok()?))
    }

    fn u64(&self, off: isize) -> Option<u64> {
        Some(u64::from(self.u32(off)?) | u64::from(self.u32(off + 4)?) << 32)
    }
}

/// Tells the lock. `live` says whether an id is that of a thread which could hold it.
pub(crate) fn shape(w: &Waiting, around: &Around, live: &dyn Fn(i32) -> bool) -> (Shape, Sure) {
    let unknown = (Shape::Unknown, Sure::Certain);
    let Some(word) = around.u32(0) else {
        return unknown;
    };
    match (w.op & 127, w.op & REALTIME != 0) {
        (0 | 9, _) if around.id_of_thread && w.expected == word => (Shape::Join(word as i32), Sure::Certain),
        (6 | 13, _) => (Shape::Mutex(by(word & TID)), Sure::Certain),
        (11, _) => (Shape::Condvar, Sure::Certain),
        (0, _) => plain(w, word, around, live),
        (9, true) => wall_clock(w, around, live),
        (9, false) => steady_clock(w, word, around),
        _ => unknown,
    }
}

fn by(id: u32) -> Held {
    if (1..=MAX_TID).contains(&id) { Held::By(id as i32) } else { Held::Unsaid }
}

/// FUTEX_WAIT: glibc's low-level locks, robust mutexes, musl, Go.
fn plain(w: &Waiting, word: u32, around: &Around, live: &dyn Fn(i32) -> bool) -> (Shape, Sure) {
    if w.expected == 2 {
        return low_level(around, live);
    }
    let found = match around.u32(16) {
        _ if w.expected & WAITERS == 0 => None,
        Some(kind) if mutex_kind(kind) && kind & 16 != 0 => robust(word, around, live),
        _ => musl(w, word, around, live).map(|held| (Shape::Mutex(held), Sure::Likely)),
    };
    found.unwrap_or((Shape::Unknown, Sure::Certain))
}

/// A robust mutex of glibc's. The word names its holder now: what a sleeper saw is of the time
/// when it went to sleep.
fn robust(word: u32, around: &Around, live: &dyn Fn(i32) -> bool) -> Option<(Shape, Sure)> {
    let id = word & TID;
    // Its holder is named after the word, too, but for a moment after it was handed over, or after
    // a holder has ended.
    let twice = around.u32(8) == Some(id);
    let sure = if twice { Sure::Certain } else { Sure::Likely };
    (twice || id == 0 || live(id as i32)).then_some((Shape::Mutex(by(id)), sure))
}

/// The holder of a mutex of musl's. The kind is before the word, the number of waiters after it. A
/// new waiter notes in the word that it waits; the next holder does not.
fn musl(w: &Waiting, word: u32, around: &Around, live: &dyn Fn(i32) -> bool) -> Option<Held> {
    let (kind, waiters) = (around.u32(-4)?, around.u32(4)?);
    let (saw, id) = (w.expected & TID, word & TID);
    let fits = kind & !(3 | 4 | 128) == 0 && w.private() == (kind & 128 == 0) && (1..1 << 20).contains(&waiters);
    if !fits {
        return None;
    }
    if kind & 7 == 0 {
        // A plain one holds EBUSY instead of an id.
        let busy = libc::EBUSY as u32;
        return (saw == busy && (id == busy || id == 0)).then_some(Held::Unsaid);
    }
    // Others are in a list of those their holder has.
    let listed = around.u64(20)? != 0 && around.u64(28)? != 0;
    (listed && (live(id as i32) || live(saw as i32))).then(|| by(id))
}

fn mutex_kind(kind: u32) -> bool {
    kind & !(3 | 16 | 32 | 64 | 128 | 0x100 | 0x200) == 0
}

/// A glibc lock with value 2: mutex, stdio lock or a bare one as malloc's.
fn low_level(around: &Around, live: &dyn Fn(i32) -> bool) -> (Shape, Sure) {
    let owner = around.u32(8).unwrap_or(0);
    let users = around.u32(12).unwrap_or(0);
    let mutex =
        (1..=MAX_TID).contains(&owner) && (1..1 << 20).contains(&users) && around.u32(16).is_some_and(mutex_kind);
    if mutex && live(owner as i32) {
        return (Shape::Mutex(by(owner)), Sure::Certain);
    }
    match around.u64(8) {
        // An address in the places where thread blocks are; as a mutex it would have thousands of
        // waiters.
        Some(block) if block & 15 == 0 && (0x1000..0x8000).contains(&(block >> 32)) => {
            (Shape::Mutex(Held::Block(block)), Sure::Likely)
        }
        _ if mutex => (Shape::Mutex(by(owner)), Sure::Likely),
        _ => (Shape::Mutex(Held::Unsaid), Sure::Likely),
    }
}

/// FUTEX_WAIT_BITSET on the wall clock: what glibc uses for all but mutexes.
fn wall_clock(w: &Waiting, around: &Around, live: &dyn Fn(i32) -> bool) -> (Shape, Sure) {
    let is_condvar_241 = condvar_241(around, in_condvar_241(w));
    if waits_to_read(w)
        && !is_condvar_241
        && let Some(held) = rwlock(around, 0, live)
    {
        return (Shape::RwLock(held), Sure::Certain);
    }
    // The zeros after a condition variable equal a rwlock's end.
    if (w.expected == 2 || w.expected == 3)
        && !is_condvar_241
        && let Some(held) = rwlock(around, -(in_rwlock(w) as isize), live)
    {
        return (Shape::RwLock(held), Sure::Certain);
    }
    if w.expected == 2 && w.timed && !is_condvar_241 {
        return low_level(around, live);
    }
    // Condition variables begin at multiples of eight, and so do semaphores, of which it is the
    // first word.
    let even = w.addr & 7 == 0;
    if w.expected == 0 && if even { condvar(around, -40, 16) } else { condvar(around, -44, 20) } {
        return (Shape::Condvar, Sure::Certain);
    }
    // Of its two words the second may count like a semaphore's waiters.
    if is_condvar_241 {
        return (Shape::Condvar, Sure::Likely);
    }
    let waiters = around.u32(4).unwrap_or(0);
    let scope = around.u32(8).unwrap_or(1);
    if even && w.expected == 0 && (1..1 << 20).contains(&waiters) && matches!(scope, 0 | 128) {
        return (Shape::Semaphore, Sure::Certain);
    }
    (Shape::Unknown, Sure::Certain)
}

/// Whether this may be a reader that a waiting writer keeps from a glibc rwlock that readers hold
/// (one that prefers writers): it sleeps at the lock's first word, which has the number of readers
/// above three bits: it is the readers' phase, a writer waits, readers wait.
pub(crate) fn waits_to_read(w: &Waiting) -> bool {
    w.addr & 7 == 0 && w.op & REALTIME != 0 && w.expected & 7 == 6 && (1..1 << 20).contains(&(w.expected >> 3))
}

/// How far into a glibc rwlock the word stands, if it is of one: the locks begin at multiples of
/// eight.
fn in_rwlock(w: &Waiting) -> u64 {
    if w.addr & 7 == 0 { 8 } else { 12 }
}

/// Where the lock itself begins, which is what programs and debuggers call it by; the word, where
/// that is not known.
pub(crate) fn begins(w: &Waiting, shape: Shape) -> u64 {
    match shape {
        Shape::RwLock(_) if waits_to_read(w) => w.addr,
        Shape::RwLock(_) if w.op & REALTIME != 0 => w.addr.wrapping_sub(in_rwlock(w)),
        // Rust's: readers sleep at its beginning.
        Shape::RwLock(_) if !reads_state(w) => w.addr.wrapping_sub(4),
        _ => w.addr,
    }
}

/// A glibc rwlock that begins at this distance from the word.
fn rwlock(a: &Around, base: isize, live: &dyn Fn(i32) -> bool) -> Option<Held> {
    let writer = a.u32(base + 24)?;
    let fits = a.u32(base + 16)? == 0
        && a.u32(base + 20)? == 0
        && a.u32(base + 28)? <= 1
        && (writer == 0 || live(writer as i32))
        && a.u32(base + 48).is_none_or(|flags| flags <= 2);
    fits.then_some(by(writer))
}

/// A condition variable of glibc 2.25 to 2.40; `refs` is the distance of the group's reference
/// count.
fn condvar(a: &Around, base: isize, refs: isize) -> bool {
    (|| {
        let seq = a.u64(base)?;
        let group_start = a.u64(base + 8)?;
        let waiters = a.u32(base + 36)? >> 3;
        // Whoever waits in a group waits.
        let in_group = a.u32(base + refs)? >> 1;
        Some(seq >> 1 >= group_start >> 1 && seq > 0 && waiters < 1 << 20 && (1..=waiters).contains(&in_group))
    })()
    .unwrap_or(false)
}

/// How far in front of the word a condition variable of glibc 2.41 begins, if it is of one.
fn in_condvar_241(w: &Waiting) -> isize {
    if w.addr & 7 == 0 { -32 } else { -36 }
}

/// A condition variable of glibc 2.41 and later, which dropped the groups' reference counts: their
/// place, behind the groups' words, stays zero. The word, and so what a waiter saw there, may be
/// any number.
fn condvar_241(a: &Around, base: isize) -> bool {
    (|| {
        let seq = a.u64(base)?;
        let waiters = a.u32(base + 28)? >> 3;
        // A group's size may be below zero for a while.
        let is_size = |size: u32| (size as i32).unsigned_abs() < 1 << 20;
        let sizes = is_size(a.u32(base + 16)?) && is_size(a.u32(base + 20)?) && a.u32(base + 24)? >> 2 < 1 << 20;
        let counts = seq > 0 && seq >> 1 >= a.u64(base + 8)? >> 1 && (1..1 << 20).contains(&waiters);
        Some(counts && sizes && a.u64(base + 40)? == 0)
    })()
    .unwrap_or(false)
}

/// FUTEX_WAIT_BITSET on the steady clock: Rust's standard library, and glibc's waits with such a
/// limit.
fn steady_clock(w: &Waiting, word: u32, around: &Around) -> (Shape, Sure) {
    // One of glibc's with `CLOCK_MONOTONIC`, as the JVM's are, with a limit or without.
    if condvar_241(around, in_condvar_241(w)) {
        return (Shape::Condvar, Sure::Likely);
    }
    if w.expected == u32::MAX {
        return (Shape::Parked, Sure::Likely);
    }
    if w.expected == 2 {
        return (Shape::Mutex(Held::Unsaid), Sure::Likely);
    }
    if reads_state(w) {
        let sure = if word & COUNT != 0 { Sure::Likely } else { Sure::Guess };
        return (Shape::RwLock(Held::Unsaid), sure);
    }
    // A waiting writer sleeps on the word behind the state.
    if around.u32(-4).is_some_and(|state| state & WAITERS != 0 && state & COUNT != 0) {
        return (Shape::RwLock(Held::Unsaid), Sure::Guess);
    }
    (Shape::Unknown, Sure::Certain)
}

/// Whether this is a reader of Rust's, which sleeps at the state itself: held, and with the bit
/// that says that readers wait.
fn reads_state(w: &Waiting) -> bool {
    w.expected & COUNT != 0 && w.expected & READERS != 0
}

/// Whether the word says that nobody holds the lock, or that a semaphore or condition variable has
/// something to be taken. That it is not what the sleeper saw does not say so: it changes while the
/// lock is held, too, as others come, leave and get it.
pub(crate) fn free(w: &Waiting, shape: Shape, around: &Around) -> bool {
    let Some(word) = around.u32(0) else {
        return false;
    };
    match shape {
        Shape::Mutex(_) if w.expected == 2 && !w.pi() => word == 0 && !moved(w, around),
        Shape::Mutex(_) => word & TID == 0,
        // Neither readers nor a writer are left.
        Shape::RwLock(_) if waits_to_read(w) => word >> 3 == 0 && word & 2 == 0,
        // glibc's: the lowest bit is what is waited for, to be set or to be cleared.
        Shape::RwLock(_) if w.op & REALTIME != 0 => (word ^ w.expected) & 1 != 0,
        // Rust's: of a writer's wait the lock is known by its state, which is held.
        Shape::RwLock(_) => reads_state(w) && word & COUNT == 0,
        // Whoever was moved to the mutex by a broadcast is asleep at that by now. In glibc 2.41 the
        // word counts signals from where its group began: when groups change places it becomes that
        // number, above what the present waiters sleep for.
        Shape::Condvar => {
            let begun = around.u32(in_condvar_241(w) + 8).filter(|_| condvar_241(around, in_condvar_241(w)));
            w.op & 127 != 11 && word != w.expected && begun.is_none_or(|begun| word.wrapping_sub(begun) as i32 > 0)
        }
        Shape::Semaphore => word != w.expected,
        Shape::Join(_) | Shape::Parked | Shape::Unknown => false,
    }
}

/// Whether this waits for a condition variable of musl's, at a word of its own with the form of a
/// lock's, and was moved from there to the mutex by a broadcast: asleep at that, with a zero in the
/// word. In front of it then stands that it was signalled. Mutexes of glibc's are at other
/// addresses.
fn moved(w: &Waiting, around: &Around) -> bool {
    const SIGNALLED: u32 = 1;
    w.addr & 7 == 4 && around.u32(-4) == Some(SIGNALLED)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A word on its own address, with these words around it.
    fn at(addr: u64, words: &[(isize, u32)]) -> (Waiting, Around) {
        let (mut before, mut after) = ([0; WINDOW], [0; WINDOW]);
        for &(off, word) in words {
            let half = if off < 0 { &mut before } else { &mut after };
            let at = off.rem_euclid(WINDOW as isize) as usize;
            half[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let w = Waiting { addr, op: 9 | REALTIME | PRIVATE, expected: 0, timed: false };
        (w, Around { before: Some(before), after: Some(after), id_of_thread: false })
    }

    #[test]
    fn a_semaphore_behind_another_block_of_memory() {
        // The allocator's size in front of it, and numbers of the block before that, have the form
        // of a condition variable that began four bytes off.
        let (w, around) = at(0x1000, &[(-44, 9), (-24, 7), (-8, 0x21), (4, 1)]);
        assert!(condvar(&around, -44, 20), "as it stands");
        assert_eq!(wall_clock(&w, &around, &|_| false), (Shape::Semaphore, Sure::Certain));
        let (w, around) = at(0x1004, &[(-44, 9), (-24, 7), (-8, 0x21), (4, 1)]);
        assert_eq!(wall_clock(&w, &around, &|_| false), (Shape::Condvar, Sure::Certain));
    }

    #[test]
    fn waiters_of_a_condition_variable_whose_groups_changed_places() {
        // glibc 2.41: three wait, of whom each was woken once and waits again, in the group that
        // began as the third came; its word was 0 then.
        let (seq, begun, refs) = (14, 3, 3 << 3);
        let words = |addr: u64, signals| {
            let base = in_condvar_241(&at(addr, &[]).0);
            at(addr, &[(base, seq), (base + 8, begun), (base + 28, refs), (0, signals)])
        };
        for addr in [0x1020, 0x1024] {
            // None to take; one to take that nobody was woken for.
            for (signals, lost) in [(begun, false), (begun + 1, true), (0, false)] {
                let (w, around) = words(addr, signals);
                assert_eq!(wall_clock(&w, &around, &|_| false), (Shape::Condvar, Sure::Likely));
                assert_eq!(free(&w, Shape::Condvar, &around), lost, "{addr:x}, {signals}");
            }
            // Threads that came to the second group while its word was 2, with nothing but zeros
            // behind it.
            let (w, around) = words(addr, 3);
            for (op, expected, timed) in [(w.op, 2, false), (w.op, 2, true), (w.op, 14, false), (9 | PRIVATE, 2, true)]
            {
                let w = Waiting { op, expected, timed, ..w };
                assert_eq!(shape(&w, &around, &|_| false).0, Shape::Condvar, "{addr:#x}, {op:#x} {expected} {timed}");
                assert!(!free(&w, Shape::Condvar, &around));
            }
            // The word of the other group counts, as a semaphore's waiters do.
            let (w, mut around) = words(addr, 0);
            if addr & 7 == 0 {
                around.after.as_mut().expect("read")[4..8].copy_from_slice(&3_u32.to_le_bytes());
            }
            assert_eq!(shape(&w, &around, &|_| false).0, Shape::Condvar);
        }
    }

    #[test]
    fn both_words_of_a_lock_for_readers_and_writers_lead_to_it() {
        for (addr, expected) in [(0x1008, 2), (0x1008, 3), (0x100c, 2), (0x100c, 3)] {
            let (w, around) = at(addr, &[(0, expected)]);
            let w = Waiting { expected, ..w };
            let (shape, _) = wall_clock(&w, &around, &|_| false);
            assert_eq!((shape, begins(&w, shape)), (Shape::RwLock(Held::Unsaid), 0x1000));
        }
    }

    #[test]
    fn a_reader_behind_a_waiting_writer_is_one_of_the_locks() {
        // One reader, its phase, a writer waits, readers wait.
        let word = 1 << 3 | 4 | 2;
        let (w, around) = at(0x1000, &[(0, word), (4, 1), (12, 3)]);
        let w = Waiting { expected: word, ..w };
        let (shape, sure) = wall_clock(&w, &around, &|_| false);
        assert_eq!((shape, sure, begins(&w, shape)), (Shape::RwLock(Held::Unsaid), Sure::Certain, 0x1000));
        assert!(!free(&w, shape, &around));
        let (_, around) = at(0x1000, &[(0, 0)]);
        assert!(free(&w, shape, &around));
        // A semaphore's or condition variable's count at such an address is none.
        let (w, around) = at(0x1000, &[(0, word), (24, 7)]);
        assert_ne!(wall_clock(&Waiting { expected: word, ..w }, &around, &|_| false).0, Shape::RwLock(Held::Unsaid));
    }

    #[test]
    fn any_bytes_give_an_answer() {
        let mut random = orbit_testing::Random::new(0x1234_5678_9abc_def1);
        let mut next = move || random.draw();
        for _ in 0..200_000 {
            let mut half = || {
                let mut b = [0u8; WINDOW];
                b.iter_mut().for_each(|b| *b = if next() % 3 == 0 { 0 } else { next() as u8 });
                (next() % 8 != 0).then_some(b)
            };
            let around = Around { before: half(), after: half(), id_of_thread: next() % 8 == 0 };
            let expected = [0, 1, 2, 3, u32::MAX, WAITERS | 16, next() as u32, around.u32(0).unwrap_or(9)];
            let args = [next(), next() & 0x18f, u64::from(expected[next() as usize % 8]), next() % 2, 0, 0];
            if let Some(w) = Waiting::of(&args) {
                let (found, _) = super::shape(&w, &around, &|id| id % 2 == 0);
                free(&w, found, &around);
                begins(&w, found);
            }
        }
    }
}
