//! The module can be unloaded and loaded again while clients are served; unloading ends its orbit.

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use common::{Server, count, info, module, number, run, text};

#[test]
fn again_and_again() {
    let Some(server) = Server::start("threshold 0 every 3") else { return };
    let mut c = server.connect();
    for round in 0..5 {
        for _ in 0..20 {
            run(&mut c, "SET k v");
        }
        assert!(number(&run(&mut c, "ORBIT.SLOWLOG LEN")) >= 20, "round {round}");
        let orbit = count(&mut c, "orbit_pid");
        run(&mut c, "MODULE UNLOAD orbit");
        assert!(!std::path::Path::new(&format!("/proc/{orbit}")).exists(), "round {round}: process {orbit} lives on");
        assert_eq!(text(&run(&mut c, "GET k")), "v");
        run(&mut c, &format!("MODULE LOAD {} faults yes every 3", module().display()));
        assert!(text(&run(&mut c, "ORBIT.FAULT abort")).contains("SIGABRT"), "round {round}");
        assert_eq!(info(&mut c)["mode"], "orbit");
    }
}

#[test]
fn wrong_arguments_are_named_and_refused() {
    let Some(server) = Server::start("mode off") else { return };
    let mut c = server.connect();
    assert!(redis::cmd("ORBIT.SLOWLOG").arg("LEN").query::<()>(&mut c).expect_err("off").to_string().contains("off"));
    run(&mut c, "MODULE UNLOAD orbit");
    let path = module().display().to_string();
    redis::cmd("MODULE").arg(&["LOAD", &path, "mode", "outside"]).query::<()>(&mut c).expect_err("refused");
    assert!(server.log().contains("mode outside: there are orbit, inside and off"), "{}", server.log());
    redis::cmd("MODULE").arg(&["LOAD", &path]).query::<()>(&mut c).expect("loads");
    assert!(
        redis::cmd("ORBIT.FAULT").arg("segv").query::<()>(&mut c).expect_err("off").to_string().contains("faults yes")
    );
}
