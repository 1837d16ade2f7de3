//! `orbit-service-wasmtime`: `orbit service` whose host compiles modules instead of interpreting
//! them. Commands of either reach hosts of both.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use clap::Parser;
use orbit_console::out;
use orbit_services_wasm::Loader;
use orbit_services_wasmtime::Compiler;
use std::process::ExitCode;

/// As orbit service: its host compiles wasm modules, for handlers that compute for long.
#[derive(Parser)]
#[command(name = "orbit-service-wasmtime", version)]
struct Args {
    #[command(flatten)]
    service: orbit_service::Args,
}

fn main() -> ExitCode {
    let compiler = || Compiler::new().map(|compiler| Box::new(compiler) as Box<dyn Loader>);
    out::exit_code(orbit_service::run_with(&Args::parse().service, compiler))
}
