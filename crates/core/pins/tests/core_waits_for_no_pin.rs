//! A pin that waits, for a program that does not stop or a command that does not end, blocks no
//! module that does not use it.

mod common;
use common::{Forked, Gate, event, until};
use orbit_rmk::{
    Client, Command, Core, Env, Filter, Kind, Pin, PinError, PinKind, Probe, Reply, Subscription, Verdict,
};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Has another module come and use a pin in a thread; waits for it.
fn another_is_served(core: &Core) {
    let core = core.clone();
    let served = std::thread::spawn(move || {
        let other = core.client("other");
        other.use_pin("P_PERI").expect("P_PERI");
        let period = Filter::everyone().interval(std::time::Duration::from_millis(5));
        other.subscr_event("P_PERI", Kind::Period, period).expect("a subscription");
        event(&other, "a period", |_| true);
    });
    until("another module is served", || served.is_finished());
    served.join().expect("served");
}

fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim().chars().next()
}

fn traced(pid: u32) -> bool {
    !std::fs::read_to_string(format!("/proc/{pid}/status")).expect("alive").contains("TracerPid:\t0\n")
}

#[test]
fn a_program_that_cannot_be_stopped_is_released_without_waiting() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let modules: [Client; 2] = ["one", "two"].map(|name| {
        let module = core.client(name);
        module.use_pin("P_SIG").expect("P_SIG");
        module
    });
    let (gate, end) = (Gate::new(), Gate::new());
    let guest = Forked::new(|| {
        gate.pass();
        const VFORK: libc::c_int = 0x4000;
        // SAFETY: the child has its own memory and only waits; no pointers are passed.
        unsafe {
            if libc::syscall(libc::SYS_clone, VFORK | libc::SIGCHLD, 0, 0, 0, 0) == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                end.pass();
                libc::_exit(0);
            }
            libc::pause();
        }
    });
    let pid = guest.pid();
    let intercept = |module: &Client| {
        let all = Command::SignalIntercept { pid, signals: vec![], verdict: Verdict::Pass };
        module.issue_cmd("P_SIG", &all)
    };
    if let Err(error) = intercept(&modules[0]) {
        println!("SKIP: needs the right to trace a child ({error})");
        return;
    }
    gate.open();
    until("it waits for its child", || state_of(pid) == Some('D'));
    // The pin continues with the second user, so its tracer has to let the program go later.
    let [one, two] = modules;
    let released = std::thread::spawn(move || one.release_pin("P_SIG").expect("released"));
    until("the first is released", || released.is_finished());
    another_is_served(&core);
    assert_eq!((state_of(pid), traced(pid)), (Some('D'), true));
    intercept(&two).expect("intercepted again while it is being let go");
    let again = std::thread::spawn(move || {
        two.issue_cmd("P_SIG", &Command::SignalRelease { pid }).expect("released");
        two
    });
    until("it is released again", || again.is_finished());
    end.open();
    until("it stops, and is let go", || !traced(pid));
    let two = again.join().expect("released");
    intercept(&two).expect("a third time");
    drop(two);
    until("the last user's end lets it go", || !traced(pid));
}

static STUCK: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// A pin where `HeartbeatStop` ends when `STUCK` says so, and other commands at once.
struct Bog;

impl Pin for Bog {
    fn command(&mut self, _user: u64, command: &Command) -> Result<Reply, PinError> {
        if *command != (Command::HeartbeatStop) {
            return Ok(Reply::Done);
        }
        let mut stuck = STUCK.0.lock().unwrap_or_else(PoisonError::into_inner);
        *stuck = true;
        STUCK.1.notify_all();
        drop(STUCK.1.wait_while(stuck, |stuck| *stuck));
        Ok(Reply::Done)
    }
    fn subscribe(&mut self, _subscription: &Arc<Subscription>) -> Result<(), PinError> {
        Ok(())
    }
    fn unsubscribe(&mut self, _subscription: &Subscription) {}
    fn forget(&mut self, _user: u64) {}
}

#[test]
fn a_command_that_does_not_end_holds_up_its_own_pin_only() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    core.register_pin(PinKind {
        name: "P_BOG",
        about: "waits",
        facility: "",
        operations: &[],
        events: &[Kind::Period],
        probe: &|_: &Env| Probe::Full,
        load: &|_| Ok(Box::new(Bog)),
    })
    .expect("registered");
    let module = |name: &str| {
        let module = core.client(name);
        module.use_pin("P_BOG").expect("P_BOG");
        module
    };
    let (first, second, third) = (module("first"), module("second"), module("third"));
    let fourth = Arc::new(module("fourth"));
    let command = std::thread::spawn(move || first.issue_cmd("P_BOG", &Command::HeartbeatStop).map(|_| ()));
    let stuck = || STUCK.0.lock().unwrap_or_else(PoisonError::into_inner);
    until("the command is at work", || *stuck());
    let subscribing =
        std::thread::spawn(move || second.subscr_event("P_BOG", Kind::Period, Filter::everyone()).map(|_| second));
    let leaving = std::thread::spawn(move || third.release_pin("P_BOG"));
    let asking = std::thread::spawn({
        let fourth = fourth.clone();
        move || fourth.issue_cmd("P_BOG", &Command::CpuStates).map(|_| ())
    });
    // Whether they are at the pin by now or come while the other is served: neither may delay it.
    std::thread::sleep(std::time::Duration::from_millis(100));
    another_is_served(&core);
    assert!(!command.is_finished() && !subscribing.is_finished() && !leaving.is_finished() && !asking.is_finished());
    let parting = std::thread::spawn(move || fourth.release_pin("P_BOG"));
    let uses = || core.pins().iter().any(|pin| pin.users.iter().any(|user| user == "fourth"));
    until("the fourth gave the pin back", || !uses());
    *stuck() = false;
    STUCK.1.notify_all();
    command.join().expect("no panic").expect("done");
    leaving.join().expect("no panic").expect("released");
    parting.join().expect("no panic").expect("released");
    let refused = asking.join().expect("no panic").expect_err("it gave the pin back").to_string();
    assert!(refused.contains("does not use pin P_BOG"), "{refused}");
    let second = subscribing.join().expect("no panic").expect("subscribed");
    assert_eq!(second.subscriptions().len(), 1);
}
