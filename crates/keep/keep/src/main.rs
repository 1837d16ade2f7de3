//! `orbit-keep`: the subcommand `orbit keep` as a program of its own, for images that want nothing
//! else of Orbit.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use clap::Parser;
use std::process::ExitCode;

/// Runs a program and puts it back in place when it crashes.
#[derive(Parser)]
#[command(name = "orbit-keep", version)]
struct Command {
    #[command(flatten)]
    args: orbit_keep::Args,
}

fn main() -> ExitCode {
    let command = match Command::try_parse() {
        Ok(command) => command,
        // A program may exit with 2 itself.
        Err(error) if error.use_stderr() => {
            // Nobody is left to read it if stderr is closed.
            let _ = error.print();
            return ExitCode::from(orbit_keep::NOT_BEGUN);
        }
        Err(error) => error.exit(),
    };
    orbit_console::out::exit_code(orbit_keep::run(&command.args))
}
