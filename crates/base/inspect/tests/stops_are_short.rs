//! Threads are stopped one after the other and briefly; the promise of 10 ms for 20 threads is
//! printed, a slow machine may take longer.

mod common;
use common::{Dir, Running, until};
use orbit_inspect::Error;
use orbit_inspect::stacks::{End, How, Unwinder};
use std::time::Duration;

#[test]
fn twenty_threads() {
    let dir = Dir::new("stop-time");
    let program = dir.build("deep.c", &["-O2", "-fomit-frame-pointer"]);
    let p = Running::program(&program, &["19"]);
    let mut u = Unwinder::new(p.pid()).unwrap();
    u.prepare().unwrap();
    let mut totals: Vec<Duration> = (0..51)
        .map(|_| {
            let all = u.capture(&[]);
            assert_eq!(all.len(), 20);
            let sum: Duration = all.iter().map(|s| s.stopped).sum();
            assert_eq!(sum, u.stopped());
            sum
        })
        .collect();
    totals.sort();
    println!("20 threads stopped for {:?} in all (median of {}), worst {:?}", totals[25], totals.len(), totals[50]);
    assert!(totals[25] < Duration::from_millis(200), "{totals:?}");
}

#[test]
fn a_thousand_threads() {
    let dir = Dir::new("thousand");
    let program = dir.build("deep.c", &["-O2", "-fomit-frame-pointer"]);
    let p = Running::program(&program, &["999"]);
    let mut u = Unwinder::new(p.pid()).unwrap();
    let all = until("all threads to be parked", || {
        let all = u.capture(&[]);
        let parked = |s: &&orbit_inspect::stacks::ThreadStack| {
            s.how == How::Stopped
                && s.end == End::Complete
                && s.frames.iter().any(|f| f.function.as_deref() == Some("gamma_park"))
        };
        (all.iter().filter(parked).count() == 1000).then_some(all)
    });
    println!("{} threads stopped for {:?} in all", all.len(), u.stopped());
}

#[test]
fn threads_that_end_meanwhile() {
    let dir = Dir::new("churn");
    let program = dir.build("deep.c", &["-O2"]);
    let p = Running::program(&program, &["4", "churn"]);
    let mut u = Unwinder::new(p.pid()).unwrap();
    let (mut all, mut gone, mut held_up) = (0, 0, 0);
    for _ in 0..200 {
        for s in u.capture(&[]) {
            all += 1;
            match s.error {
                Some(Error::Gone { .. }) => gone += 1,
                // One that has no CPU for so long, on a loaded machine.
                Some(Error::NotStopped { .. } | Error::InKernel { .. } | Error::Restless { .. }) => held_up += 1,
                Some(e) if s.frames.is_empty() => panic!("{e}"),
                _ => {}
            }
        }
    }
    println!("of {all}, {gone} threads ended before they could be stopped, {held_up} could not be stopped in time");
    assert!(held_up * 10 < all, "{held_up} of {all} could not be stopped in time");
    // It continues as before, no thread is left stopped.
    let mut w = orbit_inspect::waits::Watched::new(p.pid()).unwrap();
    let used = |w: &mut orbit_inspect::waits::Watched| w.scan().iter().map(|t| t.switches).sum::<u64>();
    let before = used(&mut w);
    until("progress", || (used(&mut w) != before).then_some(()));
    let traced = w.scan().iter().any(|t| t.state == orbit_inspect::waits::State::Traced);
    assert!(!traced);
}
