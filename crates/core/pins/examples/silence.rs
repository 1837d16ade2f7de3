//! A program that runs one module, `orbit_rmk::modules::Silence`, for a process, and prints what it
//! reports.
//!
//! `cargo run -p orbit-pins --example silence -- PID` (as root).
use orbit_rmk::{ModuleOptions, modules::Silence};
use std::{env, error::Error, time::Duration};

fn main() -> Result<(), Box<dyn Error>> {
    let pid = env::args().nth(1).ok_or("usage: silence PID")?.parse()?;
    orbit::init()?;
    let module = orbit_pins::core()?.install::<Silence>(ModuleOptions::default())?;
    module.guard(pid)?;
    loop {
        if let Some(report) = module.report(Duration::from_secs(3600)) {
            println!("{report:?}");
        }
    }
}
