//! An orbit that scribbles at random over everything it can write: main continues, and every call
//! ends with an outcome. Short form 60 seeds; `ORBIT_TEST_FULL=1` takes 1,000.

mod common;

use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

use common::{Random, campaign, seed};
use orbit::{Area, Orbit, Restart};

/// Scribbles, half of the time in memory shared with main. `args`: a seed.
unsafe extern "C" fn scribble(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes a u64.
    let mut random = Random(unsafe { *args.cast::<u64>() });
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let writable: Vec<(usize, usize, bool)> = maps
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let mode = words.next()?;
            let shared = mode.as_bytes()[3] == b's';
            mode.as_bytes()[1].eq(&b'w').then_some((
                usize::from_str_radix(start, 16).ok()?,
                usize::from_str_radix(end, 16).ok()?,
                shared,
            ))
        })
        .collect();
    let shared: Vec<_> = writable.iter().filter(|m| m.2).copied().collect();
    let words = 1usize << random.below(12);
    let only_shared = random.below(3) > 0;
    for _ in 0..words {
        let from = if only_shared && !shared.is_empty() { &shared } else { &writable };
        let (start, end, _) = from[random.below(from.len())];
        // The first page of the shared memory holds the counters: hit it often.
        let span = if random.below(2) == 0 { (end - start).min(4096) } else { end - start };
        let at = (start + random.below(span / 8) * 8) as *mut u64;
        let value = match random.below(4) {
            0 => 0,
            1 => u64::MAX,
            2 => random.below(300) as u64,
            _ => random.next(),
        };
        // SAFETY: none: writing where nothing good comes of it is the point, in the orbit's
        // process.
        unsafe { at.write_volatile(value) };
    }
    if random.below(3) == 0 {
        let _ = orbit::push(orbit::Update::new().data(b"after the scribble"));
    }
    random.below(100) as c_long
}

unsafe extern "C" fn read_number(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of an i64 in the area.
    unsafe { **args.cast::<*const i64>() as c_long }
}

#[test]
fn main_goes_on_and_calls_end_whatever_the_orbit_scribbles() {
    let first = seed();
    let area = Area::new(64 << 10).expect("area");
    let number = area.place(0i64).expect("room").as_ptr();
    let orbit = Orbit::builder("scribbler")
        .entry(scribble)
        .restart(Restart::Always)
        .deadline(Duration::from_millis(500))
        .build()
        .expect("orbit");
    let (mut returned, mut ended) = (0, 0);
    for round in 0..campaign(60, 1_000) as u64 {
        let began = Instant::now();
        let wanted = round as i64;
        // SAFETY: an object of the area, used by this thread only.
        unsafe { *number = wanted };
        if let Ok(future) = orbit.call_async(&[&area], &first.wrapping_add(round).to_ne_bytes()) {
            let more = orbit.call_async(&[&area], &first.wrapping_add(round << 32).to_ne_bytes());
            match future.wait().expect("a call ends with an outcome") {
                orbit::Outcome::Returned(_) => returned += 1,
                _ => ended += 1,
            }
            while future.try_pull().is_some() {}
            if let Ok(more) = more {
                more.wait().expect("a call ends with an outcome");
            }
        }
        // A word scribbled over may only be noticed now: what counts is that main gets through to a
        // good orbit.
        let options = orbit::CallOptions::new().function(read_number);
        let well = common::eventually(|| {
            let outcome =
                orbit.call_with(&[&area], &(number as usize).to_ne_bytes(), &options).ok().and_then(|o| o.returned());
            if outcome != Some(wanted) {
                let _ = orbit.kill();
            }
            outcome == Some(wanted)
        });
        assert!(well, "round {round}: a good answer after {:?}", began.elapsed());
        // SAFETY: as above.
        assert_eq!(unsafe { *number }, wanted, "main's memory is untouched");
    }
    println!("{returned} scribbling calls returned, {ended} ended their orbit; main got through each time");
}
