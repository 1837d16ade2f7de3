//! P_SYSC, P_FILE, P_NET and P_IPC hold calls of a program back, reject them, or let them pass and
//! report them; and leave the program as it was.

mod common;
use common::{Forked, Guest, event, take_all, until};
use orbit_rmk::{CallVerdict, Client, Command, Core, Event, Filter, Kind, Verdict};
use std::{
    io::Write,
    sync::atomic::{AtomicI64, Ordering::SeqCst},
    time::Duration,
};

/// Words that the test and its guest share: how often the guest went round, and what its call gave
/// last.
struct Shared(*mut [AtomicI64; 4]);

impl Shared {
    fn new() -> Shared {
        // SAFETY: a new mapping, shared with the children made afterwards; zeros are a value of it.
        // It stays until the test ends.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Shared(at.cast())
    }
    fn word(&self, n: usize) -> &AtomicI64 {
        // SAFETY: the page is never unmapped.
        unsafe { &(*self.0)[n] }
    }
    /// The guest goes round again and again.
    fn goes_on(&self) -> bool {
        let before = self.word(0).load(SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        self.word(0).load(SeqCst) > before + 1
    }
}

/// A child that makes a call over and over, and says what came of it: negative is the error.
fn caller(shared: &Shared, mut call: impl FnMut() -> i64) -> Forked {
    Forked::new(|| {
        loop {
            let answer = call();
            // SAFETY: reads the thread's own errno.
            let answer = if answer < 0 { -i64::from(unsafe { *libc::__errno_location() }) } else { answer };
            shared.word(1).store(answer, SeqCst);
            shared.word(0).fetch_add(1, SeqCst);
            // SAFETY: no pointers are passed.
            unsafe { libc::usleep(1000) };
        }
    })
}

fn client(core: &Core, name: &str, pin: &str) -> Client {
    let client = core.client(name);
    client.use_pin(pin).expect(pin);
    client.subscr_event(pin, Kind::CallIntercepted, Filter::everyone()).expect("a subscription");
    client
}

/// True if the child may be traced here.
fn intercepts(client: &Client, pin: &str, pid: u32, calls: &[i64], verdict: CallVerdict) -> bool {
    let calls = calls.iter().map(|call| *call as u32).collect();
    match client.issue_cmd(pin, &Command::CallIntercept { pid, calls, verdict }) {
        Ok(_) => true,
        Err(error) => {
            println!("SKIP: needs the right to trace a child ({error})");
            false
        }
    }
}

fn decide(client: &Client, pin: &str, held: &Event, verdict: CallVerdict) {
    client.issue_cmd(pin, &Command::CallDecide { ticket: held.values[0], verdict }).expect("decided");
}

fn is_traced(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("alive");
    !status.contains("TracerPid:\t0\n")
}

#[test]
fn a_call_is_held_then_made_then_refused_then_free() {
    // Works without kernel programs too.
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let (module, shared) = (client(&core, "holds", "P_SYSC"), Shared::new());
    // SAFETY: a call without pointers.
    let guest = caller(&shared, || unsafe { libc::syscall(libc::SYS_getpgid, 0) });
    let pid = guest.pid();
    until("the guest goes round", || shared.word(0).load(SeqCst) > 3);
    if !intercepts(&module, "P_SYSC", pid, &[libc::SYS_getpgid], CallVerdict::Hold) {
        return;
    }
    let held = event(&module, "a held call", |event| event.values[0] != 0);
    assert_eq!((held.pid, held.tid, held.values[1]), (pid, pid, libc::SYS_getpgid as u64));
    assert!(!shared.goes_on(), "it is held");
    let stranger = client(&core, "stranger", "P_SYSC");
    let decision = Command::CallDecide { ticket: held.values[0], verdict: CallVerdict::Pass };
    stranger.issue_cmd("P_SYSC", &decision).expect_err("not its own");
    decide(&module, "P_SYSC", &held, CallVerdict::Pass);
    let again = event(&module, "the next one", |event| event.values[0] != 0);
    assert!(shared.word(1).load(SeqCst) > 0, "the first was made");
    assert!(take_all(&stranger).is_empty(), "a module that intercepts nothing receives nothing");
    decide(&module, "P_SYSC", &again, CallVerdict::Refuse { errno: libc::EXDEV as u32 });
    event(&module, "a third", |event| event.values[0] != 0);
    assert_eq!(shared.word(1).load(SeqCst), i64::from(-libc::EXDEV));

    assert!(intercepts(&module, "P_SYSC", pid, &[libc::SYS_getpgid], CallVerdict::Refuse { errno: 5 }));
    module
        .issue_cmd("P_SYSC", &Command::CallDecide { ticket: again.values[0], verdict: CallVerdict::Pass })
        .expect_err("decided already");
    module.issue_cmd("P_SYSC", &Command::CallRelease { pid }).expect("released");
    until("it is free", || !is_traced(pid));
    until("it continues as before", || shared.goes_on() && shared.word(1).load(SeqCst) > 0);
}

#[test]
fn rejected_and_reported_without_a_pause_in_threads_made_later_too() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let (module, shared) = (client(&core, "refuses", "P_SYSC"), Shared::new());
    extern "C" fn second(shared: *mut libc::c_void) -> *mut libc::c_void {
        loop {
            // SAFETY: the words of `Shared`, which stay; calls without pointers.
            unsafe {
                (*shared.cast::<[AtomicI64; 4]>())[2].store(libc::syscall(libc::SYS_getpgid, 0), SeqCst);
                libc::usleep(500);
            }
        }
    }
    let guest = Forked::new(|| {
        while shared.word(3).load(SeqCst) == 0 {
            // SAFETY: no pointers are passed.
            unsafe { libc::usleep(500) };
        }
        // SAFETY: a thread that uses what stays; the child of a process with threads may make one
        // with this C library.
        unsafe {
            let mut thread = std::mem::zeroed();
            libc::pthread_create(&raw mut thread, std::ptr::null(), second, shared.0.cast());
            loop {
                libc::pause();
            }
        }
    });
    let verdict = CallVerdict::Refuse { errno: libc::EPERM as u32 };
    if !intercepts(&module, "P_SYSC", guest.pid(), &[libc::SYS_getpgid], verdict) {
        return;
    }
    shared.word(3).store(1, SeqCst);
    let reported = event(&module, "a rejected call", |_| true);
    assert_eq!((reported.pid, reported.values[0]), (guest.pid(), 0));
    assert_ne!(reported.tid, guest.pid(), "of the thread made later");
    until("it was rejected", || shared.word(2).load(SeqCst) == -1);
    let error = module
        .issue_cmd(
            "P_SYSC",
            &Command::CallIntercept { pid: guest.pid(), calls: vec![], verdict: CallVerdict::Refuse { errno: 512 } },
        )
        .expect_err("no error of a call")
        .to_string();
    assert!(error.contains("512") && error.contains("511"), "{error}");
}

#[test]
fn a_pin_holds_back_what_belongs_to_it_and_the_strictest_verdict_counts() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let (files, channels) = (client(&core, "files", "P_FILE"), client(&core, "channels", "P_IPC"));
    let (network, shared) = (client(&core, "network", "P_NET"), Shared::new());
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written to a live array.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) }, 0);
    // SAFETY: plain calls with names and buffers that live.
    let guest = caller(&shared, || unsafe {
        let file = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
        libc::write(file, c"x".as_ptr().cast(), 1);
        libc::close(file);
        libc::write(ends[1], c"x".as_ptr().cast(), 1) as i64
    });
    let writes = [libc::SYS_write];
    if !intercepts(&files, "P_FILE", guest.pid(), &writes, CallVerdict::Pass) {
        return;
    }
    assert!(intercepts(&channels, "P_IPC", guest.pid(), &writes, CallVerdict::Pass));
    assert!(intercepts(&network, "P_NET", guest.pid(), &[], CallVerdict::Hold));
    let to_file = event(&files, "a write to the file", |_| true);
    let to_pipe = event(&channels, "a write to the pipe", |_| true);
    assert_ne!(to_file.values[2], to_pipe.values[2], "other descriptors");
    assert_eq!(to_pipe.values[2], ends[1] as u64);
    until("it continues", || shared.goes_on());
    assert!(take_all(&network).is_empty(), "no call of its own");

    // Two modules on one pin: each is notified, the strictest verdict holds, and its end is not the
    // other's.
    let strict = client(&core, "strict", "P_IPC");
    assert!(intercepts(&strict, "P_IPC", guest.pid(), &writes, CallVerdict::Hold));
    let held = event(&strict, "held", |event| event.values[0] != 0);
    event(&channels, "reported too", |event| event.values[0] == held.values[0]);
    assert!(!shared.goes_on());
    strict.release_pin("P_IPC").expect("released");
    until("it continues", || shared.goes_on());
    take_all(&channels);
    event(&channels, "the other still gets reports", |event| event.values[0] == 0);
    for end in ends {
        // SAFETY: the test's own descriptors, closed once.
        unsafe { libc::close(end) };
    }
}

#[test]
fn a_wait_is_not_cut_short_by_the_beginning_nor_by_the_end() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let (module, shared) = (client(&core, "waits", "P_SYSC"), Shared::new());
    let signals = core.client("signals");
    signals.use_pin("P_SIG").expect("P_SIG");
    // SAFETY: plain calls with a live local.
    let guest = caller(&shared, || unsafe {
        let epoll = libc::epoll_create1(0);
        let mut event: libc::epoll_event = std::mem::zeroed();
        shared.word(2).store(1, SeqCst);
        i64::from(libc::epoll_wait(epoll, &raw mut event, 1, -1))
    });
    let pid = guest.pid();
    let asleep = || {
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        call.starts_with(&format!("{} ", libc::SYS_epoll_wait))
    };
    for _ in 0..5 {
        until("it waits", asleep);
        if !intercepts(&module, "P_SYSC", pid, &[libc::SYS_getpgid], CallVerdict::Hold) {
            return;
        }
        until("it waits again", asleep);
        let signal = Command::SignalIntercept { pid, signals: vec![], verdict: Verdict::Drop };
        signals.issue_cmd("P_SIG", &signal).expect("its signals too");
        module.issue_cmd("P_SYSC", &Command::CallRelease { pid }).expect("released");
        assert!(is_traced(pid), "for its signals");
        signals.issue_cmd("P_SIG", &Command::SignalRelease { pid }).expect("released");
        until("it is free", || !is_traced(pid));
    }
    until("it waits still", asleep);
    assert_eq!(shared.word(0).load(SeqCst), 0, "no wait has ended: {}", shared.word(1).load(SeqCst));
}

#[test]
fn it_holds_over_exec_and_not_for_processes_made_meanwhile() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = client(&core, "execs", "P_SYSC");
    // The shell waits for a line; then it makes a process that ends at once, and becomes another
    // program.
    let mut guest = Guest::shell("read line; (cd /); exec sh -c 'cd /usr; exec cat'");
    if !intercepts(&module, "P_SYSC", guest.pid(), &[libc::SYS_chdir], CallVerdict::Pass) {
        return;
    }
    guest.0.stdin.as_mut().expect("a pipe").write_all(b"go\n").expect("written");
    let reported = event(&module, "a call of the second program", |_| true);
    assert_eq!(
        (reported.pid, reported.values[1]),
        (guest.pid(), libc::SYS_chdir as u64),
        "of itself, not of its child"
    );
    until("it is the third program", || {
        std::fs::read_to_string(format!("/proc/{}/comm", guest.pid())).is_ok_and(|comm| comm == "cat\n")
    });
    assert!(take_all(&module).is_empty(), "one call was asked for");
    assert!(is_traced(guest.pid()));
}

#[test]
fn what_nobody_can_decide_about_is_not_held() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let (module, shared) = (core.client("deaf"), Shared::new());
    module.use_pin("P_SYSC").expect("P_SYSC");
    // SAFETY: a call without pointers.
    let guest = caller(&shared, || unsafe { libc::syscall(libc::SYS_getpgid, 0) });
    let pid = guest.pid();
    if !intercepts(&module, "P_SYSC", pid, &[libc::SYS_getpgid], CallVerdict::Hold) {
        return;
    }
    assert!(is_traced(pid));
    until("no module listens", || shared.goes_on());
    // Once somebody does, it is held; and when the module goes, with the event in its queue, it is
    // free.
    module.subscr_event("P_SYSC", Kind::CallIntercepted, Filter::everyone()).expect("a subscription");
    let held = event(&module, "held", |event| event.values[0] != 0);
    let wrong = Command::SignalDecide { ticket: held.values[0], verdict: Verdict::Pass };
    module.use_pin("P_SIG").expect("P_SIG");
    module.issue_cmd("P_SIG", &wrong).expect_err("no signal");
    assert!(!shared.goes_on());
    drop(module);
    until("it is free", || !is_traced(pid) && shared.goes_on());
}

#[test]
fn one_that_is_killed_while_it_is_held_ends_for_its_parent() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let (module, shared) = (client(&core, "holds", "P_SYSC"), Shared::new());
    // SAFETY: a call without pointers.
    let guest = caller(&shared, || unsafe { libc::syscall(libc::SYS_getpgid, 0) });
    if !intercepts(&module, "P_SYSC", guest.pid(), &[libc::SYS_getpgid], CallVerdict::Hold) {
        return;
    }
    let held = event(&module, "held", |event| event.values[0] != 0);
    // SAFETY: our own child, not reaped yet.
    unsafe { libc::kill(guest.pid() as i32, libc::SIGKILL) };
    let pid = guest.pid();
    assert_eq!(guest.wait() & 0x7f, libc::SIGKILL);
    until("the pin has seen it", || {
        let decision = Command::CallDecide { ticket: held.values[0], verdict: CallVerdict::Pass };
        module.issue_cmd("P_SYSC", &decision).is_err()
    });
    module
        .issue_cmd("P_SYSC", &Command::CallIntercept { pid, calls: vec![], verdict: CallVerdict::Pass })
        .expect_err("it is gone");
}
