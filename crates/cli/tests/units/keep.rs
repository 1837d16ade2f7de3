//! Redis under `orbit keep --log` in units, one of them with a filter of system calls: a request
//! crashes it, and it is put back with what it had.

use crate::{boot, orbit};
use orbit_testing::has;

#[test]
fn a_server_in_a_unit_with_a_filter_is_put_back() {
    if !has("redis-server") {
        return println!("SKIP: needs redis-server");
    }
    let Some(text) = boot("keep", &[orbit()]) else { return };
    for kind in ["plain", "filtered"] {
        assert!(text.contains(&format!("{kind} after: 18 active restarts 0\n")), "{kind}:\n{text}");
        assert!(text.contains(&format!("{kind} log: orbit keep: redis-server: put back to a checkpoint")), "{text}");
    }
}
