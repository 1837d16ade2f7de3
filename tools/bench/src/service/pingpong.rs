//! The paper's Figure 5: a message to a service and its answer, while the application's working set
//! grows, in pages of data and in pages of instructions, 4,160 bytes apart as there. The service
//! has a small one of its own. It is another process behind pipes (the rival, on the same CPU and
//! on another one), a thread of the sandbox, or an upcall: called by the application itself, or, as
//! events from outside come, by a signal.

use super::child;
use super::measures::{self, Found, Plain, Row, host, work};
use crate::plot::{Chart, Series};
use crate::reach::{Reach, ratio};
use crate::stats::{Samples, Summary, median};
use orbit_console::out::Failure;
use orbit_linux::map::{Mapping, page_size};
use orbit_linux::{pidfd, process, sched};
use orbit_services::layout as abi;
use orbit_services::{Callee, Dispatch, sys};
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering::Relaxed;

/// Pages of the application's working set.
const PAGES: [usize; 7] = [1, 4, 8, 16, 32, 64, 128];
/// Bytes between two places that are touched: each in a page of its own, and in another set of the
/// cache.
const APART: usize = 4160;
/// Times that all ways take turns.
const ROUNDS: usize = 4;
/// Calls before those that count.
const WARM: usize = 20;

/// Where the service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Process,
    ProcessElsewhere,
    Thread,
    ThreadElsewhere,
    Called,
    Signalled,
}

impl Way {
    const ALL: [Way; 6] =
        [Way::Process, Way::ProcessElsewhere, Way::Thread, Way::ThreadElsewhere, Way::Called, Way::Signalled];

    fn name(self) -> &'static str {
        match self {
            Way::Process => "process behind pipes",
            Way::ProcessElsewhere => "process behind pipes, on another CPU",
            Way::Thread => "sandbox thread on the same CPU",
            Way::ThreadElsewhere => "sandbox thread",
            Way::Called => "upcall, called by the program",
            Way::Signalled => "upcall by a signal",
        }
    }

    /// Whether the issue asks for it to be faster than a process. A signal is how events from
    /// outside come, which is no call: to deliver it and to return from it costs what a pipe does.
    fn is_bounded(self) -> bool {
        matches!(self, Way::ThreadElsewhere | Way::Called)
    }
}

/// What the working set is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Data,
    Instructions,
}

impl Set {
    const ALL: [Set; 2] = [Set::Data, Set::Instructions];

    fn name(self) -> &'static str {
        match self {
            Set::Data => "data",
            Set::Instructions => "instructions",
        }
    }
}

/// A working set of the application.
struct Working {
    data: Vec<u8>,
    /// Jumps from page to page; the last returns.
    code: Option<Mapping>,
}

impl Working {
    fn new(set: Set, pages: usize) -> Result<Working, Failure> {
        const JUMP: u8 = 0xe9;
        const JUMP_LEN: usize = 5;
        const RETURN: u8 = 0xc3;
        if set == Set::Data {
            return Ok(Working { data: vec![1; pages * APART], code: None });
        }
        let mut bytes = vec![0u8; pages * APART];
        for page in 0..pages - 1 {
            let at = page * APART;
            bytes[at] = JUMP;
            bytes[at + 1..at + JUMP_LEN].copy_from_slice(&((APART - JUMP_LEN) as u32).to_le_bytes());
        }
        bytes[(pages - 1) * APART] = RETURN;
        let code = Mapping::anonymous(bytes.len().next_multiple_of(page_size()), true)?;
        // SAFETY: the mapping is writable, longer than the bytes, and nobody else has it.
        unsafe { code.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        if sys::protect(code.addr(), code.len(), libc::PROT_READ | libc::PROT_EXEC) < 0 {
            return Err(Failure::text("memory of the bench cannot be made executable"));
        }
        Ok(Working { data: Vec::new(), code: Some(code) })
    }

    /// Touches all of it.
    fn touch(&self) {
        for bytes in self.data.chunks_exact(APART) {
            black_box(bytes[0]);
        }
        if let Some(code) = &self.code {
            // SAFETY: the mapping holds jumps to each other and a return, which change no register.
            let run: extern "C" fn() = unsafe { std::mem::transmute(code.as_ptr()) };
            run();
        }
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Calls for each set in turn; the times of all of them, in that order.
fn time(n: usize, out: &mut Vec<f64>, mut call: impl FnMut(u64) -> bool) {
    for set in Set::ALL {
        for pages in PAGES {
            let Ok(working) = Working::new(set, pages) else { return };
            let mut done = 0;
            let mut nth = 0u64;
            while done < n + WARM && nth < 4 * (n + WARM) as u64 {
                nth += 1;
                working.touch();
                let began = sys::now();
                let is_answered = call(nth);
                working.touch();
                let ended = sys::now();
                if is_answered {
                    done += 1;
                    if done > WARM {
                        out.push(us(ended - began));
                    }
                }
            }
        }
    }
}

/// Measures and draws: a chart for each kind of working set.
pub fn run(found: &mut Found, cpu: usize, n: usize) -> Result<[Chart; 2], Failure> {
    let elsewhere = sched::affinity(0)?[0];
    let each = (n / ROUNDS).max(10);
    let empty = vec![Samples::default(); Set::ALL.len() * PAGES.len()];
    let mut all: Vec<Vec<Samples>> = Way::ALL.iter().map(|_| empty.clone()).collect();
    for _ in 0..ROUNDS {
        for (way, samples) in Way::ALL.into_iter().zip(&mut all) {
            let figures = match way {
                Way::Process => by_process(cpu, cpu, each)?,
                Way::ProcessElsewhere => by_process(elsewhere, cpu, each)?,
                Way::Thread => by_call(cpu, cpu, each, Dispatch::Thread)?,
                Way::ThreadElsewhere => by_call(elsewhere, cpu, each, Dispatch::Thread)?,
                Way::Called => by_call(cpu, cpu, each, Dispatch::Upcall)?,
                Way::Signalled => by_signal(cpu, each)?,
            };
            if figures.len() != samples.len() * each {
                return Err(Failure::text(format!("{}: {} answers of \
                    {}", way.name(), figures.len(), samples.len() * each)));
            }
            for (samples, figures) in samples.iter_mut().zip(figures.chunks_exact(each)) {
                samples.extend(figures);
            }
        }
    }
    let summary = |way: Way, at: usize| all[Way::ALL.iter().position(|other| *other == way).unwrap_or(0)][at].summary();
    for way in Way::ALL.into_iter().filter(|way| !matches!(way, Way::Process | Way::ProcessElsewhere)) {
        for (at, (set, pages)) in Set::ALL.iter().flat_map(|set| PAGES.map(|pages| (set, pages))).enumerate() {
            let (ours, same, other) = (summary(way, at), summary(Way::Process, at), summary(Way::ProcessElsewhere, at));
            let best = median(same).min(median(other));
            let what = format!("{}: a message and its answer, {pages} pages of {}", way.name(), set.name());
            let bound = Reach::at_most(what.clone(), ratio(median(ours), best), 1.0, "times a process");
            let row = Row::new(what, "us", Plain {}).ours(ours);
            let row = row.rival(Way::Process.name(), same).rival(Way::ProcessElsewhere.name(), other);
            found.add(row, way.is_bounded().then_some(bound).into_iter().collect());
        }
    }
    Ok(Set::ALL.map(|set| chart(set, &summary)))
}

fn chart(set: Set, summary: &impl Fn(Way, usize) -> Option<Summary>) -> Chart {
    let first = if set == Set::Data { 0 } else { PAGES.len() };
    let series = Way::ALL.map(|way| {
        let points = PAGES.iter().enumerate().map(|(nth, pages)| (*pages as f64, median(summary(way, first + nth))));
        Series::new(way.name(), points.collect())
    });
    Chart {
        title: format!("A message to a service and its answer (the paper's Figure 5, {})", set.name()),
        x: format!("pages of {} that the application touches", set.name()),
        y: "us, median".to_owned(),
        series: series.into(),
    }
}

/// The service is a process of its own.
fn by_process(cpu: usize, service_cpu: usize, n: usize) -> Result<Vec<f64>, Failure> {
    let ((mut asked, mut ask), (mut answered, mut answer)) = (std::io::pipe()?, std::io::pipe()?);
    // SAFETY: this process has one thread, so the child finds every lock free; it ends in this
    // block.
    let server = match unsafe { process::raw_fork(0) }? {
        Some(server) => server,
        None => {
            process::close_all_but(&[0, 1, 2, asked.as_raw_fd(), answer.as_raw_fd()]);
            let _ = process::set_parent_death_signal(libc::SIGKILL);
            let _ = sched::set_affinity(0, &[service_cpu]);
            let mut word = [0u8; 4];
            while asked.read_exact(&mut word).is_ok() && answer.write_all(&word).is_ok() {}
            process::end(0)
        }
    };
    drop((asked, answer));
    let before = sched::affinity(0)?;
    sched::set_affinity(0, &[cpu])?;
    let mut figures = Vec::new();
    time(n, &mut figures, |nth| {
        let mut word = (nth as u32).to_ne_bytes();
        ask.write_all(&word).and_then(|()| answered.read_exact(&mut word)).is_ok()
    });
    sched::set_affinity(0, &before)?;
    if let Some(fd) = &server.pidfd {
        let _ = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
        let _ = pidfd::wait(fd.as_fd(), false);
    }
    Ok(figures)
}

/// The application calls the service: a pure one runs in its thread, another in a thread of the
/// sandbox.
fn by_call(cpu: usize, service_cpu: usize, n: usize, dispatch: Dispatch) -> Result<Vec<f64>, Failure> {
    let mut host = host(service_cpu)?;
    let id = work(&mut host, dispatch, "50ms/100ms", (0, false), Vec::new())?.to_string();
    let (samples, ()) = child::run(cpu, Some(host.invitation()), |_| Ok(()), |out| {
        let Ok(callee) = Callee::find(&id) else { return };
        // Until agents have seen that runs are frequent: they check every 100 ms.
        let end = sys::now() + 250_000_000;
        while sys::now() < end {
            let _ = callee.call(1);
        }
        time(n, out, |nth| callee.call(nth).is_ok_and(|answer| answer == nth as i64));
    })?;
    drop(host);
    Ok(samples.figures().to_vec())
}

/// The service is an upcall that a signal starts in the application.
fn by_signal(cpu: usize, n: usize) -> Result<Vec<f64>, Failure> {
    let mut host = host(cpu)?;
    work(&mut host, Dispatch::Upcall, "50ms/100ms", (0, false), Vec::new())?;
    let (samples, ()) = child::run(cpu, Some(host.invitation()), |_| Ok(()), |out| {
        let (process, thread) = (sys::process(), sys::thread());
        let control = abi::control(abi::FIRST_SERVICE);
        measures::warm(process, thread);
        time(n, out, |_| {
            let before = control.runs.load(Relaxed);
            measures::upcall(process, thread);
            control.runs.load(Relaxed) != before
        });
    })?;
    Ok(samples.figures().to_vec())
}
