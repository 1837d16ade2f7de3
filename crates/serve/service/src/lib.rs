//! `orbit service`: a host of services in a process of its own, and the commands that reach it by a
//! socket.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod asked;
mod config;
mod decider;
mod exec;
mod host;
mod in_kernel;
mod metrics;
mod new;
mod owners;
mod protocol;
mod ready;
mod top;

pub use decider::decider;
pub use orbit_services::support;
pub use protocol::default_socket;

use config::Config;
use orbit_console::out::{self, Align, BAD, Done, Failure, PLAIN, Table};
use orbit_services::budget;
use orbit_services_wasm::{Engine, Loader};
use protocol::{Class, Load, Reply, Request};
use std::io::{ErrorKind, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "Examples:
  orbit service run &
  orbit service load nice.wasm --owner 42 --budget 50us/10ms --on tick=10ms --grant \\
      'cpu:nice:set(pid=42,min=0)'
  orbit service ls";

/// Runs application code when its event comes, within a budget, charged to its owner.
///
/// Start a host, then load services. A service is a wasm module, which anyone may load; a native
/// object of the host's trust domain, which runs as an upcall in the member that is current; or,
/// for root, a BPF object in the kernel. The first two are written against orbit_service.h, the
/// last against orbit_kernel.h.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The host's socket [default: orbit-services.sock in $XDG_RUNTIME_DIR or /run].
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Hosts services until SIGTERM or SIGINT; then puts back what they set and lets members leave.
    Run {
        /// What is loaded from the start, and settings: a file as
        /// crates/serve/service/services.toml shows.
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
        /// The processor of agents and ticks [default: 0].
        #[arg(long)]
        cpu: Option<usize>,
        /// Time between two ticks that start upcalls [default: 10ms].
        #[arg(long, value_parser = time)]
        tick: Option<Duration>,
    },
    /// Starts a program as a member, before its first instruction; passes signals on to it; exits
    /// as it does, with 128 more than its number if a signal ended it.
    Exec {
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Makes a running program a member.
    Join {
        /// The process.
        pid: i32,
    },
    /// Takes the region out of a member; it is as it was before.
    Leave {
        /// The process.
        pid: i32,
    },
    /// Loads a service and prints its number.
    Load {
        /// A wasm module; with --class native or thread an ELF object, with --class bpf a BPF
        /// object.
        file: PathBuf,
        /// The process it belongs to: it ends with that.
        #[arg(long, value_name = "PID")]
        owner: i32,
        /// CPU time of a run, and of each window.
        #[arg(long, default_value = "50us/10ms")]
        budget: String,
        /// Memory of a wasm module: bytes, or with K or M (256K if left out). Native services and
        /// BPF objects have what their file asks for.
        #[arg(long, value_parser = memory)]
        memory: Option<usize>,
        /// Events, repeatable: tick=10ms; psi=memory:150ms/2s (tasks stalled so long; also cpu, io;
        /// of the owner's control group if it has one); fd=5 (that descriptor of the owner became
        /// readable); tracepoint=sched_process_exec; service=w1 (that service ran). Posted events
        /// always start it. A BPF object has ticks, and the tracepoints that it names itself.
        #[arg(long, value_name = "SOURCE")]
        on: Vec<String>,
        /// A handle: cpu:priority:set(pid=42,min=0,max=80) or cpu:used:get(pid=42).
        #[arg(long, value_name = "GRANT")]
        grant: Vec<String>,
        /// What its handler gets with each event.
        #[arg(long, default_value = "")]
        arguments: String,
        /// What it is and where it runs.
        #[arg(long, value_enum, default_value_t)]
        class: Class,
        /// A socket or pipe of this command's own that a service with a thread is given,
        /// repeatable: 5=rs is descriptor 5, to receive and to send to addresses; 5=rwa,100/s,moved
        /// a listener to read, write and accept from, with 100 calls a second, that the owner
        /// has no more. The handler names them by their order.
        #[arg(long, value_name = "FD=RIGHTS[,RATE][,moved]")]
        give: Vec<String>,
        /// Sets nothing: `orbit service log` says what it would have set. For wasm modules and BPF
        /// objects.
        #[arg(long)]
        dry_run: bool,
        /// As --class native.
        #[arg(long, conflicts_with = "class")]
        native: bool,
        /// As --class thread: native code has a thread of its own from the start; else it gets one
        /// once it asks to wait.
        #[arg(long, conflicts_with = "class")]
        thread: bool,
    },
    /// Loads a service that comes with Orbit: for a process, or for a unit or group whenever it has
    /// one.
    ///
    /// cache-by-pressure: a program's cache gives up a quarter while tasks of the program's control
    /// group stall for lack of memory, and gets it back in sixteenths.
    Add {
        /// cache-by-pressure.
        name: String,
        /// The unit of systemd that it steers.
        #[arg(long, required_unless_present_any = ["pid", "owner"], conflicts_with_all = ["pid", "owner"])]
        unit: Option<String>,
        /// The process that it steers; it ends with that.
        #[arg(long, conflicts_with = "owner")]
        pid: Option<i32>,
        /// The same, named as in services.toml: cgroup:/a/group, or a file that has its number.
        #[arg(long)]
        owner: Option<String>,
        /// The least value that it may set: bytes, or with K or M.
        #[arg(long, value_parser = memory)]
        min: Option<usize>,
        /// The largest.
        #[arg(long, value_parser = memory)]
        max: Option<usize>,
        /// Sets nothing: `orbit service log` says what it would have set.
        #[arg(long)]
        dry_run: bool,
    },
    /// Makes a folder with a service that builds, to start from.
    New {
        /// What it is written in.
        #[arg(long, value_enum, default_value_t = new::Language::C)]
        lang: new::Language,
        /// Its name, and the folder's.
        name: String,
    },
    /// Lists services, with what they used, and members.
    Ls,
    /// Follows services on the screen: runs and CPU time a second.
    Top {
        /// Time between two updates.
        #[arg(long, default_value = "1s", value_parser = time)]
        interval: Duration,
        /// Ends after so many updates; 0: with Ctrl-C.
        #[arg(long, short = 'n', default_value_t = 0)]
        updates: u64,
    },
    /// Prints what services used, in the text format of Prometheus.
    Metrics,
    /// Reads an attribute, or sets it through its guard.
    Attr {
        /// cpu:priority, cpu:used, cpu:nice, cpu:weight, cpu:max, memory:used, memory:cache,
        /// descriptors:open, descriptors:limit or descriptors:idle.
        class: String,
        /// The thread or process.
        pid: i32,
        /// The value.
        #[arg(allow_negative_numbers = true)]
        value: Option<i64>,
    },
    /// Starts a service's handler.
    Post {
        /// As ls shows it.
        id: String,
        /// What its event carries.
        #[arg(default_value_t = 0)]
        value: u64,
    },
    /// Ends a service and puts back what it set.
    Revoke {
        /// As ls shows it.
        id: String,
    },
    /// What happened.
    Log,
}

/// `10ms`.
fn time(text: &str) -> Result<Duration, String> {
    budget::duration(text).ok_or_else(|| "write a time with its unit: 10ms, 500us, 1s".to_owned())
}

/// The period of `tick=10ms`, nanoseconds, where that is among the sources.
fn period(sources: &[String]) -> Result<Option<u64>, Failure> {
    let mut ticks = sources.iter().filter_map(|source| source.strip_prefix("tick="));
    let named = |tick: &str| time(tick).map_err(|why| Failure::text(format!("source \"tick={tick}\": {why}")));
    let period = ticks.next().map(named).transpose()?;
    if ticks.next().is_some() {
        return Err(Failure::text("a service has one tick: write --on tick=TIME once"));
    }
    Ok(period.map(|period| u64::try_from(period.as_nanos()).unwrap_or(u64::MAX)))
}

/// The class, which the older words `native` and `thread` name too.
fn class(given: Class, native: bool, thread: bool) -> Result<Class, String> {
    match (given, native, thread) {
        (given, false, false) => Ok(given),
        (Class::Wasm | Class::Native, true, false) => Ok(Class::Native),
        (Class::Wasm | Class::Native | Class::Thread, _, true) => Ok(Class::Thread),
        _ => Err("native and thread contradict the class: leave them out".to_owned()),
    }
}

/// `256K`.
fn memory(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['K', 'M']) {
        Some(digits) if text.ends_with('K') => (digits, 1 << 10),
        Some(digits) => (digits, 1 << 20),
        None => (text, 1),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| "write bytes, or with K or M: 256K".to_owned())
}

/// Runs the command. A host interprets wasm modules.
pub fn run(args: &Args) -> Done {
    run_with(args, || Engine::new().map(|engine| Box::new(engine) as Box<dyn Loader>))
}

/// Runs the command. A host makes handlers of wasm modules by `loader`, which is called once in its
/// process.
pub fn run_with(args: &Args, loader: impl FnOnce() -> orbit_services::Result<Box<dyn Loader>>) -> Done {
    let socket = args.socket.clone().unwrap_or_else(protocol::default_socket);
    let request = match &args.what {
        What::Run { config, cpu, tick } => {
            let mut config = config.as_deref().map_or_else(|| Ok(Config::default()), Config::read).map_err(said)?;
            (config.cpu, config.tick) = (cpu.or(config.cpu), tick.or(config.tick));
            let ready = |ready: &host::Ready| {
                let mut to = anstream::stdout().lock();
                // Without a reader the host still runs.
                let _ =
                    if args.json { out::json(&mut to, ready) } else { writeln!(to, "{ready}").map_err(Failure::Io) };
                let _ = to.flush();
            };
            return host::run(&socket, config, loader, ready).map(|()| ExitCode::SUCCESS).map_err(said);
        }
        What::Exec { command } => return exec::run(&socket, command),
        What::Load {
            file,
            owner,
            budget,
            memory,
            on,
            grant,
            arguments,
            class: given,
            give,
            dry_run,
            native,
            thread,
        } => {
            let give = give.iter().map(|text| given_descriptor(text)).collect::<Result<Vec<_>, _>>()?;
            let request = Request::Load(Load {
                file: std::path::absolute(file)?,
                owner: *owner,
                budget: budget.clone(),
                memory: *memory,
                period_ns: period(on)?,
                class: class(*given, *native, *thread).map_err(Failure::text)?,
                sources: on.iter().filter(|source| !source.starts_with("tick=")).cloned().collect(),
                grants: grant.clone(),
                arguments: arguments.clone(),
                gives: give.iter().map(|(_, rights)| rights.clone()).collect(),
                is_ready: false,
                dry_run: *dry_run,
            });
            let descriptors: Vec<BorrowedFd<'_>> = give.iter().map(|(descriptor, _)| *descriptor).collect();
            return show(&heard(protocol::ask_giving(&socket, &request, LIMIT, &descriptors), &socket)?, args.json);
        }
        What::Add { name, unit, pid, owner, min, max, dry_run } => {
            let bytes = |bytes: &Option<usize>| bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
            let load = ready::load(name, (bytes(min), bytes(max)), *dry_run).map_err(said)?;
            match (unit, pid, owner) {
                // A number is one process's: another one that has it later is not meant.
                (_, Some(pid), _) => Request::Load(load.for_owner(*pid)),
                (Some(unit), ..) => Request::Plan { owner: format!("unit:{unit}"), load },
                (.., owner) => Request::Plan { owner: owner.clone().unwrap_or_default(), load },
            }
        }
        What::New { lang, name } => {
            let next = new::create(&std::env::current_dir()?, name, *lang).map_err(said)?;
            writeln!(anstream::stdout().lock(), "{next}")?;
            return Ok(ExitCode::SUCCESS);
        }
        What::Join { pid } => Request::Join { pid: *pid },
        What::Leave { pid } => Request::Leave { pid: *pid },
        What::Ls => Request::List,
        What::Top { interval, updates } => return top::run(&socket, *interval, *updates),
        What::Metrics => {
            let Reply::List { services, members, .. } = ask(&socket, &Request::List)? else {
                return Err(Failure::text("the host did not answer with a list"));
            };
            let mut to = anstream::stdout().lock();
            to.write_all(metrics::text(&services, members.len()).as_bytes())?;
            to.flush()?;
            return Ok(ExitCode::SUCCESS);
        }
        What::Attr { class, pid, value } => Request::Attr { class: class.clone(), pid: *pid, value: *value },
        What::Post { id, value } => Request::Post { id: id.clone(), value: *value },
        What::Revoke { id } => Request::Revoke { id: id.clone() },
        What::Log => Request::Log,
    };
    show(&ask(&socket, &request)?, args.json)
}

fn said(error: orbit_services::Error) -> Failure {
    Failure::text(error.to_string())
}

/// The descriptor and the terms of `5=rs`.
fn given_descriptor(text: &str) -> Result<(BorrowedFd<'static>, String), Failure> {
    let wrong = || Failure::text(format!("{text:?}: write a descriptor and its rights: 5=rs"));
    let (number, rights) = text.split_once('=').ok_or_else(wrong)?;
    let number = number.parse::<i32>().ok().filter(|number| *number >= 0).ok_or_else(wrong)?;
    // SAFETY: this command inherited it, or it is not open, which the kernel says when it is sent;
    // nothing here closes it.
    Ok((unsafe { BorrowedFd::borrow_raw(number) }, rights.to_owned()))
}

/// How long the host may take to answer.
const LIMIT: Duration = Duration::from_secs(60);

/// Asks the host; what it refuses is a failure.
fn ask(socket: &Path, request: &Request) -> Result<Reply, Failure> {
    heard(protocol::ask_within(socket, request, LIMIT), socket)
}

/// What the host answered; what it refuses is a failure.
fn heard(answer: std::io::Result<Reply>, socket: &Path) -> Result<Reply, Failure> {
    match answer {
        Ok(Reply::Failed(why)) => Err(Failure::text(why)),
        Ok(reply) => Ok(reply),
        Err(error) => {
            let way_out = match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => "start one with orbit service run",
                ErrorKind::PermissionDenied => "it is another user's: run this as that user or root",
                _ => "see whether its process runs",
            };
            Err(Failure::text(format!("no answer from a host of services at {}: {error}: {way_out}", socket.display())))
        }
    }
}

fn show(reply: &Reply, json: bool) -> Done {
    let mut to = anstream::stdout().lock();
    match reply {
        _ if json => out::json(&mut to, reply)?,
        Reply::Done(text) => writeln!(to, "{text}")?,
        Reply::Answer { verdict, result } => writeln!(to, "{verdict} {result}")?,
        Reply::Lines(lines) => {
            for line in lines {
                writeln!(to, "{line}")?;
            }
        }
        Reply::List { services, members, no_ticks } => {
            list(services).write(&mut to)?;
            let members: Vec<String> = members.iter().map(i32::to_string).collect();
            writeln!(to, "members: {}", if members.is_empty() { "none".to_owned() } else { members.join(", ") })?;
            if let Some(why) = no_ticks {
                writeln!(to, "no upcalls: {why}")?;
            }
        }
        Reply::Failed(why) => return Err(Failure::text(why.clone())),
    }
    to.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn list(services: &[protocol::Service]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("ID", Left),
        ("NAME", Left),
        ("CLASS", Left),
        ("OWNER", Right),
        ("BUDGET", Left),
        ("RUNS", Right),
        ("UPCALLS", Right),
        ("CPU", Right),
        ("ABORTS", Right),
        ("DROPPED", Right),
        ("REFUSED", Right),
        ("TICKS", Right),
        ("MERGED", Right),
        ("MISSED", Right),
        ("", Left),
    ]);
    for service in services {
        let plain = |text: String| (text, PLAIN);
        let count = |number: u64| (number.to_string(), PLAIN);
        table.row(vec![
            plain(service.id.clone()),
            plain(service.name.escape_default().to_string()),
            plain(service.class.clone()),
            plain(service.owner.to_string()),
            plain(service.budget.clone()),
            count(service.runs),
            count(service.upcalls),
            plain(out::time(service.cpu_ns as f64 / 1e3)),
            count(service.aborts),
            count(service.dropped),
            count(service.refused),
            count(service.ticks_due),
            count(service.ticks_merged),
            count(service.ticks_missed),
            if service.is_revoked { ("revoked".to_owned(), BAD) } else { plain(String::new()) },
        ]);
    }
    table
}
