//! `orbit watch --system` on this machine: it watches every CPU until SIGTERM and then ends with 0;
//! an ordinary user learns what is missing.

use std::{
    fs, io,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(60);

/// Watcher threads of this program's processes: the detection runs in one that the guard made.
fn watchers() -> usize {
    let program = fs::canonicalize(env!("CARGO_BIN_EXE_orbit")).expect("the program");
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let ours = processes.filter(|one| fs::read_link(one.path().join("exe")).is_ok_and(|exe| exe == program));
    let tasks = ours.filter_map(|one| fs::read_dir(one.path().join("task")).ok()).flatten().flatten();
    tasks.filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("shd/"))).count()
}

fn cpus() -> usize {
    let cpus = fs::read_dir("/sys/devices/system/cpu").expect("CPUs").flatten();
    let number = |name: &str| name.strip_prefix("cpu").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let online = |path: std::path::PathBuf| fs::read_to_string(path).map_or(true, |text| text.trim() == "1");
    cpus.filter(|cpu| number(&cpu.file_name().to_string_lossy()) && online(cpu.path().join("online"))).count()
}

/// Waits for its end, at most LIMIT.
fn end(child: &mut Child) -> Option<i32> {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().expect("an own child") {
            return status.code();
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("an own child");
    panic!("it did not end within {LIMIT:?}");
}

#[test]
fn it_watches_every_cpu_until_a_signal_asks_it_to_leave() {
    let events = std::env::temp_dir().join(format!("orbit-guard-system-{}", std::process::id()));
    let mut guard = Command::new(env!("CARGO_BIN_EXE_orbit"))
        .args(["watch", "--system", "--check-least", "2000", "--events"])
        .arg(&events)
        .stderr(Stdio::piped())
        .spawn()
        .expect("orbit runs");
    let begun = Instant::now();
    while watchers() < cpus() {
        if guard.try_wait().expect("an own child").is_some() {
            let said = guard.wait_with_output().expect("its output");
            println!("SKIP: needs kernel programs and real-time priority: {}", String::from_utf8_lossy(&said.stderr));
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{} of {} CPUs watched", watchers(), cpus());
        thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: an own child, not waited for yet.
    unsafe { libc::kill(guard.id() as i32, libc::SIGTERM) };
    assert_eq!(end(&mut guard), Some(0));
    let said = io::read_to_string(guard.stderr.take().expect("a pipe")).expect("its words");
    assert!(said.contains("watches every CPU") && said.contains("2s"), "{said}");
    let begun = Instant::now();
    while watchers() > 0 {
        assert!(begun.elapsed() < LIMIT, "{} watchers stayed behind", watchers());
        thread::sleep(Duration::from_millis(20));
    }
    let text = fs::read_to_string(&events).expect("the file of events");
    let _ = fs::remove_file(&events);
    assert!(text.lines().all(|line| line.starts_with("{\"event\":\"")), "{text}");
}

#[test]
fn an_ordinary_user_learns_what_is_missing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    command.args(["watch", "--system"]).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: no pointers are passed.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(65534).gid(65534);
    }
    let guard = match command.spawn() {
        Ok(guard) => guard,
        Err(why) => {
            println!("SKIP: needs a program that an ordinary user may run: {why}");
            return;
        }
    };
    let output = guard.wait_with_output().expect("its output");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("CAP_BPF") && said.contains("root"), "{said}");
}

#[test]
fn a_check_value_that_makes_no_sense_is_refused() {
    for args in [&["--system", "--check-least", "10"][..], &["--check-least", "2000", "--", "true"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_orbit")).arg("watch").args(args).output().expect("orbit runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("--check-least"), "{args:?}: {said}");
    }
}
