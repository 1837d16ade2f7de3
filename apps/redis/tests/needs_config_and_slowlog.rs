//! Where `CONFIG` or `SLOWLOG` goes by another name the module is not loaded, and says why.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use common::{Server, module, run};
use redis::Value;

#[test]
fn a_renamed_command_is_named() {
    for name in ["CONFIG", "SLOWLOG"] {
        let Some(server) = Server::start(&format!("mode off --rename-command {name} ELSE")) else { return };
        let mut c = server.connect();
        run(&mut c, "MODULE UNLOAD orbit");
        let module = module();
        let module = module.to_str().expect("a path");
        for arguments in ["", " threshold 1000", " mode inside"] {
            let mut load = redis::cmd("MODULE");
            load.arg("LOAD").arg(module).arg(arguments.split_whitespace().collect::<Vec<_>>());
            load.query::<Value>(&mut c).expect_err("it must not load");
        }
        let log = server.log();
        let said = log.lines().filter(|line| line.contains("orbit: not loaded:") && line.contains(name)).count();
        assert_eq!(said, 3, "{log}");
        run(&mut c, &format!("MODULE LOAD {module} mode off"));
        run(&mut c, "PING");
    }
}
