//! Whether hangs are judged by each CPU's own performance counter is said truly: as the kernel says
//! when it is asked for one.

use orbit_shd::{Options, Shd};
use std::{io, time::Duration};

/// Whether CPU 0 has a counter of cycles that interrupts.
fn counter() -> bool {
    // `struct perf_event_attr` of its first version, 64 bytes: type 0 (hardware), size, config 0
    // (cycles), sample_period.
    let mut attributes = [0u64; 8];
    attributes[0] = 64 << 32;
    attributes[2] = 30_000_000;
    // SAFETY: the call reads 64 bytes. The descriptor, if there is one, is closed by the end of the
    // process.
    let got = unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), -1, 0, -1, 0) };
    if got < 0 {
        println!("no counter of cycles: {}", io::Error::last_os_error());
    }
    got >= 0
}

#[test]
fn it_says_whether_there_is_a_counter() {
    let patient = Duration::from_secs(120);
    let options = Options { check_least: patient, check_most: patient, ..Options::default() };
    match Shd::start(&options, |_| {}) {
        Ok(shd) => assert_eq!(shd.has_counter(), counter()),
        Err(why) => println!("SKIP: needs kernel programs and real-time priority ({why})"),
    }
}
