//! A module is informed which programs are guarded: at its start, at every change, and again after
//! it was loaded again.

mod common;
use common::LIMIT;
use orbit_rmk::{Context, Event, Module, ModuleOptions, Report};
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// Reports the guarded programs that it receives.
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
    panic!("not informed of {wanted} within {LIMIT:?}, but {seen:?}");
}

#[test]
fn every_change_is_reported() {
    let core = orbit_pins::core().expect("a core");
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
fn a_name_that_is_no_utf_8_hides_no_program() {
    // As the kernel cuts a long name in letters of two bytes.
    const CUT: &CStr = c"\xd0\xb0\xd0\xb1\xd0\xb2\xd0\xb3\xd0\xb4\xd0\xb5\xd0\xb6\xd0";
    let gate = common::Gate::new();
    let rename = || {
        orbit_linux::process::set_name(CUT).expect("a name");
        // SAFETY: takes nothing.
        unsafe { libc::pause() };
    };
    let named = common::Forked::new(rename);
    let later = common::Forked::new(|| {
        gate.pass();
        rename();
    });
    let renamed = |pid: u32| {
        common::until("the other name", || {
            std::fs::read(format!("/proc/{pid}/comm")).expect("it lives").trim_ascii_end() == CUT.to_bytes()
        });
    };
    let core = orbit_pins::core().expect("a core");
    core.guard(later.pid()).expect("guard");
    gate.open();
    renamed(later.pid());
    let module = core.install::<Listener>(ModuleOptions::default()).expect("listener");
    said(&module, &format!("[{}]", later.pid()));
    renamed(named.pid());
    core.guard(named.pid()).expect("guard");
    let mut both = [named.pid(), later.pid()];
    both.sort_unstable();
    said(&module, &format!("{both:?}"));
    assert_eq!(core.guarded(), both);
}

#[test]
fn what_cannot_be_inspected_now_stays_guarded() {
    let core = orbit_pins::core().expect("a core");
    let (guest, other) = (common::Guest::shell("read x"), common::Guest::shell("read x"));
    core.guard(guest.pid()).expect("guard");
    let poor = || {
        common::use_up_descriptors();
        (core.guarded(), core.guard(other.pid()).map_err(|error| error.to_string()))
    };
    let (guarded, refused) = std::thread::scope(|threads| threads.spawn(poor).join().expect("no panic"));
    assert_eq!(guarded, [guest.pid()]);
    assert!(refused.as_ref().is_err_and(|why| why.contains("Too many open files")), "{refused:?}");
}

#[test]
fn removing_a_module_does_not_wait_for_its_next_event() {
    let core = orbit_pins::core().expect("a core");
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
    let core = orbit_pins::core().expect("a core");
    let error = core.install::<Unable>(ModuleOptions::default()).map(|_| ()).expect_err("it fails").to_string();
    assert!(error.contains("unable") && error.contains("moon"), "{error}");
}
