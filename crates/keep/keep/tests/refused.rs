//! What cannot be kept is rejected in a sentence: a program of another user, one that a debugger
//! traces, one that runs with other rights.

mod common;

use common::{KEEP, Scratch, count, events, lacks, lacks_tracking, until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A user without rights.
const NOBODY: u32 = 65534;

struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_root() -> bool {
    // SAFETY: a call without arguments that cannot fail.
    let is = unsafe { libc::geteuid() } == 0;
    if !is {
        println!("SKIP: needs root, to become another user");
    }
    is
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("own file");
}

/// The keeper, where every user can execute it.
fn for_all(scratch: &Scratch) -> PathBuf {
    let keeper = scratch.join("orbit-keep");
    orbit_testing::copy_of_program(KEEP.as_ref(), &keeper);
    open_to_all(&scratch.0, 0o777);
    open_to_all(&keeper, 0o755);
    keeper
}

#[test]
fn a_program_of_another_user() {
    if lacks_tracking() || !is_root() {
        return;
    }
    let scratch = Scratch::new("refused-user");
    let program = Guard(Command::new("sleep").arg("1000").spawn().expect("sleep"));
    let mut command = Command::new(for_all(&scratch));
    command.args(["--pid", &program.0.id().to_string()]).uid(NOBODY).gid(NOBODY);
    let output = command.output().expect("orbit-keep");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("CAP_SYS_PTRACE"), "which right is lacking: {said}");
}

#[test]
fn a_program_with_the_rights_of_another_user() {
    if lacks_tracking() || !is_root() {
        return;
    }
    let scratch = Scratch::new("refused-setuid");
    let keeper = for_all(&scratch);
    let program = scratch.join("sleep");
    orbit_testing::copy_of_program("/bin/sleep".as_ref(), &program);
    open_to_all(&program, 0o4755);
    let said = scratch.join("said");
    let mut command = Command::new(keeper);
    command.arg("--").arg(&program).arg("0.5").uid(NOBODY).gid(NOBODY).stderr(fs::File::create(&said).expect("a file"));
    let status = command.status().expect("orbit-keep");
    let said = fs::read_to_string(said).expect("text");
    assert_eq!(status.code(), Some(0), "it runs all the same: {said}");
    assert!(said.contains("set-user-ID"), "{said}");
}

#[test]
fn a_program_that_is_traced() {
    if lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("refused-traced");
    let log = scratch.join("events");
    let mut command = Command::new(KEEP);
    // One that sleeps is left alone.
    let program = ["--", "sh", "-c", "while :; do :; done"];
    command.args(["--every", "50ms", "--events"]).arg(&log).args(program).stderr(Stdio::null());
    let keeper = Guard(command.spawn().expect("orbit-keep"));
    let kept = until("it is kept", || events(&log).into_iter().find(|e| e["event"] == "kept"));
    let pid = kept["pid"].as_i64().expect("a number") as i32;
    // The keeper holds it for a moment now and then.
    until("the debugger attaches", || orbit_linux::ptrace::seize(pid, 0).ok());
    until("that is said", || {
        let all = events(&log);
        let said = all.iter().filter(|e| e["event"] == "warning").any(|e| e["text"].to_string().contains("traced"));
        said.then_some(())
    });
    assert_eq!(count(&log, "exited"), 0);
    // SAFETY: a child of an own child that lives until that one has reaped it.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    drop(keeper);
}

/// As with a glibc older than that of the build: the loader ends the program, which says so in its
/// own words.
#[test]
fn a_program_whose_loader_does_not_take_the_library() {
    if lacks("musl-gcc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("refused-musl");
    let (source, program) = (scratch.join("well.c"), scratch.join("well"));
    fs::write(&source, "int main(void) { return 0; }\n").expect("written");
    assert!(Command::new("musl-gcc").arg(&source).arg("-o").arg(&program).status().expect("musl-gcc").success());
    assert!(Command::new(&program).status().expect("it runs").success());
    let output = Command::new(KEEP).arg("--").arg(&program).output().expect("orbit-keep");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(127), "{said}");
    assert!(said.contains("before the library of its side came up") && said.contains("another C library"), "{said}");
}
