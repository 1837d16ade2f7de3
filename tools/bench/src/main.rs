//! The program `orbit-bench`, which `orbit bench` starts.
//!
//! Exit status: 0 measured, 1 something is missing or went wrong (said on stderr), 2 arguments that
//! make no sense.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use clap::Parser;
use orbit_console::out;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "orbit bench", bin_name = "orbit bench", version, arg_required_else_help = true)]
struct Command {
    #[command(flatten)]
    args: orbit_bench::Args,
}

fn main() -> ExitCode {
    out::exit_code(orbit_bench::run(&Command::parse().args))
}
