//! What is done about a hang.
//!
//! Owns: the forms of an action, budgets, and the doing. Promises: a signal goes through the
//! descriptor of the process that was selected, so never to a later process of its number; what is
//! done is checked right before (the process lives, is selected, is the main process of its
//! service); what cannot be shown to be right is not done, and the answer says why. Process 1 gets
//! no signal.

use crate::identity::{self, Identity};
use orbit_ahd::Sure;
use orbit_linux::rlimit::{self, Resource};
use orbit_linux::stat::Stat;
use orbit_linux::status::Status;
use orbit_linux::{pidfd, procfs};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// What is done about a hang, and how sure a report must be for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnHang {
    /// What.
    pub action: Action,
    /// About reports that are less sure nothing is done.
    pub from: Sure,
}

/// What is done, beside the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Report,
    /// A signal to the process that hangs.
    Signal(i32),
    /// SIGABRT to the process that hangs, if that leaves a core.
    Core,
    /// SIGKILL to the main process of the unit or container, which its manager starts again.
    Restart,
}

impl Default for OnHang {
    fn default() -> OnHang {
        OnHang { action: Action::Report, from: Sure::Certain }
    }
}

impl Action {
    /// In a word, as figures and reports have it.
    pub fn word(self) -> &'static str {
        match self {
            Action::Report => "report",
            Action::Signal(_) => "signal",
            Action::Core => "core",
            Action::Restart => "restart",
        }
    }
}

impl std::fmt::Display for OnHang {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.action {
            Action::Report => f.write_str("report"),
            Action::Signal(number) => write!(f, "{}:signal:{number}", self.from),
            action => write!(f, "{}:{}", self.from, action.word()),
        }
    }
}

impl FromStr for OnHang {
    type Err = String;

    fn from_str(text: &str) -> Result<OnHang, String> {
        let levels = [Sure::Guess, Sure::Likely, Sure::Certain];
        let level = text.split_once(':').and_then(|(word, action)| {
            levels.into_iter().find(|sure| sure.to_string() == word).map(|from| (from, action))
        });
        let (from, action) = level.unwrap_or((Sure::Certain, text));
        let action = match action.split_once(':') {
            None if action == "report" => Action::Report,
            None if action == "core" => Action::Core,
            None if action == "restart" => Action::Restart,
            Some(("signal", name)) => Action::Signal(orbit_watch::signal_by_name(name)?),
            _ => {
                let forms =
                    "report, signal:SIG, core or restart, with likely: or guess: before it to act on such reports too";
                return Err(format!("`{text}` is no action: use {forms}"));
            }
        };
        Ok(OnHang { action, from })
    }
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suppressed {
    /// In a word, as the figures have it.
    pub reason: &'static str,
    /// A sentence.
    pub text: String,
}

fn not(reason: &'static str, text: impl Into<String>) -> Suppressed {
    Suppressed { reason, text: text.into() }
}

/// How much may be done in an hour, for each service and for the node.
#[derive(Debug, Default)]
pub struct Budget {
    services: BTreeMap<String, VecDeque<Instant>>,
    node: VecDeque<Instant>,
}

const HOUR: Duration = Duration::from_secs(3600);

impl Budget {
    /// Spends one of a service's and one of the node's, or answers which of them is spent.
    ///
    /// # Errors
    /// One of them is spent.
    pub fn spend(&mut self, service: &str, most: (u32, u32), now: Instant) -> Result<(), Suppressed> {
        for times in self.services.values_mut().chain([&mut self.node]) {
            while times.front().is_some_and(|time| now.saturating_duration_since(*time) >= HOUR) {
                times.pop_front();
            }
        }
        self.services.retain(|_, times| !times.is_empty());
        if self.node.len() >= most.1 as usize {
            return Err(not("node_budget", format!("the node's {} of this hour are spent", most.1)));
        }
        let own = self.services.entry(service.to_owned()).or_default();
        if own.len() >= most.0 as usize {
            return Err(not("service_budget", format!("{service} has had its {} of this hour", most.0)));
        }
        own.push_back(now);
        self.node.push_back(now);
        Ok(())
    }
}

/// A process that an action is about: as it was selected.
pub struct Target<'a> {
    /// Its number.
    pub pid: i32,
    /// When it was started, in the kernel's ticks.
    pub started: u64,
    /// What holds it.
    pub pidfd: BorrowedFd<'a>,
    /// Its service.
    pub identity: &'a Identity,
}

/// Does it. Answers in a sentence what was done.
///
/// # Errors
/// Why nothing was done.
pub fn act(action: Action, on: &Target<'_>) -> Result<String, Suppressed> {
    let pid = on.pid;
    if pidfd::has_ended(on.pidfd) {
        return Err(not("ended", format!("process {pid} has ended")));
    }
    let identity = now(pid, on.started)?;
    if identity != *on.identity {
        let text = format!("process {pid} is in another control group now: {}", identity.cgroup);
        return Err(not("moved", text));
    }
    match action {
        Action::Report => Ok("reported".to_owned()),
        Action::Signal(number) => {
            send(pid, on.pidfd, number)?;
            Ok(format!("sent signal {number} to process {pid}"))
        }
        Action::Core => {
            leaves_core(pid)?;
            send(pid, on.pidfd, libc::SIGABRT)?;
            Ok(format!("sent SIGABRT to process {pid}, which leaves a core"))
        }
        Action::Restart => {
            let (main, held) = main_process(&identity)?;
            send(main, held.as_fd(), libc::SIGKILL)?;
            let what = identity.container.as_ref().map(|_| "container").unwrap_or("unit");
            Ok(format!("killed process {main}, the main process of its {what}; its manager starts it again"))
        }
    }
}

fn send(pid: i32, to: BorrowedFd<'_>, signal: i32) -> Result<(), Suppressed> {
    if pid == 1 {
        return Err(not("init", "process 1 gets no signal from the agent"));
    }
    pidfd::send_signal(to, signal).map_err(|e| match e.raw_os_error() {
        Some(libc::ESRCH) => not("ended", format!("process {pid} has ended")),
        Some(libc::EPERM) => not("no_right", format!("signal {signal} to process {pid}: needs CAP_KILL")),
        _ => not("failed", format!("signal {signal} to process {pid}: {e}")),
    })
}

/// The identity of a process now, if it is still the one that was started then.
fn now(pid: i32, started: u64) -> Result<Identity, Suppressed> {
    let ended = || not("ended", format!("process {pid} has ended"));
    let text = procfs::text(format!("/proc/{pid}/cgroup")).map_err(|_| ended())?;
    // After the group: both are of this process, then.
    let stat = Stat::of(pid).map_err(|_| ended())?;
    if stat.started_ticks != started || stat.has_ended() {
        return Err(ended());
    }
    Ok(identity::of_process(&text))
}

/// Whether SIGABRT makes the process leave a core.
fn leaves_core(pid: i32) -> Result<(), Suppressed> {
    if !orbit_watch::ends_process(pid, libc::SIGABRT) {
        return Err(not(
            "no_core",
            format!("process {pid} handles, ignores or blocks SIGABRT: it would leave no core"),
        ));
    }
    let is_piped = procfs::text("/proc/sys/kernel/core_pattern").is_ok_and(|pattern| pattern.starts_with('|'));
    let limit = rlimit::get(pid, Resource::Core).map(|(soft, _)| soft);
    match limit {
        _ if is_piped => Ok(()),
        Ok(soft) if soft > 0 => Ok(()),
        Ok(_) => Err(not("no_core", format!("process {pid} may leave no core: its limit is 0 (LimitCORE=)"))),
        Err(e) => Err(not("no_core", format!("whether process {pid} may leave a core is not known: {e}"))),
    }
}

/// The main process of a service, held: the first process of a container, or the only process of a
/// unit that was started from outside it.
fn main_process(of: &Identity) -> Result<(i32, OwnedFd), Suppressed> {
    let is_unit = of.unit.as_deref().is_some_and(|unit| unit.ends_with(".service") && !unit.starts_with("user@"));
    let is_users = of.user_unit.as_deref().is_some_and(|unit| unit.ends_with(".service"));
    if of.container.is_none() && !is_unit && !is_users {
        return Err(not("no_manager", "it is in no unit (.service) and no container that a manager would start again"));
    }
    let is_same = |other: &Identity| match &of.container {
        Some(_) => of.container == other.container,
        None => (&of.unit, &of.user_unit) == (&other.unit, &other.user_unit) && other.container.is_none(),
    };
    let mut members = BTreeMap::new();
    for pid in procfs::ids("/proc") {
        let text = procfs::text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        if is_same(&identity::of_process(&text))
            && let Ok(stat) = Stat::of(pid)
            && !stat.has_ended()
        {
            members.insert(pid, stat);
        }
    }
    let is_first = |pid: &&i32| {
        let status = Status::of(**pid);
        status.is_ok_and(|status| status.nested_pids().len() > 1 && status.innermost_id() == Some(1))
    };
    let firsts: Vec<i32> = members.keys().filter(is_first).copied().collect();
    let from_outside = members.iter().filter(|(_, stat)| !members.contains_key(&stat.parent)).map(|(pid, _)| *pid);
    let candidates: Vec<i32> = match (&of.container, firsts.len()) {
        (Some(_), 1) => firsts,
        _ => from_outside.collect(),
    };
    let [main] = candidates[..] else {
        let text = format!("which process is the main one of its service is not known: {candidates:?} may be");
        return Err(not("main_unknown", text));
    };
    let gone = |_| not("ended", format!("process {main} has ended"));
    let held = pidfd::open(main).map_err(gone)?;
    match now(main, members[&main].started_ticks)? {
        still if is_same(&still) => Ok((main, held)),
        _ => Err(not("moved", format!("process {main} has left its service"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, u64, OwnedFd) {
        let child = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let pid = child.id() as i32;
        let started = Stat::of(pid).expect("a process").started_ticks;
        (child, started, pidfd::open(pid).expect("a descriptor"))
    }

    fn identity_of(pid: i32) -> Identity {
        identity::of_process(&procfs::text(format!("/proc/{pid}/cgroup")).expect("/proc"))
    }

    #[test]
    fn forms_of_actions() {
        for (text, action, from) in [
            ("report", Action::Report, Sure::Certain),
            ("restart", Action::Restart, Sure::Certain),
            ("certain:restart", Action::Restart, Sure::Certain),
            ("likely:core", Action::Core, Sure::Likely),
            ("guess:signal:TERM", Action::Signal(15), Sure::Guess),
        ] {
            let on_hang: OnHang = text.parse().expect(text);
            assert_eq!(on_hang, OnHang { action, from }, "{text}");
            assert_eq!(on_hang.to_string().parse(), Ok(on_hang));
        }
        for wrong in ["", "kill", "signal", "signal:", "signal:XYZ", "sure:core", "likely:likely:core", "exec:true"] {
            assert!(wrong.parse::<OnHang>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn budgets_of_services_and_of_the_node() {
        let (mut budget, start) = (Budget::default(), Instant::now());
        let later = |minutes: u64| start + Duration::from_secs(60 * minutes);
        assert!(budget.spend("a", (2, 3), start).is_ok() && budget.spend("a", (2, 3), later(1)).is_ok());
        assert_eq!(budget.spend("a", (2, 3), later(2)).unwrap_err().reason, "service_budget");
        assert!(budget.spend("b", (2, 3), later(3)).is_ok());
        assert_eq!(budget.spend("c", (2, 3), later(4)).unwrap_err().reason, "node_budget");
        assert!(budget.spend("a", (2, 3), later(60)).is_ok(), "an hour after the first");
        assert_eq!(budget.spend("a", (2, 3), later(60)).unwrap_err().reason, "node_budget");
        assert_eq!(Budget::default().spend("a", (0, 1), start).unwrap_err().reason, "service_budget");
    }

    #[test]
    fn a_process_that_is_another_one_gets_nothing() {
        let (mut child, started, held) = sleeper();
        let pid = child.id() as i32;
        let identity = identity_of(pid);
        let target = |started, identity| Target { pid, started, pidfd: held.as_fd(), identity };
        let term = Action::Signal(libc::SIGTERM);
        assert_eq!(act(term, &target(started + 1, &identity)).unwrap_err().reason, "ended", "another process");
        let elsewhere = Identity { cgroup: "/elsewhere".into(), ..Identity::default() };
        assert_eq!(act(term, &target(started, &elsewhere)).unwrap_err().reason, "moved");
        assert_eq!(child.try_wait().expect("a child"), None, "it runs");
        act(term, &target(started, &identity)).expect("sent");
        child.wait().expect("a child");
        assert_eq!(act(term, &target(started, &identity)).unwrap_err().reason, "ended");
    }

    #[test]
    fn only_what_a_manager_starts_again_is_restarted() {
        for unit in [None, Some("session-3.scope"), Some("user@1000.service")] {
            let of = Identity { unit: unit.map(str::to_owned), ..Identity::default() };
            assert_eq!(main_process(&of).unwrap_err().reason, "no_manager", "{unit:?}");
        }
        let none = Identity { unit: Some("orbit-test-none.service".into()), ..Identity::default() };
        assert_eq!(main_process(&none).unwrap_err().reason, "main_unknown");
    }

    #[test]
    fn process_1_gets_no_signal() {
        let (mut child, _, held) = sleeper();
        assert_eq!(send(1, held.as_fd(), libc::SIGTERM).unwrap_err().reason, "init");
        child.kill().expect("a child");
        child.wait().expect("a child");
    }

    #[test]
    fn without_a_core_nothing_is_sent() {
        let (mut child, started, held) = sleeper();
        let pid = child.id() as i32;
        rlimit::set(pid, Resource::Core, 0, 0).expect("a limit");
        let identity = identity_of(pid);
        let done = act(Action::Core, &Target { pid, started, pidfd: held.as_fd(), identity: &identity });
        let is_piped = procfs::text("/proc/sys/kernel/core_pattern").is_ok_and(|pattern| pattern.starts_with('|'));
        match is_piped {
            true => drop(done.expect("a reader of cores")),
            false => assert_eq!(done.unwrap_err().reason, "no_core"),
        }
        let _ = child.kill();
        child.wait().expect("a child");
    }
}
