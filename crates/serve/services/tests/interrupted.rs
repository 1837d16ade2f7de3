//! What an interrupted program notices: nothing. No call of it ends with EINTR, and a runaway in it
//! is aborted soon after its budget. 10,000 calls and 10,000 runaways with ORBIT_TEST_FULL=1.

mod common;

use common::{host, is_root, times};
use orbit_services::layout::{self as abi, FIRST_SERVICE};
use orbit_services::{Dispatch, Host, Invitation, Options, Spec, objects, sys};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

const NEVER: Duration = Duration::from_secs(3600);
const SIGNALS: (i32, i32) = (60, 61);

fn work(host: &mut Host, period: Duration, spins: bool) -> orbit_services::ServiceId {
    let spec = Spec {
        name: "work".to_owned(),
        owner: std::process::id() as i32,
        budget: "100us/500us".parse().expect("a budget"),
        period,
        dispatch: Dispatch::Upcall,
        raise: None,
        arguments: [0, u32::from(spins)].iter().flat_map(|word| word.to_ne_bytes()).collect(),
        grants: Vec::new(),
    };
    host.load(&spec, objects::WORK).expect("loaded")
}

fn member(host: &Host, program: &str) -> Child {
    Command::new(std::env::current_exe().expect("own program"))
        .args([program, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(Invitation::VARIABLE, host.invitation().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a member")
}

/// The numbers after `figures:` that the member writes at its end.
fn figures(mut member: Child) -> Vec<u64> {
    let lines = BufReader::new(member.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let found = lines.filter_map(|line| {
        let figures = line.split_once("figures:")?.1;
        Some(figures.split_whitespace().filter_map(|word| word.parse().ok()).collect())
    });
    let figures = found.last().expect("the member writes its figures");
    assert!(member.wait().expect("own child").success());
    figures
}

fn join() -> bool {
    let Ok(value) = std::env::var(Invitation::VARIABLE) else { return false };
    orbit_linux::sched::set_affinity(0, &[common::cpu()]).expect("own affinity");
    Invitation::parse(&value).expect("an invitation").accept().expect("joining");
    true
}

#[test]
#[ignore = "the program of members"]
fn calling_member() {
    if !join() {
        return;
    }
    let (mut interrupted, mut x) = (0, 1u32);
    let n = times(300, 10_000);
    for nth in 0..n {
        for _ in 0..20_000 {
            x = std::hint::black_box(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        }
        // Neither is restarted after a signal.
        interrupted += if nth % 2 == 0 {
            usize::from(sys::sleep_until(sys::now() + 50_000) == -4)
        } else {
            let time = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
            // SAFETY: no descriptors, and a local that outlives the call.
            let polled = unsafe { libc::ppoll(std::ptr::null_mut(), 0, &raw const time, std::ptr::null()) };
            usize::from(polled < 0)
        };
    }
    println!("figures: {interrupted} {n}");
}

#[test]
fn no_call_ends_with_eintr() {
    if !is_root() {
        return;
    }
    let mut host = host();
    host.start_ticks(Duration::from_micros(500));
    if host.upcalls() != orbit_services::Upcalls::Kernel {
        return println!("SKIP: needs ticks of the kernel: {}", host.no_ticks().unwrap_or_default());
    }
    let id = work(&mut host, Duration::from_micros(500), false);
    let member = member(&host, "calling_member");
    common::until("it joins", || host.add_member(member.id() as i32).is_ok());
    let figures = figures(member);
    let upcalls = host.status(id).expect("loaded").account.upcalls;
    println!("{} of {} calls ended with EINTR, with {upcalls} upcalls between", figures[0], figures[1]);
    assert!(figures[0] == 0 && upcalls > 0, "{figures:?}, {upcalls} upcalls");
}

/// Uses general and floating-point registers.
#[inline(never)]
fn checksum() -> u64 {
    let (mut x, mut n) = (1.5f64, 1u64);
    for i in 0..200u64 {
        n = std::hint::black_box(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
        x = x.mul_add(0.999_99, (n >> 40) as f64);
    }
    x.to_bits() ^ n
}

#[test]
#[ignore = "the program of members"]
fn spun_member() {
    if !join() {
        return;
    }
    let (n, expected) = (times(300, 10_000), checksum());
    let control = abi::control(FIRST_SERVICE);
    let mut over = Vec::new();
    while over.len() < n {
        let before = control.overruns.load(Relaxed);
        control.due.store(sys::now(), SeqCst);
        sys::signal_thread(sys::process(), sys::thread(), SIGNALS.0);
        assert_eq!(checksum(), expected, "an abort changed what this program computes");
        if control.overruns.load(Relaxed) != before {
            over.push(control.latest_overrun_ns.load(Relaxed));
        }
    }
    over.sort_unstable();
    println!("figures: {} {} {n}", over[n / 2], over[n * 99 / 100]);
}

#[test]
fn runaways_are_aborted_soon_after_their_budget() {
    if !is_root() {
        return;
    }
    let options =
        Options { cpus: vec![common::cpu()], grace: NEVER, limit: 8.0, signals: SIGNALS, ..Options::default() };
    let mut host = Host::new(options).expect("a host");
    let id = work(&mut host, NEVER, true);
    let figures = figures(member(&host, "spun_member"));
    let account = host.status(id).expect("loaded").account;
    println!("{} runaways aborted, {} and {} ns after their budget (p50, p99)", figures[2], figures[0], figures[1]);
    assert!(account.overruns >= figures[2] && account.faults == 0 && account.overruns == account.runs, "{account:?}");
    // CPU time, so that a loaded machine counts little; `orbit bench service` has the bounds.
    assert!(figures[0] < 500_000, "{figures:?}");
}
