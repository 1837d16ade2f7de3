//! `orbit-lab`: hangs the kernel of a virtual machine in every way, and sees whether system hang
//! detection finds it.
//!
//! One program on both sides. `orbit-lab host ...` boots machines and prints JSON lines;
//! `scripts/lab.sh` makes ready what it needs. `orbit-lab guest PART ...` runs inside such a
//! machine, never anywhere else: it hangs CPUs.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

mod guest;
mod host;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.split_first() {
        Some((&"guest", rest)) => guest::run(rest),
        Some((&"host", rest)) => host::run(rest),
        _ => Err("usage: orbit-lab host OPTIONS; scripts/lab.sh calls it".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("orbit-lab: {why}");
            ExitCode::from(2)
        }
    }
}
