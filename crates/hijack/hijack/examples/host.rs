//! A host in a few lines: runs a program under the executive, with a policy object if one is given,
//! and reports.
//!
//! `cargo run --release -p orbit-hijack --example host -- [--object FILE] PROGRAM ARGS…`

use orbit_hijack::{Object, Options, Session};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut options = Options::default();
    if arguments.len() > 2 && arguments[0] == "--object" {
        options.object = Some(Object::load(arguments[1].as_ref())?);
        arguments.drain(..2);
    }
    let mut session = Session::start(&options, &arguments)?;
    session.follow(|_| Ok(()))?;
    let outcome = session.outcome();
    let calls: u64 = outcome.calls.values().sum();
    eprintln!("{calls} calls, {} by signal, {} of {} sites rewritten", outcome.traps, outcome.rewritten, outcome.sites);
    Ok(ExitCode::from(u8::try_from(outcome.status).unwrap_or(1)))
}
