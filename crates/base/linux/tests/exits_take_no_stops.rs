//! A thread that asks for a child's exit takes no stop from the thread that traces the child, and
//! sees the exit when it comes.

use orbit_linux::child::Exit;
use orbit_linux::ptrace::{self, state, state::Stop};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const STOPS: u32 = 300;
/// A stop that was taken never comes.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn every_stop_reaches_the_tracer() {
    let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep");
    let pid = child.id() as i32;
    let is_over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let tracer = scope.spawn(|| {
            if let Err(error) = ptrace::seize(pid, 0) {
                is_over.store(true, Ordering::SeqCst);
                return Err(error);
            }
            let mut seen = 0;
            for _ in 0..STOPS {
                ptrace::interrupt(pid).expect("an interrupt");
                let since = Instant::now();
                while state::next_stop(pid, pid).expect("a stop") == Stop::None && since.elapsed() < LIMIT {
                    std::thread::yield_now();
                }
                if since.elapsed() >= LIMIT {
                    break;
                }
                seen += 1;
                ptrace::go_on(pid, 0).expect("it continues");
            }
            is_over.store(true, Ordering::SeqCst);
            Ok(seen)
        });
        while !is_over.load(Ordering::SeqCst) {
            assert!(child.exited().expect("asking").is_none(), "it sleeps");
        }
        tracer.join().expect("the tracer")
    });
    // Not by `Child::kill`, which sends nothing once it believes that the child was reaped.
    orbit_linux::signals::send(pid, 9).expect("a signal");
    let status = child.wait_for_exit().expect("its exit");
    assert!(!status.success());
    assert_eq!(child.exited().expect("asking again"), Some(status), "the status stays known");
    match seen {
        Ok(seen) => assert_eq!(seen, STOPS, "a stop was taken by the thread that asked for the exit"),
        Err(error) => println!("SKIP: needs ptrace: {error}"),
    }
}
