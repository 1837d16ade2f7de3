//! The paper's Figure 5: a call to a service and back, while both sides touch a working set that
//! grows. The service is another process behind pipes, a thread of the sandbox, or an upcall in the
//! caller itself.

use super::child;
use super::measures::{Found, Plain, Row, host, work};
use crate::plot::{Chart, Series};
use crate::reach::{Reach, ratio};
use crate::stats::{Samples, median};
use orbit_console::out::Failure;
use orbit_linux::{pidfd, process, sched};
use orbit_services::layout as abi;
use orbit_services::{Dispatch, sys};
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// Bytes that each side touches: a service's data is at most 32 KiB.
const SIZES: [usize; 6] = [64, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 24 << 10];

/// Touches a byte of each cache line.
fn touch(memory: &mut [u8]) {
    for byte in memory.iter_mut().step_by(64) {
        *byte = black_box(byte.wrapping_add(1));
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Measures and draws.
pub fn run(found: &mut Found, cpu: usize, n: usize) -> Result<Chart, Failure> {
    let (mut process, mut thread, mut upcall) = (Vec::new(), Vec::new(), Vec::new());
    for bytes in SIZES {
        let pipes = by_process(cpu, n, bytes)?;
        let sandbox = by_thread(cpu, n, bytes)?;
        let signal = by_upcall(cpu, n, bytes)?;
        let (a, b, c) = (pipes.summary(), sandbox.summary(), signal.summary());
        let x = bytes as f64;
        process.push((x, median(a)));
        thread.push((x, median(b)));
        upcall.push((x, median(c)));
        for (name, ours) in [("a sandbox thread", b), ("an upcall", c)] {
            let what = format!("call to {name} and back, {bytes} bytes touched on each side");
            let bound = Reach::at_most(what.clone(), ratio(median(ours), median(a)), 1.0, "times a process");
            found.add(Row::new(what, "us", Plain {}).ours(ours).rival("process behind pipes", a), vec![bound]);
        }
    }
    Ok(Chart {
        title: "A call to a service and back (the paper's Figure 5)".to_owned(),
        x: "bytes touched on each side".to_owned(),
        y: "us, median".to_owned(),
        series: vec![
            Series::new("process behind pipes", process),
            Series::new("sandbox thread", thread),
            Series::new("upcall", upcall),
        ],
    })
}

/// The service is a process of its own on the same CPU.
fn by_process(cpu: usize, n: usize, bytes: usize) -> Result<Samples, Failure> {
    let ((mut asked, mut ask), (mut answered, mut answer)) = (std::io::pipe()?, std::io::pipe()?);
    // SAFETY: this process has one thread, so the child finds every lock free; it ends in this
    // block.
    let server = match unsafe { process::raw_fork(0) }? {
        Some(server) => server,
        None => {
            process::close_all_but(&[0, 1, 2, asked.as_raw_fd(), answer.as_raw_fd()]);
            let _ = process::set_parent_death_signal(libc::SIGKILL);
            let _ = sched::set_affinity(0, &[cpu]);
            let mut memory = vec![0u8; bytes];
            let mut word = [0u8; 8];
            while asked.read_exact(&mut word).is_ok() {
                touch(&mut memory);
                if answer.write_all(&word).is_err() {
                    break;
                }
            }
            process::end(0)
        }
    };
    drop((asked, answer));
    let mut memory = vec![0u8; bytes];
    let before = sched::affinity(0)?;
    sched::set_affinity(0, &[cpu])?;
    let mut samples = Samples::default();
    let mut outcome = Ok(());
    for nth in 0..n + 50 {
        touch(&mut memory);
        let began = sys::now();
        let mut word = (nth as u64).to_ne_bytes();
        outcome = ask.write_all(&word).and_then(|()| answered.read_exact(&mut word));
        if outcome.is_err() {
            break;
        }
        touch(&mut memory);
        if nth >= 50 {
            samples.add_figure(us(sys::now() - began));
        }
    }
    sched::set_affinity(0, &before)?;
    if let Some(fd) = &server.pidfd {
        let _ = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
        let _ = pidfd::wait(fd.as_fd(), false);
    }
    outcome?;
    Ok(samples)
}

/// The service has a thread of its own in the sandbox; it answers by an attribute that the caller
/// publishes.
fn by_thread(cpu: usize, n: usize, bytes: usize) -> Result<Samples, Failure> {
    let mut host = host(cpu)?;
    let invitation = host.invitation();
    let load = |pid: i32| {
        let grant = orbit_services::GrantRequest::set("memory:cache", pid);
        work(&mut host, Dispatch::Thread, "100ms/100ms", (bytes as u32, false), vec![grant])
    };
    let publish = |out: &mut Vec<f64>| {
        let Some(answer) = abi::table().iter().find(|place| place.process.load(Acquire) == sys::process()) else { return };
        let control = abi::control(abi::FIRST_SERVICE);
        let mut memory = vec![0u8; bytes];
        for nth in 0..n + 50 {
            touch(&mut memory);
            let (began, seen) = (sys::now(), answer.changes.load(Acquire));
            control.queue.put(abi::POSTED, nth as u64);
            control.wake.fetch_add(1, SeqCst);
            sys::wake(&control.wake);
            while answer.changes.load(Acquire) == seen {
                sys::sleep_on(&answer.changes, seen, 1_000_000_000);
            }
            touch(&mut memory);
            if nth >= 50 {
                out.push(us(sys::now() - began));
            }
        }
    };
    let (samples, _) = child::run_published(cpu, invitation, load, publish)?;
    Ok(samples)
}

/// The service is an upcall in the caller.
fn by_upcall(cpu: usize, n: usize, bytes: usize) -> Result<Samples, Failure> {
    let mut host = host(cpu)?;
    work(&mut host, Dispatch::Upcall, "100ms/100ms", (bytes as u32, false), Vec::new())?;
    let (samples, ()) = child::run(cpu, Some(host.invitation()), |_| Ok(()), |out| {
        let (process, thread) = (sys::process(), sys::thread());
        let control = abi::control(abi::FIRST_SERVICE);
        let mut memory = vec![0u8; bytes];
        super::measures::warm(process, thread);
        for nth in 0..n + 50 {
            touch(&mut memory);
            let before = control.runs.load(Relaxed);
            let began = sys::now();
            super::measures::upcall(process, thread);
            touch(&mut memory);
            let ended = sys::now();
            if nth >= 50 && control.runs.load(Relaxed) != before {
                out.push(us(ended - began));
            }
        }
    })?;
    Ok(samples)
}
