//! Whichever system call of a snapshot fails, for every one in turn: the call fails with a clear
//! error, no written page is lost, and the next call sees everything. With two areas, an idle orbit
//! and a busy one, and each engine.

use std::ffi::{c_long, c_void};
use std::time::Duration;

use orbit::area::fault;
use orbit::{Area, Engine, Kind, Orbit, Outcome, WhenFull};

const NUMBERS: usize = 40;

/// `args`: the addresses of NUMBERS numbers; sums them. A zero first puts the orbit to sleep, to
/// keep it busy.
unsafe extern "C" fn sum(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes NUMBERS addresses of numbers in areas it names, or a zero.
    unsafe {
        let addresses = std::slice::from_raw_parts(args.cast::<*const i64>(), NUMBERS);
        if addresses[0].is_null() {
            std::thread::sleep(Duration::from_millis(3));
            return 0;
        }
        addresses.iter().map(|a| **a).sum::<i64>() as c_long
    }
}

fn run(engine: Engine, busy: bool) {
    let area = |name: &str| Area::builder(name).size(256 << 10).engine(engine).build();
    let (one, two) = match (area("one"), area("two")) {
        (Ok(one), Ok(two)) => (one, two),
        (Err(e), _) | (_, Err(e)) if e.kind() == Kind::Unsupported => return println!("SKIP: {e}"),
        (Err(e), _) | (_, Err(e)) => panic!("{e}"),
    };
    // A number a page, in turn in either area.
    let numbers: Vec<*mut i64> = (0..NUMBERS)
        .map(|n| if n % 2 == 0 { &one } else { &two }.alloc(4096, 4096).expect("room").as_ptr().cast())
        .collect();
    let args: Vec<u8> = numbers.iter().flat_map(|n| (*n as usize).to_ne_bytes()).collect();
    let mut wait = args.clone();
    wait[..8].fill(0);
    let mut truth = [0i64; NUMBERS];
    fault::set_step(2);
    let mut failed = 0;
    for fail_at in 0.. {
        // A new orbit each time, so that making its replicas is among the calls that fail.
        let orbit = Orbit::builder("sums").entry(sum).when_full(WhenFull::Block).build().expect("orbit");
        let mut clean = false;
        for round in 0..3i64 {
            for (n, number) in numbers.iter().enumerate() {
                if (n + round as usize).is_multiple_of(3) {
                    truth[n] += fail_at as i64 + round + 1;
                    // SAFETY: an object of an area, used by this thread only.
                    unsafe { **number = truth[n] };
                }
            }
            let first = busy.then(|| orbit.call_async(&[], &wait).expect("call"));
            fault::fail_after(fail_at);
            let result = orbit.call_async(&[&one, &two], &args);
            clean = fault::disarm();
            match result {
                Ok(future) => assert_eq!(future.wait().expect("wait"), Outcome::Returned(truth.iter().sum())),
                Err(e) => {
                    assert_eq!(e.kind(), Kind::System(libc::EIO), "{e}");
                    failed += 1;
                }
            }
            if let Some(first) = first {
                first.wait().expect("wait");
            }
        }
        let outcome = orbit.call(&[&one, &two], &args).expect("call");
        assert_eq!(outcome, Outcome::Returned(truth.iter().sum()), "{engine:?}, failing call {fail_at}: all is there");
        if clean {
            break;
        }
    }
    fault::set_step(0);
    println!("{engine:?}, busy {busy}: {failed} snapshots failed");
    assert!(failed > 0 || engine == Engine::Copy, "some snapshot failed");
}

#[test]
fn no_page_is_lost_whichever_system_call_fails() {
    for engine in [Engine::Auto, Engine::Track, Engine::Compare, Engine::Copy, Engine::Fork, Engine::Share] {
        for busy in [false, true] {
            run(engine, busy);
        }
    }
}
