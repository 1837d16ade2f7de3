//! A program that is slow because of the machine, or stopped, or merely busy, is not reported to
//! hang.

mod guard_common;
use guard_common::{Dir, Guard, build, signal, skipped};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct Burners(Vec<Child>);

impl Burners {
    fn start(how_many: usize) -> Burners {
        let burner =
            || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("sh");
        Burners((0..how_many).map(|_| burner()).collect())
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for b in &mut self.0 {
            let _ = b.kill();
            let _ = b.wait();
        }
    }
}

fn quiet_to_the_end(name: &str, way: &[&str], meanwhile: impl FnOnce(i32)) {
    if skipped() {
        return;
    }
    let dir = Dir::new(name);
    let program = build(&dir, "hangs.c");
    let mut all = vec![program.to_str().expect("a path")];
    all.extend(way);
    let mut guard = Guard::start(&dir, &[], &all);
    let pid = guard.program();
    meanwhile(pid);
    while !guard.events().iter().any(|e| e["event"] == "left" && e["pid"] == pid) {
        std::thread::sleep(Duration::from_millis(20));
    }
    guard.no_hang();
    assert_eq!(guard.finish().status.code(), Some(0));
}

#[test]
fn healthy_and_busy() {
    quiet_to_the_end("healthy", &["healthy", "2"], |_| {});
}

#[test]
fn stopped_and_continued() {
    quiet_to_the_end("stopped", &["healthy", "1"], |pid| {
        std::thread::sleep(Duration::from_millis(500));
        signal(pid, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(2500));
        signal(pid, libc::SIGCONT);
    });
}

#[test]
fn starved_of_cpu() {
    quiet_to_the_end("starved", &["loop", "2"], |pid| {
        // SAFETY: plain call with numbers.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, pid as libc::id_t, 19) };
        let _burners = Burners::start(4);
        std::thread::sleep(Duration::from_secs(2));
    });
}

#[test]
fn traced_by_a_debugger() {
    quiet_to_the_end("traced", &["loop", "1"], |pid| {
        // Seized and held for a while by this thread, as a debugger does at a breakpoint.
        // SAFETY: plain calls with numbers; waitpid is given a valid place.
        unsafe {
            if libc::ptrace(libc::PTRACE_SEIZE, pid, 0usize, 0usize) != 0 {
                println!("SKIP: needs the right to trace");
                return;
            }
            libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0usize, 0usize);
            let mut status = 0;
            libc::waitpid(pid, &raw mut status, libc::__WALL);
            std::thread::sleep(Duration::from_millis(2500));
            libc::ptrace(libc::PTRACE_DETACH, pid, 0usize, 0usize);
        }
    });
}
