//! `services.toml`: what `orbit service run -c` hosts from the start.
//!
//! ```toml
//! cpu = 1                     # processor of agents and ticks
//! tick = "10ms"               # between two ticks that start upcalls
//! limit = 0.5                 # share of the processor that services may reserve together
//! aborts = 3                  # with more, in more than one of ten runs, a service is revoked
//! members = [4711]            # running programs that join
//!
//! [[service]]
//! file = "memory.wasm"        # beside this file, or an absolute path
//! owner = "unit:redis-server.service"         # or cgroup:/a/group, a file that has its number, or 4711
//! budget = "50us/10ms"
//! memory = "256K"
//! on = ["psi=memory:150ms/2s", "tick=1s"]
//! grant = ["memory:cache:set(pid=OWNER)"]     # OWNER stands for the owner's number
//! arguments = ""
//! class = "wasm"              # or native, thread, bpf
//! ```

use crate::owners::Owner;
use crate::protocol::{Class, Load};
use crate::{class, memory, period, time};
use orbit_services::{Error, Kind, Result};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the file says.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cpu: Option<usize>,
    tick: Option<String>,
    limit: Option<f64>,
    aborts: Option<u64>,
    #[serde(default)]
    members: Vec<i32>,
    #[serde(default, rename = "service")]
    services: Vec<Service>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Service {
    file: PathBuf,
    owner: Named,
    #[serde(default = "budget")]
    budget: String,
    #[serde(default)]
    memory: Option<String>,
    #[serde(default)]
    on: Vec<String>,
    #[serde(default)]
    grant: Vec<String>,
    #[serde(default)]
    arguments: String,
    #[serde(default)]
    class: Class,
    /// As `class = "native"`, and as `class = "thread"`.
    #[serde(default)]
    native: bool,
    #[serde(default)]
    thread: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Named {
    Process(i32),
    Text(String),
}

fn budget() -> String {
    "50us/10ms".to_owned()
}

/// A host's settings and what it loads.
#[derive(Debug)]
pub struct Config {
    /// The processor of agents and ticks, if the file names one.
    pub cpu: Option<usize>,
    /// Between two ticks that start upcalls, if the file says.
    pub tick: Option<Duration>,
    /// Share of a processor that services may reserve together.
    pub limit: f64,
    /// Aborts after which a service is revoked.
    pub aborts: u64,
    /// Processes that join.
    pub members: Vec<i32>,
    /// The services: each is loaded whenever its owner is there.
    pub planned: Vec<Planned>,
}

/// A service that is to be loaded for its owner.
#[derive(Debug)]
pub struct Planned {
    /// The owner.
    pub owner: Owner,
    /// What is loaded; its owner is not known yet, and grants have the word OWNER for it.
    load: Load,
}

impl Planned {
    /// One that is loaded whenever its owner is there.
    pub fn new(owner: Owner, load: Load) -> Planned {
        Planned { owner, load }
    }

    /// The object's file.
    pub fn file(&self) -> &Path {
        &self.load.file
    }

    /// What is loaded for this owner.
    pub fn load(&self, owner: i32) -> Load {
        self.load.for_owner(owner)
    }
}

impl Default for Config {
    fn default() -> Config {
        Config { cpu: None, tick: None, limit: 0.5, aborts: 3, members: Vec::new(), planned: Vec::new() }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// `Invalid`, with the file and what is wrong in it; `System` when it cannot be read.
    pub fn read(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::system(path.display(), &error))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        parse(&text, folder).map_err(|why| Error::new(Kind::Invalid, format!("{}: {why}", path.display())))
    }
}

fn parse(text: &str, folder: &Path) -> std::result::Result<Config, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    let limit = file.limit.unwrap_or(0.5);
    if !(limit > 0.0 && limit <= 1.0) {
        return Err(format!("limit = {limit}: a share of one processor, above 0 and at most 1"));
    }
    let tick = file.tick.as_deref().map(time).transpose().map_err(|why| format!("tick: {why}"))?;
    let mut planned = Vec::new();
    for service in file.services {
        let name = service.file.display().to_string();
        let owner = match service.owner {
            Named::Process(process) => Owner::Process(process),
            Named::Text(text) => Owner::parse(&text, folder).map_err(|why| format!("{name}: owner: {why}"))?,
        };
        let load = Load {
            file: std::path::absolute(folder.join(&service.file)).map_err(|error| format!("{name}: {error}"))?,
            owner: 0,
            budget: service.budget,
            memory: (service.memory.as_deref().map(memory).transpose())
                .map_err(|why| format!("{name}: memory: {why}"))?,
            period_ns: period(&service.on).map_err(|error| format!("{name}: {error}"))?,
            class: class(service.class, service.native, service.thread).map_err(|why| format!("{name}: {why}"))?,
            sources: service.on.into_iter().filter(|source| !source.starts_with("tick=")).collect(),
            grants: service.grant,
            arguments: service.arguments,
            gives: Vec::new(),
            is_ready: false,
            dry_run: false,
        };
        planned.push(Planned { owner, load });
    }
    Ok(Config { cpu: file.cpu, tick, limit, aborts: file.aborts.unwrap_or(3), members: file.members, planned })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_with_its_defaults() {
        let text = "cpu = 1\ntick = \"5ms\"\n[[service]]\nfile = \"a.wasm\"\nowner = 42\non = \
            [\"tick=1s\", \"psi=memory:150ms/2s\"]\n\
                    grant = [\"cpu:nice:set(pid=OWNER)\"]\n";
        let config = parse(text, Path::new("/etc/orbit")).expect("a configuration");
        assert_eq!((config.cpu, config.tick, config.aborts), (Some(1), Some(Duration::from_millis(5)), 3));
        let load = config.planned[0].load(42);
        assert_eq!(config.planned[0].owner, Owner::Process(42));
        assert_eq!((load.file.as_path(), load.owner, load.memory), (Path::new("/etc/orbit/a.wasm"), 42, None));
        assert_eq!((load.period_ns, load.budget.as_str()), (Some(1_000_000_000), "50us/10ms"));
        assert_eq!(
            (&load.sources[..], &load.grants[..]),
            (&["psi=memory:150ms/2s".to_owned()][..], &["cpu:nice:set(pid=42)".to_owned()][..])
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, hint) in [
            ("cpus = 1", "cpus"),
            ("limit = 2.0", "limit"),
            ("tick = \"10\"", "tick"),
            ("[[service]]\nfile = \"a\"", "owner"),
            ("[[service]]\nfile = \"a\"\nowner = \"unit:../x\"", "unit"),
            ("[[service]]\nfile = \"a\"\nowner = \"\"", "owner"),
            ("[[service]]\nfile = \"a\"\nowner = 1\nmemory = \"x\"", "memory"),
            ("[[service]]\nfile = \"a\"\nowner = 1\non = [\"tick=1s\", \"tick=2s\"]", "one tick"),
        ] {
            let why = parse(text, Path::new("/")).expect_err(text);
            assert!(why.contains(hint), "{text}: {why}");
        }
    }
}
