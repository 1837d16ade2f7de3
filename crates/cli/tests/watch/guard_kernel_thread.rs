//! `--pid` of a thread of the kernel, which has no program to watch, is an error.

use orbit_linux::procfs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The flag of a thread of the kernel, in field 9 of its stat.
const KERNEL: u64 = 0x20_0000;

fn of_the_kernel(pid: &i32) -> bool {
    let stat = procfs::text(format!("/proc/{pid}/stat")).unwrap_or_default();
    let flags = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & KERNEL != 0)
}

#[test]
fn it_is_refused() {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let Some(pid) = pids.find(of_the_kernel) else {
        println!("SKIP: needs a thread of the kernel in sight (not in a container)");
        return;
    };
    let mut guard = Command::new(env!("CARGO_BIN_EXE_orbit"))
        .args(["watch", "--pid", &pid.to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .expect("orbit");
    let start = Instant::now();
    while guard.try_wait().expect("wait").is_none() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = guard.kill();
    let out = guard.wait_with_output().expect("its end");
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(125), "{text}");
    assert!(text.contains(&format!("process {pid}")) && text.contains("a thread of the kernel"), "{text}");
}
