//! Records a program for a fixture: `record OUT.jsonl SECONDS AFTER -- PROGRAM ARGUMENT...`
//!
//! Watches the program and all it makes for SECONDS, or until AFTER seconds past the moment that it
//! writes (CLOCK_MONOTONIC, s) into the file that `HANGMARK` names; that moment is the recording's
//! mark. At the end all that is left of the program is killed.

use orbit_ahd::facts::Record;
use orbit_ahd::replay::Writer;
use orbit_ahd::sense::Sensor;
use orbit_linux::status::Status;
use orbit_linux::{pidfd, procfs};
use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

/// Scans between two searches for new processes.
const SEARCH_EVERY: u32 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [out, seconds, after, _, program, rest @ ..] = &args[..] else {
        return Err("record OUT SECONDS AFTER -- PROGRAM ARGUMENT...".into());
    };
    let (seconds, after): (f64, f64) = (seconds.parse()?, after.parse()?);
    let mark_file = format!("{out}.mark");
    // It may be left from before.
    let _ = std::fs::remove_file(&mark_file);
    // Orphans of the program become children of this process, so that they are found and killed.
    orbit_linux::process::adopt_orphans()?;
    let mut child = Command::new(program).args(rest).env("HANGMARK", &mark_file).stdin(Stdio::null()).spawn()?;
    let own = std::process::id() as i32;
    let mut sensor = Sensor::default();
    let mut writer = Writer::create(Path::new(out))?;
    let mut t0 = 0.0;
    let mut mark: Option<f64> = None;
    let mut pids = vec![child.id() as i32];
    for turn in 0u32.. {
        std::thread::sleep(sensor.pause());
        if turn % SEARCH_EVERY == 0 {
            pids = descendants(own);
        }
        sensor.watch(&pids);
        let mut failed = None;
        sensor.scan(&mut |record| {
            if let Record::Start { t0: at, .. } = record {
                t0 = at;
            }
            failed = writer.put(&record).err().or(failed.take());
        });
        if let Some(e) = failed {
            return Err(e.into());
        }
        if mark.is_none()
            && let Ok(text) = std::fs::read_to_string(&mark_file)
        {
            mark = text.lines().next().and_then(|line| line.trim().parse::<f64>().ok()).map(|at| at - t0);
        }
        let now = sensor.now();
        let ended = child.try_wait()?.is_some() && descendants(own).is_empty();
        if ended || now > seconds || mark.is_some_and(|mark| now > mark + after) {
            break;
        }
    }
    if let Some(t) = mark {
        writer.put(&Record::Mark { t })?;
    }
    writer.put(&Record::End { t: sensor.now() })?;
    for _ in 0..50 {
        let left = descendants(own);
        if left.is_empty() {
            break;
        }
        for pid in left {
            if let Ok(process) = pidfd::open(pid) {
                // It may have ended by now.
                let _ = pidfd::send_signal(process.as_fd(), libc::SIGKILL);
                let _ = pidfd::wait(process.as_fd(), true);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let _ = std::fs::remove_file(&mark_file);
    Ok(())
}

/// All processes below this one that have not ended.
fn descendants(root: i32) -> Vec<i32> {
    let parent = |pid: i32| {
        let status = Status::of(pid).ok()?;
        (!status.has_ended()).then_some((pid, status.parent()?))
    };
    let parents: BTreeMap<i32, i32> = procfs::ids("/proc").into_iter().filter_map(parent).collect();
    let below = |pid: i32| {
        let mut line = std::iter::successors(parents.get(&pid).copied(), |p| parents.get(p).copied());
        line.by_ref().take(64).any(|p| p == root)
    };
    parents.keys().copied().filter(|pid| below(*pid)).collect()
}
