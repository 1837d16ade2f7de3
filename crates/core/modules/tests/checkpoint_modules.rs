//! The modules `tac` and `recovery`: a program that a signal would kill is put back through the
//! pins P_MEM and P_SIG; a module that dies takes nothing along; without them, the program dies as
//! ever.

use orbit_modules::checkpoint::{Recovery, Tac};
use orbit_rmk::{Command, Core, Filter, Installed, Kind, ModuleOptions, Reply, Report, Verdict};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that answers each line by how many there were.
struct Program {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Program {
    fn start() -> Option<Program> {
        if let orbit_linux::Support::No(why) = orbit_linux::uffd::probe() {
            println!("SKIP: needs {why}");
            return None;
        }
        let script = "import sys\nnth = 0\nfor line in sys.stdin:\n nth += 1\n print(nth, flush=True)\n";
        let started = std::process::Command::new("/usr/bin/python3")
            .args(["-u", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = started else {
            println!("SKIP: needs python3");
            return None;
        };
        let (to, from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Some(Program { child, to, from: BufReader::new(from) })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it answers to a line: how many lines it knows of.
    fn ask(&mut self) -> u64 {
        let mut line = String::new();
        self.to.write_all(b"x\n").expect("it reads");
        self.from.read_line(&mut line).expect("it answers");
        line.trim().parse().expect("a number")
    }

    fn crash(&self) {
        // SAFETY: an own child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, libc::SIGSEGV) }, 0);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loaded machine has longer.
fn options(settings: Vec<u8>) -> ModuleOptions {
    ModuleOptions { settings, deadline: PATIENCE, ..ModuleOptions::default() }
}

/// Waits for a report with this text.
fn report(of: &Installed, part: &str) -> String {
    let end = Instant::now() + PATIENCE;
    let mut all = Vec::new();
    while Instant::now() < end {
        match of.report(Duration::from_millis(100)) {
            Some(Report::Said(text)) if text.contains(part) => return text,
            Some(other) => all.push(format!("{other:?}")),
            None => {}
        }
    }
    panic!("no report with {part:?} within {PATIENCE:?}: {all:?}");
}

/// Waits until all checkpoints are from after this call: what the program did before is in each. A
/// crash at the same address as before goes to an older one.
fn has_newer_checkpoints(core: &Core, pid: u32) {
    let (since, client) = (Instant::now(), core.client("reader"));
    client.use_pin("P_MEM").expect("a pin");
    loop {
        let Ok(Reply::Checkpoints { ages_ns }) = client.issue_cmd("P_MEM", &Command::CheckpointList { pid }) else {
            panic!("there are checkpoints");
        };
        if !ages_ns.is_empty() && ages_ns.iter().all(|age| Duration::from_nanos(*age) < since.elapsed()) {
            return;
        }
        assert!(since.elapsed() < PATIENCE, "tac takes checkpoints");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_program_is_put_back_and_the_modules_may_die() {
    orbit::init().expect("a template");
    let Some(mut program) = Program::start() else { return };
    assert_eq!(program.ask(), 1);
    let core = orbit_modules::core().expect("a core");
    let settings = Tac::settings(Duration::from_millis(50));
    let tac = core.install::<Tac>(options(settings)).expect("tac");
    let recovery = core.install::<Recovery>(options(Vec::new())).expect("recovery");
    tac.guard(program.pid()).expect("guarded");
    recovery.guard(program.pid()).expect("guarded");
    report(&tac, "first checkpoint");
    let mut nth = 1;
    for _ in 0..3 {
        program.crash();
        let said = report(&recovery, "put back to a checkpoint");
        assert!(said.contains("signal 11"), "{said}");
        // What it did before the checkpoint is there; it has done nothing since.
        nth += 1;
        assert_eq!(program.ask(), nth);
        has_newer_checkpoints(&core, program.pid());
    }
    // The modules' processes die; the core loads them again, and the checkpoints are still there.
    for module in [&tac, &recovery] {
        let pid = module.status().pid;
        // SAFETY: a process of our own core, which has not reaped it.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        let end = Instant::now() + PATIENCE;
        while !module.status().up || module.status().pid == pid {
            assert!(Instant::now() < end, "it is loaded again");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    has_newer_checkpoints(&core, program.pid());
    program.crash();
    report(&recovery, "put back to a checkpoint");
    nth += 1;
    assert_eq!(program.ask(), nth);
    // Unloaded, they leave it as it was.
    tac.remove();
    recovery.remove();
    nth += 1;
    assert_eq!(program.ask(), nth);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.pid())).expect("it lives");
    assert!(!maps.contains("orbit-keep"), "nothing is left in it: {maps}");
    program.crash();
    assert_eq!(program.child.wait().expect("a child").signal(), Some(libc::SIGSEGV), "it dies as ever");
}

#[test]
fn a_client_decides_itself() {
    let Some(mut program) = Program::start() else { return };
    assert_eq!(program.ask(), 1);
    let pid = program.pid();
    let core = orbit_modules::core().expect("a core");
    let client = core.client("by hand");
    for pin in ["P_MEM", "P_SIG"] {
        client.use_pin(pin).expect("a pin");
    }
    let list = Command::CheckpointList { pid };
    assert!(client.issue_cmd("P_MEM", &list).is_err_and(|why| why.to_string().contains("CheckpointTake")));
    client.subscr_event("P_SIG", Kind::SignalFatal, Filter::pids(&[pid])).expect("subscribed");
    client.issue_cmd("P_SIG", &Command::FatalHold { pid }).expect("held");
    let take = |generations| Command::CheckpointTake { pid, generations, interval_ns: 50_000_000 };
    assert!(client.issue_cmd("P_MEM", &take(17)).is_err_and(|why| why.to_string().contains("1 to 16")));
    let Ok(Reply::Checkpoint { pages, .. }) = client.issue_cmd("P_MEM", &take(4)) else { panic!("a checkpoint") };
    assert!(pages > 100, "the first has all pages: {pages}");
    let crash = |program: &Program| {
        program.crash();
        let (mut events, end) = (Vec::new(), Instant::now() + PATIENCE);
        while events.is_empty() && Instant::now() < end {
            client.wait(1, Duration::from_millis(100), &mut events);
        }
        assert_eq!((events[0].kind(), events[0].pid, events[0].values[1]), (Some(Kind::SignalFatal), pid, 11));
        events[0].values[0]
    };
    crash(&program);
    let none = Command::CheckpointRestore { pid, nth: 5 };
    assert!(client.issue_cmd("P_MEM", &none).is_err_and(|why| why.to_string().contains("there are 1")));
    client.issue_cmd("P_MEM", &Command::CheckpointRestore { pid, nth: 0 }).expect("put back");
    assert_eq!(program.ask(), 2);
    let ticket = crash(&program);
    let wrong = Command::SignalDecide { ticket, verdict: Verdict::Drop };
    assert!(client.issue_cmd("P_SIG", &wrong).is_err_and(|why| why.to_string().contains("CheckpointRestore")));
    client.issue_cmd("P_SIG", &Command::SignalDecide { ticket, verdict: Verdict::Pass }).expect("decided");
    assert_eq!(program.child.wait().expect("a child").signal(), Some(libc::SIGSEGV), "its own end");
}
