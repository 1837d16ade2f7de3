//! P_SIG reports signals raised and delivered, and drops, replaces or holds back those of an
//! intercepted program.

mod common;
use common::{Forked, Gate, event, kernel_programs_or_skip, until};
use orbit_rmk::{Command, Filter, Kind, Verdict};

/// A child that sleeps until a signal ends it.
fn sleeper() -> Forked {
    // SAFETY: no pointers are passed.
    Forked::new(|| unsafe {
        loop {
            libc::usleep(1000);
        }
    })
}

#[test]
fn raising_and_delivery_are_seen() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("signals");
    module.use_pin("P_SIG").expect("P_SIG");
    extern "C" fn leave(_signal: i32) {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(5) }
    }
    let ready = Gate::new();
    // SAFETY: the handler only leaves; no other pointers are passed.
    let guest = Forked::new(|| unsafe {
        libc::signal(libc::SIGTERM, leave as *const () as usize);
        ready.open();
        loop {
            libc::usleep(1000);
        }
    });
    ready.pass();
    let term = libc::SIGTERM as u32;
    for kind in [Kind::SignalRaised, Kind::SignalDelivered] {
        module.subscr_event("P_SIG", kind, Filter::pids(&[guest.pid()]).keys(&[term])).expect("a subscription");
    }
    module.issue_cmd("P_SIG", &Command::SignalSend { pid: guest.pid(), signal: term }).expect("sent");
    let (mut raised, mut delivered) = (None, None);
    event(&module, "both", |event| {
        match event.kind() {
            Some(Kind::SignalRaised) => raised = Some(*event),
            _ => delivered = Some(*event),
        }
        raised.is_some() && delivered.is_some()
    });
    let raised = raised.expect("raised");
    assert_eq!(
        (raised.values[0], raised.values[2]),
        (u64::from(term), u64::from(std::process::id())),
        "signal and sender"
    );
    assert!(delivered.expect("delivered").values[2] > 1, "to a handler");
    assert_eq!(guest.wait() >> 8, 5, "which ran");
}

#[test]
fn a_signal_is_dropped_then_held_then_delivered_without_kernel_programs() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = core.client("intercept");
    module.use_pin("P_SIG").expect("P_SIG");
    module.subscr_event("P_SIG", Kind::SignalIntercepted, Filter::everyone()).expect("a subscription");
    let guest = sleeper();
    let (pid, term) = (guest.pid(), libc::SIGTERM as u32);
    let command = |command: Command| module.issue_cmd("P_SIG", &command);
    let intercept = |verdict: Verdict| command(Command::SignalIntercept { pid, signals: vec![term], verdict });
    if let Err(error) = intercept(Verdict::Drop) {
        println!("SKIP: needs the right to trace a child ({error})");
        return;
    }
    command(Command::SignalSend { pid, signal: term }).expect("sent");
    let dropped = event(&module, "the dropped signal", |_| true);
    assert_eq!((dropped.pid, dropped.values[0], dropped.values[1]), (pid, 0, u64::from(term)));
    assert_eq!(dropped.values[3], u64::from(std::process::id()), "the sender");

    intercept(Verdict::Hold).expect("now held");
    command(Command::SignalSend { pid, signal: term }).expect("sent");
    let held = event(&module, "the held signal", |event| event.values[0] != 0);
    let stranger = core.client("stranger");
    stranger.use_pin("P_SIG").expect("P_SIG");
    let decide = |verdict: Verdict| Command::SignalDecide { ticket: held.values[0], verdict };
    assert!(stranger.issue_cmd("P_SIG", &decide(Verdict::Pass)).is_err(), "not its own");
    command(decide(Verdict::Replace { signal: libc::SIGUSR1 as u32 })).expect("decided");
    // The tracer sees the end long before: the status is still for whoever made the process.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(guest.wait() & 0x7f, libc::SIGUSR1, "it died of the replacement");
}

#[test]
fn released_programs_go_on_as_before() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = core.client("intercept");
    module.use_pin("P_SIG").expect("P_SIG");
    let guest = sleeper();
    let traced = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", guest.pid())).expect("alive");
        !status.contains("TracerPid:\t0\n")
    };
    let all = Command::SignalIntercept { pid: guest.pid(), signals: vec![], verdict: Verdict::Drop };
    if let Err(error) = module.issue_cmd("P_SIG", &all) {
        println!("SKIP: needs the right to trace a child ({error})");
        return;
    }
    assert!(traced());
    module.release_pin("P_SIG").expect("released");
    until("the program is free", || !traced());
    // SAFETY: our own child, not reaped yet.
    unsafe { libc::kill(guest.pid() as i32, libc::SIGTERM) };
    assert_eq!(guest.wait() & 0x7f, libc::SIGTERM, "its signals are its own again");
}

#[test]
fn a_verdict_with_a_signal_that_is_none_is_refused_and_the_program_goes_on() {
    const NONE: u32 = 1000;
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = core.client("intercept");
    module.use_pin("P_SIG").expect("P_SIG");
    module.subscr_event("P_SIG", Kind::SignalIntercepted, Filter::everyone()).expect("a subscription");
    let guest = sleeper();
    let (pid, term) = (guest.pid(), libc::SIGTERM as u32);
    let command = |command: Command| module.issue_cmd("P_SIG", &command);
    let intercept = |verdict: Verdict| command(Command::SignalIntercept { pid, signals: vec![term], verdict });
    if let Err(error) = intercept(Verdict::Hold) {
        println!("SKIP: needs the right to trace a child ({error})");
        return;
    }
    let error = intercept(Verdict::Replace { signal: NONE }).expect_err("no such signal").to_string();
    assert!(error.contains("1000") && error.contains("64"), "{error}");
    command(Command::SignalSend { pid, signal: term }).expect("sent");
    let held = event(&module, "the held signal", |event| event.values[0] != 0);
    let decide = |signal: u32| Command::SignalDecide { ticket: held.values[0], verdict: Verdict::Replace { signal } };
    command(decide(NONE)).expect_err("no such signal");
    command(decide(libc::SIGUSR1 as u32)).expect("still to be decided");
    assert_eq!(guest.wait() & 0x7f, libc::SIGUSR1, "it went on");
}

#[test]
fn a_held_program_that_is_killed_and_released_ends_for_its_parent() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let (module, other) = (core.client("intercept"), core.client("other"));
    for client in [&module, &other] {
        client.use_pin("P_SIG").expect("P_SIG");
    }
    module.subscr_event("P_SIG", Kind::SignalIntercepted, Filter::everyone()).expect("a subscription");
    for _ in 0..20 {
        let (mut ends, go) = ([0; 2], Gate::new());
        // SAFETY: two descriptors are written to a live array.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        // A parent of its own: what a child of this process came to is never collected by the
        // tracer. SAFETY: plain calls with live locals; the inner child only sleeps.
        let parent = Forked::new(|| unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
            libc::write(ends[1], (&raw const child).cast(), 4);
            go.pass();
            libc::kill(child, libc::SIGKILL);
            // Said before the wait, so that the release comes while the child dies.
            libc::write(ends[1], (&raw const child).cast(), 4);
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            libc::_exit(libc::WTERMSIG(status));
        });
        let mut child = 0i32;
        let mut moved = || {
            // SAFETY: four bytes are written to a live local.
            assert_eq!(unsafe { libc::read(ends[0], (&raw mut child).cast(), 4) }, 4);
            child as u32
        };
        let pid = moved();
        let command = |command: Command| module.issue_cmd("P_SIG", &command);
        let hold = Command::SignalIntercept { pid, signals: vec![], verdict: Verdict::Hold };
        if let Err(error) = command(hold) {
            println!("SKIP: needs the right to trace a child ({error})");
            return;
        }
        command(Command::SignalSend { pid, signal: libc::SIGTERM as u32 }).expect("sent");
        event(&module, "the held signal", |event| event.pid == pid);
        go.open();
        moved();
        command(Command::SignalRelease { pid }).expect("released");
        let mut status = 0;
        until("its parent has collected it", || {
            // SAFETY: a live local; the child is our own and not reaped yet.
            unsafe { libc::waitpid(parent.0, &raw mut status, libc::WNOHANG) == parent.0 }
        });
        std::mem::forget(parent);
        assert_eq!(libc::WEXITSTATUS(status), libc::SIGKILL, "killed in the middle of a held signal");
        for end in ends {
            // SAFETY: the test's own descriptors, closed once.
            unsafe { libc::close(end) };
        }
    }
}
