//! A healthy program whose threads fight over their locks never shows a ring, however often one
//! samples. 3,000 scans; `ORBIT_TEST_FULL=1` makes 100,000, `ORBIT_SCANS` any number.

use crate::common;
use common::{Dir, Running};
use orbit_inspect::rings::RingWatch;

#[test]
fn healthy_program_has_no_ring() {
    let usual = orbit_testing::times(3_000, 100_000) as u64;
    let scans: u64 = std::env::var("ORBIT_SCANS").ok().and_then(|s| s.parse().ok()).unwrap_or(usual);
    let dir = Dir::new("healthy");
    let program = dir.build("locks.c", &["-O2"]);
    let p = Running::program(&program, &["healthy"]);
    let mut watch = RingWatch::new(&[p.pid()]).unwrap();
    for i in 0..scans {
        let rings = watch.scan();
        assert!(rings.is_empty(), "scan {i}: {rings:?}");
    }
    println!("{scans} scans, {} rings seen in one sample and not in the second", watch.suspected());
}
