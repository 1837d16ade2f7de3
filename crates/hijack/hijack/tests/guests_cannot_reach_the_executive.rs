//! Calls that name the executive's memory or take its means away are rejected; the guest's own
//! memory is its own.

mod common;
use common::{guest, run};
use orbit_hijack::Options;

#[test]
fn refused_in_words_of_the_kernel() {
    let program = guest("escape", &[]);
    let path = program.to_str().expect("a path");
    let run = run(&Options::default(), &[path]);
    assert_eq!(run.outcome.status, 0);
    let lines: Vec<&str> = run.stdout.lines().collect();
    let expected = [
        "munmap EPERM",
        "munmap-shared EPERM",
        "mprotect EPERM",
        "mmap EPERM",
        "mremap EPERM",
        "madvise EPERM",
        "process_vm_writev EPERM",
        "proc-mem EACCES",
        "proc-mem-slashes EACCES",
        "proc-mem-relative EACCES",
        "proc-mem-by-fd EACCES",
        "proc-mem-openat2 EACCES",
        "proc-mem-creat EACCES",
        "proc-mem-read passed",
        "ptrace EPERM",
        "dispatch-off EINVAL",
        "set-gs EPERM",
        "io_uring ENOSYS",
        "shmdt EINVAL",
        "int80 ENOSYS",
        "own-mprotect passed",
        "own-munmap passed",
    ];
    assert_eq!(lines, expected);
    assert_eq!((run.outcome.refused, run.outcome.compat_calls), (17, 1));
}

/// Natively there is no memory at these addresses.
#[test]
fn addresses_of_the_executive_are_as_such_without_memory() {
    let program = guest("wild", &[]);
    let native = std::process::Command::new(&program).stdin(std::process::Stdio::null()).output().expect("it runs");
    let native = String::from_utf8_lossy(&native.stdout).into_owned();
    for options in [Options::default(), Options { trace: true, ..Options::default() }] {
        let run = run(&options, &[program.to_str().expect("a path")]);
        assert_eq!(run.stdout, native, "{}", run.stdout);
        assert!(run.outcome.refused > 150, "{}", run.outcome.refused);
    }
}

#[test]
fn io_uring_passes_if_asked() {
    let program = guest("escape", &[]);
    let run = run(&Options { io_uring: true, ..Options::default() }, &[program.to_str().expect("a path")]);
    assert!(!run.stdout.contains("io_uring ENOSYS"), "{}", run.stdout);
}
