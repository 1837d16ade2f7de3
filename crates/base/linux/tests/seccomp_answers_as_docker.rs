//! Under the filter: what Docker's profile rejects is rejected with its errno, and all that Orbit
//! needs there works.

use orbit_linux::map::{Mapping, page_size};
use orbit_linux::pagemap::Pagemap;
use orbit_linux::process::raw_fork;
use orbit_linux::{futex, memfd, pidfd, process, seccomp, socket, uffd};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

/// This test binary again, as a process of its own: the filter cannot be taken off.
fn in_own_process(test: &str) {
    let exe = std::env::current_exe().expect("own path");
    let out = Command::new(exe)
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .expect("run");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

fn unsupported() -> bool {
    if let Some(why) = seccomp::probe().reason() {
        println!("SKIP: needs seccomp: {why}");
        return true;
    }
    false
}

#[test]
fn refusals() {
    if !unsupported() {
        in_own_process("refusals_inside");
    }
}

#[test]
fn necessities() {
    if !unsupported() {
        in_own_process("necessities_inside");
    }
}

#[test]
#[ignore = "run by `refusals` in a process of its own"]
fn refusals_inside() {
    seccomp::install_docker_like().expect("install");
    let errno = |name: &str, r: libc::c_long| {
        assert_eq!(r, -1, "{name} passed");
        std::io::Error::last_os_error().raw_os_error()
    };
    // SAFETY: calls that the filter rejects before the kernel reads an argument.
    unsafe {
        assert_eq!(errno("clone3", libc::syscall(libc::SYS_clone3, 0, 0)), Some(libc::ENOSYS));
        for (name, call) in [
            ("userfaultfd", libc::SYS_userfaultfd),
            ("perf_event_open", libc::SYS_perf_event_open),
            ("bpf", libc::SYS_bpf),
            ("mount", libc::SYS_mount),
            ("setns", libc::SYS_setns),
            ("unshare", libc::SYS_unshare),
            ("keyctl", libc::SYS_keyctl),
            ("io_uring_setup", libc::SYS_io_uring_setup),
            ("process_madvise", libc::SYS_process_madvise),
        ] {
            assert_eq!(errno(name, libc::syscall(call, 0, 0, 0, 0, 0, 0)), Some(libc::EPERM), "{name}");
        }
        let new_user = libc::CLONE_NEWUSER | libc::SIGCHLD;
        assert_eq!(errno("clone", libc::syscall(libc::SYS_clone, new_user, 0, 0, 0, 0)), Some(libc::EPERM));
        assert_eq!(errno("vsock", libc::socket(40, libc::SOCK_STREAM, 0).into()), Some(libc::EPERM));
        assert_eq!(errno("personality", libc::personality(0x0040000).into()), Some(libc::EPERM));
        assert_ne!(libc::personality(0xffff_ffff), -1);
    }
    // Where /dev/userfaultfd may be opened (by root, here) tracking works all the same: no system
    // call is needed for it.
    if std::fs::File::open("/dev/userfaultfd").is_err() {
        let why = uffd::probe().reason().map(str::to_string).expect("userfaultfd is refused");
        assert!(why.contains("EPERM") && why.contains("seccomp"), "{why}");
    }
    let why = orbit_linux::perf::probe().reason().map(str::to_string).expect("perf is refused");
    assert!(why.contains("seccomp"), "{why}");
}

#[test]
#[ignore = "run by `necessities` in a process of its own"]
fn necessities_inside() {
    seccomp::install_docker_like().expect("install");
    assert!(process::probe().is_yes() && pidfd::probe().is_yes() && memfd::probe().is_yes());
    let (a, b) = socket::pair().expect("sockets");
    // SAFETY: the child makes system calls only.
    let Some(child) = unsafe { raw_fork(0) }.expect("raw clone passes") else {
        let _ = process::set_parent_death_signal(libc::SIGKILL);
        let sent = socket::send(b.as_fd(), &[1], &[a.as_fd()]).is_ok();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!sent)) };
    };
    let mut fds = Vec::new();
    assert_eq!(socket::receive(a.as_fd(), &mut [0; 1], &mut fds, false).expect("receive"), 1);
    assert_eq!(fds.len(), 1);
    let fd = child.pidfd.expect("pidfd");
    assert_eq!(pidfd::wait(fd.as_fd(), false).expect("wait").and_then(|e| e.exit_status()), Some(0));
    let word = std::sync::atomic::AtomicU32::new(0);
    assert!(futex::wait(&word, 0, Some(Duration::from_millis(1))).is_err());
    let m = Mapping::anonymous(page_size(), true).expect("mmap");
    let found = Pagemap::own().expect("pagemap").scan_populated(m.addr(), m.addr() + m.len(), 0, &mut Vec::new());
    assert_eq!(found.expect("pagemap works without userfaultfd"), 1);
    std::thread::spawn(|| ()).join().expect("threads start although clone3 is refused");
}
