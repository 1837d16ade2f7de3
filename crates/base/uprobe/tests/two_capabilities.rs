//! An ordinary user with CAP_BPF and CAP_PERFMON, and no other capability, counts what a function
//! of a program of its own does.

mod common;
use common::{Program, code_file, until};
use orbit_uprobe::{Duty, Error, State, Target};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The program, in the process that has these capabilities only.
const PROGRAM: &str = "ORBIT_UPROBE_TEST_PROGRAM";
const NOBODY: u32 = 65534;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
/// The kernel knows fewer.
const CAPS: u32 = 64;

#[test]
fn are_enough() {
    if let Some(program) = std::env::var_os(PROGRAM) {
        counts(Program::of(program.into()));
        return;
    }
    if !orbit_testing::needs_root() {
        return;
    }
    // Debian's kernels ask for more then.
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if !orbit_linux::uprobes::probe().is_yes() && paranoid.trim().parse().is_ok_and(|level: i32| level > 2) {
        println!("SKIP: needs kernel.perf_event_paranoid of 2 at most, where probes are attached one by one");
        return;
    }
    // Where everybody may read them.
    let here = |name: &str| std::env::temp_dir().join(format!("orbit-uprobe-{name}-{}", std::process::id()));
    let (copy, program) = (here("two"), Program::built("two", "counted.c", &["-O1"]));
    orbit_testing::copy_of_program(&std::env::current_exe().expect("the test"), &copy);
    let counted = here("counted");
    orbit_testing::copy_of_program(&program.file, &counted);
    let mut itself = Command::new(&copy);
    itself.args(["are_enough", "--exact", "--nocapture"]).env(PROGRAM, &counted).current_dir("/");
    // SAFETY: it makes system calls only.
    unsafe { itself.pre_exec(keep_two) };
    let out = itself.output();
    for file in [copy, counted] {
        let _ = std::fs::remove_file(file);
    }
    let out = match out {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            println!("SKIP: needs CAP_BPF, CAP_PERFMON, CAP_SETPCAP, CAP_SETUID and CAP_SETGID ({e})");
            return;
        }
        out => out.expect("itself"),
    };
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    print!("{text}");
    assert!(out.status.success(), "{text}");
}

fn counts(mut program: Program) {
    let mut duty = Duty::start(None);
    until("the kernel half is not loaded", || !matches!(duty.state(), State::Starting));
    match duty.state() {
        State::Failed(e @ Error::Unsupported(_)) => {
            println!("SKIP: needs uprobes ({e})");
            return;
        }
        state => assert!(matches!(state, State::Ready(_)), "{state:?}"),
    }
    // By the name that a watcher has for it, whose way leads through the program.
    let file = format!("/proc/{}/root{}", program.pid(), program.file.display());
    let id = duty.watch(Target { file: code_file(file.as_ref()), ..program.target() });
    until("it is not probed", || duty.tally(id).is_some_and(|t| t.attached || t.error.is_some()));
    assert_eq!(duty.tally(id).and_then(|t| t.error), None);
    program.run(0, 10);
    until("hits are not shown", || duty.tally(id).is_some_and(|t| t.hits.entries == 10));
}

/// Becomes an ordinary user that keeps two capabilities over exec, and can get no others.
fn keep_two() -> io::Result<()> {
    let done = |result: libc::c_long| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // Low words, then high ones.
    let bit = |c: u32| 1u32 << (c - 32);
    let high = bit(CAP_BPF) | bit(CAP_PERFMON);
    let header = [0x2008_0522u32, 0];
    // Effective, permitted, inheritable.
    let data = [0, 0, 0, high, high, high];
    // SAFETY: plain calls; version 3 takes a header of two words and data of six, which these are;
    // 0 is the calling process.
    unsafe {
        for c in (0..CAPS).filter(|c| ![CAP_BPF, CAP_PERFMON].contains(c)) {
            // Those that the kernel does not know nobody has.
            if libc::prctl(libc::PR_CAPBSET_READ, c, 0, 0, 0) == 1 {
                done(libc::prctl(libc::PR_CAPBSET_DROP, c, 0, 0, 0).into())?;
            }
        }
        done(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0).into())?;
        done(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()))?;
        done(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY))?;
        done(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY))?;
        done(libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()))?;
        for c in [CAP_BPF, CAP_PERFMON] {
            done(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, c, 0, 0).into())?;
        }
    }
    Ok(())
}
