//! Outside of the virtual machine: boots it, once or many times a part of the experiment, watches
//! it, and writes JSON lines.
//!
//! `host --kernel FILE --initrd FILE --work DIRECTORY`, then parts, in this order:
//! `--hangs RUNS LOAD_SECONDS`, `--rivals`, `--every ROUNDS`, `--guard ACTION` (each),
//! `--faults SEED FIRST COUNT`, `--keys`. The last line is `{"lab":...}`. The result is good if
//! every hang of one CPU was found, no alarm was false, and the actions did what they should.

mod every;
mod faults;
mod guard;
mod late;
mod vm;

use late::Late;
use serde_json::{Value, json};
use std::{
    io::Write,
    time::{Duration, Instant},
};
use vm::{Next, Parts, Said, Vm};

/// What went wrong, as a sentence.
pub type Failed = String;

/// A machine boots within this, on a busy host too.
const BOOT: Duration = Duration::from_secs(240);

/// One line of the result.
fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    // Without a reader there is nothing to report.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[derive(Default)]
struct Plan {
    hangs: Option<(usize, u64)>,
    rivals: bool,
    every: usize,
    guard: Vec<String>,
    faults: Option<(u64, usize, usize)>,
    keys: bool,
}

fn read(words: &[&str]) -> Result<(Parts, Plan), Failed> {
    let mut plan = Plan::default();
    let (mut kernel, mut initrd, mut work) = (None, None, None);
    let mut words = words.iter();
    let missing = |after: &str| format!("host: something is missing after {after}");
    while let Some(&option) = words.next() {
        let mut word = || words.next().copied().ok_or_else(|| missing(option));
        let number = |word: &str| word.parse::<usize>().map_err(|_| format!("host: {option}: {word:?} is no number"));
        match option {
            "--kernel" => kernel = Some(vm::there(word()?)?),
            "--initrd" => initrd = Some(vm::there(word()?)?),
            "--work" => work = Some(vm::there(word()?)?),
            "--hangs" => plan.hangs = Some((number(word()?)?, number(word()?)? as u64)),
            "--rivals" => plan.rivals = true,
            "--keys" => plan.keys = true,
            "--every" => plan.every = number(word()?)?,
            "--guard" => plan.guard.push(word()?.to_owned()),
            "--faults" => plan.faults = Some((number(word()?)? as u64, number(word()?)?, number(word()?)?)),
            _ => return Err(format!("host: no option {option}")),
        }
    }
    match (kernel, initrd, work) {
        (Some(kernel), Some(initrd), Some(work)) => Ok((Parts { kernel, initrd, work }, plan)),
        _ => Err("host: --kernel, --initrd and --work are needed".into()),
    }
}

pub fn run(words: &[&str]) -> Result<bool, Failed> {
    let (parts, plan) = read(words)?;
    let mut good = Vec::new();
    if let Some((runs, seconds)) = plan.hangs {
        let limit = BOOT + Duration::from_secs(runs as u64 * 16 + seconds * 4);
        // The kernel's own detectors would only add noise.
        good.push((
            "hangs",
            passed_on(&parts, "hangs", &format!("hangs {runs} {seconds}"), "loglevel=1 nowatchdog", limit)?,
        ));
    }
    if plan.rivals {
        // As it comes, and as quick as it can be set.
        for (threshold, ms) in [(1, 8_000), (10, 58_000)] {
            let limit = BOOT + Duration::from_millis(ms * 10);
            let done = passed_on(&parts, "rivals", &format!("rivals {ms} {threshold}"), "loglevel=1", limit)?;
            good.push(("rivals", done));
        }
    }
    if plan.every > 0 {
        every::run(&parts, plan.every)?;
    }
    for action in &plan.guard {
        good.push(("guard", guard::run(&parts, action)?));
    }
    if let Some((seed, first, count)) = plan.faults {
        good.push(("faults", faults::run(&parts, seed, first, count)?));
    }
    if plan.keys {
        good.push(("keys", passed_on(&parts, "keys", "keys", "loglevel=1 nowatchdog", BOOT * 2)?));
    }
    let all = good.iter().all(|(_, good)| *good);
    let failed: Vec<&str> = good.iter().filter(|(_, good)| !good).map(|(part, _)| *part).collect();
    say(&json!({"lab": {"good": all, "not_good": failed}}));
    Ok(all)
}

/// A part that one machine does alone; its lines are the result.
fn passed_on(parts: &Parts, name: &str, part: &str, kernel: &str, limit: Duration) -> Result<bool, Failed> {
    let mut vm = Vm::boot(parts, name, part, kernel, false)?;
    let until = Instant::now() + limit;
    let late = Late::start();
    loop {
        match vm.next(until) {
            Next::Said(_, Said::Line(mut line)) => {
                if line["run"].is_string() {
                    line["host_late_ms"] = late.most_ms().into();
                }
                if let Some(good) = line["good"].as_bool() {
                    return Ok(good);
                }
                say(&line);
                if let Some(why) = line["error"].as_str() {
                    return Err(format!("{why}\n{}", vm.tail()));
                }
            }
            Next::Said(..) => {}
            Next::Silence => return Err(format!("{part}: not done after {} s\n{}", limit.as_secs(), vm.tail())),
            Next::Gone => return Err(format!("{part}: the machine ended before its time\n{}", vm.tail())),
        }
    }
}
