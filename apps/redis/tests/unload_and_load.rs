//! The module can be unloaded and loaded again while clients are served; unloading leaves no
//! process, thread or descriptor of it.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use std::time::{Duration, Instant};

use common::{PATIENCE, Server, count, info, module, number, run, text};

/// The parent of a process, if that lives.
fn parent(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit(") ").next()?.split_whitespace();
    if words.next()? == "Z" { None } else { words.next()?.parse().ok() }
}

fn entries(server: &Server, what: &str) -> usize {
    std::fs::read_dir(format!("/proc/{}/{what}", server.pid())).expect("its entries").count()
}

fn names_of_threads(server: &Server) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("threads").flatten();
    threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok()).collect()
}

/// The supervisor, and threads that wait for an answer.
fn module_threads(server: &Server) -> usize {
    names_of_threads(server).iter().filter(|name| name.starts_with("orbit") || name.starts_with("slowlog")).count()
}

/// Threads of the server but jemalloc's own, of which it makes more when it likes.
fn other_threads(server: &Server) -> usize {
    names_of_threads(server).iter().filter(|name| !name.starts_with("jemalloc")).count()
}

#[test]
fn again_and_again() {
    let Some(server) = Server::start("threshold 0 every 3") else { return };
    let mut c = server.connect();
    let mut left = None;
    for round in 0..5 {
        for _ in 0..20 {
            run(&mut c, "SET k v");
        }
        assert!(number(&run(&mut c, "ORBIT.SLOWLOG LEN")) >= 20, "round {round}");
        let orbit = count(&mut c, "orbit_pid");
        let template = parent(orbit).expect("the orbit's template");
        run(&mut c, "MODULE UNLOAD orbit");
        for process in [orbit, template] {
            assert_eq!(parent(process), None, "round {round}: process {process} lives on");
        }
        // A thread that has been joined is listed for a moment yet.
        let until = Instant::now() + PATIENCE;
        while module_threads(&server) > 0 {
            assert!(Instant::now() < until, "round {round}: a thread of the module lives on");
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut now = (other_threads(&server), entries(&server, "fd"));
        while *left.get_or_insert(now) != now && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
            now = (other_threads(&server), entries(&server, "fd"));
        }
        assert_eq!(left, Some(now), "round {round}: threads and descriptors after unloading");
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
    redis::cmd("MODULE").arg(&["LOAD", &path, "mode", "100%s%n"]).query::<()>(&mut c).expect_err("refused");
    assert!(server.log().contains("mode 100%s%n: there are"), "no format: {}", server.log());
    redis::cmd("MODULE").arg(&["LOAD", &path]).query::<()>(&mut c).expect("loads");
    assert!(
        redis::cmd("ORBIT.FAULT").arg("segv").query::<()>(&mut c).expect_err("off").to_string().contains("faults yes")
    );
}
