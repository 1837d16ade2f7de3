//! However the server ends, no process of the module is left.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use common::{Server, count, run};
use orbit_testing::{below, lives, parent, until};

#[test]
fn after_shutdown_and_after_kill() {
    for how in ["shutdown", "kill"] {
        let Some(mut server) = Server::start("threshold 0 faults yes") else { return };
        let mut c = server.connect();
        run(&mut c, "ORBIT.FAULT segv");
        run(&mut c, "ORBIT.SLOWLOG LEN");
        let orbit = count(&mut c, "orbit_pid") as i32;
        let template = parent(orbit).expect("it lives");
        let mut pids = below(template);
        assert!(pids.contains(&orbit) && pids.iter().all(|pid| lives(*pid)), "{pids:?}");
        pids.push(template);
        if how == "shutdown" {
            let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").query::<()>(&mut c);
            server.wait();
        } else {
            server.kill();
        }
        until(&format!("{how}: none of {pids:?} is left"), || !pids.iter().any(|pid| lives(*pid)));
    }
}
