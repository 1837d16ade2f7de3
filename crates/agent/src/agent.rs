//! The agent's loop.
//!
//! Owns: the core with the module of the detection, the selector, what is done about a hang.
//! Promises: one process samples all watched processes; a hang of a process that is not selected
//! (any more) is neither reported nor acted on; a rejected configuration leaves the old one in
//! force; each report or action that is left out is counted and announced. When the detection gives
//! up, or `/proc` cannot be read, the agent ends with an error, so that its manager starts it anew.

use crate::action::{self, Action, Budget, Suppressed, Target};
use crate::collector::{self, Collector};
use crate::export::Listen;
use crate::groups::Groups;
use crate::journal::{Journal, Kind};
use crate::kubernetes::events::{self, Events};
use crate::kubernetes::pods::Pods;
use crate::notify::notify;
use crate::otlp::Record;
use crate::policy::{Config, Policy, Subject};
use crate::remote::{HEARTBEAT, Nodes};
use crate::reports::Reports;
use crate::selector::{Changes, Selector, Watched, service};
use crate::site::Site;
use crate::state::{Active, Detail, State, is_ring};
use crate::{Args, control, http, socket};
use orbit_ahd::{Event, Hang, json};
use orbit_console::harmless::Harmless;
use orbit_console::out::{self, Failure};
use orbit_console::time::rfc3339;
use orbit_linux::rlimit::{self, Resource};
use orbit_linux::{pidfd, procfs, signals};
use orbit_modules::hangs::{self, Detector, Settings};
use orbit_modules::hosted::{self, Hosted};
use orbit_rmk::{Module, Report};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Time between two scans for processes.
const SCAN_EVERY: Duration = Duration::from_secs(1);
/// `active.json` is written at least so often: a reader takes an older one for that of an agent
/// that is gone.
const WRITE_EVERY: Duration = Duration::from_secs(20);

/// Over which CPU use is measured for a picture.
const DRAW_INTERVAL: Duration = Duration::from_millis(20);
/// Processes of a hang that are read for its picture.
const MAX_DRAWN_PROCESSES: usize = 4;
/// Their threads together.
const MAX_DRAWN_THREADS: usize = 512;

/// See the module's head.
pub struct Agent {
    args: Args,
    config: Config,
    hosted: Arc<Hosted>,
    selector: Selector,
    groups: Groups,
    state: Arc<Mutex<State>>,
    journal: Option<Journal>,
    collector: Option<Collector>,
    events: Option<Events>,
    nodes: Option<Nodes>,
    reports: Reports,
    report_budget: Budget,
    action_budget: Budget,
    /// Reports that their policy's limit holds back, by process and thread.
    held: BTreeMap<(i32, i32), (Instant, Box<Hang>)>,
    /// Services whose reports or actions are being left out, which has been announced.
    quiet: BTreeSet<(String, &'static str)>,
    signals: OwnedFd,
    active_path: PathBuf,
    is_changed: bool,
    written: Instant,
}

impl Agent {
    /// Begins: reads the configuration, starts the detection, opens what it serves.
    ///
    /// # Errors
    /// A sentence: what is missing, and what to do.
    pub fn begin(args: &Args) -> Result<Agent, Failure> {
        let failed = |what: String, e: std::io::Error| Failure::Text(format!("{what}: {e}"));
        let config = Config::read(&args.config).map_err(Failure::Text)?;
        let reports = Reports::open(&args.reports_dir)
            .map_err(|e| failed(format!("cannot keep reports in {}", args.reports_dir.display()), e))?;
        if !args.run_dir.is_dir() {
            std::fs::create_dir_all(&args.run_dir)
                .map_err(|e| failed(format!("cannot make {}", args.run_dir.display()), e))?;
        }
        let all = signals::Set::of([libc::SIGTERM, libc::SIGINT, libc::SIGHUP]);
        // Before there are other threads, which inherit it.
        all.block();
        let signals = all.descriptor(false).map_err(|e| failed("cannot receive signals".into(), e))?;
        if let Ok((_, hard)) = rlimit::get(0, Resource::Files) {
            // One that cannot be raised stays: what cannot be held then is shown with the reason.
            let _ = rlimit::set(0, Resource::Files, hard, hard);
        }
        let hosted = Hosted::new().map_err(Failure::Text)?;
        let mut state = State::default();
        state.started = Some((SystemTime::now(), Instant::now()));
        state.set_config(&args.config, &config);
        let state = Arc::new(Mutex::new(state));
        let pods = config.kubernetes.as_ref().map(|of| Pods::start(of, say)).transpose();
        let pods = pods.map_err(|e| failed("cannot start the list of pods".into(), e))?;
        let mut agent = Agent {
            hosted,
            selector: Selector::new(pods),
            groups: Groups::open(),
            journal: None,
            collector: None,
            events: None,
            nodes: None,
            reports,
            report_budget: Budget::default(),
            action_budget: Budget::default(),
            held: BTreeMap::new(),
            quiet: BTreeSet::new(),
            signals,
            active_path: args.run_dir.join("active.json"),
            is_changed: true,
            written: Instant::now(),
            args: args.clone(),
            state,
            config,
        };
        agent.open_journal();
        agent.load_detector().map_err(Failure::Text)?;
        agent.open_nodes().map_err(Failure::Text)?;
        let socket_path = args.run_dir.join("agent.sock");
        let listener = socket::listen(&socket_path)
            .map_err(|e| failed(format!("cannot listen at {}", socket_path.display()), e))?;
        agent.serve().map_err(Failure::Text)?;
        agent.collector = agent.open_collector().map_err(|e| failed("cannot start the export by OTLP".into(), e))?;
        agent.events = agent.open_events().map_err(|e| failed("cannot start Events to Kubernetes".into(), e))?;
        // Whoever asks waits until all that it may name is there.
        let status = agent.state.clone();
        control::serve(listener, move || lock(&status).status())
            .map_err(|e| failed(format!("cannot answer at {}", socket_path.display()), e))?;
        Ok(agent)
    }

    /// Serves what the configuration has: at one address both pages, if that is the same.
    fn serve(&mut self) -> Result<(), String> {
        let metrics = self.config.export.prometheus.as_ref().map(|page| Listen::Tcp(page.listen));
        let page = self.config.page.as_ref().map(|page| page.listen.clone());
        let is_one = metrics == page;
        let sites = [
            ("metrics", metrics, Site { metrics: true, page: is_one }),
            ("the status page", page.filter(|_| !is_one), Site { metrics: false, page: true }),
        ];
        for (what, at, site) in sites {
            let Some(at) = at else { continue };
            let state = self.state.clone();
            let bound = http::serve(&at, move |request| site.answer(request, &state))
                .map_err(|e| format!("cannot serve {what} at {at}: {e}"))?;
            if site.metrics {
                self.announce(Kind::Configuration, &format!("metrics at http://{bound}/metrics"), &[]);
                self.state().metrics_at = Some(bound.clone());
            }
            if site.page {
                self.announce(Kind::Configuration, &format!("the status page at {bound}"), &[]);
                self.state().page_at = Some(bound);
            }
        }
        Ok(())
    }

    fn open_collector(&self) -> std::io::Result<Option<Collector>> {
        let Some(otlp) = &self.config.export.otlp else { return Ok(None) };
        let (figures, failed) = (self.state.clone(), self.state.clone());
        let agent = collector::Agent {
            figures: Box::new(move || lock(&figures).families()),
            failed: Box::new(move || lock(&failed).metrics.export_failed("otlp")),
            say: Box::new(say),
        };
        Collector::start(otlp, agent).map(Some)
    }

    fn open_events(&self) -> std::io::Result<Option<Events>> {
        let wanted = self.config.export.kubernetes.as_ref().is_some_and(|events| events.enabled);
        let Some(of) = self.config.kubernetes.as_ref().filter(|_| wanted) else { return Ok(None) };
        let failed = self.state.clone();
        Events::start(of, move || lock(&failed).metrics.export_failed("kubernetes"), say).map(Some)
    }

    fn open_nodes(&mut self) -> Result<(), String> {
        let Some(remote) = &self.config.remote else { return Ok(()) };
        let nodes = Nodes::start(remote, &self.hosted, say)?;
        if let Some(at) = nodes.listens {
            self.announce(Kind::Configuration, &format!("other nodes may use pins of this one at {at}"), &[]);
        }
        let mut state = lock(&self.state);
        state.nodes = nodes.links().to_vec();
        state.listens = nodes.listens;
        drop(state);
        self.nodes = Some(nodes);
        Ok(())
    }

    fn open_journal(&mut self) {
        let wanted = self.config.export.journal.as_ref().filter(|journal| journal.enabled);
        let opened = wanted.map(|journal| Journal::new(&journal.socket));
        self.journal = match opened {
            Some(Err(e)) => {
                self.state().metrics.export_failed("journal");
                say(&format!("nothing goes to the journal: {e}"));
                None
            }
            Some(Ok(journal)) => Some(journal),
            None => None,
        };
    }

    fn load_detector(&self) -> Result<(), String> {
        let mut settings = Settings::default();
        settings.config.limit = self.config.shortest_limit();
        // Each process is selected by itself.
        settings.config.children = false;
        let options = hangs::options(&settings);
        self.hosted.install(Detector::NAME, &[], |core| core.install::<Detector>(options))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Runs until it is asked to end.
    ///
    /// # Errors
    /// The detection has given up, or `/proc` cannot be read.
    pub fn run(&mut self) -> Result<(), Failure> {
        let config = &self.config;
        let text = format!("{} policies from {}", config.policies.len(), self.args.config.display());
        self.announce(Kind::Configuration, &text, &[]);
        for policy in config.policies.clone() {
            self.announce_unusable(&policy);
        }
        let mut scan_at = Instant::now();
        self.scan()?;
        notify("READY=1\nSTATUS=watching");
        loop {
            self.wait(scan_at + SCAN_EVERY);
            while let Ok(info) = signals::next(self.signals.as_fd()) {
                match info.ssi_signo as i32 {
                    libc::SIGHUP => {
                        notify("RELOADING=1");
                        self.reload()?;
                        notify("READY=1");
                    }
                    _ => return self.end(),
                }
            }
            self.read_reports()?;
            let pids = self.groups.processes();
            if !pids.is_empty() {
                let changes = self.selector.read_now(&pids, &self.config);
                self.apply(&changes);
            }
            if scan_at.elapsed() >= SCAN_EVERY {
                scan_at = Instant::now();
                self.scan()?;
                notify("WATCHDOG=1");
            }
            self.publish();
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        notify("STOPPING=1");
        // Neither is true once nobody watches.
        let _ = std::fs::remove_file(&self.active_path);
        let _ = std::fs::remove_file(self.args.run_dir.join("agent.sock"));
        if let Some(Listen::File(path)) = self.config.page.as_ref().map(|page| &page.listen) {
            let _ = std::fs::remove_file(path);
        }
        self.hosted.clear();
        if let Some(collector) = &self.collector {
            collector.end();
        }
        if let Some(events) = &mut self.events {
            events.end();
        }
        Ok(())
    }

    /// Waits for a signal, a report, a new control group, or the time.
    fn wait(&mut self, until: Instant) {
        let reports = self.hosted.descriptors();
        let due = self.held.values().map(|(due, _)| *due).chain(self.groups.due()).min();
        let until = due.map_or(until, |due| until.min(due));
        let mut fds = vec![readable(self.signals.as_fd())];
        fds.extend(self.groups.descriptor().map(readable));
        fds.extend(reports.iter().map(|fd| readable(fd.as_fd())));
        let left = until.saturating_duration_since(Instant::now());
        // Woken early or not at all, the clock decides.
        let _ = orbit_linux::poll::poll(&mut fds, Some(left));
    }

    fn scan(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        let changes = self.selector.scan(&self.config).map_err(|e| Failure::Text(format!("cannot read /proc: {e}")))?;
        self.apply(&changes);
        let mut state = self.state();
        state.metrics.scanned(start.elapsed());
        state.last_scan = start.elapsed();
        state.measure();
        Ok(())
    }

    /// Has the detection watch what is selected.
    fn apply(&mut self, changes: &Changes) {
        for pid in &changes.removed {
            self.let_go(*pid);
        }
        for pid in &changes.added {
            if let Err(e) = self.hosted.core().guard(*pid as u32) {
                // One that has ended is removed by the next scan.
                self.selector.refuse(*pid, &self.config, &e.to_string());
            }
        }
        self.is_changed |= *changes != Changes::default();
        let mut state = lock(&self.state);
        state.set_watched(&self.selector, &self.config);
        state.detector = self.hosted.process_of(Detector::NAME);
    }

    /// Watches a process no more.
    fn let_go(&mut self, pid: i32) {
        self.hosted.core().unguard(pid as u32);
        self.held.retain(|(of, _), _| *of != pid);
        let mut state = lock(&self.state);
        let over: Vec<(i32, i32)> = state.hangs.range((pid, i32::MIN)..=(pid, i32::MAX)).map(|(key, _)| *key).collect();
        for key in over {
            state.end_hang(key, "its process has ended, or is watched no more");
        }
        state.count_active();
        self.is_changed = true;
    }

    fn reload(&mut self) -> Result<(), Failure> {
        let listen = |config: &Config| config.export.prometheus.as_ref().map(|page| page.listen);
        let read = Config::read(&self.args.config).and_then(|new| {
            if listen(&new) != listen(&self.config) {
                return Err("export.prometheus.listen changes with a restart only".to_owned());
            }
            if new.page != self.config.page {
                return Err("page.listen changes with a restart only".to_owned());
            }
            if new.export.otlp != self.config.export.otlp {
                return Err("export.otlp changes with a restart only".to_owned());
            }
            if new.remote != self.config.remote {
                return Err("remote changes with a restart only".to_owned());
            }
            if (&new.kubernetes, &new.export.kubernetes) != (&self.config.kubernetes, &self.config.export.kubernetes) {
                return Err("kubernetes and export.kubernetes change with a restart only".to_owned());
            }
            Ok(new)
        });
        let new = match read {
            Ok(new) => new,
            Err(why) => {
                let mut state = self.state();
                state.rejected = Some(why.clone());
                state.metrics.reload_failed();
                drop(state);
                self.announce(
                    Kind::Configuration,
                    &format!("the new configuration is rejected, the old one stays: {why}"),
                    &[],
                );
                return Ok(());
            }
        };
        let is_other_limit = new.shortest_limit() != self.config.shortest_limit();
        self.selector.forget_decisions();
        self.config = new;
        self.open_journal();
        self.state().set_config(&self.args.config, &self.config);
        if is_other_limit {
            // The next one knows nothing: what hangs is reported again.
            self.hosted.clear();
            self.held.clear();
            self.state().hangs.clear();
            self.load_detector().map_err(Failure::Text)?;
            if let Some(nodes) = &self.nodes {
                nodes.load_heartbeat(&self.hosted).map_err(Failure::Text)?;
            }
        }
        let text = format!("read again: {} policies", self.config.policies.len());
        self.announce(Kind::Configuration, &text, &[]);
        for policy in self.config.policies.clone() {
            self.announce_unusable(&policy);
        }
        self.scan()
    }

    fn announce_unusable(&mut self, policy: &Policy) {
        if let Some(why) = &policy.unusable {
            let text = format!("policy {} is unusable: {why}; what it might select is not watched", policy.name);
            self.announce(Kind::Configuration, &text, &[("ORBIT_POLICY", &policy.name)]);
        }
    }

    /// Takes what the detection reports. What is done about hangs comes after all of it was read:
    /// one may be over already.
    fn read_reports(&mut self) -> Result<(), Failure> {
        let mut fresh = Vec::new();
        for (name, report) in self.hosted.reports() {
            match report {
                Report::Said(text) if name == Detector::NAME => {
                    match serde_json::from_str(&text).ok().as_ref().and_then(json::event) {
                        Some(event) => self.event(event, &mut fresh),
                        None => self.announce(Kind::Trouble, &format!("a report that is no event: {text}"), &[]),
                    }
                }
                Report::Said(text) if name == HEARTBEAT => self.announce(Kind::Trouble, &text, &[]),
                Report::GaveUp if name == Detector::NAME => {
                    return Err(Failure::text("the detection failed too often: nothing is watched any more"));
                }
                report => {
                    let what = if name == Detector::NAME { "the detection" } else { name };
                    if matches!(report, Report::Failed(_)) && name == Detector::NAME {
                        self.state().metrics.detector_failed();
                    }
                    let (state, text) = hosted::words(report);
                    self.announce(Kind::Trouble, &format!("{what}: {state} {text}"), &[]);
                }
            }
        }
        let now = Instant::now();
        let due: Vec<_> = self.held.iter().filter(|(_, (due, _))| *due <= now).map(|(key, _)| *key).collect();
        fresh.extend(due.into_iter().filter_map(|key| self.held.remove(&key)).map(|(_, hang)| *hang));
        for hang in fresh {
            self.report(hang);
        }
        Ok(())
    }

    fn event(&mut self, event: Event, fresh: &mut Vec<Hang>) {
        match event {
            Event::Hang(hang) => {
                let Some(watched) = self.selector.watched().get(&hang.pid) else {
                    return self.state().metrics.suppressed("not_selected");
                };
                let limit = self.config.policies.get(watched.policy).map_or(Duration::MAX, |policy| policy.limit);
                if is_ring(&hang) || hang.since >= limit {
                    fresh.push(*hang);
                } else {
                    let due = Instant::now() + (limit - hang.since);
                    self.held.insert((hang.pid, hang.tid), (due, hang));
                }
            }
            Event::Recovered { pid, tid, .. } => {
                fresh.retain(|hang| (hang.pid, hang.tid) != (pid, tid));
                self.held.remove(&(pid, tid));
                let over = self.state().end_hang((pid, tid), "the thread continues");
                if let Some(hang) = over {
                    self.state().count_active();
                    self.is_changed = true;
                    let text = format!("{}: the hang of thread {tid} of process {pid} is over", hang.service);
                    let fields = [("ORBIT_SERVICE", hang.service.as_str())];
                    self.announce_of(Some(&hang.subject), Kind::Recovered, &text, &fields);
                }
            }
            Event::Left { pid } => {
                fresh.retain(|hang| hang.pid != pid);
                self.let_go(pid);
            }
            Event::Trouble { pid, text } => {
                self.selector.refuse(pid, &self.config, &text);
                self.let_go(pid);
            }
            Event::Joined { .. } | Event::Learnt { .. } | Event::Sections { .. } => {}
        }
    }

    /// Reports a hang, and does what its policy says.
    fn report(&mut self, hang: Hang) {
        let key = (hang.pid, hang.tid);
        let Some(watched) = self.selector.watched().get(&hang.pid) else { return };
        let Some(policy) = self.config.policies.get(watched.policy).cloned() else { return };
        if pidfd::has_ended(watched.pidfd.as_fd()) {
            return;
        }
        let subject = watched.subject.clone();
        let service = service(&subject);
        let remote = self.nodes.as_ref().and_then(|nodes| nodes.waits_for(hang.pid, hang.tid));
        let why = match &remote {
            Some(waits) => format!("{}; it waits for {}", hang.why, waits.text),
            None => hang.why.clone(),
        };
        let now = SystemTime::now();
        let (at, since) = (rfc3339(now), rfc3339(now.checked_sub(hang.since).unwrap_or(now)));
        let wanted = self.config.export.labels();
        let mut state = lock(&self.state);
        let labels = state.metrics.labels(&subject, &policy.name, &wanted);
        state.metrics.hang(&labels, hang.kind, hang.sure, hang.latency);
        let active = Active {
            service: service.clone(),
            subject: subject.clone(),
            policy: policy.name.clone(),
            labels,
            kind: hang.kind,
            sure: hang.sure,
            why: why.clone(),
            since,
            at: at.clone(),
            did: String::new(),
            detail: None,
        };
        state.hangs.insert(key, active);
        state.count_active();
        drop(state);
        self.is_changed = true;
        let limits = self.config.limits.clone();
        let budget = (limits.reports_per_hour, limits.node_reports_per_hour);
        match self.report_budget.spend(&service, budget, Instant::now()) {
            Err(why) => self.leave_out(&subject, "report", &why),
            Ok(()) => {
                self.quiet.remove(&(service.clone(), "report"));
                let own = json::of_hang(&hang);
                if self.config.page.is_some() {
                    // What is done about it may end the process.
                    let detail = Detail::new(own.clone(), draw(&hang));
                    self.state().set_detail(key, detail);
                }
                let report = json!({
                    "at": at, "service": service, "policy": policy.name, "identity": subject.identity,
                    "names": subject.names, "user": subject.user, "command": subject.command,
                    "hang": own,
                    "waits_for": remote.map(|on| {
                        json!({ "node": on.node, "pid": on.pid, "command": on.name, "text": on.text })
                    }),
                });
                let most = (limits.report_files, limits.report_mib << 20);
                let written = self.reports.write(&at, hang.pid, &report, most);
                let file = match &written {
                    Ok(path) => path.display().to_string(),
                    Err(e) => {
                        self.state().metrics.export_failed("file");
                        say(&format!("a report cannot be written to {}: {e}", self.args.reports_dir.display()));
                        String::new()
                    }
                };
                let text = format!("{service} hangs ({}, {}): {why}", hang.kind.word(), hang.sure);
                let (pid, tid, sure) = (hang.pid.to_string(), hang.tid.to_string(), hang.sure.to_string());
                let fields = [
                    ("ORBIT_SERVICE", service.as_str()),
                    ("ORBIT_POLICY", &policy.name),
                    ("ORBIT_KIND", hang.kind.word()),
                    ("ORBIT_SURE", &sure),
                    ("ORBIT_TID", &tid),
                    ("ORBIT_REPORT", &file),
                    ("OBJECT_PID", &pid),
                ];
                self.announce_of(Some(&subject), Kind::Hang, &text, &fields);
            }
        }
        self.act(&hang, &policy, &subject);
    }

    fn act(&mut self, hang: &Hang, policy: &Policy, subject: &Subject) {
        let service: &str = &service(subject);
        let on_hang = policy.on_hang;
        if on_hang.action == Action::Report {
            return;
        }
        let what = on_hang.action.word();
        let done = if hang.sure < on_hang.from {
            let text = format!("the report is {}, the policy acts on {} ones", hang.sure, on_hang.from);
            Err(Suppressed { reason: "not_sure", text })
        } else {
            self.try_act(hang, policy, service)
        };
        let did = match done {
            Ok(did) => {
                self.quiet.remove(&(service.to_owned(), what));
                self.state().metrics.did(what);
                let pid = hang.pid.to_string();
                let fields = [
                    ("ORBIT_SERVICE", service),
                    ("ORBIT_POLICY", &policy.name),
                    ("ORBIT_DID", what),
                    ("OBJECT_PID", &pid),
                ];
                self.announce_of(Some(subject), Kind::Action, &format!("{service}: {did}"), &fields);
                did
            }
            Err(why) => {
                self.leave_out(subject, what, &why);
                format!("no {what}: {}", why.text)
            }
        };
        if let Some(active) = self.state().hangs.get_mut(&(hang.pid, hang.tid)) {
            active.did = did;
        }
    }

    fn try_act(&mut self, hang: &Hang, policy: &Policy, service: &str) -> Result<String, Suppressed> {
        let gone = || Suppressed { reason: "not_selected", text: "the process is no longer selected".into() };
        let Some(Watched { started, pidfd, subject, .. }) = self.selector.watched().get(&hang.pid) else {
            return Err(gone());
        };
        let limits = &self.config.limits;
        let budget = (limits.actions_per_hour, limits.node_actions_per_hour);
        self.action_budget.spend(service, budget, Instant::now())?;
        let target = Target { pid: hang.pid, started: *started, pidfd: pidfd.as_fd(), identity: &subject.identity };
        action::act(policy.on_hang.action, &target)
    }

    /// Counts what is left out; announces the first in a row.
    fn leave_out(&mut self, subject: &Subject, what: &'static str, why: &Suppressed) {
        let service = service(subject);
        self.state().metrics.suppressed(why.reason);
        let is_budget = why.reason.ends_with("_budget");
        if is_budget && !self.quiet.insert((service.clone(), what)) {
            return;
        }
        let more = if is_budget { "; further ones are counted only" } else { "" };
        let text = format!("{service}: no {what}: {}{more}", why.text);
        let fields = [("ORBIT_SERVICE", service.as_str()), ("ORBIT_REASON", why.reason)];
        self.announce_of(Some(subject), Kind::Suppressed, &text, &fields);
    }

    /// What is about the agent itself.
    fn announce(&self, kind: Kind, text: &str, fields: &[(&str, &str)]) {
        self.announce_of(None, kind, text, fields);
    }

    /// To the journal, else to stderr; to the collector; as an Event about its pod.
    fn announce_of(&self, of: Option<&Subject>, kind: Kind, text: &str, fields: &[(&str, &str)]) {
        if let Some(collector) = &self.collector {
            let record = Record::new(collector.host(), of, kind, text, fields, SystemTime::now());
            if !collector.push(record) {
                self.state().metrics.export_failed("otlp");
            }
        }
        if let Some((events, of, pod)) = self.events.as_ref().zip(of).and_then(|(to, of)| Some((to, of, of.pod()?))) {
            let container = of.names.as_ref().map(|names| names.container.as_str());
            let event = events::Event::new(events.node(), pod, container, kind, text, SystemTime::now());
            if event.is_some_and(|event| !events.push(event)) {
                self.state().metrics.export_failed("kubernetes");
            }
        }
        match self.journal.as_ref().map(|journal| journal.send(kind, text, fields)) {
            Some(Ok(())) => {}
            Some(Err(_)) => {
                self.state().metrics.export_failed("journal");
                say(text);
            }
            None => say(text),
        }
    }

    fn publish(&mut self) {
        if !std::mem::take(&mut self.is_changed) && self.written.elapsed() < WRITE_EVERY {
            return;
        }
        self.written = Instant::now();
        let written = self.state().write_active(&self.active_path);
        if let Err(e) = written {
            self.state().metrics.export_failed("active");
            say(&format!("cannot write {}: {e}", self.active_path.display()));
        }
    }
}

/// What waits for what in a hang. Stops no thread; blocks for [`DRAW_INTERVAL`] for each process.
fn draw(hang: &Hang) -> Result<why::Drawing, String> {
    let mut found = orbit_watch::found(hang);
    found.pids.truncate(MAX_DRAWN_PROCESSES);
    let threads: usize = found.pids.iter().map(|pid| procfs::ids(format!("/proc/{pid}/task")).len()).sum();
    if threads > MAX_DRAWN_THREADS {
        return Err(format!("its processes have {threads} threads, and {MAX_DRAWN_THREADS} are drawn at most"));
    }
    why::drawing(&found, DRAW_INTERVAL).map_err(|e| e.to_string())
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn readable(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

fn say(text: &str) {
    // There is no other place to report it if stderr is closed.
    let _ = out::say(|to| writeln!(to, "orbit agent: {}", Harmless(text)));
}
