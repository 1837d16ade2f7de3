//! `orbit agent`: one process on each node that selects services by policy, watches them for hangs,
//! acts within bounds, and exports what it found.
//!
//! | file | what it owns |
//! |---|---|
//! | [`identity`] | which service a process belongs to, by its control group (pure) |
//! | [`policy`] | the configuration, and which policy a process has (pure but for reading files) |
//! | `groups` | control groups as they are made: which processes to read before the next scan |
//! | [`selector`] | which processes are watched, and why others are not |
//! | [`action`] | what is done about a hang, and how often it may be |
//! | `agent` | the loop, with the detection in a core of its own |
//! | [`export`], [`reports`], [`journal`], [`metrics`], `state`, `control` | what leaves the agent |
//! | `http`, `site`, `page` | pages: the server, what is at which path, the status page |
//! | [`otlp`], `collector`, `request` | the same to a collector of OpenTelemetry: form, queue, request |
//! | [`kubernetes`] | the pods of the node with their labels, and Events about them |
//! | `remote` | other nodes: who may use pins here, and whom a hang waits for there |
//! | `notify` | how it stands, for the service manager |
//! | `plain`, `socket` | threads that speak with others, without capabilities; sockets that are files |
//!
//! Promises: nothing is acted on that is not certain (unless its policy asks for less) and selected
//! right then; what cannot be decided is not watched and shown with the reason.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod action;
mod agent;
mod collector;
mod control;
pub mod export;
mod groups;
mod http;
pub mod identity;
pub mod journal;
pub mod kubernetes;
pub mod metrics;
mod notify;
pub mod otlp;
mod page;
mod plain;
pub mod policy;
mod remote;
pub mod reports;
mod request;
pub mod selector;
mod show;
mod site;
mod socket;
mod state;

use orbit_console::out::{Done, Failure};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
A policy, in /etc/orbit/agent.toml or a file of /etc/orbit/agent.d:

  [[policy]]
  name = \"redis\"
  match = { unit = \"redis-server@*.service\" }   # or user_unit, cgroup, container, pod, namespace,
                                                # workload, labels, command, user, any = true
  watch = { limit = \"5s\", on_hang = \"restart\" }  # report, signal:SIG, core, restart

The first [[policy]] that matches a process rules it. Actions are taken on certain hangs
only; likely: or guess: before one asks for less. docs/agent.md has every key.

Examples:
  orbit agent --check agent.toml    is it sound, and what does it select now?
  orbit agent                       run, as orbit-agent.service does; SIGHUP reads it again
  orbit agent status                services, hangs, what cannot be watched and why
  orbit agent status --json | jq '.hangs[].why'";

/// Watches the services of this machine that policies select, for hangs: one process for all.
///
/// Reports go to a folder, to the journal and to a page of metrics, as the configuration says. The
/// agent needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH to watch processes of other users, CAP_KILL
/// to act on them.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Reads FILE, says whether it is sound and what it would select now, and ends.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// The configuration; beside it agent.d/*.toml are read too.
    #[arg(long, value_name = "FILE", default_value = "/etc/orbit/agent.toml")]
    config: PathBuf,
    /// Where agent.sock and active.json are.
    #[arg(long, value_name = "DIR", default_value = "/run/orbit")]
    run_dir: PathBuf,
    /// Where reports are kept: files of mode 0600 in a folder of mode 0700.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/orbit/reports")]
    reports_dir: PathBuf,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Command {
    /// Shows what the running agent watches, what hangs, and what it cannot watch and why.
    Status {
        /// Prints JSON for scripts.
        #[arg(long)]
        json: bool,
        /// The agent's socket.
        #[arg(long, value_name = "PATH", default_value = "/run/orbit/agent.sock")]
        socket: PathBuf,
    },
}

/// Runs the command.
///
/// # Errors
/// A sentence: the configuration is not sound, the agent cannot begin or has to end.
pub fn run(args: &Args) -> Done {
    if let Some(Command::Status { json, socket }) = &args.command {
        return show::status(&control::ask(socket).map_err(Failure::Text)?, *json);
    }
    if let Some(file) = &args.check {
        return show::check(file);
    }
    let mut agent = agent::Agent::begin(args)?;
    agent.run()?;
    Ok(ExitCode::SUCCESS)
}
