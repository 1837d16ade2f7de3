//! Inside the virtual machine. Parts of the experiment, each the only program of one boot:
//!
//! `hangs RUNS LOAD_SECONDS`, `rivals MILLISECONDS THRESHOLD`, `every KIND THRESHOLD PANIC`,
//! `faults SEED FIRST COUNT`, `guard ACTION KIND`, `keys`. Each writes JSON lines by `line`, and
//! `{"part":"ended"}` at last.

mod elf;
mod every;
mod exercise;
mod faults;
mod guard;
mod hangs;
mod keys;
mod kmsg;
mod line;
mod lives;
mod machine;
mod rivals;

use serde_json::json;

/// What went wrong, as a sentence.
pub type Failed = String;

/// Whether everything that had to be found was found.
pub fn run(words: &[&str]) -> Result<bool, Failed> {
    if let ["exercise", name, at, value, callers] = words {
        return exercise::run(name, number(at)?, number(value)? as u8, *callers == "one-cpu");
    }
    line::open()?;
    // Where it fails, the lab is only a little less steady.
    let _ = orbit_linux::map::lock_all();
    let done = match words {
        ["hangs", runs, seconds] => hangs::run(number(runs)?, number(seconds)? as u64),
        ["rivals", ms, threshold] => rivals::run(number(ms)? as u64, number(threshold)?),
        ["every", kind, threshold, panic] => every::run(kind, number(threshold)?, *panic == "1"),
        ["faults", seed, first, count] => faults::run(number(seed)? as u64, number(first)?, number(count)?),
        ["guard", action, kind] => guard::run(action, kind),
        ["keys"] => keys::run(),
        _ => Err(format!("no such part of the experiment: {words:?}")),
    };
    match &done {
        Ok(good) => line::say(&json!({ "part": "ended", "good": good })),
        Err(why) => line::say(&json!({ "error": why })),
    }
    done
}

fn number(word: &str) -> Result<usize, Failed> {
    word.parse().map_err(|_| format!("{word:?} is no number"))
}
