//! What the agent knows now, for its readers: `/metrics`, `orbit agent status`, `active.json`.

use crate::metrics::{Cost, Labels, Metrics};
use crate::policy::Config;
use crate::selector::{Selector, Unwatched, service};
use orbit_ahd::{Hang, Kind, Sure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

/// A hang that continues.
#[derive(Clone, Debug)]
pub struct Active {
    /// The service in words.
    pub service: String,
    /// The policy's name.
    pub policy: String,
    /// The labels of its service.
    pub labels: Labels,
    /// Busy or blocked.
    pub kind: Kind,
    /// How sure it is.
    pub sure: Sure,
    /// One sentence.
    pub why: String,
    /// When it was reported.
    pub at: String,
    /// What was done, in a sentence.
    pub did: String,
}

/// A service: processes of the same policy, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// The policy's.
    pub policy: String,
    /// Its watched processes.
    pub processes: usize,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct State {
    /// Figures.
    pub metrics: Metrics,
    /// By process and thread.
    pub hangs: BTreeMap<(i32, i32), Active>,
    /// The watched services.
    pub services: Vec<Service>,
    /// Selected processes that are not watched.
    pub unwatched: Vec<Unwatched>,
    /// Policies: name, what is done, and why it decides nothing, if so.
    pub policies: Vec<(String, String, Option<String>)>,
    /// The configuration's file.
    pub config: String,
    /// Why the last configuration was rejected.
    pub rejected: Option<String>,
    /// Where the page of metrics is served, if it is.
    pub page: Option<std::net::SocketAddr>,
    /// The process of the detection.
    pub detector: i32,
}

/// Entries of a list in `active.json` and the status; more are counted.
const MAX_LISTED: usize = 1000;

impl State {
    /// Notes how the configuration stands.
    pub fn set_config(&mut self, path: &Path, config: &Config) {
        self.config = path.display().to_string();
        self.rejected = None;
        let line = |p: &crate::policy::Policy| (p.name.clone(), p.on_hang.to_string(), p.unusable.clone());
        self.policies = config.policies.iter().map(line).collect();
        self.metrics.set_unusable(config.policies.iter().filter(|p| p.unusable.is_some()).count());
    }

    /// Notes what is watched.
    pub fn set_watched(&mut self, selector: &Selector, config: &Config) {
        self.services = services(selector, config);
        self.unwatched = selector.unwatched().values().cloned().collect();
        let wanted = config.export.prometheus.as_ref().map_or(&[][..], |page| &page.labels);
        let mut labels = Vec::new();
        for watched in selector.watched().values() {
            let policy = config.policies.get(watched.policy).map_or("", |policy| &policy.name);
            labels.push(self.metrics.labels(&watched.subject, policy, wanted));
        }
        self.metrics.set_watched(labels.into_iter(), self.unwatched.len());
    }

    /// Notes the figures of hangs that continue.
    pub fn count_active(&mut self) {
        let active = self.hangs.values().map(|hang| (hang.labels.clone(), hang.kind, hang.sure));
        self.metrics.set_active(active);
    }

    /// The page of metrics.
    pub fn page(&self, open: bool) -> String {
        self.metrics.page(open, self.cost())
    }

    fn cost(&self) -> Cost {
        let own = orbit_linux::clock::process_cpu_ns();
        let all = [std::process::id() as i32, self.detector];
        let resident = all.iter().filter(|pid| **pid > 0).map(|pid| resident(*pid)).sum();
        let detector = orbit_linux::clock::cpu_ns_of(self.detector).filter(|_| self.detector > 0).unwrap_or(0);
        Cost { cpu: (own + detector) as f64 / 1e9, resident }
    }

    /// The status as JSON.
    pub fn status(&self) -> Value {
        let Cost { cpu, resident } = self.cost();
        let policies: Vec<Value> = self
            .policies
            .iter()
            .map(|(name, on_hang, unusable)| json!({ "policy": name, "on_hang": on_hang, "unusable": unusable }))
            .collect();
        let services: Vec<Value> = self
            .services
            .iter()
            .take(MAX_LISTED)
            .map(|s| json!({ "service": s.name, "policy": s.policy, "processes": s.processes }))
            .collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"), "config": self.config, "rejected": self.rejected,
            "metrics": self.page.map(|at| at.to_string()),
            "policies": policies, "services": services, "hangs": self.active(), "unwatched": self.not_watched(),
            "cpu_seconds": cpu, "resident_bytes": resident,
        })
    }

    fn active(&self) -> Vec<Value> {
        let one = |((pid, tid), hang): (&(i32, i32), &Active)| {
            json!({
                "service": hang.service, "policy": hang.policy, "kind": hang.kind.word(), "sure": hang.sure.to_string(),
                "why": hang.why, "at": hang.at, "did": hang.did, "pid": pid, "tid": tid,
            })
        };
        self.hangs.iter().take(MAX_LISTED).map(one).collect()
    }

    /// Processes for the same reason together.
    fn not_watched(&self) -> Vec<Value> {
        let mut counts: BTreeMap<(&str, &str, &str, &str), usize> = BTreeMap::new();
        for Unwatched { service, command, policy, why } in &self.unwatched {
            *counts.entry((service, command, policy, why)).or_default() += 1;
        }
        let all = counts.iter().take(MAX_LISTED).map(|((service, command, policy, why), processes)| {
            json!({ "service": service, "command": command, "policy": policy, "why": why, "processes": processes })
        });
        all.collect()
    }

    /// Writes `active.json`: the hangs that continue and what is not watched, one to a line.
    ///
    /// # Errors
    /// Those of writing it.
    pub fn write_active(&self, path: &Path) -> io::Result<()> {
        let lines = |all: Vec<Value>| all.iter().map(Value::to_string).collect::<Vec<_>>().join(",\n");
        let at = orbit_console::time::rfc3339(SystemTime::now());
        let text = format!(
            "{{\"at\":\"{at}\",\"hangs\":[\n{}\n],\"unwatched\":[\n{}\n]}}\n",
            lines(self.active()),
            lines(self.not_watched())
        );
        let partial = path.with_extension("partial");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(&partial)?;
        file.write_all(text.as_bytes())?;
        fs::rename(partial, path)
    }
}

/// Services with their processes, sorted.
pub fn services(selector: &Selector, config: &Config) -> Vec<Service> {
    let mut counts: BTreeMap<(String, usize), usize> = BTreeMap::new();
    for watched in selector.watched().values() {
        *counts.entry((service(&watched.subject), watched.policy)).or_default() += 1;
    }
    let one = |((name, policy), processes): ((String, usize), usize)| {
        let policy = config.policies.get(policy).map_or(String::new(), |policy| policy.name.clone());
        Service { name, policy, processes }
    };
    counts.into_iter().map(one).collect()
}

/// Resident memory of a process, bytes; pages it shares with others count too.
fn resident(pid: i32) -> u64 {
    let status = orbit_linux::status::Status::of(pid).unwrap_or_default();
    let kib = status.field("VmRSS").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Whether it was a hang from its first moment: threads that only each other could wake.
pub fn is_ring(hang: &Hang) -> bool {
    hang.check_value == 0
}
