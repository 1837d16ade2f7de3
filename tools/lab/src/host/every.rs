//! Every CPU hung at once: nothing inside runs any more. What can still show it is measured from
//! outside: signs of life that no longer come, and the kernel's own detectors with panic settings,
//! each kind of hang with each.
//!
//! Line `every_cpu`: seconds from the hang's announcement; null: not within the time it was watched
//! for.

use super::{BOOT, Failed, Next, Parts, Said, Vm, say};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A machine that was silent for so long, when it should give a sign ten times a second from each
/// CPU, hangs.
pub const SILENCE: Duration = Duration::from_secs(1);
const KINDS: [&str; 7] = ["preempt", "irq", "lock", "lock-irq", "order", "halt", "kernel"];

pub fn run(parts: &Parts, rounds: usize) -> Result<(), Failed> {
    for kind in KINDS {
        // `kernel.watchdog_thresh` as it comes, and as low as it goes; how long each is given.
        for (threshold, seconds) in [(10, 40), (1, 10)] {
            for _ in 0..rounds {
                one(parts, kind, threshold, Duration::from_secs(seconds))?;
            }
        }
    }
    Ok(())
}

fn one(parts: &Parts, kind: &str, threshold: u64, watched: Duration) -> Result<(), Failed> {
    let mut vm = Vm::boot(parts, "every", &format!("every {kind} {threshold} 1"), "loglevel=4", false)?;
    let mut until = Instant::now() + BOOT;
    let (mut begun, mut settings): (Option<Instant>, _) = (None, Value::Null);
    let (mut beat, mut longest) = (Instant::now(), Duration::ZERO);
    let (mut silent, mut panic, mut shd) = (None, None, 0);
    loop {
        // While the hang lasts, silence is checked for as well.
        let step = if begun.is_some() { until.min(Instant::now() + Duration::from_millis(20)) } else { until };
        match vm.next(step) {
            Next::Said(at, Said::Beat) => {
                longest = longest.max(at - beat);
                beat = at;
            }
            Next::Said(at, Said::Line(line)) => match line {
                _ if line["every"].is_string() => {
                    (begun, until, settings) = (Some(at), at + watched, line["settings"].clone());
                    (beat, longest) = (at, Duration::ZERO);
                }
                _ if line["event"] == "cpu-hung" && begun.is_some() => shd += 1,
                _ if line["error"].is_string() => return Err(format!("{line}\n{}", vm.tail())),
                _ => {}
            },
            Next::Said(at, Said::Console(line)) if line.contains("Kernel panic") => {
                panic = begun.map(|begun| at - begun);
                break;
            }
            Next::Said(..) => {}
            Next::Silence if begun.is_some_and(|_| Instant::now() < until) => {}
            Next::Silence if begun.is_some() => break,
            Next::Silence => return Err(format!("every {kind}: it did not begin\n{}", vm.tail())),
            Next::Gone => break,
        }
        if silent.is_none() && beat.elapsed() > SILENCE {
            silent = begun.map(|begun| begun.elapsed());
        }
    }
    let Some(_) = begun else { return Err(format!("every {kind}: the machine ended\n{}", vm.tail())) };
    let seconds = |time: Option<Duration>| time.map(|time| (time.as_secs_f64() * 10.0).round() / 10.0);
    say(&json!({
        "every_cpu": kind, "threshold_s": threshold, "settings": settings, "watched_s": watched.as_secs(),
        "heartbeat_s": seconds(silent), "panic_s": seconds(panic), "reported_inside": shd,
    }));
    Ok(())
}
