//! Random histories against a plain model, with each engine: alloc, free, writes from several
//! threads, calls sync and async, pushed and applied updates, crashes, cancellation. At every call
//! the orbit must see exactly what main's objects were at that moment. 100,000 steps an engine,
//! 50,000 with `fork`; `ORBIT_STEPS` for more.

mod common;

use std::ffi::{c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use common::{Random, eventually, seed};
use orbit::{Area, CallOptions, Coalesce, Engine, Future, Kind, Orbit, Outcome, Pending, Restart, Update};

const MOST_OBJECTS: usize = 256;

/// The index the task walks: it lies in the area itself.
#[repr(C)]
struct Index {
    count: usize,
    objects: [(usize, usize); MOST_OBJECTS],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Order {
    index: usize,
    /// 0: digest; 1: digest, then crash; 2: digest, and push a new value for an object.
    what: u64,
    object: usize,
    value: u64,
}

fn digest(index: &Index) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for &(address, len) in &index.objects[..index.count] {
        // SAFETY: the index names living objects of the area, whole.
        let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, len) };
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        }
    }
    hash >> 1
}

unsafe extern "C" fn task(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes an Order whose index lies in the area.
    let (order, index) = unsafe {
        let order = *args.cast::<Order>();
        (order, &*(order.index as *const Index))
    };
    let hash = digest(index);
    if order.what == 1 {
        // SAFETY: ends the orbit.
        unsafe { libc::abort() };
    }
    if order.what == 2 {
        let mut update = Update::new();
        update.data(&hash.to_le_bytes()).modify(order.object, &order.value.to_le_bytes());
        if orbit::push(&update).is_err() {
            return -1;
        }
    }
    hash as c_long
}

struct World {
    area: Area,
    index: *mut Index,
    /// What every object must contain.
    model: Vec<(usize, Vec<u8>)>,
}

// SAFETY: the pointers lead into the area, which is only touched under the world's lock.
unsafe impl Send for World {}

impl World {
    fn write(&mut self, random: &mut Random) {
        if self.model.is_empty() {
            return;
        }
        let at = random.below(self.model.len());
        let (address, copy) = &mut self.model[at];
        let from = random.below(copy.len());
        let len = random.below((copy.len() - from).min(64)) + 1;
        for offset in from..(from + len).min(copy.len()) {
            let byte = random.next() as u8;
            copy[offset] = byte;
            // SAFETY: inside a living object, under the lock.
            unsafe { (*address as *mut u8).add(offset).write_volatile(byte) };
        }
    }

    fn alloc(&mut self, random: &mut Random) {
        if self.model.len() == MOST_OBJECTS {
            return;
        }
        let len = match random.below(10) {
            0 => random.below(9_000) + 8,
            1..=3 => random.below(600) + 8,
            _ => random.below(100) + 8,
        };
        let object = match self.area.alloc(len, 8) {
            Ok(object) => object.as_ptr(),
            Err(e) if e.kind() == Kind::Full => return,
            Err(e) => panic!("{e}"),
        };
        let copy: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        // SAFETY: the new object has len bytes.
        unsafe { object.copy_from_nonoverlapping(copy.as_ptr(), len) };
        self.model.push((object as usize, copy));
        self.show();
    }

    fn free(&mut self, random: &mut Random) {
        if self.model.is_empty() {
            return;
        }
        let (address, _) = self.model.swap_remove(random.below(self.model.len()));
        // SAFETY: a living object that nobody uses any more.
        unsafe { orbit::area::free(address as *mut u8) }.expect("free");
        self.show();
    }

    /// Brings the index in the area up to date.
    fn show(&self) {
        // SAFETY: the index is an object of the area, used under the lock.
        let index = unsafe { &mut *self.index };
        index.count = self.model.len();
        for (slot, (address, copy)) in index.objects.iter_mut().zip(&self.model) {
            *slot = (*address, copy.len());
        }
    }

    /// What the task must answer now; also checks that main's memory is what the model says.
    fn expected(&self) -> i64 {
        for (address, copy) in &self.model {
            // SAFETY: living objects, under the lock.
            let there = unsafe { std::slice::from_raw_parts(*address as *const u8, copy.len()) };
            assert_eq!(there, &copy[..], "main's memory is as the model has it");
        }
        // SAFETY: as above.
        digest(unsafe { &*self.index }) as i64
    }
}

fn bytes(order: &Order) -> &[u8] {
    // SAFETY: Order has no padding.
    unsafe { std::slice::from_raw_parts((order as *const Order).cast(), size_of::<Order>()) }
}

struct Outstanding {
    future: Future,
    expected: i64,
    may_fail: bool,
    cancelled: bool,
}

fn settle(one: Outstanding) {
    let outcome = one.future.wait().expect("wait");
    match outcome {
        Outcome::Returned(value) => {
            assert!(!one.cancelled, "a cancelled call never runs");
            assert_eq!(value, one.expected, "the task saw the state of its call's moment");
        }
        Outcome::Cancelled => assert!(one.cancelled || one.may_fail, "nobody cancelled it"),
        other => assert!(one.may_fail, "{other}"),
    }
}

fn history(engine: Engine, pending: Pending, seed: u64, steps: usize) {
    let area = match Area::builder("world").size(2 << 20).limit(2 << 20).engine(engine).build() {
        Ok(area) => area,
        Err(e) if e.kind() == Kind::Unsupported => return println!("SKIP: {e}"),
        Err(e) => panic!("{e}"),
    };
    let index = area.place(Index { count: 0, objects: [(0, 0); MOST_OBJECTS] }).expect("room").as_ptr();
    let world = Arc::new(Mutex::new(World { area: area.clone(), index, model: Vec::new() }));
    let orbit = Orbit::builder("history").entry(task).restart(Restart::Always).pending(pending).build().expect("orbit");
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2u64)
        .map(|n| {
            let (world, stop) = (world.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut random = Random(seed ^ (n + 1) << 40);
                while !stop.load(Ordering::Relaxed) {
                    {
                        let mut world = world.lock().expect("no writer panics");
                        for _ in 0..4 {
                            world.write(&mut random);
                        }
                    }
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            })
        })
        .collect();
    let mut random = Random(seed);
    let mut outstanding: Vec<Outstanding> = Vec::new();
    let (mut crashes, mut calls, mut applied) = (0, 0, 0);
    for _ in 0..steps {
        let mut world_now = world.lock().expect("no writer panics");
        match random.below(1000) {
            0..300 => world_now.write(&mut random),
            300..560 => world_now.alloc(&mut random),
            560..780 => world_now.free(&mut random),
            780..960 => {
                let what = match random.below(100) {
                    0..4 => 1,
                    4..20 if !world_now.model.is_empty() => 2,
                    _ => 0,
                };
                let (object, value) = if what == 2 {
                    (world_now.model[random.below(world_now.model.len())].0, random.next())
                } else {
                    (0, 0)
                };
                let order = Order { index: index as usize, what, object, value };
                let expected = world_now.expected();
                let coalesce = if random.below(20) == 0 { Coalesce::Replace } else { Coalesce::Never };
                let options = CallOptions::new().coalesce(coalesce);
                // SAFETY: every write to the area is made under the lock held here.
                let options = if engine == Engine::Share { unsafe { options.quiet() } } else { options };
                // Those behind a crash fail with it, or are kept if their snapshots can still be
                // given.
                let behind_a_failure = outstanding.iter().any(|o| o.may_fail && o.future.poll().is_none());
                let mut future = None;
                let made = eventually(|| match orbit.call_async_with(&[&area], bytes(&order), &options) {
                    Ok(made) => {
                        future = Some(made);
                        true
                    }
                    Err(e) => {
                        assert_eq!(e.kind(), Kind::Down, "{e}");
                        false
                    }
                });
                assert!(made, "the orbit comes back");
                let future = future.expect("made");
                calls += 1;
                if coalesce == Coalesce::Replace {
                    for one in &mut outstanding {
                        // Those that had not begun are cancelled now; which, only the orbit knew.
                        one.may_fail = true;
                    }
                }
                if what == 1 {
                    crashes += 1;
                }
                let may_fail = what == 1 || behind_a_failure;
                let one = Outstanding { future: future.clone(), expected, may_fail, cancelled: false };
                if what == 2 {
                    // Sync, inside the lock: the update is applied to the state it was made from.
                    settle(one);
                    if let Some(update) = future.try_pull() {
                        assert_eq!(update.first_data(), Some(&(expected as u64).to_le_bytes()[..]));
                        orbit.apply(&update).expect("apply");
                        let copy = world_now.model.iter_mut().find(|(address, _)| *address == object).expect("living");
                        copy.1[..8].copy_from_slice(&value.to_le_bytes());
                        applied += 1;
                    }
                } else {
                    outstanding.push(one);
                }
            }
            960..975 => {
                let n = outstanding.len();
                if let Some(one) = outstanding.get_mut(random.below(n))
                    && one.future.poll().is_none()
                    && one.future.cancel()
                {
                    one.cancelled = true;
                }
            }
            _ => {
                drop(world_now);
                let keep = outstanding.len() - random.below(outstanding.len() + 1).min(outstanding.len());
                for one in outstanding.drain(keep..).collect::<Vec<_>>() {
                    settle(one);
                }
            }
        }
        if outstanding.len() > 100 {
            outstanding.drain(..50).for_each(settle);
        }
    }
    outstanding.drain(..).for_each(settle);
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().expect("writer");
    }
    let stats = orbit.stats();
    println!(
        "{engine:?} {pending:?}: {steps} steps, {calls} calls, {applied} updates applied, {crashes} crashes asked \
         for: {stats:?}"
    );
    assert!(stats.crashes <= crashes, "the orbit only crashes when asked to");
    assert_eq!(stats.bad_updates, 0);
}

fn steps() -> usize {
    std::env::var("ORBIT_STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000)
}

#[test]
fn track() {
    history(Engine::Track, Pending::Keep, seed(), steps());
}

#[test]
fn compare() {
    history(Engine::Compare, Pending::Fail, seed(), steps());
}

#[test]
fn copy() {
    history(Engine::Copy, Pending::Keep, seed(), steps());
}

#[test]
fn fork() {
    // Every call of this engine clones main: half the steps. Calls that a copier holds are never
    // kept.
    history(Engine::Fork, Pending::Fail, seed(), steps() / 2);
}

#[test]
fn auto() {
    history(Engine::Auto, Pending::Fail, seed(), steps());
}

#[test]
fn share() {
    history(Engine::Share, Pending::Fail, seed(), steps());
}

#[test]
fn share_keeping_calls() {
    history(Engine::Share, Pending::Keep, seed(), steps());
}
