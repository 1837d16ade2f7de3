//! Whatever the save does, Redis serves: its pid and its clients stay, the event is in its log, the
//! next save is good.

use std::sync::atomic::{AtomicBool, Ordering};

use orbit_redis_rdb::{Server, wait_until};

#[test]
fn every_fault_under_load() {
    let Some(server) = Server::start_with(&["memory", "64", "deadline", "15"], &[]) else { return };
    server.run("DEBUG POPULATE 50000 key 100");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..4)
            .map(|_| {
                let mut client = server.connect();
                let stop = &stop;
                scope.spawn(move || {
                    let mut count = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        let key = format!("key:{}", count % 50_000);
                        assert_eq!(client.run(&["SET", &key, "value"]).expect("the client is served"), "OK");
                        count += 1;
                        std::thread::sleep(std::time::Duration::from_micros(300));
                    }
                    count
                })
            })
            .collect();
        let faults = std::panic::AssertUnwindSafe(|| {
            for (fault, event) in [
                ("segv", "crashed: SIGSEGV at 0x0 in write_to_null (fault.c:"),
                ("recursion", "recurse_for_ever (fault.c:"),
                ("abort", "crashed: SIGABRT in save_task (save.c:"),
                ("memory", "out of memory"),
                ("kill", "killed by signal 9"),
                ("hang", "not done at its deadline"),
                ("lie", "the snapshot has not the keys that Redis has"),
            ] {
                wait_until("the orbit is there", || server.number("ORBIT.RDB INFO", "orbit_pid") > 0);
                assert_eq!(server.run(&format!("ORBIT.RDB FAULT {fault}")), "OK");
                assert_eq!(server.run("BGSAVE"), "Background saving started");
                assert!(server.wait_for_save(), "{fault}: a fork makes the save again:\n{}", server.log());
                server.wait_for_log(event);
                wait_until("the orbit is back", || server.number("ORBIT.RDB INFO", "orbit_pid") > 0);
                assert_eq!(server.run("BGSAVE"), "Background saving started");
                assert!(server.wait_for_save(), "{fault}: the next save is good:\n{}", server.log());
            }
        });
        let ended = std::panic::catch_unwind(faults);
        stop.store(true, Ordering::Relaxed);
        let served: u64 = loads.into_iter().map(|load| load.join().expect("no client saw an error")).sum();
        assert!(served > 100, "{served}");
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
    assert_eq!(server.number("ORBIT.RDB INFO", "failed"), 7);
    assert_eq!(server.number("ORBIT.RDB INFO", "again"), 7, "{}", server.log());
    assert_eq!(server.number("ORBIT.RDB INFO", "forks"), 0, "{}", server.log());
}

/// Save points and stop-writes-on-bgsave-error, as Redis has them by default: no fault of the orbit
/// makes Redis refuse writes, and the file has the keys.
#[test]
fn writes_are_never_refused() {
    let Some(server) = Server::start(&["--save", "1 1"]) else { return };
    for fault in ["segv", "lie", "abort"] {
        wait_until("the orbit is there", || server.number("ORBIT.RDB INFO", "orbit_pid") > 0);
        let before = server.number("ORBIT.RDB INFO", "again");
        assert_eq!(server.run(&format!("ORBIT.RDB FAULT {fault}")), "OK");
        let mut count = 0;
        wait_until("a save has failed and was made again", || {
            count += 1;
            assert_eq!(server.run(&format!("SET {fault} {count}")), "OK", "{}", server.log());
            server.number("ORBIT.RDB INFO", "again") > before
        });
        assert!(server.wait_for_save(), "{}", server.log());
    }
    assert_eq!(server.connect().run(&["CONFIG", "SET", "save", ""]).expect("an answer"), "OK");
    server.wait_for_save();
    assert_eq!(server.run("BGSAVE"), "Background saving started");
    assert!(server.wait_for_save(), "{}", server.log());
    let Some(stock) = Server::start_stock(&[]) else { return };
    std::fs::copy(server.directory().join("dump.rdb"), stock.directory().join("dump.rdb")).expect("a file was saved");
    assert_eq!(stock.run("DEBUG RELOAD NOSAVE NOFLUSH"), "OK", "{}", stock.log());
    assert_eq!(stock.run("DEBUG DIGEST"), server.run("DEBUG DIGEST"));
}

/// The error in the log is the true one; the fork fails too, and Redis has its own failure.
#[test]
fn a_file_that_cannot_be_replaced() {
    let Some(server) = Server::start(&["--enable-protected-configs", "yes"]) else { return };
    server.run("SET a 1");
    let other = server.directory().join("other");
    std::fs::create_dir(&other).expect("a directory");
    assert_eq!(server.run(&format!("CONFIG SET dir {}", other.display())), "OK");
    std::fs::create_dir(other.join("dump.rdb")).expect("a directory in the file's place");
    assert_eq!(server.run("BGSAVE"), "Background saving started");
    assert!(!server.wait_for_save(), "a fork fails there too");
    let said = server.field("ORBIT.RDB INFO", "last_failure");
    assert!(said.contains("irectory"), "{said}");
    let orbit = server.number("ORBIT.RDB INFO", "orbit_pid");
    let cwd = std::fs::read_link(format!("/proc/{orbit}/cwd")).expect("the orbit's directory");
    assert_eq!(cwd, std::path::Path::new("/"), "an idle orbit keeps no directory");
}

/// A save that hangs is killed as Redis kills its child: FLUSHALL does.
#[test]
fn a_save_that_hangs_is_killed_by_redis() {
    let Some(server) = Server::start(&[]) else { return };
    server.run("SET a 1");
    server.run("ORBIT.RDB FAULT hang");
    assert_eq!(server.run("BGSAVE"), "Background saving started");
    assert_eq!(server.number("INFO persistence", "rdb_bgsave_in_progress"), 1);
    assert!(server.run("BGSAVE").starts_with("-ERR Background save already in progress"));
    assert_eq!(server.run("FLUSHALL"), "OK");
    wait_until("it is killed", || server.number("INFO persistence", "rdb_bgsave_in_progress") == 0);
    assert_eq!(server.number("ORBIT.RDB INFO", "killed"), 1);
    assert_eq!(server.number("ORBIT.RDB INFO", "failed"), 0, "Redis' own kill is no failure");
    wait_until("the orbit is back", || server.number("ORBIT.RDB INFO", "orbit_pid") > 0);
    server.run("SET a 2");
    assert_eq!(server.run("BGSAVE"), "Background saving started");
    assert!(server.wait_for_save(), "{}", server.log());
}

/// While there is no orbit, Redis forks as it always did.
#[test]
fn without_an_orbit_redis_forks() {
    let Some(server) = Server::start(&[]) else { return };
    server.run("SET a 1");
    let mut forked = false;
    // The orbit is back within milliseconds: some kills are needed to save between.
    for _ in 0..200 {
        let orbit = server.number("ORBIT.RDB INFO", "orbit_pid");
        if orbit > 0 {
            let killed =
                std::process::Command::new("kill").args(["-9", &orbit.to_string()]).status().expect("kill runs");
            assert!(killed.success());
        }
        let said = server.run("BGSAVE");
        assert_eq!(said, "Background saving started");
        server.wait_for_save();
        if server.number("ORBIT.RDB INFO", "forks") > 0 {
            forked = true;
            break;
        }
    }
    assert!(forked, "no save came while the orbit was down");
    assert!(server.log().contains("this save is forked as without the module"), "{}", server.log());
    assert_eq!(server.run("GET a"), "1");
}

/// Rewriting the append-only file is not the module's: Redis forks.
#[test]
fn the_append_only_file_is_redis_own() {
    let Some(server) = Server::start(&["--appendonly", "yes"]) else { return };
    server.run("SET a 1");
    server.run("BGREWRITEAOF");
    wait_until("it is rewritten", || server.number("INFO persistence", "aof_rewrite_in_progress") == 0);
    assert_eq!(server.field("INFO persistence", "aof_last_bgrewrite_status"), "ok");
    assert_eq!(server.number("ORBIT.RDB INFO", "saves"), 0);
    assert_eq!(server.run("BGSAVE"), "Background saving started");
    assert!(server.wait_for_save());
    assert_eq!(server.number("ORBIT.RDB INFO", "saves"), 1);
}

/// However Redis ends, no process of the module is left.
#[test]
fn nothing_is_left() {
    for how in ["shutdown", "kill", "kill while it saves"] {
        let Some(mut server) = Server::start(&[]) else { return };
        server.run("SET a 1");
        let orbit = server.number("ORBIT.RDB INFO", "orbit_pid");
        if how == "kill while it saves" {
            server.run("ORBIT.RDB FAULT hang");
            server.run("BGSAVE");
        }
        if how == "shutdown" {
            let _ = server.connect().run(&["SHUTDOWN", "NOSAVE"]);
            server.wait();
        } else {
            server.kill();
        }
        wait_until(how, || !std::path::Path::new(&format!("/proc/{orbit}")).exists());
        let path = server.directory().to_owned();
        wait_until("no process has the server's directory", || {
            let processes = std::fs::read_dir("/proc").expect("processes").flatten();
            !processes.into_iter().any(|p| std::fs::read_link(p.path().join("cwd")).is_ok_and(|cwd| cwd == path))
        });
    }
}

/// An upgrade of the package under a running server: the module's file is replaced. The orbit that
/// has the old one crashes and is back.
#[test]
fn module_replaced() {
    let Ok(built) = orbit_redis_rdb::build() else { panic!("the module builds") };
    let directory = std::env::temp_dir().join(format!("orbit-rdb-upgrade-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let (file, new) = (directory.join("orbit_rdb.so"), directory.join("new.so"));
    std::fs::copy(&built, &file).expect("a copy of the module");
    if let Some(server) = Server::start_file(&file, &[], &[]) {
        server.run("SET a 1");
        std::fs::copy(&built, &new).expect("a copy of the module");
        std::fs::rename(&new, &file).expect("the module replaced");
        server.run("ORBIT.RDB FAULT segv");
        server.run("BGSAVE");
        assert!(server.wait_for_save(), "a fork makes the save again:\n{}", server.log());
        server.wait_for_log("write_to_null (fault.c:");
        wait_until("the orbit is back", || server.number("ORBIT.RDB INFO", "orbit_pid") > 0);
        server.run("BGSAVE");
        assert!(server.wait_for_save(), "the next save is good:\n{}", server.log());
    }
    std::fs::remove_dir_all(&directory).expect("removed");
}

/// Without LD_PRELOAD, the module says so and Redis does not start with it.
#[test]
fn needs_to_be_preloaded() {
    let Ok(module) = orbit_redis_rdb::build() else { panic!("the module builds") };
    let Some(server) = Server::start_stock(&[]) else { return };
    let said = server.run(&format!("MODULE LOAD {}", std::fs::canonicalize(module).expect("a path").display()));
    assert!(said.starts_with("-ERR"), "{said}");
    server.wait_for_log("Redis must be started with this library in LD_PRELOAD");
}
