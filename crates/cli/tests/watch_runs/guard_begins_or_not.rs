//! Where the guard cannot begin it says so, and nothing is left of the program; what fails later
//! does not end its watch.

use crate::guard_common;
use guard_common::{Dir, Guard, signal, until};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Puts a filter on this process and what it makes: these calls fail with this error, `clone` where
/// it is to make a thread.
fn forbid(calls: &[(libc::c_long, i32)]) -> std::io::Result<()> {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let load = |at| step((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, at);
    let answer = |what| step((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, what);
    let mut steps = [answer(libc::SECCOMP_RET_ALLOW); 16];
    let mut n = 0;
    for &(call, error) in calls {
        let failed = answer(libc::SECCOMP_RET_ERRNO | error as u32);
        // The number, and the low half of the first argument: flags.
        let threads_only = call == libc::SYS_clone;
        let all = [
            load(0),
            step(
                (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
                0,
                if threads_only { 3 } else { 1 },
                call as u32,
            ),
            if threads_only { load(16) } else { failed },
            step((libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16, 0, 1, libc::CLONE_THREAD as u32),
            failed,
        ];
        let used = if threads_only { 5 } else { 3 };
        steps[n..n + used].copy_from_slice(&all[..used]);
        n += used;
    }
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program and its steps outlive the call, which copies them.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Processes with this in their command line.
fn with(text: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    };
    pids.filter(has).collect()
}

/// A guard that is forbidden these calls cannot begin.
fn cannot_begin(name: &str, calls: &'static [(libc::c_long, i32)], why: &str) {
    let dir = Dir::new(name);
    let marker = dir.0.to_str().expect("a path");
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    // It makes no children: one would have its command line, and end by itself a little later.
    command.args(["watch", "--in-process", "--", "sh", "-c", "while :; do :; done", marker]);
    // SAFETY: only async-signal-safe calls.
    unsafe { command.pre_exec(|| forbid(calls)) };
    let said = dir.0.join("stderr");
    let status = match command.stdout(Stdio::null()).stderr(File::create(&said).expect("a file")).status() {
        Err(e) => {
            println!("SKIP: needs seccomp filters: {e}");
            return;
        }
        Ok(status) => status,
    };
    let left = with(marker);
    for pid in &left {
        signal(*pid, libc::SIGKILL);
    }
    let said = std::fs::read_to_string(&said).expect("text");
    assert_eq!(status.code(), Some(125), "{said}");
    assert!(said.contains(why), "{said}");
    assert!(left.is_empty(), "the program is left: {said}");
}

#[test]
fn without_handles_of_processes() {
    // As old profiles of containers answer for calls that they do not know.
    cannot_begin("no-pidfd", &[(libc::SYS_pidfd_open, libc::EPERM)], "cannot hold a process");
}

#[test]
fn without_room_for_a_thread() {
    let calls = &[(libc::SYS_clone3, libc::ENOSYS), (libc::SYS_clone, libc::EAGAIN)];
    cannot_begin("no-thread", calls, "cannot make a thread");
}

#[test]
fn without_room_to_wait_it_watches_on() {
    let dir = Dir::new("no-room");
    let (ready, script) = (dir.0.join("ready"), "trap 'exit 5' TERM; echo >$0; while :; do sleep 0.05; done");
    let mut guard = Guard::start(&dir, &[], &["sh", "-c", script, ready.to_str().expect("a path")]);
    guard.program();
    until("the program", || ready.exists().then_some(()));
    let one = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: the struct outlives the call; the old limit is not asked for.
    assert_eq!(unsafe { libc::prlimit(guard.id(), libc::RLIMIT_NOFILE, &raw const one, std::ptr::null_mut()) }, 0);
    signal(guard.id(), libc::SIGTERM);
    assert_eq!(guard.finish().status.code(), Some(5));
}
