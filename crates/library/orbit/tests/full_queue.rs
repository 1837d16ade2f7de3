//! What becomes of waiting calls when others replace them, or when there is no room: the calls that
//! are left see each its own moment's state, main is not delayed, and a call that fails has changed
//! nothing.

mod common;

use std::ffi::{c_long, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use orbit::{Area, CallOptions, Coalesce, Engine, Future, Kind, Orbit, Outcome, Update, WhenFull};

const PAGES: usize = 8;

/// Memory that main shares with the orbits: made before the library is set up. A word for each
/// gate; 1: open.
fn gates() -> &'static [AtomicU32; 16] {
    static GATES: OnceLock<&'static [AtomicU32; 16]> = OnceLock::new();
    GATES.get_or_init(|| {
        let (access, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory of zeroes, never unmapped, larger than the array.
        unsafe { &*libc::mmap(std::ptr::null_mut(), 4096, access, how, -1, 0).cast() }
    })
}

/// Says that it runs, and does until its gate is open.
unsafe extern "C" fn hold(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the gate's number.
    let gate = unsafe { *args.cast::<usize>() };
    orbit::push(Update::new().data(b"begun")).expect("push");
    while gates()[gate].load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    1
}

/// The sum of the first words of the pages at an address, times a thousand, and a number.
unsafe extern "C" fn read(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of an object of that many pages in an area it names, and a
    // number.
    unsafe {
        let [at, number] = *args.cast::<[usize; 2]>();
        let words = at as *const c_long;
        (0..PAGES).map(|page| *words.add(page * 512)).sum::<c_long>() * 1000 + number as c_long
    }
}

unsafe extern "C" fn read_too(store: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: as above.
    unsafe { read(store, args) + 500 }
}

/// An orbit whose running call continues until its gate is opened, and an area.
struct Held {
    orbit: Orbit,
    running: Future,
    gate: usize,
    area: Area,
    words: *mut c_long,
}

impl Held {
    fn new(gate: usize, when_full: WhenFull) -> Held {
        gates();
        let area = Area::builder("words").size(1 << 20).engine(Engine::Compare).build().expect("area");
        let words = area.alloc(PAGES * 4096, 4096).expect("room").as_ptr().cast();
        let orbit = Orbit::builder("held").entry(read).when_full(when_full).log(256 << 10).build().expect("orbit");
        let options = CallOptions::new().function(hold);
        let running = orbit.call_async_with(&[&area], &gate.to_ne_bytes(), &options).expect("call");
        assert!(running.pull().expect("pull").is_some(), "it runs");
        Held { orbit, running, gate, area, words }
    }

    /// Writes a page, and calls; what the call ought to return, and its future.
    fn call(&self, number: usize, options: &CallOptions) -> orbit::Result<(c_long, Future)> {
        // SAFETY: words of the object, used by this thread alone; the sum is taken of what it has.
        let sum: c_long = unsafe {
            *self.words.add(number % PAGES * 512) = number as c_long;
            (0..PAGES).map(|page| *self.words.add(page * 512)).sum()
        };
        let mut args = [0; 16];
        args[..8].copy_from_slice(&(self.words as usize).to_ne_bytes());
        args[8..].copy_from_slice(&(number % 500).to_ne_bytes());
        let future = self.orbit.call_async_with(&[&self.area], &args, options)?;
        Ok((sum * 1000 + (number % 500) as c_long, future))
    }

    fn go_on(&self) {
        gates()[self.gate].store(1, Ordering::SeqCst);
        assert_eq!(self.running.wait().expect("wait"), Outcome::Returned(1));
    }
}

fn replace() -> CallOptions {
    CallOptions::new().coalesce(Coalesce::Replace).deadline(Duration::from_secs(60))
}

fn assert_all(futures: &[Future], outcome: &Outcome) {
    assert!(futures.iter().all(|future| future.wait().expect("wait") == *outcome));
}

#[test]
fn a_call_is_replaced_any_number_of_times() {
    let held = Held::new(0, WhenFull::Fail);
    let (first, kept) = held.call(1, &CallOptions::new().function(read_too)).expect("call");
    let mut replaced: Vec<Future> = Vec::new();
    let mut last = 0;
    for number in 2..2_000 {
        let (value, future) = held.call(number, &replace()).expect("there is room");
        replaced.push(future);
        last = value;
    }
    let future = replaced.pop().expect("made");
    assert_all(&replaced, &Outcome::Cancelled);
    held.go_on();
    assert_eq!(kept.wait().expect("wait"), Outcome::Returned(first + 500));
    assert_eq!(future.wait().expect("wait"), Outcome::Returned(last));
    let (value, future) = held.call(7, &CallOptions::new()).expect("call");
    assert_eq!(future.wait().expect("wait"), Outcome::Returned(value));
}

#[test]
fn cancelled_calls_at_the_end_of_the_queue_leave_their_room() {
    let held = Held::new(1, WhenFull::Fail);
    for number in 0..1_000 {
        let (_, future) = held.call(number, &CallOptions::new()).expect("there is room");
        assert!(future.cancel());
    }
    let (_, cancelled) = held.call(6, &CallOptions::new()).expect("call");
    assert!(cancelled.cancel());
    let (value, future) = held.call(7, &CallOptions::new()).expect("call");
    assert!(!cancelled.cancel(), "it is no more, and the one in its place is another");
    held.go_on();
    assert_eq!(future.wait().expect("wait"), Outcome::Returned(value));
}

#[test]
fn a_replacing_call_that_fails_has_cancelled_nothing() {
    let held = Held::new(2, WhenFull::Fail);
    let (value, waiting) = held.call(1, &CallOptions::new()).expect("call");
    let large = held.area.alloc(512 << 10, 4096).expect("room").as_ptr();
    // SAFETY: a new object of the area.
    unsafe { large.write_bytes(1, 512 << 10) };
    assert_eq!(held.call(2, &replace()).expect_err("more than the log").kind(), Kind::Full);
    held.go_on();
    assert_eq!(waiting.wait().expect("wait"), Outcome::Returned(value));
    let (value, future) = held.call(3, &replace()).expect("call");
    assert_eq!(future.wait().expect("wait"), Outcome::Returned(value));
}

#[test]
fn a_replacing_call_that_gets_no_room_until_its_deadline_has_cancelled_nothing() {
    let held = Held::new(3, WhenFull::Block);
    let (value, waiting) = held.call(1, &CallOptions::new()).expect("call");
    let large = held.area.alloc(512 << 10, 4096).expect("room").as_ptr();
    // SAFETY: a new object of the area.
    unsafe { large.write_bytes(1, 512 << 10) };
    let soon = replace().deadline(Duration::from_millis(200));
    assert_eq!(held.call(2, &soon).expect_err("more than the log").kind(), Kind::TimedOut);
    held.go_on();
    assert_eq!(waiting.wait().expect("wait"), Outcome::Returned(value));
}

#[test]
fn where_the_oldest_are_dropped_a_call_is_made_at_once() {
    let held = Held::new(4, WhenFull::DropOldest);
    for round in 0..3 {
        // The queue is full at 256 calls, the log before that.
        let mut made: Vec<(c_long, Future)> = Vec::new();
        loop {
            made.push(held.call(made.len() + round, &CallOptions::new()).expect("there is room"));
            if made.len() > 1 && made[0].1.poll().is_some() {
                break;
            }
        }
        let (value, last) = made.pop().expect("made");
        let dropped: Vec<Future> = made.into_iter().map(|(_, future)| future).collect();
        assert_all(&dropped, &Outcome::Cancelled);
        assert_eq!(last.poll(), None, "it waits");
        if round == 2 {
            held.go_on();
            assert_eq!(last.wait().expect("wait"), Outcome::Returned(value));
        } else {
            assert!(last.cancel());
        }
    }
}

#[test]
fn where_dropping_does_not_help_nothing_is_dropped() {
    let held = Held::new(5, WhenFull::DropOldest);
    let (value, waiting) = held.call(1, &CallOptions::new()).expect("call");
    let large = held.area.alloc(512 << 10, 4096).expect("room").as_ptr();
    // SAFETY: a new object of the area.
    unsafe { large.write_bytes(1, 512 << 10) };
    assert_eq!(held.call(2, &CallOptions::new()).expect_err("more than the log").kind(), Kind::Full);
    held.go_on();
    assert_eq!(waiting.wait().expect("wait"), Outcome::Returned(value));
}

/// Main replaces calls while the orbit takes them. Now and then more has changed than the log
/// holds: while the orbit is not idle that fails, and what waits continues to wait.
#[test]
fn calls_replaced_while_the_orbit_takes_them_run_on_their_own_snapshot_or_not_at_all() {
    let held = Held::new(6, WhenFull::Fail);
    held.go_on();
    let large = held.area.alloc(512 << 10, 4096).expect("room").as_ptr();
    let mut random = common::Random(common::seed());
    let mut made: Vec<(c_long, Future)> = Vec::new();
    let (mut ran, mut failed) = (0, 0);
    for number in 0..common::campaign(20_000, 400_000) {
        if random.below(100) == 0 {
            // SAFETY: an object of the area.
            unsafe { large.write_bytes(number as u8, 512 << 10) };
        }
        match held.call(number, &replace()) {
            Ok(call) => made.push(call),
            Err(e) if e.kind() == Kind::Full => failed += 1,
            Err(e) => panic!("{e}"),
        }
        for _ in 0..random.below(400) {
            std::hint::spin_loop();
        }
        if random.below(50) == 0 {
            let last = made.len().saturating_sub(1);
            for (at, (value, future)) in made.drain(..).enumerate() {
                match future.wait().expect("wait") {
                    Outcome::Returned(there) => {
                        assert_eq!(there, value);
                        ran += 1;
                    }
                    outcome => assert_eq!((outcome, at != last), (Outcome::Cancelled, true)),
                }
            }
        }
    }
    println!("{ran} calls ran, {failed} were not made");
}
