//! In an orbit of a core the detector finds a hang of a guarded program, also after its process was
//! killed, and lets go of what is no longer guarded, with the last program of the processes that it
//! made.

use crate::common::Dir;
use orbit_ahd::{Config, Event, Kind, json};
use orbit_modules::hangs::{Detector, Settings, options};
use orbit_rmk::{Installed, Report};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Reads from a pipe whose other end nobody but itself holds.
const READS: &str = r#"
#include <unistd.h>
int main(void) { int ends[2]; char x; return pipe(ends) || read(ends[0], &x, 1) != 1; }
"#;

const PATIENCE: Duration = Duration::from_secs(60);

struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The next report that is as wanted.
fn next<T>(module: &Installed, what: &str, wanted: impl Fn(&Report) -> Option<T>) -> T {
    let start = Instant::now();
    let mut seen = Vec::new();
    while start.elapsed() < PATIENCE {
        let Some(report) = module.report(Duration::from_millis(100)) else { continue };
        if let Some(found) = wanted(&report) {
            return found;
        }
        seen.push(report);
    }
    panic!("not reported: {what}; but {seen:?}; {:?}", module.status());
}

fn event(report: &Report) -> Option<Event> {
    match report {
        Report::Said(text) => json::event(&serde_json::from_str(text).expect("JSON")),
        _ => None,
    }
}

#[test]
fn hangs_are_found_and_found_again() {
    let dir = Dir::new("module-hang");
    let Some(path) = dir.build("reads", READS) else { return };
    let program = Owned(Command::new(path).stdin(Stdio::null()).spawn().expect("the program"));
    let pid = program.0.id();
    let core = orbit_pins::core().expect("a core");
    let settings =
        Settings { config: Config { limit: Duration::from_millis(300), ..Config::default() }, ..Settings::default() };
    let module = core.install::<Detector>(options(&settings)).expect("the module");
    core.guard(pid).expect("a program");
    let hang = |report: &Report| match event(report) {
        Some(Event::Hang(hang)) => Some(hang),
        _ => None,
    };
    let first = next(&module, "the hang", hang);
    assert_eq!((first.kind, first.pid as u32), (Kind::Blocked, pid), "{first:?}");
    assert!(!first.threads.is_empty() && !first.threads[0].stack.is_empty(), "its stack is reported: {first:?}");

    // SAFETY: the module's process, which this program's template made and has not reaped.
    unsafe { libc::kill(module.status().pid, libc::SIGKILL) };
    next(&module, "its failure", |report| matches!(report, Report::Failed(_)).then_some(()));
    next(&module, "its reload", |report| matches!(report, Report::Reloaded { .. }).then_some(()));
    let again = next(&module, "the hang again", hang);
    assert_eq!((again.kind, again.pid), (first.kind, first.pid), "{again:?}");

    core.unguard(pid);
    let left = |report: &Report| matches!(event(report), Some(Event::Left { .. })).then_some(());
    next(&module, "that it is watched no more", left);
}

#[test]
fn children_leave_with_the_last_program() {
    let program = Command::new("sh").args(["-c", "sleep 1000; :"]).spawn().expect("sh");
    let program = Owned(program);
    let pid = program.0.id();
    let core = orbit_pins::core().expect("a core");
    let module = core.install::<Detector>(options(&Settings::default())).expect("the module");
    core.guard(pid).expect("a program");
    let child = next(&module, "its child", |report| match event(report) {
        Some(Event::Joined { pid: joined, .. }) if joined != pid as i32 => Some(joined),
        _ => None,
    });
    core.unguard(pid);
    let left = |report: &Report| matches!(event(report), Some(Event::Left { pid }) if pid == child).then_some(());
    next(&module, "that its child is watched no more", left);
    // SAFETY: the shell, which is there until the end of this test, has not reaped it.
    unsafe { libc::kill(child, libc::SIGKILL) };
}
