//! The agent's figures, and how they are a page of OpenMetrics or of the older text format.
//!
//! Promises: labels are of few values each: of a service, its namespace, container name, unit and
//! policy, as the configuration has it; never a process, a pod or a sentence. Beyond
//! [`MAX_SERVICES`] services the others are counted under `other`. The two formats differ in how
//! they name counters and in the last line; a reader that does not ask for OpenMetrics gets the
//! older one, which `promtool check metrics` reads.

use crate::export::Label;
use crate::policy::Subject;
use orbit_ahd::{Kind, Sure};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

/// Labels with their values, sorted by name.
pub type Labels = Vec<(&'static str, String)>;

/// Services that have labels of their own.
pub const MAX_SERVICES: usize = 1000;
// What there is from the beginning, at 0: a counter that begins at 1 has no increase that a rule
// could see.
const ACTIONS: [&str; 3] = ["core", "restart", "signal"];
const BUDGETS: [&str; 2] = ["node_budget", "service_budget"];
const EXPORTS: [&str; 4] = ["active", "file", "journal", "otlp"];
/// Upper bounds of the buckets of times, s.
const BUCKETS: [f64; 12] = [0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Times by bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Of times up to each bound, so of those of smaller bounds too.
    counts: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    /// Counts a time.
    pub fn observe(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (bound, count) in BUCKETS.iter().zip(&mut self.counts) {
            *count += u64::from(seconds <= *bound);
        }
        (self.count, self.sum) = (self.count + 1, self.sum + seconds);
    }

    /// Upper bounds of the buckets, s, and how many times lie in each alone; the last is of those
    /// above all bounds.
    pub fn buckets(&self) -> (&'static [f64], Vec<u64>) {
        let upper = self.counts.iter().chain([&self.count]);
        let lower = std::iter::once(&0).chain(&self.counts);
        (&BUCKETS, upper.zip(lower).map(|(upper, lower)| upper - lower).collect())
    }

    /// How many times there are, and their sum, s.
    pub fn total(&self) -> (u64, f64) {
        (self.count, self.sum)
    }
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    services: BTreeSet<Labels>,
    hangs: BTreeMap<Labels, u64>,
    active: BTreeMap<Labels, u64>,
    watched: BTreeMap<Labels, u64>,
    unwatched: u64,
    unusable_policies: u64,
    actions: BTreeMap<&'static str, u64>,
    suppressed: BTreeMap<&'static str, u64>,
    export_failures: BTreeMap<&'static str, u64>,
    detection: Histogram,
    scan: Histogram,
    reload_failures: u64,
    detector_failures: u64,
    nodes: Vec<(String, bool)>,
}

/// Samples of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// As on the page; of a counter without `_total`.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// Its samples.
    pub samples: Samples,
}

/// Samples, by their kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Samples {
    /// They only grow, while the agent lives.
    Counter(Vec<(Labels, f64)>),
    /// They grow and shrink.
    Gauge(Vec<(Labels, f64)>),
    /// Times, s.
    Histogram(Histogram),
}

/// What is measured at each scan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// CPU time of the agent's processes, s.
    pub cpu: f64,
    /// Their resident memory, bytes.
    pub resident: u64,
}

impl Metrics {
    /// The labels of a service.
    pub fn labels(&mut self, of: &Subject, policy: &str, wanted: &[Label]) -> Labels {
        let names = of.names.as_ref();
        let value = |label: Label| match label {
            Label::Namespace => ("namespace", names.map(|n| n.namespace.clone())),
            Label::Container => ("container", names.map(|n| n.container.clone())),
            Label::Unit => ("unit", of.identity.unit.as_deref().map(unit)),
            Label::Policy => ("policy", Some(policy.to_owned())),
            Label::Workload => ("workload", of.pod().and_then(|pod| pod.workload.clone())),
        };
        let mut labels: Labels =
            wanted.iter().map(|label| value(*label)).map(|(name, value)| (name, value.unwrap_or_default())).collect();
        labels.sort();
        labels.dedup_by_key(|(name, _)| *name);
        if !self.services.contains(&labels) {
            if self.services.len() >= MAX_SERVICES {
                labels.iter_mut().for_each(|(_, value)| "other".clone_into(value));
                return labels;
            }
            self.services.insert(labels.clone());
            // A counter that begins at 1 has no increase that a rule could see.
            for kind in [Kind::Busy, Kind::Blocked] {
                self.hangs.insert(with_hang(&labels, kind, Sure::Certain), 0);
            }
        }
        labels
    }

    /// A hang began.
    pub fn hang(&mut self, labels: &Labels, kind: Kind, sure: Sure, latency: Duration) {
        *self.hangs.entry(with_hang(labels, kind, sure)).or_default() += 1;
        self.detection.observe(latency);
    }

    /// Hangs that continue.
    pub fn set_active(&mut self, active: impl Iterator<Item = (Labels, Kind, Sure)>) {
        // Those that were seen before stay, at 0.
        self.active = self.hangs.keys().map(|labels| (labels.clone(), 0)).collect();
        for (labels, kind, sure) in active {
            *self.active.entry(with_hang(&labels, kind, sure)).or_default() += 1;
        }
    }

    /// Processes that are watched, by their labels, and how many are not.
    pub fn set_watched(&mut self, watched: impl Iterator<Item = Labels>, unwatched: usize) {
        self.watched.clear();
        for labels in watched {
            *self.watched.entry(labels).or_default() += 1;
        }
        self.unwatched = unwatched as u64;
    }

    /// Policies that can decide nothing.
    pub fn set_unusable(&mut self, policies: usize) {
        self.unusable_policies = policies as u64;
    }

    /// Other nodes, and which of them are heard.
    pub fn set_nodes(&mut self, nodes: Vec<(String, bool)>) {
        self.nodes = nodes;
    }

    /// Something was done.
    pub fn did(&mut self, what: &'static str) {
        *self.actions.entry(what).or_default() += 1;
    }

    /// Something was not reported or not done.
    pub fn suppressed(&mut self, reason: &'static str) {
        *self.suppressed.entry(reason).or_default() += 1;
    }

    /// Something could not be exported.
    pub fn export_failed(&mut self, to: &'static str) {
        *self.export_failures.entry(to).or_default() += 1;
    }

    /// A scan for processes took so long.
    pub fn scanned(&mut self, time: Duration) {
        self.scan.observe(time);
    }

    /// How many scans there were, and their time together, s.
    pub fn scans(&self) -> (u64, f64) {
        self.scan.total()
    }

    /// A new configuration was rejected.
    pub fn reload_failed(&mut self) {
        self.reload_failures += 1;
    }

    /// The detection failed and was loaded again.
    pub fn detector_failed(&mut self) {
        self.detector_failures += 1;
    }

    /// The page: in OpenMetrics if `open`, else in the older format.
    pub fn page(&self, open: bool, cost: Cost) -> String {
        let mut page = Page { text: String::new(), open };
        self.families(cost).iter().for_each(|family| page.family(family));
        if open {
            page.text.push_str("# EOF\n");
        }
        page.text
    }

    /// All figures as they are now, for whichever form.
    pub fn families(&self, cost: Cost) -> Vec<Family> {
        let mut page = Families::default();
        page.counter("orbit_hangs", "Hangs that were reported.", labelled(&self.hangs));
        page.gauge("orbit_hangs_active", "Hangs that continue.", labelled(&self.active));
        page.histogram(
            "orbit_hang_detection_seconds",
            "Time from when a hang could first be known to its finished report.",
            &self.detection,
        );
        page.gauge("orbit_watched_processes", "Processes that are watched.", labelled(&self.watched));
        page.gauge("orbit_unwatched_processes", "Selected processes that are not watched.", one(self.unwatched));
        page.gauge("orbit_unusable_policies", "Policies that can decide nothing here.", one(self.unusable_policies));
        page.counter("orbit_actions", "Actions on hangs that were done.", keyed("did", &ACTIONS, &self.actions));
        page.counter(
            "orbit_suppressed",
            "Reports and actions that were left out, by reason.",
            keyed("reason", &BUDGETS, &self.suppressed),
        );
        page.counter(
            "orbit_export_failures",
            "Messages, files and requests that could not be handed over.",
            keyed("to", &EXPORTS, &self.export_failures),
        );
        page.counter("orbit_agent_reload_failures", "Configurations that were rejected.", one(self.reload_failures));
        page.counter("orbit_agent_detector_failures", "Times the detection failed.", one(self.detector_failures));
        let heard = |(name, heard): &(String, bool)| (vec![("node", name.clone())], f64::from(u8::from(*heard)));
        page.gauge("orbit_remote_node_up", "Whether another node is heard.", self.nodes.iter().map(heard));
        page.histogram("orbit_agent_scan_seconds", "Duration of scans for processes.", &self.scan);
        page.counter("orbit_agent_cpu_seconds", "CPU time of the agent's processes.", [(Labels::new(), cost.cpu)]);
        let resident = [(Labels::new(), cost.resident as f64)];
        page.gauge("orbit_agent_resident_memory_bytes", "Resident memory of the agent's processes.", resident);
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        page.gauge("orbit_build_info", "The agent's version.", [(version, 1.0)]);
        page.0
    }
}

/// The unit as a label: of an instance the template, for there may be many.
pub fn unit(name: &str) -> String {
    let instance = name.split_once('@').and_then(|(before, rest)| rest.rsplit_once('.').map(|(_, end)| (before, end)));
    match instance {
        Some((before, end)) => format!("{before}@.{end}"),
        None if name.ends_with(".scope") => "scope".to_owned(),
        None => name.to_owned(),
    }
}

fn with_hang(labels: &Labels, kind: Kind, sure: Sure) -> Labels {
    let mut all = labels.clone();
    all.extend([("kind", kind.word().to_owned()), ("sure", sure.to_string())]);
    all.sort();
    all
}

fn labelled(all: &BTreeMap<Labels, u64>) -> Vec<(Labels, f64)> {
    all.iter().map(|(labels, value)| (labels.clone(), *value as f64)).collect()
}

fn keyed(name: &'static str, known: &[&'static str], counted: &BTreeMap<&'static str, u64>) -> Vec<(Labels, f64)> {
    let mut all: BTreeMap<&str, u64> = known.iter().map(|key| (*key, 0)).collect();
    all.extend(counted);
    all.iter().map(|(key, value)| (vec![(name, (*key).to_owned())], *value as f64)).collect()
}

fn one(value: u64) -> [(Labels, f64); 1] {
    [(Labels::new(), value as f64)]
}

#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    fn counter(&mut self, name: &'static str, help: &'static str, samples: impl IntoIterator<Item = (Labels, f64)>) {
        self.0.push(Family { name, help, samples: Samples::Counter(samples.into_iter().collect()) });
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, samples: impl IntoIterator<Item = (Labels, f64)>) {
        self.0.push(Family { name, help, samples: Samples::Gauge(samples.into_iter().collect()) });
    }

    fn histogram(&mut self, name: &'static str, help: &'static str, of: &Histogram) {
        self.0.push(Family { name, help, samples: Samples::Histogram(of.clone()) });
    }
}

struct Page {
    text: String,
    open: bool,
}

impl Page {
    fn family(&mut self, Family { name, help, samples }: &Family) {
        match samples {
            Samples::Counter(samples) => {
                let total = format!("{name}_total");
                // OpenMetrics names the family without the ending that its samples have.
                self.head(if self.open { name } else { &total }, help, "counter");
                samples.iter().for_each(|(labels, value)| self.sample(&total, labels, *value));
            }
            Samples::Gauge(samples) => {
                self.head(name, help, "gauge");
                samples.iter().for_each(|(labels, value)| self.sample(name, labels, *value));
            }
            Samples::Histogram(of) => self.histogram(name, help, of),
        }
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a text cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, String)], value: f64) {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let list: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let list = if list.is_empty() { String::new() } else { format!("{{{}}}", list.join(",")) };
        let _ = writeln!(self.text, "{name}{list} {value}");
    }

    fn histogram(&mut self, name: &str, help: &str, of: &Histogram) {
        self.head(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        for (bound, count) in BUCKETS.iter().zip(of.counts) {
            // OpenMetrics wants a float: `1.0`.
            self.sample(&bucket, &[("le", format!("{bound:?}"))], count as f64);
        }
        self.sample(&bucket, &[("le", "+Inf".to_owned())], of.count as f64);
        self.sample(&format!("{name}_sum"), &[], of.sum);
        self.sample(&format!("{name}_count"), &[], of.count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Names, of_path};
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    fn subject(path: &str) -> Subject {
        Subject { identity: of_path(path), command: "x".into(), ..Subject::default() }
    }

    fn filled() -> Metrics {
        let mut m = Metrics::default();
        let wanted = [Label::Unit, Label::Namespace, Label::Policy, Label::Container];
        let a = m.labels(&subject("/system.slice/a\"\\.service"), "p", &wanted);
        m.hang(&a, Kind::Blocked, Sure::Certain, Duration::from_millis(30));
        m.set_active([(a.clone(), Kind::Blocked, Sure::Certain)].into_iter());
        m.set_watched([a.clone(), a].into_iter(), 3);
        m.set_unusable(1);
        m.did("restart");
        m.suppressed("service_budget");
        m.export_failed("journal");
        m.scanned(Duration::from_millis(2));
        m.set_nodes(vec![("db1".into(), true), ("db2".into(), false)]);
        m
    }

    #[test]
    fn the_older_format_passes_promtool() {
        let page = filled().page(false, Cost { cpu: 1.5, resident: 4096 });
        let labels =
            "{container=\"\",kind=\"blocked\",namespace=\"\",policy=\"p\",sure=\"certain\",unit=\"a\\\"\\\\.service\"}";
        assert!(page.contains(&format!("orbit_hangs_total{labels} 1\n")), "{page}");
        assert!(page.contains("orbit_hang_detection_seconds_bucket{le=\"0.025\"} 0\n"), "{page}");
        assert!(page.contains("orbit_hang_detection_seconds_bucket{le=\"0.1\"} 1\n"), "{page}");
        assert!(
            page.contains("orbit_remote_node_up{node=\"db1\"} 1\n") && page.contains("{node=\"db2\"} 0\n"),
            "{page}"
        );
        assert!(page.contains("orbit_watched_processes{") && page.contains("} 2\n"), "{page}");
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut child) = promtool.spawn() else {
            println!("SKIP: needs promtool (Debian's prometheus)");
            return;
        };
        child.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("read");
        let done = child.wait_with_output().expect("a child");
        assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    fn counters_that_rules_watch_begin_at_0() {
        let page = Metrics::default().page(false, Cost::default());
        for sample in [
            "orbit_actions_total{did=\"restart\"} 0\n",
            "orbit_suppressed_total{reason=\"service_budget\"} 0\n",
            "orbit_suppressed_total{reason=\"node_budget\"} 0\n",
            "orbit_export_failures_total{to=\"journal\"} 0\n",
            "orbit_export_failures_total{to=\"otlp\"} 0\n",
        ] {
            assert!(page.contains(sample), "{sample}{page}");
        }
    }

    #[test]
    fn openmetrics_has_the_family_without_total_and_an_end() {
        let page = filled().page(true, Cost::default());
        assert!(page.contains("# TYPE orbit_hangs counter\n") && page.ends_with("# EOF\n"), "{page}");
        // Each sample belongs to the family above it, by the endings of its kind.
        let (mut family, mut kind) = (String::new(), String::new());
        for line in page.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, of) = rest.split_once(' ').expect("a kind");
                (family, kind) = (name.to_owned(), of.to_owned());
            } else if !line.starts_with("# HELP ") {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let ending = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{line} below {family}"));
                let allowed: &[&str] = match kind.as_str() {
                    "counter" => &["_total"],
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                assert!(allowed.contains(&ending), "{line}");
            }
        }
    }

    #[test]
    fn labels_have_few_values() {
        let mut m = Metrics::default();
        let wanted = [Label::Unit, Label::Namespace];
        let instance = m.labels(&subject("/system.slice/system-redis.slice/redis-server@17.service"), "p", &wanted);
        assert_eq!(instance, [("namespace", String::new()), ("unit", "redis-server@.service".into())]);
        let session = m.labels(&subject("/user.slice/user-1.slice/session-31.scope"), "p", &wanted);
        assert_eq!(session[1].1, "scope");
        let names = Names { pod: "cart-7d-x".into(), namespace: "shop".into(), container: "app".into() };
        let of_pod = m.labels(&Subject { names: Some(names), ..subject("/x") }, "p", &wanted);
        assert!(!format!("{of_pod:?}").contains("cart"), "no pod: {of_pod:?}");
        for i in 0..2 * MAX_SERVICES {
            m.labels(&subject(&format!("/system.slice/s{i}.service")), "p", &wanted);
        }
        let late = m.labels(&subject("/system.slice/late.service"), "p", &wanted);
        assert_eq!(late, [("namespace", "other".into()), ("unit", "other".to_owned())]);
        assert!(m.page(false, Cost::default()).lines().count() < 3 * MAX_SERVICES);
    }
}
