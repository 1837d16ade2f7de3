//! The `orbit` command: one module a subcommand; this file only reads the arguments and hands over.
//!
//! Exit status: 0 all well, 1 something is missing or went wrong (said on stderr), 2 arguments that
//! make no sense. `watch` has its own, for it ends as its program does.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

mod analyse;
mod bench;
mod doctor;
mod generate;
mod hijack;
mod pins;
mod ps;
mod terminal;
mod top;
mod view;

use clap::{CommandFactory, Parser, Subcommand};
use orbit_agent as agent;
use orbit_console::out;
use orbit_keep as keep;
use orbit_linux::rlimit::{self, Resource};
use orbit_service as service;
use orbit_watch as watch;
use std::io::Write;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  orbit doctor        what this machine offers, what replaces what it lacks
  orbit ps            the orbits of running programs, once
  orbit ps --json     the same for scripts
  orbit top           the same on a screen that follows them
  orbit keep --log -- redis-server
                      a server that is put back in place when it crashes
  orbit why 4711      what the threads of a process do or wait for, now
  orbit bench call    what a call costs, against threads, pipes and fork
  orbit hijack --trace -- ls
                      each system call of an unmodified program
  orbit analyse --entry check -- ./server
                      which allocations a task needs in areas
  orbit agent         one process that watches the services of a machine, by policy
  orbit service run   a host of services: code that runs when its event comes

An orbit is an auxiliary task (a checker, a watchdog, a snapshot writer) that a
program runs in a process of its own. It sees the program's latest state; when
it crashes, hangs or leaks, the program continues. Programs make orbits with the
library: the Rust crate `orbit`, or the C header <orbit.h>.";

/// Helpers that cannot hurt a program, and programs that are kept, watched and controlled from
/// outside.
#[derive(Parser)]
#[command(name = "orbit", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Agent(agent::Args),
    Analyse(analyse::Args),
    Bench(bench::Args),
    Doctor(doctor::Args),
    Hijack(hijack::Args),
    Keep(keep::Args),
    Modules(pins::modules::Args),
    Pins(pins::Args),
    Ps(ps::Args),
    Service(service::Args),
    Top(top::Args),
    // Its name until 0.1; services have guards of their own.
    #[command(visible_alias = "guard")]
    Watch(watch::Args),
    Why(why::Args),
}

/// Least stack of the first thread, bytes: reading the arguments alone takes more than 64 KiB.
const LEAST_STACK_BYTES: u64 = 256 << 10;

fn main() -> ExitCode {
    let stack = rlimit::get(0, Resource::Stack).map_or(u64::MAX, |(soft, _)| soft);
    if stack >= LEAST_STACK_BYTES {
        return command();
    }
    // With stderr closed there is no reader.
    let _ = writeln!(
        std::io::stderr(),
        "orbit: the stack is limited to {} KiB (ulimit -s), and the command needs {}: raise the limit",
        stack >> 10,
        LEAST_STACK_BYTES >> 10
    );
    ExitCode::from(if is_watch() { watch::NOT_BEGUN } else { 1 })
}

/// Whether the subcommand is `watch`, whose program may end with any status itself.
fn is_watch() -> bool {
    std::env::args_os().nth(1).is_some_and(|name| name == "watch" || name == "guard")
}

/// Runs the command. Its frame is larger than a small stack.
#[inline(never)]
fn command() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|name| name == "generate") {
        return out::exit_code(generate::run(Args::command(), words));
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        // A program may end with 2 itself.
        Err(error) if error.use_stderr() && is_watch() => {
            // With stderr closed there is no reader.
            let _ = error.print();
            return ExitCode::from(watch::NOT_BEGUN);
        }
        Err(error) => error.exit(),
    };
    let done = match args.command {
        Command::Agent(args) => agent::run(&args),
        Command::Analyse(args) => analyse::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Hijack(args) => hijack::run(&args),
        Command::Keep(args) => keep::run(&args),
        Command::Modules(args) => pins::modules::run(&args),
        Command::Pins(args) => pins::run(&args),
        Command::Ps(args) => ps::run(&args),
        Command::Service(args) => service::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Why(args) => why::run(&args),
    };
    out::exit_code(done)
}
