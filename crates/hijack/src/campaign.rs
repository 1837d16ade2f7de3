//! Fault injection campaigns: a program is run once as it is, then once for each fault, and the runs are compared.
//!
//! The first run shows which sites make which calls. For each site and each fault that its call can have, one run fails
//! the first call that this site made. Calls are found again by their order among the calls of their name, so the
//! program must make the same calls in the same order in each run; where it does not, a fault meets another call.

use crate::reader::What;
use crate::rules::{RuleError, Rules};
use crate::{Options, Session, calls};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::io::{self, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A kind of fault and the calls that it may meet.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// As it is named on the command line.
    pub name: &'static str,
    /// The action of its rule.
    pub action: &'static str,
    /// Conditions of its rule, in parentheses, or nothing.
    pub conditions: &'static str,
    /// Names of calls.
    pub calls: &'static [&'static str],
}

/// All kinds of faults.
pub const FAULTS: [Fault; 6] = [
    Fault {
        name: "eintr",
        action: "EINTR",
        conditions: "",
        calls: &[
            "read",
            "readv",
            "write",
            "writev",
            "open",
            "openat",
            "connect",
            "accept",
            "accept4",
            "recvfrom",
            "sendto",
            "recvmsg",
            "sendmsg",
            "poll",
            "ppoll",
            "select",
            "pselect6",
            "epoll_wait",
            "epoll_pwait",
            "wait4",
            "waitid",
            "nanosleep",
            "clock_nanosleep",
            "flock",
        ],
    },
    Fault {
        name: "enomem",
        action: "ENOMEM",
        conditions: "",
        calls: &[
            "mmap",
            "mremap",
            "mprotect",
            "brk",
            "fork",
            "vfork",
            "clone",
            "clone3",
            "execve",
            "poll",
            "epoll_ctl",
        ],
    },
    Fault {
        name: "short-read",
        action: "size=1",
        conditions: "(size>1)",
        calls: &["read", "pread64", "recvfrom", "getrandom"],
    },
    Fault { name: "short-write", action: "size=1", conditions: "(size>1)", calls: &["write", "pwrite64", "sendto"] },
    Fault {
        name: "enospc",
        action: "ENOSPC",
        conditions: "",
        calls: &[
            "write",
            "pwrite64",
            "writev",
            "mkdir",
            "mkdirat",
            "rename",
            "renameat2",
            "ftruncate",
            "fallocate",
            "fsync",
            "fdatasync",
        ],
    },
    Fault {
        name: "emfile",
        action: "EMFILE",
        conditions: "",
        calls: &[
            "open",
            "openat",
            "socket",
            "accept",
            "accept4",
            "pipe",
            "pipe2",
            "dup",
            "dup3",
            "epoll_create1",
            "eventfd2",
            "memfd_create",
        ],
    },
];

/// How a run ended, compared with the one without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Killed by a signal.
    Crashed,
    /// It did not end in ten times the time of the first run, and at least 5 s.
    Hung,
    /// It reports success, and its output is another.
    LostData,
    /// It reports a failure.
    Failed,
    /// As without the fault.
    Unaffected,
    /// The call was not made.
    NotMet,
}

/// One run with a fault.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// Name of the fault.
    pub fault: &'static str,
    /// The rule; `--inject` with it replays the run.
    pub rule: String,
    /// Address of the site in the first run.
    pub site: String,
    /// The call.
    pub call: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// Exit status, or 128 and the signal.
    pub status: i32,
}

/// A program and the faults that it is to meet.
pub struct Campaign {
    arguments: Vec<OsString>,
    faults: Vec<&'static Fault>,
}

/// A run that is to be made.
struct Planned {
    fault: &'static str,
    call: &'static str,
    site: u64,
    rule: String,
}

/// A run, for comparison.
struct Ended {
    status: Option<i32>,
    output: Vec<u8>,
    acted: u64,
}

impl Campaign {
    /// The faults named in `names`, separated by commas, for a program.
    ///
    /// # Errors
    /// A sentence that names an unknown fault and those there are.
    pub fn new(names: &str, arguments: Vec<OsString>) -> Result<Campaign, String> {
        let find = |name: &str| {
            let known = || FAULTS.map(|fault| fault.name).join(", ");
            FAULTS
                .iter()
                .find(|fault| fault.name == name)
                .ok_or_else(|| format!("no fault `{name}`; there are {}", known()))
        };
        let faults = names.split(',').map(|name| find(name.trim())).collect::<Result<_, _>>()?;
        Ok(Campaign { arguments, faults })
    }

    /// Runs the program without a fault, then once for each fault; gives each trial to `sink` as it ends.
    ///
    /// # Errors
    /// Those of starting the program, and of `sink`; a first run that does not succeed.
    pub fn run(&self, mut sink: impl FnMut(&Trial) -> io::Result<()>) -> io::Result<Vec<Trial>> {
        let began = Instant::now();
        let (first, plan) = self.discover()?;
        if first.status != Some(0) {
            return Err(io::Error::other(format!(
                "the program must succeed without a fault: its status was {}",
                first.status.unwrap_or(-1)
            )));
        }
        let limit = (began.elapsed() * 10).max(Duration::from_secs(5));
        let mut trials = Vec::new();
        for Planned { fault, call, site, rule } in plan {
            let rules = Rules::parse(&rule).map_err(|error: RuleError| io::Error::other(error.to_string()))?;
            let ended = self.trial(rules, limit)?;
            let status = ended.status.unwrap_or(128 + libc::SIGKILL);
            let verdict = match ended.status {
                None => Verdict::Hung,
                Some(_) if ended.acted == 0 => Verdict::NotMet,
                Some(status) if status > 128 => Verdict::Crashed,
                Some(0) if ended.output != first.output => Verdict::LostData,
                Some(0) => Verdict::Unaffected,
                Some(_) => Verdict::Failed,
            };
            let trial = Trial { fault, rule, site: format!("{site:#x}"), call, verdict, status };
            sink(&trial)?;
            trials.push(trial);
        }
        Ok(trials)
    }

    /// The run without a fault: its sites, and the rule for each fault that one of them may meet.
    fn discover(&self) -> io::Result<(Ended, Vec<Planned>)> {
        let options = Options { trace: true, ..Options::default() };
        let (mut orders, mut seen, mut plan) = (BTreeMap::<u64, u64>::new(), HashSet::new(), Vec::new());
        let ended = run(&options, &self.arguments, None, |number, site| {
            let order = orders.entry(number).or_default();
            *order += 1;
            let Some(call) = calls::by_number(number).filter(|_| seen.insert((number, site))) else { return };
            for fault in self.faults.iter().filter(|fault| fault.calls.contains(&call.name)) {
                // With a condition only some calls count: the fault meets one at or after this one.
                let after = if fault.conditions.is_empty() { *order - 1 } else { 0 };
                let rule = format!("{}{} -> {} after {after} once", call.name, fault.conditions, fault.action);
                plan.push(Planned { fault: fault.name, call: call.name, site, rule });
            }
        })?;
        plan.sort_by(|a, b| (a.fault, a.call, &a.rule).cmp(&(b.fault, b.call, &b.rule)));
        plan.dedup_by(|a, b| a.rule == b.rule);
        Ok((ended, plan))
    }

    fn trial(&self, rules: Rules, limit: Duration) -> io::Result<Ended> {
        run(&Options { rules, ..Options::default() }, &self.arguments, Some(limit), |_, _| ())
    }
}

/// Runs the program in a process group of its own; what is left of the group at its end is killed.
fn run(
    options: &Options,
    arguments: &[OsString],
    limit: Option<Duration>,
    mut seen: impl FnMut(u64, u64),
) -> io::Result<Ended> {
    let mut session = Session::start_with(options, arguments, |command| {
        use std::os::unix::process::CommandExt;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    })?;
    let group = session.pid() as i32;
    let mut pipe = session.stdout().ok_or_else(|| io::Error::other("the program has no output"))?;
    let reader = std::thread::spawn(move || {
        let mut output = Vec::new();
        // An output that ends early is compared as it is.
        let _ = pipe.read_to_end(&mut output);
        output
    });
    let is_in_time = match limit {
        None => session
            .follow(|event| {
                if let What::Call(call) = &event.what {
                    seen(call.number, call.site);
                }
                Ok(())
            })
            .map(|()| true)?,
        Some(limit) => session.wait_for(limit)?,
    };
    // What is left of the group holds the pipe, and must not outlive the run.
    // SAFETY: a signal to the group that this function made.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    if !is_in_time {
        session.follow(|_| Ok(()))?;
    }
    let outcome = session.outcome();
    let output = reader.join().unwrap_or_default();
    let acted = outcome.rules.iter().map(|(_, _, acted)| acted).sum();
    Ok(Ended { status: is_in_time.then_some(outcome.status), output, acted })
}
