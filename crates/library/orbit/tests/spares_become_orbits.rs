//! An orbit made of a spare is under supervision from its first moment, although main wakes nobody
//! when it makes one: its end is noticed however soon it comes.

use orbit::{Config, Orbit, Outcome, Restart};
use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

unsafe extern "C" fn crash(_: *mut c_void, _: *mut c_void) -> c_long {
    std::process::abort()
}

unsafe extern "C" fn seven(_: *mut c_void, _: *mut c_void) -> c_long {
    7
}

/// Ends before the orbit can take a call.
unsafe extern "C" fn ends_at_once() -> *mut c_void {
    std::process::exit(3)
}

/// Longer than any machine stalls a thread.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn an_end_is_noticed_however_soon_it_comes() {
    orbit::init_with(Config::new().spares(2)).unwrap();
    let makers: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(|| {
                for round in 0..40 {
                    // With a pause there is a spare, without one often none.
                    std::thread::sleep(Duration::from_millis(round % 4));
                    let crasher = Orbit::new("crasher", crash).unwrap();
                    let call = crasher.call_async(&[], &[]).unwrap();
                    let outcome = call.wait_timeout(PATIENCE).expect("the crash was not noticed");
                    assert!(matches!(outcome, Outcome::Crashed(_)), "{outcome}");

                    let dying = Orbit::builder("dying").entry(seven).init(ends_at_once).restart(Restart::Never);
                    let dying = dying.build().unwrap();
                    let since = Instant::now();
                    while dying.stats().crashes == 0 {
                        assert!(since.elapsed() < PATIENCE, "the end before the first call was not noticed");
                        std::thread::sleep(Duration::from_micros(100));
                    }

                    let healthy = Orbit::new("healthy", seven).unwrap();
                    assert_eq!(healthy.call(&[], &[]).unwrap(), Outcome::Returned(7));
                }
            })
        })
        .collect();
    for maker in makers {
        maker.join().unwrap();
    }
}
