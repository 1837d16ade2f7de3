//! Inspects a running process: `inspect stacks PID`, `inspect waits PID`, `inspect rings PID...`.

use orbit_inspect::python;
use orbit_inspect::rings::RingWatch;
use orbit_inspect::stacks::{End, Unwinder};
use orbit_inspect::waits::Watched;
use std::process::ExitCode;

fn main() -> ExitCode {
    // SAFETY: plain call at the start; a reader such as `head` that leaves early ends this program
    // quietly.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let args: Vec<String> = std::env::args().skip(1).collect();
    let pids: Vec<i32> = args.iter().skip(1).filter_map(|a| a.parse().ok()).collect();
    let (Some(what), Some(&pid)) = (args.first(), pids.first()) else {
        eprintln!("usage: inspect stacks PID | waits PID | rings PID...");
        return ExitCode::from(2);
    };
    let done = match what.as_str() {
        "stacks" => stacks(pid),
        "waits" => waits(pid),
        "rings" => rings(&pids),
        other => {
            eprintln!("{other} is none of stacks, waits, rings");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn stacks(pid: i32) -> Result<(), orbit_inspect::Error> {
    let mut unwinder = Unwinder::new(pid)?;
    unwinder.prepare()?;
    let stacks = unwinder.capture(&[]);
    for s in &stacks {
        println!("thread {} {} ({:?}, stopped {:?})", s.tid, s.comm, s.how, s.stopped);
        if let Some(e) = &s.error {
            println!("    {e}");
        }
        for (i, f) in s.frames.iter().enumerate() {
            println!("  {i:>3} {f}");
        }
        if s.end != End::Complete {
            println!("      {:?}", s.end);
        }
    }
    match python::find(pid) {
        Ok(None) => {}
        Ok(Some(p)) => {
            println!("Python {}.{}, lock held by {:?}", p.version().0, p.version().1, p.lock_holder());
            for t in p.stacks() {
                println!("thread {} ({}{})", t.tid, t.sure, if t.cut { ", cut" } else { "" });
                for f in t.frames {
                    println!("      {} at {}:{}", f.function, f.file, f.line.unwrap_or(0));
                }
            }
        }
        Err(e) => println!("{e}"),
    }
    println!("{} threads stopped for {:?} in all", stacks.len(), unwinder.stopped());
    Ok(())
}

fn waits(pid: i32) -> Result<(), orbit_inspect::Error> {
    let mut watched = Watched::new(pid)?;
    for t in watched.scan() {
        let wait = watched.wait_of(t.tid);
        println!("{} {} ({:?}, {} us of CPU) waits for {wait}", t.tid, t.comm, t.state, t.cpu_ns / 1000);
    }
    Ok(())
}

fn rings(pids: &[i32]) -> Result<(), orbit_inspect::Error> {
    let rings = RingWatch::new(pids)?.scan();
    for r in &rings {
        println!("{r}");
    }
    println!("{} rings", rings.len());
    Ok(())
}
