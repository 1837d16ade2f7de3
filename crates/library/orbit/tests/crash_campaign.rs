//! Crashes in a row, of every kind, at every step of a call: main is never harmed, the outcome is
//! right each time, and nothing is left. Short form 240; `ORBIT_TEST_FULL=1` makes 10,000.

mod common;

use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

use common::{campaign, eventually, holdings, quantile};
use orbit::{Area, CallOptions, Limits, Orbit, Outcome, Restart, Update};

/// What the task gets: which harm, at which step, and where the area's object is.
#[repr(C)]
#[derive(Clone, Copy)]
struct Order {
    harm: u32,
    step: u32,
    object: usize,
}

const HARMS: [&str; 8] =
    ["null", "wild write", "stack overflow", "abort", "kill -9", "exit", "out of memory", "endless loop"];
/// Before reading the area; after; after writing to the replica; before a push; after a push; in
/// a thread of the task; as the last thing.
const STEPS: u32 = 7;
const NO_HARM: u32 = 99;

fn harm(kind: u32) {
    // SAFETY: the harm is the point; it happens in the orbit's process only.
    unsafe {
        match kind {
            0 => std::ptr::null_mut::<u8>().write_volatile(1),
            1 => (0x0000_6bad_0000_0000usize as *mut u64).write_volatile(1),
            2 => {
                std::hint::black_box(deep(0));
            }
            3 => libc::abort(),
            4 => {
                libc::kill(libc::getpid(), libc::SIGKILL);
            }
            5 => libc::_exit(7),
            6 => leak(),
            7 => loop {
                std::hint::spin_loop();
            },
            _ => {}
        }
    }
}

#[inline(never)]
fn deep(n: u64) -> u64 {
    let page = std::hint::black_box([n; 512]);
    if n == u64::MAX { 0 } else { deep(n + 1) + page[(n % 512) as usize] }
}

fn leak() {
    loop {
        let mut block = vec![0u8; 1 << 20];
        for at in (0..block.len()).step_by(4096) {
            block[at] = 1;
        }
        std::mem::forget(std::hint::black_box(block));
    }
}

unsafe extern "C" fn task(store: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes an Order and the address of an i64 in the area; `store` is what `init`
    // returned.
    let (order, object) = unsafe {
        assert_eq!(*store.cast::<u64>(), 77, "the store was made anew");
        let order = *args.cast::<Order>();
        (order, order.object as *mut i64)
    };
    let at = |step: u32| {
        if order.step == step {
            harm(order.harm);
        }
    };
    at(0);
    // SAFETY: as above.
    let seen = unsafe { *object };
    at(1);
    // SAFETY: writes to this process's own replica.
    unsafe { *object = -1 };
    at(2);
    at(3);
    let pushed = orbit::push(Update::new().data(&seen.to_le_bytes()));
    at(4);
    if order.step == 5 {
        let _ = std::thread::spawn(move || harm(order.harm)).join();
    }
    at(6);
    if pushed.is_ok() { seen as c_long } else { -2 }
}

unsafe extern "C" fn init() -> *mut c_void {
    Box::into_raw(Box::new(77u64)).cast()
}

fn bytes(order: &Order) -> &[u8] {
    // SAFETY: Order has no padding.
    unsafe { std::slice::from_raw_parts((order as *const Order).cast(), size_of::<Order>()) }
}

/// Whether this outcome is what this harm must come to.
fn is_right(harm: u32, outcome: &Outcome) -> bool {
    match (harm, outcome) {
        (0, Outcome::Crashed(c)) => c.signal == libc::SIGSEGV && c.address == 0,
        (1, Outcome::Crashed(c)) => c.signal == libc::SIGSEGV && c.address == 0x6bad_0000_0000,
        (2, Outcome::Crashed(c)) => c.signal == libc::SIGSEGV,
        (3, Outcome::Crashed(c)) => c.signal == libc::SIGABRT,
        (4, Outcome::Killed(signal)) => *signal == libc::SIGKILL,
        (5, Outcome::Exited(status)) => *status == 7,
        (6, Outcome::OutOfMemory) | (7, Outcome::TimedOut(Some(_))) => true,
        _ => false,
    }
}

#[test]
fn main_survives_crashes_of_every_kind_at_every_step() {
    // SAFETY: this test is alone in its process and has not yet started a thread of its own that
    // reads the environment. The template and the orbits carry the mark on: their environment is
    // copied when they are made.
    if std::env::var_os("ORBIT_TEST_OF").is_none() {
        return run_marked();
    }
    let total = campaign(240, 10_000);
    let area = Area::builder("campaign").size(64 << 10).build().expect("area");
    let object = area.place(0i64).expect("room").as_ptr();
    let orbit = Orbit::builder("campaign")
        .entry(task)
        .init(init)
        .restart(Restart::Always)
        .limits(Limits::new().memory(32 << 20))
        .build()
        .expect("orbit");
    let well = |round: i64| {
        // SAFETY: an object of the area, used by this thread only.
        unsafe { *object = round };
        let order = Order { harm: NO_HARM, step: 0, object: object as usize };
        let began = Instant::now();
        let answered = eventually(|| match orbit.call_async(&[&area], bytes(&order)) {
            Ok(future) => {
                assert_eq!(future.wait().expect("wait"), Outcome::Returned(round));
                let update = future.pull().expect("pull").expect("the update of this call");
                assert_eq!(update.first_data(), Some(&round.to_le_bytes()[..]));
                assert_eq!(future.pull().expect("pull"), None);
                true
            }
            Err(_) => false,
        });
        assert!(answered, "the orbit came back");
        began.elapsed()
    };
    for round in 0..8 {
        well(round);
    }
    let (mut restarts, mut before, mut again) = (Vec::new(), None, 0);
    for round in 0..total {
        // Every kind with every step, then again.
        let (kind, step) = ((round % HARMS.len()) as u32, (round / HARMS.len()) as u32 % STEPS);
        let order = Order { harm: kind, step, object: object as usize };
        let fail = |time: Duration| {
            let options = if kind == 7 { CallOptions::new().deadline(time) } else { CallOptions::new() };
            let future = orbit.call_async_with(&[&area], bytes(&order), &options).expect("call");
            let outcome = future.wait().expect("wait");
            assert!(is_right(kind, &outcome), "{} at step {step}: {outcome:?}", HARMS[kind as usize]);
            future.pull().expect("pull").is_some()
        };
        // A loop behind the push needs the time to come so far, which a loaded machine may not give
        // it: then once more, with plenty.
        let behind = kind == 7 && step >= 4;
        let mut pushed = fail(Duration::from_millis(if behind { 600 } else { 60 }));
        if behind && !pushed {
            println!("round {round}: no push within 600 ms, once more with 10 s");
            again += 1;
            well(round as i64);
            pushed = fail(Duration::from_secs(10));
        }
        assert_eq!(
            pushed,
            step >= 4,
            "an update pushed before the end arrives: {} at step {step}",
            HARMS[kind as usize]
        );
        restarts.push(well(round as i64).as_secs_f64() * 1e6);
        if round == 60 {
            before = Some(holdings());
        }
    }
    assert_eq!(orbit.stats().crashes, total as u64 + again);
    let before = before.expect("more than 60 rounds");
    let mut after = holdings();
    assert!(
        eventually(|| {
            after = holdings();
            // A spare and its channel may be there now and not have been then; of each crash
            // something would be a hundred and more.
            after.descriptors <= before.descriptors + 6
                && after.mappings <= before.mappings + 8
                && after.processes <= before.processes + 1
                && after.groups == before.groups
        }),
        "nothing is left behind: before {before:?}, after {after:?}"
    );
    println!(
        "{total} crashes; from the bad outcome to the next good answer: p50 {:.0} us, p99 {:.0} us",
        quantile(&mut restarts, 0.5),
        quantile(&mut restarts, 0.99)
    );
    orbit.destroy().expect("destroy");
    assert!(eventually(|| holdings().groups == 0), "its control group is gone");
}

/// Runs this test again in a process whose environment marks all that comes from it.
fn run_marked() {
    // SAFETY: forks nothing; a plain exec of this binary by `Command` with the mark in its
    // environment. The mark names that process itself, so it is set by a shell.
    let me = std::env::current_exe().expect("own path");
    let status = std::process::Command::new("/bin/sh")
        .arg("-c")
        .arg("ORBIT_TEST_OF=$$ exec \"$0\" --exact main_survives_crashes_of_every_kind_at_every_step --nocapture")
        .arg(me)
        .status()
        .expect("run");
    assert!(status.success(), "the campaign failed");
}
