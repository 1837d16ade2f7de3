//! The agent's configuration: limits, exporters, policies.
//!
//! Owns: reading `agent.toml` and the policies beside it (`agent.d/*.toml`), and matching a
//! process. Promises: an unknown key is an error with its line; the first `[[policy]]` that matches
//! rules; a policy that cannot be decided, because a fact is not available, matches nothing, and
//! no later policy is tried in its place; an exclusion that cannot be decided excludes.

use crate::action::OnHang;
use crate::export::{Export, Page};
use crate::identity::{Identity, Names};
use crate::kubernetes::{self, Kubernetes, pods::Pod};
use crate::remote::Remote;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A whole configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Bounds of the agent itself.
    pub limits: Limits,
    /// Where its figures and reports go.
    pub export: Export,
    /// The page for browsers; without it there is none.
    pub page: Option<Page>,
    /// Kubernetes' API server; without it labels and workloads are not known.
    pub kubernetes: Option<Kubernetes>,
    /// Other nodes; without it nothing listens for them or connects to them.
    pub remote: Option<Remote>,
    /// In the order in which they are tried.
    pub policies: Vec<Policy>,
    /// Processes that no policy may watch.
    pub exclude: Vec<Match>,
}

/// Bounds of the agent itself.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Processes watched at a time.
    pub processes: usize,
    /// Reports of a service in an hour.
    pub reports_per_hour: u32,
    /// Reports of the node in an hour.
    pub node_reports_per_hour: u32,
    /// Actions on a service in an hour.
    pub actions_per_hour: u32,
    /// Actions on the node in an hour.
    pub node_actions_per_hour: u32,
    /// Report files kept; the oldest are removed.
    pub report_files: usize,
    /// MiB of them together.
    pub report_mib: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            processes: 4096,
            reports_per_hour: 20,
            node_reports_per_hour: 200,
            actions_per_hour: 4,
            node_actions_per_hour: 20,
            report_files: 200,
            report_mib: 64,
        }
    }
}

/// What is watched, and what is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its name in all that is reported.
    pub name: String,
    /// What it selects.
    pub matches: Match,
    /// What it leaves out of that.
    pub exclude: Vec<Match>,
    /// How long a hang lasts at least before it is reported; a ring of locks is one at once.
    pub limit: Duration,
    /// What is done about one.
    pub on_hang: OnHang,
    /// Why it can decide nothing, if so.
    pub unusable: Option<String>,
}

/// Conditions that hold all together. Texts may have `*` (any characters) and `?` (one).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// A unit of the system's service manager.
    pub unit: Option<String>,
    /// A unit of a user's service manager.
    pub user_unit: Option<String>,
    /// The path of the control group.
    pub cgroup: Option<String>,
    /// A container: its number, or its name in a pod.
    pub container: Option<String>,
    /// A pod: its number or name.
    pub pod: Option<String>,
    /// Kubernetes' namespace.
    pub namespace: Option<String>,
    /// Labels of the pod, all of them.
    pub labels: Option<BTreeMap<String, String>>,
    /// What made the pod: the name of its Deployment, StatefulSet, DaemonSet or Job.
    pub workload: Option<String>,
    /// The process' name (`comm`, at most 15 bytes).
    pub command: Option<String>,
    /// The user: a name of `/etc/passwd`, or a number.
    pub user: Option<String>,
    /// True: every process.
    pub any: Option<bool>,
    /// The number of `user`, once it is known.
    #[serde(skip)]
    uid: Option<u32>,
}

/// What is known of a process when a policy is chosen for it.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// From its control group.
    pub identity: Identity,
    /// Kubernetes' names, if known.
    pub names: Option<Names>,
    /// Its name.
    pub command: String,
    /// Its effective user, if known.
    pub user: Option<u32>,
    /// What the API server says of its pod, or why that is not known; `None` for what is in no pod,
    /// and where no server is asked.
    pub listed: Option<Result<Arc<Pod>, String>>,
}

impl Subject {
    /// What the API server says of its pod.
    pub fn pod(&self) -> Option<&Pod> {
        self.listed.as_ref()?.as_deref().ok()
    }
}

/// Whether conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// All do.
    Yes,
    /// One does not.
    No,
    /// None fails, but this is not known.
    Unknown(String),
}

/// The policy for a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This one, by its place.
    Policy(usize),
    /// Excluded by the configuration.
    Excluded,
    /// None matches.
    None,
    /// The policy of this place cannot be decided, and why.
    Undecided(usize, String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MainFile {
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    export: Export,
    page: Option<Page>,
    kubernetes: Option<kubernetes::Table>,
    remote: Option<Remote>,
    #[serde(default)]
    policy: Vec<PolicyTable>,
    #[serde(default)]
    exclude: Vec<Match>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DropIn {
    #[serde(default)]
    policy: Vec<PolicyTable>,
    #[serde(default)]
    exclude: Vec<Match>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyTable {
    name: String,
    #[serde(rename = "match")]
    matches: Match,
    #[serde(default)]
    exclude: Vec<Match>,
    #[serde(default)]
    watch: WatchTable,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WatchTable {
    limit: Option<String>,
    on_hang: Option<String>,
}

/// A policy without a limit.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(5);
const LIMITS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// Bytes of a file: what never ends is no configuration.
const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_POLICIES: usize = 1000;

impl Config {
    /// Reads a file and, beside it, `agent.d/*.toml` in the order of their names.
    ///
    /// # Errors
    /// A sentence with file, line and what would be right.
    pub fn read(path: &Path) -> Result<Config, String> {
        let main: MainFile = parse(path)?;
        let mut files = vec![(path.to_owned(), main.policy, main.exclude)];
        let folder = path.with_file_name("agent.d");
        let mut names: Vec<PathBuf> = match std::fs::read_dir(&folder) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(format!("cannot read {}: {e}", folder.display())),
        };
        names.retain(|name| name.extension().is_some_and(|end| end == "toml"));
        names.sort();
        for name in names {
            let DropIn { policy, exclude } = parse(&name)?;
            files.push((name, policy, exclude));
        }
        let variable = |name: &str| std::env::var(name).ok();
        let kubernetes = main.kubernetes.map(|table| table.resolve(variable)).transpose();
        let kubernetes = kubernetes.map_err(|why| format!("{}: {why}", path.display()))?;
        if kubernetes.is_none() && main.export.kubernetes.as_ref().is_some_and(|events| events.enabled) {
            let why = "Events are about pods, which the part [kubernetes] lists: add it";
            return Err(format!("{}: export.kubernetes: {why}", path.display()));
        }
        if let Some(remote) = &main.remote {
            remote.check().map_err(|why| format!("{}: {why}", path.display()))?;
        }
        let mut config = Config {
            limits: main.limits,
            export: main.export,
            page: main.page,
            kubernetes,
            remote: main.remote,
            ..Config::default()
        };
        if let Some(page) = config.export.prometheus.as_ref().filter(|page| !page.listen.ip().is_loopback()) {
            let why = "the page has no password: it is served on a loopback address, as 127.0.0.1:9106";
            return Err(format!("{}: export.prometheus.listen = \"{}\": {why}", path.display(), page.listen));
        }
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let known = Known { passwd: &passwd, has_pods: config.kubernetes.is_some() };
        for (file, policies, exclude) in files {
            let at = |e: String| format!("{}: {e}", file.display());
            for mut each in exclude {
                if let Some(why) = each.prepare(&known).map_err(at)? {
                    return Err(at(format!("exclude: {why}")));
                }
                config.exclude.push(each);
            }
            for table in policies {
                let policy = table.policy(&known).map_err(at)?;
                if config.policies.iter().any(|p| p.name == policy.name) {
                    return Err(at(format!("policy \"{}\" is given twice: rename one", policy.name)));
                }
                config.policies.push(policy);
            }
        }
        if config.policies.len() > MAX_POLICIES {
            return Err(format!("{} policies: {MAX_POLICIES} at most", config.policies.len()));
        }
        Ok(config)
    }

    /// The policy for a process. The first that matches rules; one that cannot be decided ends the
    /// search, for it may be the one.
    pub fn choose(&self, subject: &Subject) -> Choice {
        if self.exclude.iter().any(|m| m.holds(subject) != Holds::No) {
            return Choice::Excluded;
        }
        for (at, policy) in self.policies.iter().enumerate() {
            match policy.holds(subject) {
                Holds::Yes if policy.exclude.iter().any(|m| m.holds(subject) != Holds::No) => {}
                Holds::Yes => return Choice::Policy(at),
                Holds::Unknown(why) => return Choice::Undecided(at, why),
                Holds::No => {}
            }
        }
        Choice::None
    }

    /// The shortest limit of all policies: that of the detection.
    pub fn shortest_limit(&self) -> Duration {
        self.policies.iter().map(|policy| policy.limit).min().unwrap_or(DEFAULT_LIMIT)
    }
}

impl Policy {
    fn holds(&self, subject: &Subject) -> Holds {
        match (self.matches.holds(subject), &self.unusable) {
            (Holds::No, _) => Holds::No,
            (_, Some(why)) => Holds::Unknown(why.clone()),
            (held, None) => held,
        }
    }
}

impl PolicyTable {
    fn policy(self, known: &Known<'_>) -> Result<Policy, String> {
        let wrong = |what: &str| Err(format!("policy \"{}\": {what}", self.name));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(is_plain) {
            return wrong("its name needs 1 to 64 letters, digits, `-`, `_` or `.`");
        }
        let limit = match self.watch.limit.as_deref().map(duration) {
            None => DEFAULT_LIMIT,
            Some(Some(limit)) if LIMITS.contains(&limit) => limit,
            Some(_) => return wrong("watch.limit must be a time from \"100ms\" to \"60m\", as \"5s\""),
        };
        let on_hang = match self.watch.on_hang.as_deref().map(str::parse::<OnHang>) {
            None => OnHang::default(),
            Some(Ok(on_hang)) => on_hang,
            Some(Err(why)) => return wrong(&format!("watch.on_hang: {why}")),
        };
        let (mut matches, mut exclude) = (self.matches, self.exclude);
        let mut unusable = None;
        for each in std::iter::once(&mut matches).chain(&mut exclude) {
            match each.prepare(known) {
                Ok(why) => unusable = unusable.or(why),
                Err(what) => return Err(format!("policy \"{}\": {what}", self.name)),
            }
        }
        Ok(Policy { name: self.name, matches, exclude, limit, on_hang, unusable })
    }
}

/// What conditions are made of.
struct Known<'a> {
    passwd: &'a str,
    /// Whether pods are listed.
    has_pods: bool,
}

impl Match {
    /// Learns the user's number. Answers why the conditions can never be decided here, if so.
    fn prepare(&mut self, known: &Known<'_>) -> Result<Option<String>, String> {
        let Match { unit, user_unit, cgroup, container, pod, namespace, workload, labels, command, user, any, .. } =
            &*self;
        let texts = [unit, user_unit, cgroup, container, pod, namespace, workload, command, user];
        let named = texts.iter().filter(|text| text.is_some()).count() + usize::from(labels.is_some());
        match any {
            Some(false) => return Err("match.any may only be true".into()),
            Some(true) if named > 0 => return Err("match.any = true stands alone: it is every process".into()),
            None if named == 0 => {
                let keys = "unit, user_unit, cgroup, container, pod, namespace, workload, labels, command, user, or \
                            any = true";
                return Err(format!("match has no condition: give {keys}"));
            }
            _ => {}
        }
        if texts.into_iter().flatten().any(String::is_empty) {
            return Err("match has an empty text, which nothing matches: remove it, or write \"*\"".into());
        }
        if labels.as_ref().is_some_and(BTreeMap::is_empty) {
            return Err("match.labels is empty: name one, as { app = \"cart\" }".into());
        }
        let number = |name: &str| name.parse().ok().or_else(|| user_number(known.passwd, name));
        let user = user.clone();
        if let Some(name) = user {
            self.uid = number(&name);
            if self.uid.is_none() {
                return Ok(Some(format!("/etc/passwd has no user \"{name}\"")));
            }
        }
        let needs_list = self.labels.is_some() || self.workload.is_some();
        let no_list = "labels and workload need the list of this node's pods: add the part [kubernetes]";
        Ok((needs_list && !known.has_pods).then(|| no_list.to_owned()))
    }

    /// Whether all conditions hold for a process. A fact that is not known gives `Unknown`, but
    /// where another condition fails.
    pub fn holds(&self, of: &Subject) -> Holds {
        let id = &of.identity;
        let is = |want: &Option<String>, has: Option<&str>| match want {
            None => Holds::Yes,
            Some(pattern) if has.is_some_and(|text| glob(pattern, text)) => Holds::Yes,
            Some(_) => Holds::No,
        };
        // Only a container in a pod has Kubernetes' names.
        let named = |want: &Option<String>, part: fn(&Names) -> &String, also: Option<&str>| match (want, &of.names) {
            (Some(pattern), _) if also.is_some_and(|text| glob(pattern, text)) => Holds::Yes,
            (Some(_), None) if id.pod.is_some() => {
                Holds::Unknown("Kubernetes' names of its container are not in /var/log/containers".into())
            }
            (Some(pattern), Some(names)) if glob(pattern, part(names)) => Holds::Yes,
            (Some(_), _) => Holds::No,
            (None, _) => Holds::Yes,
        };
        let user = match (self.uid, of.user) {
            (None, _) => Holds::Yes,
            (Some(want), Some(has)) if want == has => Holds::Yes,
            (Some(_), Some(_)) => Holds::No,
            (Some(_), None) => Holds::Unknown("its user is not known".into()),
        };
        let listed = |wanted: bool, has: &dyn Fn(&Pod) -> bool| match (wanted, &of.listed) {
            (false, _) => Holds::Yes,
            (true, Some(Ok(pod))) if has(pod) => Holds::Yes,
            (true, Some(Ok(_))) => Holds::No,
            (true, Some(Err(why))) => Holds::Unknown(why.clone()),
            (true, None) if id.pod.is_some() => Holds::Unknown("the pods of this node are not listed".into()),
            (true, None) => Holds::No,
        };
        let has_labels = |pod: &Pod| {
            let has = |(key, pattern): (&String, &String)| pod.labels.get(key).is_some_and(|text| glob(pattern, text));
            self.labels.iter().flatten().all(has)
        };
        let has_workload = |pod: &Pod| {
            let of_pod = pod.workload.as_deref();
            self.workload.as_deref().is_none_or(|pattern| of_pod.is_some_and(|text| glob(pattern, text)))
        };
        // A unit of a user is no unit of the system, though it is below one.
        let unit = id.unit.as_deref().filter(|_| id.user_unit.is_none());
        let all = [
            is(&self.unit, unit),
            is(&self.user_unit, id.user_unit.as_deref()),
            is(&self.cgroup, Some(&id.cgroup)),
            is(&self.command, Some(&of.command)),
            named(&self.container, |names| &names.container, id.container.as_deref()),
            named(&self.pod, |names| &names.pod, id.pod.as_deref()),
            named(&self.namespace, |names| &names.namespace, None),
            listed(self.labels.is_some(), &has_labels),
            listed(self.workload.is_some(), &has_workload),
            user,
        ];
        let all = all.into_iter().reduce(|one, other| match (one, other) {
            (Holds::No, _) | (_, Holds::No) => Holds::No,
            (Holds::Unknown(why), _) | (_, Holds::Unknown(why)) => Holds::Unknown(why),
            (Holds::Yes, Holds::Yes) => Holds::Yes,
        });
        all.unwrap_or(Holds::No)
    }
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, String> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    read.map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("{}: has more than {} MiB", path.display(), MAX_FILE_BYTES >> 20));
    }
    toml::from_str(&text).map_err(|e| {
        let at = e.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        let line = at.map(|line| format!(":{line}")).unwrap_or_default();
        format!("{}{line}: {}", path.display(), e.message())
    })
}

/// A time as `5s`, `500ms` or `2m`.
pub fn duration(text: &str) -> Option<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(ms).map(Duration::from_millis)
}

fn user_number(passwd: &str, name: &str) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

/// Whether a text has the form of a pattern with `*` and `?`. Linear in the text for each `*`.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut from, mut star) = (0, 0, None);
    while from < t.len() {
        if p.get(at) == Some(&'*') {
            star = Some((at, from));
            at += 1;
        } else if p.get(at).is_some_and(|c| *c == '?' || *c == t[from]) {
            (at, from) = (at + 1, from + 1);
        } else if let Some((place, taken)) = star {
            star = Some((place, taken + 1));
            (at, from) = (place + 1, taken + 1);
        } else {
            return false;
        }
    }
    p[at..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::of_path;

    fn config(text: &str) -> Result<Config, String> {
        let dir =
            std::env::temp_dir().join(format!("orbit-agent-{}-{:?}", std::process::id(), std::thread::current().id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("agent.toml");
        std::fs::write(&path, text).expect("written");
        let config = Config::read(&path);
        std::fs::remove_dir_all(dir).expect("removed");
        config
    }

    fn policies(conditions: &[&str]) -> Config {
        let one = |(n, m): (usize, &&str)| format!("[[policy]]\nname = \"p{n}\"\nmatch = {{ {m} }}\n");
        config(&conditions.iter().enumerate().map(one).collect::<String>()).expect("sound")
    }

    fn subject(path: &str, command: &str) -> Subject {
        Subject { identity: of_path(path), command: command.into(), user: Some(0), ..Subject::default() }
    }

    const POD: &str = "/kubepods/podff49d0be-16b7-4a49-bb9e-8ec1f1f4e27f/\
                       0f99ad5f45163ed14ab8eaf92ed34bb4a631d007f8755a7d79be614bcb0df0ef";

    #[test]
    fn the_first_that_matches_rules() {
        let c = policies(&["unit = \"redis-server@*.service\"", "command = \"redis*\", user = \"0\"", "any = true"]);
        assert_eq!(c.choose(&subject("/system.slice/redis-server@a.service", "x")), Choice::Policy(0));
        assert_eq!(c.choose(&subject("/system.slice/other.service", "redis-server")), Choice::Policy(1));
        assert_eq!(c.choose(&subject("/", "")), Choice::Policy(2));
        let only = policies(&["unit = \"a.service\""]);
        assert_eq!(only.choose(&subject("/system.slice/b.service", "a.service")), Choice::None);
        let users = subject("/user.slice/user-1.slice/user@1.service/app.slice/a.service", "a");
        assert_eq!(only.choose(&users), Choice::None, "a user's unit of the same name");
        let outer = policies(&["unit = \"user@1.service\"", "user_unit = \"a.service\""]);
        assert_eq!(outer.choose(&users), Choice::Policy(1));
    }

    #[test]
    fn what_is_not_known_matches_nothing_and_no_later_policy() {
        let c = policies(&["namespace = \"shop\"", "any = true"]);
        assert!(
            matches!(c.choose(&subject(POD, "x")), Choice::Undecided(0, why) if why.contains("/var/log/containers"))
        );
        assert_eq!(c.choose(&subject("/system.slice/a.service", "x")), Choice::Policy(1), "in no pod");
        let names =
            |namespace: &str| Names { pod: "cart-1".into(), namespace: namespace.into(), container: "app".into() };
        let with = |namespace| Subject { names: Some(names(namespace)), ..subject(POD, "x") };
        assert_eq!([c.choose(&with("shop")), c.choose(&with("bank"))], [Choice::Policy(0), Choice::Policy(1)]);
        let both = policies(&["namespace = \"shop\", command = \"app\""]);
        assert_eq!(both.choose(&subject(POD, "other")), Choice::None, "another condition fails");
        let by_number = policies(&["pod = \"ff49d0be-*\", container = \"0f99*\""]);
        assert_eq!(by_number.choose(&subject(POD, "x")), Choice::Policy(0), "numbers are known");
    }

    #[test]
    fn labels_are_neither_nothing_nor_everything() {
        let conditions =
            ["command = \"app\", labels = { orbit = \"w*\", tier = \"1\" }", "workload = \"ca?t\"", "any = true"];
        let c = policies(&conditions);
        assert!(c.policies[0].unusable.as_deref().is_some_and(|why| why.contains("add the part [kubernetes]")));
        assert!(matches!(c.choose(&subject(POD, "app")), Choice::Undecided(0, _)));
        assert!(matches!(c.choose(&subject(POD, "other")), Choice::Undecided(1, _)));
        assert_eq!(c.choose(&subject("/system.slice/a.service", "app")), Choice::Policy(2), "in no pod");
        let one = |(n, m): (usize, &&str)| format!("[[policy]]\nname = \"p{n}\"\nmatch = {{ {m} }}\n");
        let policies_of = conditions.iter().enumerate().map(one).collect::<String>();
        let c = config(&format!("[kubernetes]\nserver = \"https://10.0.0.1:1\"\nnode = \"n\"\n{policies_of}"))
            .expect("sound");
        assert!(c.policies.iter().all(|policy| policy.unusable.is_none()));
        let with = |labels: &[(&str, &str)], workload: Option<&str>| {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let pod = Pod { labels, workload: workload.map(str::to_owned), ..Pod::default() };
            Subject { listed: Some(Ok(Arc::new(pod))), ..subject(POD, "app") }
        };
        assert_eq!(c.choose(&with(&[("orbit", "watch"), ("tier", "1")], None)), Choice::Policy(0));
        assert_eq!(c.choose(&with(&[("orbit", "watch")], Some("cart"))), Choice::Policy(1), "one of two labels");
        assert_eq!(c.choose(&with(&[("orbit", "no"), ("tier", "1")], Some("bank"))), Choice::Policy(2));
        let unknown = Subject { listed: Some(Err("no answer".into())), ..subject(POD, "app") };
        assert_eq!(c.choose(&unknown), Choice::Undecided(0, "no answer".into()));
        let nobody = policies(&["user = \"no-such-user\"", "any = true"]);
        assert!(matches!(nobody.choose(&subject("/x", "a")), Choice::Undecided(0, why) if why.contains("/etc/passwd")));
    }

    #[test]
    fn exclusions_go_before_all() {
        let text = "[[exclude]]\nnamespace = \"kube-system\"\n[[policy]]\nname = \"a\"\nmatch = { any = true }\n\
                    exclude = [{ command = \"sh\" }]\n[[policy]]\nname = \"b\"\nmatch = { any = true }\n";
        let c = config(text).expect("sound");
        assert_eq!(c.choose(&subject("/x", "a")), Choice::Policy(0));
        assert_eq!(c.choose(&subject("/x", "sh")), Choice::Policy(1), "left out of one policy only");
        assert_eq!(c.choose(&subject(POD, "a")), Choice::Excluded, "its namespace is not known: it may be that one");
    }

    #[test]
    fn errors_name_file_line_and_what_is_right() {
        let policy = |text: &str| format!("[[policy]]\nname = \"a\"\n{text}\n");
        for (text, part) in [
            ("\nlimit = 1".to_owned(), "agent.toml:2: unknown field `limit`, expected one of `limits`"),
            (policy("match = { unt = \"x\" }"), "agent.toml:3: unknown field `unt`"),
            (policy("match = {}"), "no condition"),
            (policy("match = { any = false }"), "may only be true"),
            (policy("match = { any = true, unit = \"x\" }"), "stands alone"),
            (policy("match = { unit = \"\" }"), "empty text"),
            (policy("match = { labels = {} }"), "match.labels is empty"),
            ("[export.kubernetes]\nenabled = true".to_owned(), "add it"),
            ("[kubernetes]\nnodes = 1".to_owned(), "unknown field `nodes`"),
            (policy(""), "missing field `match`"),
            (policy("match = { any = true }\nwatch = { limit = \"5\" }"), "as \"5s\""),
            (policy("match = { any = true }\nwatch = { limit = \"99ms\" }"), "100ms"),
            (policy("match = { any = true }\nwatch = { on_hang = \"reboot\" }"), "`reboot` is no action"),
            (policy("match = { any = true }\nkeep = { mode = \"attach\" }"), "unknown field `keep`"),
            (policy("match = { any = true }") + &policy("match = { any = true }"), "given twice"),
            ("[[policy]]\nname = \"a b\"\nmatch = { any = true }".to_owned(), "letters"),
            ("[export.prometheus]\nlisten = \"0.0.0.0:9106\"".to_owned(), "loopback"),
            (
                "[export.prometheus]\nlisten = \"127.0.0.1:9106\"\nlabels = [\"pid\"]".to_owned(),
                "unknown variant `pid`",
            ),
            (
                "[export.otlp]\nendpoint = \"https://127.0.0.1:4318\"".to_owned(),
                "let a collector on this machine forward",
            ),
            ("[export.otlp]\nendpoint = \"http://collector:4318\"".to_owned(), "agent.toml:1: export.otlp.endpoint"),
            ("[export.otlp]\nendpoint = \"http://127.0.0.1\"".to_owned(), "an address with a port"),
            ("[export.otlp]\nendpoint = \"http://127.0.0.1:4318/v1/logs\"".to_owned(), "an address with a port"),
            ("[export.otlp]\ninterval = \"5s\"".to_owned(), "missing field `endpoint`"),
            ("[export.otlp]\nendpoint = \"http://[::1]:4318/\"\ninterval = \"9ms\"".to_owned(), "from \"1s\""),
            ("[limits]\ncpu = 2".to_owned(), "unknown field `cpu`"),
            ("[[exclude]]\nlabels = { a = \"b\" }".to_owned(), "labels and workload need"),
        ] {
            let why = config(&text).expect_err(&text);
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!(Config::read(Path::new("/nonexistent/agent.toml")).is_err_and(|why| why.starts_with("cannot read")));
    }

    #[test]
    fn an_empty_file_selects_nothing() {
        let c = config("").expect("sound");
        assert_eq!(
            (c.choose(&subject("/x", "a")), c.limits, c.export),
            (Choice::None, Limits::default(), Export::default())
        );
    }

    #[test]
    fn patterns() {
        for (pattern, text, yes) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abb", false),
            ("?", "", false),
            ("a?c", "abc", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*.service", "a.servicex", false),
            ("a", "ab", false),
            ("", "a", false),
        ] {
            assert_eq!(glob(pattern, text), yes, "{pattern} {text}");
        }
        assert!(!glob(&"*a".repeat(30), &"a".repeat(29)), "no exponential search");
        assert_eq!(duration("1500ms"), Some(Duration::from_millis(1500)));
        for wrong in ["", "s", "5", "5 s", "-5s", "5h", "99999999999999999999s"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
