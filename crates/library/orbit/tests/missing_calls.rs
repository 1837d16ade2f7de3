//! On a kernel that lacks a system call the library works without it, or its first error names the
//! call: each of those that are not in every kernel is taken away in turn, by a filter.

use std::ffi::{c_long, c_void};
use std::process::Command;

use orbit::{Area, Kind, Orbit, Outcome, Restart};
use orbit_linux::seccomp;

/// Without these there are no orbits.
const NEEDED: [&str; 2] = ["pidfd_open", "pidfd_send_signal"];
const NAME: &str = "ORBIT_TEST_WITHOUT";

unsafe extern "C" fn sum(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of an array of 512 i64 in the area, or 0.
    unsafe { (0..512).map(|n| *(*args.cast::<*const i64>()).add(n)).sum() }
}

/// Main on such a kernel: calls, a crash, calls again.
fn live(missing: &str) {
    seccomp::install_without(&[missing]).expect("the filter was tried before");
    let area = Area::builder("numbers").size(1 << 20).build().expect("area");
    let numbers = area.place([1i64; 512]).expect("room").as_ptr();
    let orbit = match Orbit::builder("adder").entry(sum).restart(Restart::Always).build() {
        Err(error) => {
            assert!(NEEDED.contains(&missing), "without {missing}: {error}");
            assert!(error.kind() == Kind::Unsupported && error.to_string().contains(missing), "{error}");
            println!("without {missing}: {error}");
            return;
        }
        Ok(orbit) => orbit,
    };
    assert!(!NEEDED.contains(&missing), "without {missing} an orbit was made");
    let call = |argument: usize| {
        let mut tries = 0;
        loop {
            match orbit.call(&[&area], &argument.to_ne_bytes()) {
                Err(error) if error.kind() == Kind::Down && tries < 20_000 => tries += 1,
                other => break other.expect("call"),
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    for round in 0..20 {
        // SAFETY: an object of the area, which this thread alone uses.
        unsafe { (*numbers)[round] = 2 };
        assert_eq!(call(numbers as usize), Outcome::Returned(513 + round as c_long));
        if round % 5 == 4 {
            assert!(matches!(call(0), Outcome::Crashed(_)));
        }
    }
    orbit.destroy().expect("destroy");
    println!("without {missing}: works, engine {}", area.engine());
}

#[test]
fn each_missing_call_is_done_without_or_named() {
    if let Ok(missing) = std::env::var(NAME) {
        return live(&missing);
    }
    if let Some(why) = seccomp::probe().reason() {
        return println!("SKIP: needs seccomp filters: {why}");
    }
    let me = std::env::current_exe().expect("own path");
    for (missing, since) in seccomp::MISSABLE {
        let test = ["--exact", "each_missing_call_is_done_without_or_named", "--nocapture"];
        let ran = Command::new(&me).args(test).env(NAME, missing).output().expect("run");
        let text = String::from_utf8_lossy(&ran.stdout);
        assert!(
            ran.status.success(),
            "without {missing} (Linux {since}): {}\n{text}{}",
            ran.status,
            String::from_utf8_lossy(&ran.stderr)
        );
        text.lines().filter(|line| line.starts_with("without ")).for_each(|line| println!("{line}"));
    }
}
