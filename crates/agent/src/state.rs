//! What the agent knows now, for its readers: `/metrics`, `orbit agent status`, `active.json`, the
//! status page.
//!
//! Promises: pictures and stacks of hangs, which only the page shows, have [`MAX_DETAIL_BYTES`]
//! together; lists have [`MAX_LISTED`] entries, past hangs [`MAX_PAST`].

use crate::export::Listen;
use crate::metrics::{Cost, Family, Labels, Metrics};
use crate::policy::{Config, Subject};
use crate::remote;
use crate::selector::{Selector, Unwatched, service};
use orbit_ahd::{Hang, Kind, Sure};
use orbit_console::time::rfc3339;
use orbit_keep::board;
use orbit_remote::link::Link;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// A hang that continues.
#[derive(Clone, Debug)]
pub struct Active {
    /// The service in words.
    pub service: String,
    /// The process.
    pub subject: Subject,
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
    /// Since when it hangs.
    pub since: String,
    /// When it was reported.
    pub at: String,
    /// What was done, in a sentence.
    pub did: String,
    /// What the page shows of it beside; nothing without a page, or for want of room.
    pub detail: Option<Arc<Detail>>,
}

/// What only the status page shows of a hang.
#[derive(Debug)]
pub struct Detail {
    /// The hang as `orbit watch --events` has it.
    pub hang: Value,
    /// The picture and the stacks, or why there are none.
    pub drawing: Result<why::Drawing, String>,
    /// Bytes of both.
    pub bytes: usize,
}

impl Detail {
    /// Of a hang that was drawn, or not.
    pub fn new(hang: Value, drawing: Result<why::Drawing, String>) -> Detail {
        let drawn = match &drawing {
            Ok(why::Drawing { picture, text }) => picture.len() + text.len(),
            Err(why) => why.len(),
        };
        let bytes = hang.to_string().len() + drawn;
        Detail { hang, drawing, bytes }
    }
}

/// The programs that keepers of the agent's user keep.
#[derive(Debug, Default)]
pub struct Kept(Vec<board::Row>);

impl Kept {
    /// Asks the keepers; one that does not answer has two seconds.
    pub fn now() -> Kept {
        Kept(board::all().known.into_iter().flat_map(|(_, rows)| rows).collect())
    }

    /// How often programs among these processes were put back.
    fn put_back(&self, pids: &[i32]) -> u64 {
        self.0.iter().filter(|row| pids.contains(&row.pid)).map(put_back).sum()
    }

    fn values(&self) -> Vec<Value> {
        let one = |row: &board::Row| {
            let figures = &row.figures;
            json!({
                "name": row.name, "pid": row.pid, "mode": if row.is_kept { &row.mode } else { "not yet" },
                "checkpoints": figures.checkpoints, "crashes": figures.crashes, "hangs": figures.hangs,
                "put_back": put_back(row), "restarts": figures.restarts,
            })
        };
        self.0.iter().take(MAX_LISTED).map(one).collect()
    }
}

/// Crashes and hangs after which a program continued: all rungs but the last, which gives up.
fn put_back(row: &board::Row) -> u64 {
    row.figures.by_rung.split_last().map_or(0, |(_, rungs)| rungs.iter().sum())
}

/// What the status page shows.
#[derive(Debug)]
pub struct View {
    /// The machine's name.
    pub host: String,
    /// The status, with what only the page has.
    pub status: Value,
    /// What belongs to each of its hangs.
    pub details: Vec<Option<Arc<Detail>>>,
}

impl View {
    /// All of it but the pictures.
    pub fn json(self) -> Value {
        let View { mut status, details, .. } = self;
        if let Some(hangs) = status["hangs"].as_array_mut() {
            for (hang, detail) in hangs.iter_mut().zip(details) {
                hang["hang"] = detail.map_or(Value::Null, |detail| detail.hang.clone());
            }
        }
        status
    }
}

/// A service: processes of the same policy, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// The policy's.
    pub policy: String,
    /// Its watched processes.
    pub pids: Vec<i32>,
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
    /// Links to other nodes.
    pub nodes: Vec<Arc<Link>>,
    /// Where other nodes may use the pins of this one.
    pub listens: Option<SocketAddr>,
    /// The configuration's file.
    pub config: String,
    /// Why the last configuration was rejected.
    pub rejected: Option<String>,
    /// Where the page of metrics is served, if it is.
    pub metrics_at: Option<Listen>,
    /// Where the status page is served, if it is.
    pub page_at: Option<Listen>,
    /// The process of the detection.
    pub detector: i32,
    /// What the agent has cost, when it was measured last.
    pub cost: Cost,
    /// How long the last scan for processes took.
    pub last_scan: Duration,
    /// When the agent began.
    pub started: Option<(SystemTime, Instant)>,
    /// Hangs that are over, the last one first.
    past: VecDeque<Value>,
}

/// Entries of a list in `active.json` and the status; more are counted.
const MAX_LISTED: usize = 1000;
/// Hangs that are over, in the status page.
const MAX_PAST: usize = 50;
/// Bytes of [`Detail`]s together.
const MAX_DETAIL_BYTES: usize = 16 << 20;

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
        let wanted = config.export.labels();
        let mut labels = Vec::new();
        for watched in selector.watched().values() {
            let policy = config.policies.get(watched.policy).map_or("", |policy| &policy.name);
            labels.push(self.metrics.labels(&watched.subject, policy, &wanted));
        }
        self.metrics.set_watched(labels.into_iter(), self.unwatched.len());
    }

    /// Keeps what the page shows of a hang, if there is room.
    pub fn set_detail(&mut self, key: (i32, i32), detail: Detail) {
        let held: usize = self.hangs.values().filter_map(|hang| Some(hang.detail.as_ref()?.bytes)).sum();
        if let Some(hang) = self.hangs.get_mut(&key).filter(|_| held + detail.bytes <= MAX_DETAIL_BYTES) {
            hang.detail = Some(Arc::new(detail));
        }
    }

    /// Notes that a hang is over, and how. Answers it, if it was known.
    pub fn end_hang(&mut self, key: (i32, i32), how: &str) -> Option<Active> {
        let hang = self.hangs.remove(&key)?;
        self.past.push_front(json!({
            "service": hang.service, "policy": hang.policy, "why": hang.why, "sure": hang.sure.to_string(),
            "since": hang.since, "over": rfc3339(SystemTime::now()), "how": how, "did": hang.did,
            "pid": key.0, "tid": key.1,
        }));
        self.past.truncate(MAX_PAST);
        Some(hang)
    }

    /// Notes the figures of hangs that continue.
    pub fn count_active(&mut self) {
        let active = self.hangs.values().map(|hang| (hang.labels.clone(), hang.kind, hang.sure));
        self.metrics.set_active(active);
    }

    /// The page of metrics.
    pub fn page(&self, open: bool) -> String {
        self.metrics.page(open, self.cost)
    }

    /// The figures of that page.
    pub fn families(&self) -> Vec<Family> {
        self.metrics.families(self.cost)
    }

    /// Measures the agent's cost. Readers have threads without capabilities, to which `/proc` may
    /// hide the detection's process.
    pub fn measure(&mut self) {
        let own = orbit_linux::clock::process_cpu_ns();
        let all = [std::process::id() as i32, self.detector];
        let resident = all.iter().filter(|pid| **pid > 0).map(|pid| resident(*pid)).sum();
        let detector = orbit_linux::clock::cpu_ns_of(self.detector).filter(|_| self.detector > 0).unwrap_or(0);
        let nodes = self.nodes.iter().map(|link| (link.node().name.clone(), remote::is_heard(link)));
        self.metrics.set_nodes(nodes.collect());
        self.cost = Cost { cpu: (own + detector) as f64 / 1e9, resident };
    }

    /// The status as JSON.
    pub fn status(&self) -> Value {
        let Cost { cpu, resident } = self.cost;
        let policies: Vec<Value> = self
            .policies
            .iter()
            .map(|(name, on_hang, unusable)| json!({ "policy": name, "on_hang": on_hang, "unusable": unusable }))
            .collect();
        let services: Vec<Value> = self
            .services
            .iter()
            .take(MAX_LISTED)
            .map(|s| json!({ "service": s.name, "policy": s.policy, "processes": s.pids.len() }))
            .collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"), "config": self.config, "rejected": self.rejected,
            "metrics": self.metrics_at.as_ref().map(ToString::to_string),
            "page": self.page_at.as_ref().map(ToString::to_string),
            "policies": policies, "services": services, "hangs": self.active(), "unwatched": self.not_watched(),
            "listens": self.listens.map(|at| at.to_string()),
            "nodes": self.nodes.iter().map(|link| remote::status(link)).collect::<Vec<Value>>(),
            "cpu_seconds": cpu, "resident_bytes": resident,
        })
    }

    /// What the status page shows.
    pub fn view(&self, kept: Kept) -> View {
        let mut status = self.status();
        let mut hangs: BTreeMap<&str, usize> = BTreeMap::new();
        for hang in self.hangs.values() {
            *hangs.entry(&hang.service).or_default() += 1;
        }
        if let Some(all) = status["services"].as_array_mut() {
            for (value, service) in all.iter_mut().zip(&self.services) {
                let put_back = kept.put_back(&service.pids);
                value["put_back"] = put_back.into();
                value["state"] = match (hangs.get(service.name.as_str()), put_back) {
                    (Some(count), _) => format!("hangs ({count})").into(),
                    (None, 0) => "ok".into(),
                    (None, count) => format!("put back ({count})").into(),
                };
            }
        }
        let Cost { cpu, resident } = self.cost;
        let ran = self.started.map_or(0.0, |(_, at)| at.elapsed().as_secs_f64());
        let (scans, scanned) = self.metrics.scans();
        status["at"] = rfc3339(SystemTime::now()).into();
        status["kept"] = kept.values().into();
        status["kept_of"] = orbit_linux::host::user().into();
        status["past"] = self.past.iter().cloned().collect::<Vec<_>>().into();
        status["agent"] = json!({
            "started": self.started.map(|(at, _)| rfc3339(at)), "cpu_seconds": cpu, "resident_bytes": resident,
            "cpu_percent": if ran > 0.0 { cpu / ran * 100.0 } else { 0.0 },
            "scans": scans, "scan_seconds": self.last_scan.as_secs_f64(),
            "scan_mean_seconds": if scans > 0 { scanned / scans as f64 } else { 0.0 },
        });
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let details = self.hangs.values().take(MAX_LISTED).map(|hang| hang.detail.clone()).collect();
        View { host, status, details }
    }

    fn active(&self) -> Vec<Value> {
        let one = |((pid, tid), hang): (&(i32, i32), &Active)| {
            json!({
                "service": hang.service, "policy": hang.policy, "kind": hang.kind.word(), "sure": hang.sure.to_string(),
                "why": hang.why, "since": hang.since, "at": hang.at, "did": hang.did, "pid": pid, "tid": tid,
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
        let at = rfc3339(SystemTime::now());
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
    let mut all: BTreeMap<(String, usize), Vec<i32>> = BTreeMap::new();
    for (pid, watched) in selector.watched() {
        all.entry((service(&watched.subject), watched.policy)).or_default().push(*pid);
    }
    let one = |((name, policy), pids): ((String, usize), Vec<i32>)| {
        let policy = config.policies.get(policy).map_or(String::new(), |policy| policy.name.clone());
        Service { name, policy, pids }
    };
    all.into_iter().map(one).collect()
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
