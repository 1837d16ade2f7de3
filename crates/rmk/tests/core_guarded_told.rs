//! A module is told which programs are guarded: at its start, at every change, and again after it was loaded again.

mod common;
use common::LIMIT;
use orbit_rmk::{Context, Core, Event, Module, ModuleOptions, Report};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// Reports what it is told.
struct Listener;

impl Module for Listener {
    const NAME: &'static str = "listener";
    const PINS: &'static [&'static str] = &[];

    fn create(_settings: &[u8]) -> Listener {
        Listener
    }
    fn start(&mut self, _context: &mut Context) {}
    fn event(&mut self, _context: &mut Context, _event: &Event) {}
    fn guarded(&mut self, context: &mut Context, pids: &[u32]) {
        context.report(format!("{pids:?}"));
    }
}

/// Says at its start that it cannot work.
struct Unable;

impl Module for Unable {
    const NAME: &'static str = "unable";
    const PINS: &'static [&'static str] = &[];

    fn create(_settings: &[u8]) -> Unable {
        Unable
    }
    fn start(&mut self, context: &mut Context) {
        context.fail("the moon is too low");
    }
    fn event(&mut self, _context: &mut Context, _event: &Event) {}
}

/// Waits by the descriptor, as a program with other things to wait for does.
fn said(module: &orbit_rmk::Installed, wanted: &str) {
    let start = Instant::now();
    let mut seen = Vec::new();
    while start.elapsed() < LIMIT {
        let mut fd = libc::pollfd { fd: module.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor in a live local.
        if unsafe { libc::poll(&raw mut fd, 1, 1000) } != 1 {
            continue;
        }
        let report = module.report(Duration::ZERO).expect("the descriptor says that there is a report");
        if report == Report::Said(wanted.into()) {
            return;
        }
        seen.push(report);
    }
    panic!("not told {wanted} within {LIMIT:?}, but {seen:?}");
}

#[test]
fn every_change_is_told() {
    let core = Core::new().expect("a core");
    let (one, other) = (common::Guest::shell("read x"), common::Guest::shell("read x"));
    core.guard(one.pid()).expect("guard");
    let module = core.install::<Listener>(ModuleOptions::default()).expect("listener");
    said(&module, &format!("[{}]", one.pid()));
    module.guard(other.pid()).expect("guard");
    let mut both = [one.pid(), other.pid()];
    both.sort_unstable();
    said(&module, &format!("{both:?}"));
    // SAFETY: the module's process, a child of this program's template that nobody has reaped.
    unsafe { libc::kill(module.status().pid, libc::SIGKILL) };
    said(&module, &format!("{both:?}"));
    core.unguard(one.pid());
    said(&module, &format!("[{}]", other.pid()));
    module.unguard(other.pid());
    said(&module, "[]");
}

#[test]
fn removing_a_module_does_not_wait_for_its_next_event() {
    let core = Core::new().expect("a core");
    let fastest = (0..5)
        .map(|_| {
            let module = core.install::<Listener>(ModuleOptions::default()).expect("listener");
            said(&module, "[]");
            let start = Instant::now();
            module.remove();
            start.elapsed()
        })
        .min();
    assert!(fastest < Some(Duration::from_millis(500)), "{fastest:?}");
}

#[test]
fn a_module_that_cannot_work_is_not_installed() {
    let core = Core::new().expect("a core");
    let error = core.install::<Unable>(ModuleOptions::default()).map(|_| ()).expect_err("it fails").to_string();
    assert!(error.contains("unable") && error.contains("moon"), "{error}");
}
