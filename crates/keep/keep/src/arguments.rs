//! The command line of `orbit keep`.

use crate::board::Board;
use crate::desk::Desk;
use crate::ladder::Rung;
use crate::layout::Handlers;
use crate::restart::Restarts;
use crate::rules::{Processes, Rules};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Memory for checkpoints at least.
const LEAST_MEMORY: u64 = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  orbit keep --log -- redis-server --port 6400    a server, put back without anyone noticing
  orbit keep --every 5s -- ./simulate input       any program: what it did since is done again
  orbit keep --log --family --requests prefork.toml --allow-repeats -- ./server
                                                  children that serve a request at a time
  orbit keep --restart -- ./server                run again, where it cannot be put back
  orbit keep --pid 4711                           one that runs already, until Ctrl-C
  orbit keep --events - -- ./program              what happened, a line of JSON each

The program runs as it is, untraced; the keeper takes a checkpoint of it every
second. When a signal would kill it, it is put back in place: the same process,
threads, descriptors and connections.

With --log, what it read since the checkpoint is fed to it again, and what it
had sent is compared, not sent again: only its memory goes back. For servers
with one thread that serves. An input that kills it each time is dropped; its
client sees the connection end. Without --log, offsets of files go back too, and
output since the checkpoint may be repeated.

Exit status: that of the program, 128 plus the signal that killed it; 125 if it
cannot be kept, 126 or 127 if it cannot be started.";

/// Runs a program and puts it back in place when it crashes.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Time between checkpoints: 500ms, 1s, 2m
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    every: Duration,
    /// Log what the program reads and writes, and replay it after a crash
    #[arg(long)]
    log: bool,
    /// Size that the log may grow to from 16M on: a power of two, of which half is used at most
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    log_size: u64,
    /// Checkpoints that are kept, spaced by powers of two
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    generations: u8,
    /// What a recovery without a log may cost. exact: where anything may have left the program
    /// since the checkpoint, it ends with its true status. independent, for proxies and servers of
    /// files: connections by TCP that moved since are reset, all others continue; anything else
    /// that left it ends it as with exact. best-effort: it is put back all the same; output may be
    /// repeated, and connections, files and other processes may see what does not fit
    #[arg(long, value_enum, value_name = "STATE", default_value = "exact", conflicts_with = "log")]
    state: Exactness,
    /// With --state independent and best-effort, and with --requests: random numbers, nonces and
    /// tokens of the program may be used twice
    #[arg(long)]
    allow_repeats: bool,
    /// Memory for pages of checkpoints; the oldest goes first
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = memory)]
    memory: u64,
    /// Ways of recovery that may be used, tried in the order given: newest, older, environment
    /// (allocations padded and zeroed, frees delayed), drop
    #[arg(
        long,
        value_name = "RUNGS",
        default_value = "newest,older,environment,drop",
        value_delimiter = ',',
        value_parser = rung
    )]
    ladder: Vec<Rung>,
    /// Request mode: one checkpoint, where the program first waits for a request, and the log of
    /// one request; what a process holds beyond that is lost with a crash. RULES: where it waits,
    /// one or more of accept, poll, select, epoll; or a file that names the moments of a request,
    /// ending in .toml
    #[arg(
        long,
        value_name = "RULES",
        requires = "log",
        num_args = 0..=1,
        default_missing_value = "accept",
        value_parser = Rules::of
    )]
    requests: Option<Rules>,
    /// Keep the children that the program forks as well, each by itself
    #[arg(long)]
    family: bool,
    /// Start the program again where a crash ended it all the same: after a pause of 100 ms, which
    /// doubles up to 10 s. All that it made is killed first. Not after a signal that asks for its
    /// end, nor when it exits by itself
    #[arg(long)]
    pub(crate) restart: bool,
    /// Never run the program's own handlers for fatal signals before a recovery
    #[arg(long, conflicts_with = "handlers_first")]
    skip_handlers: bool,
    /// Run the program's own handlers for fatal signals before each recovery, also those that only
    /// report and die
    #[arg(long)]
    handlers_first: bool,
    /// Append what happens to this file, a line of JSON each; - is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) events: Option<PathBuf>,
    /// Nothing on stderr but warnings
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Serve figures in Prometheus' format over HTTP: a port (on loopback), or an address with one
    #[arg(long, value_name = "ADDR", value_parser = crate::metrics::address)]
    pub(crate) metrics: Option<std::net::SocketAddr>,
    /// Print the programs that are kept now, and end
    #[arg(long, conflicts_with = "command")]
    pub(crate) status: bool,
    /// With --status: as JSON
    #[arg(long, requires = "status")]
    pub(crate) json: bool,
    /// Keep this running process, until it exits or this command is interrupted; without --log
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["command", "log", "family", "restart"],
        value_parser = clap::value_parser!(i32).range(2..)
    )]
    pub(crate) pid: Option<i32>,
    /// The program and its arguments
    #[arg(required_unless_present_any = ["status", "pid"], last = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// What a recovery without a log may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Exactness {
    /// Nothing that another process could see.
    #[default]
    Exact,
    /// Connections by TCP that moved: each is reset.
    Independent,
    /// Anything.
    BestEffort,
}

/// What the arguments come to.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub command: Vec<OsString>,
    pub interval: Duration,
    pub log_bytes: u64,
    pub generations: usize,
    pub memory: u64,
    pub rungs: Vec<Rung>,
    pub exactness: Exactness,
    pub handlers: Handlers,
    pub family: bool,
    /// Of request mode.
    pub rules: Option<Rules>,
    /// With `--restart`.
    pub restarts: Option<Arc<Restarts>>,
    pub board: Board,
    pub desk: Desk,
}

impl Args {
    pub(crate) fn settings(&self) -> Result<Settings, String> {
        if self.log && (!self.log_size.is_power_of_two() || self.log_size < 8 << 20 || self.log_size > 64 << 30) {
            return Err(format!("--log-size {}: a power of two from 8M to 64G is needed", self.log_size));
        }
        let state = clap::ValueEnum::to_possible_value(&self.state).filter(|_| self.state != Exactness::Exact);
        let repeats = state.map(|state| format!("--state {}", state.get_name()));
        let repeats = repeats.or_else(|| self.requests.map(|_| "--requests".into()));
        if let Some(option) = repeats.filter(|_| !self.allow_repeats) {
            return Err(format!(
                "{option}: nothing shows that the program has no random state of its own, which a rollback repeats; \
                 --allow-repeats if that is known"
            ));
        }
        let rules = self.requests;
        if rules.is_some_and(|rules| rules.processes == Processes::Children) && !self.family {
            return Err("processes = \"children\" in the rules of --requests: children are kept with --family".into());
        }
        Ok(Settings {
            command: self.command.clone(),
            interval: self.every,
            log_bytes: if self.log { self.log_size } else { 0 },
            generations: self.generations.into(),
            memory: self.memory,
            rungs: self.ladder.clone(),
            exactness: self.state,
            family: self.family,
            rules,
            restarts: None,
            board: Board::default(),
            desk: Desk::default(),
            handlers: match (self.skip_handlers, self.handlers_first) {
                (true, _) => Handlers::Last,
                (false, true) => Handlers::First,
                (false, false) => Handlers::Auto,
            },
        })
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| format!("{text:?} is no time: write 500ms, 1s, 2m"))?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "s" | "" => number,
        "m" => number * 60.0,
        _ => return Err(format!("{unit:?} is no unit of time: ms, s or m")),
    };
    if !(0.001..=3600.0).contains(&seconds) {
        return Err(format!("{text:?} is not within 1ms to 60m"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is no size: write 64M, 1G"))?;
    let shift = match unit {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "" => 0,
        _ => return Err(format!("{unit:?} is no unit of size: K, M or G")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too large"))
}

fn memory(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < LEAST_MEMORY => {
            Err(format!("{text:?} is less than 1M; the newest checkpoint is kept whatever its size"))
        }
        bytes => Ok(bytes),
    }
}

fn rung(text: &str) -> Result<Rung, String> {
    match text {
        "newest" => Ok(Rung::Newest),
        "older" => Ok(Rung::Older),
        "environment" => Ok(Rung::Environment),
        "drop" => Ok(Rung::Drop),
        _ => Err(format!("{text:?} is no rung: newest, older, environment, drop")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        assert_eq!(time("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        assert!(time("0s").is_err() && time("fast").is_err() && time("3h").is_err() && time("2000m").is_err());
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("512"), Ok(512));
        assert!(memory("0").is_err() && memory("1023K").is_err() && memory("1M") == Ok(1 << 20));
        assert!(size("1T").is_err() && size("99999999999G").is_err() && size("").is_err());
    }
}
