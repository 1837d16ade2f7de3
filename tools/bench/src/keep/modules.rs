//! What it costs that a module decides: a checkpoint, and a crash until the program is put back, by
//! keep's parts directly, by commands of a client in the core's process, and by the modules `tac`
//! and `recovery`, each in a process of its own.

use super::super::Bench;
use super::super::stats::Samples;
use super::kept::failed;
use super::pins::{Subject, addresses};
use super::{Own, Results};
use orbit_console::out::Failure;
use orbit_keep::engine::{self, Checkpoint, Options};
use orbit_linux::{poll, signals};
use orbit_modules::checkpoint::{Recovery, Tac};
use orbit_rmk::{Command, Core, Filter, Kind, ModuleOptions, Reply, Report};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// Of one round of each way.
const CRASHES: usize = 10;
const INTERVAL: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(30);

/// The rows; the ways take turns.
pub fn rows(rounds: usize, results: &mut Results, bench: &mut Bench) -> Result<(), Failure> {
    orbit::init().map_err(|error| Failure::text(error.to_string()))?;
    let core = orbit_modules::core().map_err(text)?;
    let mut taken: [Samples; 2] = Default::default();
    let mut back: [Samples; 3] = Default::default();
    for _ in 0..rounds {
        directly(&mut taken[0], &mut back[0])?;
        by_client(&core, &mut taken[1], &mut back[1])?;
        by_modules(&core, &mut back[2])?;
    }
    let [direct, client] = taken.map(|samples| samples.summary());
    results.add("a checkpoint, all of the call", "us", direct, &[("pins", client)], None, Own::default());
    let [direct, client, modules] = back.map(|samples| samples.summary());
    let rivals = [("pins", client), ("modules", modules)];
    results.add("a signal until the program is put back", "us", direct, &rivals, None, Own::default());
    bench.note("pins: commands of a client in the core's process; modules: tac and recovery, until recovery has \
        reported it".to_owned());
    Ok(())
}

fn text(error: impl std::fmt::Display) -> Failure {
    Failure::text(error.to_string())
}

fn crash(subject: &Subject) -> Result<(), Failure> {
    Ok(signals::send(subject.0.id() as i32, libc::SIGSEGV)?)
}

fn directly(taken: &mut Samples, back: &mut Samples) -> Result<(), Failure> {
    let subject = Subject::start()?;
    let pid = subject.0.id() as i32;
    addresses(pid)?;
    let options = Options { generations: 4, interval: INTERVAL, memory: 1 << 30 };
    let (mut engine, crashes) = engine::attach(pid, options).map_err(text)?;
    engine.checkpoint().map_err(text)?;
    for _ in 0..CRASHES {
        std::thread::sleep(INTERVAL);
        let since = Instant::now();
        if engine.checkpoint().map_err(text)? == Checkpoint::PutOff {
            return Err(failed("a checkpoint of a program that runs was put off"));
        }
        taken.add(since.elapsed());
        std::thread::sleep(INTERVAL);
        let since = Instant::now();
        crash(&subject)?;
        while crashes.current().is_none() {
            let mut fds = [libc::pollfd { fd: crashes.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            poll::poll(&mut fds, Some(PATIENCE))?;
            crashes.drain();
            if since.elapsed() > PATIENCE {
                return Err(failed("the subject does not crash"));
            }
        }
        engine.restore(0).map_err(text)?;
        back.add(since.elapsed());
    }
    Ok(())
}

fn by_client(core: &Core, taken: &mut Samples, back: &mut Samples) -> Result<(), Failure> {
    let subject = Subject::start()?;
    addresses(subject.0.id() as i32)?;
    let pid = subject.0.id();
    let client = core.client("bench");
    client.use_pin("P_MEM").map_err(text)?;
    client.use_pin("P_SIG").map_err(text)?;
    client.subscr_event("P_SIG", Kind::SignalFatal, Filter::pids(&[pid])).map_err(text)?;
    client.issue_cmd("P_SIG", &Command::FatalHold { pid }).map_err(text)?;
    let take = Command::CheckpointTake { pid, generations: 4, interval_ns: INTERVAL.as_nanos() as u64 };
    client.issue_cmd("P_MEM", &take).map_err(text)?;
    for _ in 0..CRASHES {
        std::thread::sleep(INTERVAL);
        let since = Instant::now();
        client.issue_cmd("P_MEM", &take).map_err(text)?;
        taken.add(since.elapsed());
        std::thread::sleep(INTERVAL);
        let since = Instant::now();
        crash(&subject)?;
        if client.wait(1, PATIENCE, &mut Vec::new()) == 0 {
            return Err(failed("the subject does not crash"));
        }
        let done = client.issue_cmd("P_MEM", &Command::CheckpointRestore { pid, nth: 0 }).map_err(text)?;
        back.add(since.elapsed());
        if !matches!(done, Reply::Restored { .. }) {
            return Err(failed("P_MEM answers a restore otherwise"));
        }
    }
    Ok(())
}

fn by_modules(core: &Core, back: &mut Samples) -> Result<(), Failure> {
    let subject = Subject::start()?;
    addresses(subject.0.id() as i32)?;
    let options = ModuleOptions { settings: Tac::settings(INTERVAL), ..ModuleOptions::default() };
    let tac = core.install::<Tac>(options).map_err(text)?;
    let recovery = core.install::<Recovery>(ModuleOptions::default()).map_err(text)?;
    for module in [&recovery, &tac] {
        module.guard(subject.0.id()).map_err(text)?;
    }
    let said = |of: &orbit_rmk::Installed, part: &str| {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            match of.report(PATIENCE) {
                Some(Report::Said(text)) if text.contains(part) => return Ok(()),
                Some(Report::Failed(why)) => return Err(failed(&format!("a module failed: {why}"))),
                _ => {}
            }
        }
        Err(failed(&format!("no report of a module: {part}")))
    };
    said(&tac, "first checkpoint")?;
    for _ in 0..CRASHES {
        std::thread::sleep(2 * INTERVAL);
        let since = Instant::now();
        crash(&subject)?;
        said(&recovery, "put back")?;
        back.add(since.elapsed());
    }
    Ok(())
}
