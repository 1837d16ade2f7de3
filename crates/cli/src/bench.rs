//! `orbit bench`: starts the program `orbit-bench` that is installed beside this one. It is a
//! program of its own, since it needs the ports into servers, which no other command does.

use orbit_console::out::{Done, Failure};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Measures what orbits, services and the executive cost here, beside their rivals.
///
/// Runs the program orbit-bench, which is installed beside this one; `orbit bench --help` shows its
/// help.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Arguments of orbit-bench.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    args: Vec<OsString>,
}

pub fn run(args: &Args) -> Done {
    let program = std::env::current_exe()?.with_file_name("orbit-bench");
    let error = Command::new(&program).args(&args.args).exec();
    Err(Failure::text(format!(
        "cannot start {}: {error}; `make build` and `make install` put it there",
        program.display()
    )))
}
