//! Two processes that call each other: guests over a channel; and, as rivals, what the machine
//! needs at the least: a pair of cache lines in shared memory on two CPUs, and a pair of futexes on
//! one.

use super::guest::{batches, gate};
use orbit_linux::map::Mapping;
use orbit_linux::{futex, memfd, process, sched};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A request or a reply, in a cache line of its own.
#[repr(C, align(64))]
struct Line {
    count: AtomicU32,
    words: [AtomicU64; 6],
}

/// Puts the two sides of a pair on two CPUs, or on one. Where there is one CPU only, both are on
/// it.
fn settle(is_child: bool, awake: bool) {
    let cpus = sched::affinity(0).unwrap_or_default();
    let cpu = if is_child && awake { cpus.first() } else { cpus.last() };
    if let Some(cpu) = cpu {
        // On one CPU where that is possible; the figure is right without.
        let _ = sched::set_affinity(0, &[*cpu]);
    }
}

/// Forks a process that runs `serves` until this one has measured `once`, in cycles.
fn with_server(awake: bool, serves: impl FnOnce(), once: impl FnMut()) -> io::Result<f64> {
    // SAFETY: this process has one thread; the child serves until its parent kills it.
    let Some(child) = (unsafe { process::fork() })? else {
        // A parent that is killed must not leave a process that spins.
        let _ = process::set_parent_death_signal(libc::SIGKILL);
        settle(true, awake);
        serves();
        process::end(0);
    };
    settle(false, awake);
    let cycles = batches(once);
    process::kill_child(child);
    Ok(cycles)
}

/// A call of another guest and its reply.
pub fn guests(awake: bool) -> io::Result<f64> {
    let gate = gate()?;
    let serves = || {
        while let Ok(words) = gate.receive(1) {
            let _ = gate.reply(1, words[0] as i64 + 1);
        }
    };
    let mut wrong = 0;
    let once = || wrong += u32::from(!matches!(gate.call_guest(1, &[6, 0, 0, 0, 0, 0]), Ok(7)));
    let cycles = with_server(awake, serves, once)?;
    if wrong == 0 { Ok(cycles) } else { Err(io::Error::other(format!("{wrong} calls went wrong"))) }
}

/// Two lines of memory that processes share.
fn lines() -> io::Result<&'static [Line; 2]> {
    let memory = memfd::create("orbit-bench-lines", 4096, false)?;
    let (address, _) = Mapping::shared(memory.as_fd(), 4096, true, true)?.leak();
    // SAFETY: aligned to a page, large enough, zeroed, never unmapped; only atomics are in it.
    Ok(unsafe { &*std::ptr::with_exposed_provenance(address) })
}

/// Writes a line: six words, then its count.
fn write(line: &Line, count: u32) {
    for (word, nth) in line.words.iter().zip(0..) {
        word.store(nth, Ordering::Relaxed);
    }
    line.count.store(count, Ordering::SeqCst);
}

/// The rival of guests that are awake: nothing but two lines, on which each side spins.
pub fn bare_lines() -> io::Result<f64> {
    let [request, reply] = lines()?;
    let until = |line: &Line, count: u32| {
        while line.count.load(Ordering::Acquire) != count {
            std::hint::spin_loop();
        }
        line.words.iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>()
    };
    let serves = || {
        for count in 1.. {
            until(request, count);
            write(reply, count);
        }
    };
    let mut count = 0;
    let once = || {
        count += 1;
        write(request, count);
        std::hint::black_box(until(reply, count));
    };
    with_server(true, serves, once)
}

/// The rival of guests that sleep: nothing but two futexes, on one CPU.
pub fn bare_futexes() -> io::Result<f64> {
    let [request, reply] = lines()?;
    let until = |line: &Line, count: u32| {
        while line.count.load(Ordering::Acquire) != count {
            // Woken or not, the word decides.
            let _ = futex::wait(&line.count, count - 1, None);
        }
    };
    let send = |line: &Line, count: u32| {
        write(line, count);
        futex::wake(&line.count, 1);
    };
    let serves = || {
        for count in 1.. {
            until(request, count);
            send(reply, count);
        }
    };
    let mut count = 0;
    let once = || {
        count += 1;
        send(request, count);
        until(reply, count);
    };
    with_server(false, serves, once)
}

/// What the paper compares with: two pipes, on one CPU.
pub fn pipes() -> io::Result<f64> {
    use std::io::{Read, Write};
    let ((mut request, to_server), (mut reply, to_caller)) = (io::pipe()?, io::pipe()?);
    let serves = || {
        let mut bytes = [0; 48];
        // Ends with its parent.
        while request.read_exact(&mut bytes).is_ok() && (&to_caller).write_all(&bytes).is_ok() {}
    };
    let mut wrong = 0;
    let once = || {
        let mut bytes = [0; 48];
        wrong += u32::from((&to_server).write_all(&bytes).is_err() || reply.read_exact(&mut bytes).is_err());
    };
    let cycles = with_server(false, serves, once)?;
    if wrong == 0 { Ok(cycles) } else { Err(io::Error::other(format!("{wrong} calls went wrong"))) }
}
