//! Where the CPU has protection keys, a slot is opened and closed by them. `scripts/lab.sh --keys`
//! runs this in a machine whose CPU is emulated and has them, and passes on the lines that begin
//! with `{`.

mod common;

use orbit_services::layout::{self as abi, FIRST_SERVICE};
use orbit_services::{Budget, Dispatch, Host, Invitation, Options, Spec, gate, objects, sys};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// No tick comes by itself, and no agent takes an event, within this.
const NEVER: Duration = Duration::from_secs(3600);
const QUIET: usize = FIRST_SERVICE;
const SPINNING: usize = FIRST_SERVICE + 1;

fn rights() -> u32 {
    let rights: u32;
    // SAFETY: only called where the process has a key: it reads a register.
    unsafe { std::arch::asm!("rdpkru", out("eax") rights, in("ecx") 0, out("edx") _) };
    rights
}

fn cycles() -> u64 {
    // SAFETY: reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Median and 99th percentile of so many runs, in cycles.
fn row(measure: &str, n: usize, mut run: impl FnMut()) {
    let mut samples: Vec<u64> = (0..n)
        .map(|_| {
            let began = cycles();
            run();
            cycles() - began
        })
        .collect();
    samples.sort_unstable();
    let (p50, p99) = (samples[n / 2], samples[n * 99 / 100]);
    println!("{{\"measure\":\"{measure}\",\"unit\":\"cycles\",\"ours\":{{\"p50\":{p50},\"p99\":{p99},\"n\":{n}}}}}");
}

fn upcall(slot: usize) {
    abi::control(slot).due.store(sys::now(), SeqCst);
    sys::signal_thread(sys::process(), sys::thread(), 60);
}

#[test]
#[ignore = "the program of members"]
fn keyed_member() {
    let Ok(value) = std::env::var(Invitation::VARIABLE) else { return };
    Invitation::parse(&value).expect("an invitation").accept().expect("joining");
    // SAFETY: a member has its own private part; its words are atomic.
    let key = || gate::key_of(unsafe { (*abi::private()).gates[QUIET].load(Relaxed) });
    assert_eq!(key(), None, "a slot is mapped under a key by its first run");
    upcall(QUIET);
    let key = key().expect("the slot has a key after its first run");
    assert_eq!(abi::control(QUIET).upcalls.load(Relaxed), 1);
    let before = rights();
    assert_eq!(before >> (2 * key) & 1, 1, "the key is closed outside of handlers: {before:#x}");
    upcall(QUIET);
    assert_eq!(rights(), before, "a return puts the rights back");

    // SAFETY: the child makes one access and is killed for it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: an address of the region; the access faults, which is what this is about.
        unsafe { abi::record(QUIET).cast::<u8>().write_volatile(1) };
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: an own child and a local.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "a closed slot faults: {status:#x}");

    for nth in 1..=100 {
        upcall(SPINNING);
        assert_eq!(abi::control(SPINNING).overruns.load(Relaxed), nth, "a handler that spins is aborted");
        assert_eq!(rights(), before, "an abort puts the rights back");
    }
    row("slot opened and closed by key", 2000, || gate::close(gate::open(QUIET).expect("the gate opens")));
    let at = abi::PROTECTED + 8 * abi::SLOT;
    for length in [4096, abi::SLOT] {
        sys::advise(at, length, 1);
        row(&format!("opened and closed by mprotect, {} KiB", length / 1024), 2000, || {
            sys::protect(at, length, 3);
            sys::protect(at, length, 0);
        });
    }
    row("upcall there and back, by key", 2000, || upcall(QUIET));
    println!("joined");
    std::io::stdin().read_exact(&mut [0]).expect("a byte once it has left");
    let keys = (0..20).take_while(|_| sys::key_alloc() > 0).count();
    assert_eq!(keys, 15, "leaving gives the keys back");
    println!("left");
}

fn work(host: &mut Host, spins: bool) {
    let spec = Spec {
        name: "work".to_owned(),
        owner: std::process::id() as i32,
        budget: Budget::new(Duration::from_millis(1), Duration::from_millis(1)).expect("a budget"),
        period: NEVER,
        dispatch: Dispatch::Upcall,
        raise: None,
        arguments: [0, u32::from(spins)].iter().flat_map(|word| word.to_ne_bytes()).collect(),
        grants: Vec::new(),
    };
    host.load(&spec, objects::WORK).expect("loaded");
}

#[test]
fn handlers_run_behind_a_key_and_leaving_gives_it_back() {
    let key = sys::key_alloc();
    if key < 1 {
        return println!(
            "SKIP: needs protection keys: scripts/lab.sh --keys runs this on an emulated CPU that has them"
        );
    }
    sys::key_free(key as i32);
    let options =
        Options { cpus: vec![common::cpu()], grace: NEVER, limit: 8.0, signals: (60, 61), ..Options::default() };
    let mut host = Host::new(options).expect("a host");
    work(&mut host, false);
    work(&mut host, true);
    let mut member = Command::new(std::env::current_exe().expect("own program"))
        .args(["keyed_member", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(Invitation::VARIABLE, host.invitation().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a member");
    let mut lines = BufReader::new(member.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let mut rows = 0;
    assert!(
        lines.any(|line| {
            rows += usize::from(line.contains("\"measure\""));
            println!("{line}");
            line.ends_with("joined")
        }),
        "the member ended before its time"
    );
    assert_eq!(rows, 4);
    host.leave(member.id() as i32).expect("it leaves");
    member.stdin.take().expect("piped").write_all(b"x").expect("it waits");
    assert!(lines.any(|line| line.ends_with("left")));
    assert!(member.wait().expect("own child").success());
}
