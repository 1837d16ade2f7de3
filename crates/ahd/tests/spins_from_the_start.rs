//! A program that spins from its first moment is told only where `busy_limit` asks for it, and one that computes not even then.

mod common;
use common::{Dir, Program, Watcher, cpu, functions, have};
use orbit_ahd::{Config, Kind};
use orbit_inspect::Sure;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_millis(500);

fn limited() -> Config {
    Config { busy_limit: Some(LIMIT), ..Config::default() }
}

/// Watches until the program has used so much CPU.
fn until_used(w: &mut Watcher, pid: i32, time: Duration) {
    let start = std::time::Instant::now();
    while cpu(pid, pid) < time {
        assert!(start.elapsed() < common::PATIENCE * 3, "it gets no CPU");
        w.look();
    }
}

#[test]
fn silent_unless_asked() {
    let dir = Dir::new("spins-silent");
    let Some(fares) = dir.program() else { return };
    let p = Program::start(Command::new(&fares).arg("still"));
    let mut w = Watcher::of(p.pid(), Config::default());
    until_used(&mut w, p.pid(), Duration::from_secs(2));
    w.quiet();
}

#[test]
fn told_with_function_and_line() {
    let dir = Dir::new("spins-told");
    let Some(fares) = dir.program() else { return };
    for (way, function, sure) in [("still", "still_here", Sure::Likely), ("counts", "counts_here", Sure::Guess)] {
        let p = Program::start(Command::new(&fares).arg(way));
        let mut w = Watcher::of(p.pid(), limited());
        let h = w.hang();
        assert_eq!((h.kind, h.pid, h.sure), (Kind::Busy, p.pid(), sure), "{way}: {h:#?}");
        assert!(functions(h).contains(&function), "{way}: {h:#?}");
        let frame = h.threads[0].stack.iter().find(|f| f.function.as_deref() == Some(function)).expect("the frame");
        assert!(frame.file.as_ref().is_some_and(|f| f.ends_with("fares.c")) && frame.line.is_some(), "{frame}");
        assert!(h.why.contains(function) && h.why.contains("fares.c:"), "{}", h.why);
        assert!(h.progress >= h.check_value && h.usual.is_none(), "{h:#?}");
    }
}

#[test]
fn computing_is_no_hang() {
    let dir = Dir::new("spins-computes");
    let Some(fares) = dir.program() else { return };
    let p = Program::start(Command::new(&fares).args(["wanders", "1000"]));
    let mut w = Watcher::of(p.pid(), limited());
    until_used(&mut w, p.pid(), LIMIT * 5);
    w.quiet();
}

#[test]
fn a_compiler_is_no_hang() {
    if !have("cc", "--version") {
        return;
    }
    let dir = Dir::new("spins-compiler");
    let source = dir.0.join("large.c");
    let mut text = String::from("double f(int, double);\n");
    for n in 0..350 {
        text += &format!(
            "double f{n}(double *p, int n) {{ double s = 0; for (int i = 0; i < n; i++) {{ s += p[i] * f(i, s) + {n}; \
             switch (i % 7) {{ case 0: p[i] = s; break; case 3: s -= p[i + {n}]; break; default: s *= 1.5; }} }} return s; }}\n"
        );
    }
    std::fs::write(&source, text).expect("a file");
    let mut p = Program::start(Command::new("cc").args(["-O2", "-c", "-o", "/dev/null"]).arg(&source));
    let mut w = Watcher::of(p.pid(), limited());
    let start = std::time::Instant::now();
    while p.0.try_wait().expect("wait").is_none() {
        assert!(start.elapsed() < common::PATIENCE * 3, "it does not end");
        w.look();
    }
    w.quiet();
}
