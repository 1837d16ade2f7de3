//! Fault injection campaigns: a program is run once as it is, then once for each fault, and the
//! runs are compared.
//!
//! Beside status and output, files, processes, descriptors and memory that a run leaves are
//! compared, and what a command of the user's finds. Memory that is allocated and lost within what
//! the allocator keeps (below 256 KiB) is not seen.
//!
//! The first run shows which stacks make which calls: the instruction alone is the same one in libc
//! for all. For each stack and each fault that its call can have, one run fails the first call that
//! this stack made. Calls are found again by their order
//! among the calls of their name, so the program must make the same calls in the same order in each
//! run; where it does not, a fault meets another call.

mod faults;
mod judge;
mod junit;
mod witness;

use crate::rules::{RuleError, Rules};
use crate::{Options, Session};
pub use faults::{FAULTS, Fault};
use judge::Ended;
pub use judge::Verdict;
pub use junit::junit;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use witness::{Stack, Witness};

/// How long a guest may wait while its stack is taken.
const ASK_LIMIT: Duration = Duration::from_secs(30);
/// How long processes that the program leaves may take to exit by themselves.
const EXIT_GRACE: Duration = Duration::from_secs(1);

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
    /// What was leaked or lost, a sentence each.
    pub findings: Vec<String>,
    /// What differs also between runs without a fault, and was not compared: the output, that of
    /// the check.
    pub not_compared: Vec<&'static str>,
    /// The stack at the call that met the fault, innermost frame first.
    pub stack: Vec<String>,
    /// A command line that runs the program with the same fault.
    pub replay: String,
}

/// A program and the faults that it is to meet.
pub struct Campaign {
    arguments: Vec<OsString>,
    faults: Vec<&'static Fault>,
    prepare: Option<String>,
    check: Option<String>,
}

/// A run that is to be made.
struct Planned {
    fault: &'static str,
    call: &'static str,
    site: u64,
    /// Of the call, as a rule has them: conditions, and how many calls pass before.
    conditions: &'static str,
    after: u64,
    rule: String,
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
        Ok(Campaign { arguments, faults, prepare: None, check: None })
    }

    /// A command for the shell that runs before each run, to begin with the same files.
    pub fn prepare(mut self, command: Option<String>) -> Campaign {
        self.prepare = command;
        self
    }

    /// A command for the shell that runs after each run: data is lost where it fails, and where the
    /// program reports success and the command writes other text than after the first run.
    pub fn check(mut self, command: Option<String>) -> Campaign {
        self.check = command;
        self
    }

    /// Runs the program twice without a fault, then once for each fault; gives each trial to `sink`
    /// as it ends.
    ///
    /// # Errors
    /// Those of starting the program, and of `sink`; a first run, or a check of it, that does not
    /// succeed.
    pub fn run(&self, mut sink: impl FnMut(&Trial) -> io::Result<()>) -> io::Result<Vec<Trial>> {
        let began = Instant::now();
        let (mut first, plan) = self.discover()?;
        if first.status != Some(0) {
            let status = first.status.unwrap_or(-1);
            return Err(io::Error::other(format!("the program must succeed without a fault: its status was {status}")));
        }
        if let Some((status @ 1.., text)) = &first.check {
            let text = String::from_utf8_lossy(text);
            let problem = format!("the check must succeed without a fault: its status was {status}, it wrote {text:?}");
            return Err(io::Error::other(problem));
        }
        let again = Options { rules: witness::rules(None)?, ..Options::default() };
        first.varying = judge::varying(&first, &self.watched(again, None)?.0);
        let limit = (began.elapsed() * 10).max(Duration::from_secs(5));
        let mut trials = Vec::new();
        for planned in plan {
            let (mut ended, stack) = self.trial(&planned, limit)?;
            if planned.call == "brk" {
                ended.allowance = judge::WITHOUT_BRK;
            }
            let (mut verdict, findings) = judge::judge(&first, &ended);
            // What the loader's failure loses or leaves is no fault of a program that never ran.
            if stack.is_loaders && ended.status != Some(0) && verdict != Verdict::Hung {
                verdict = Verdict::Start;
            }
            let stack = stack.frames;
            let Planned { fault, call, site, rule, .. } = planned;
            let status = ended.status.unwrap_or(128 + libc::SIGKILL);
            let (site, replay) = (format!("{site:#x}"), self.replay(&rule));
            let not_compared = first.varying.clone();
            let trial = Trial { fault, rule, site, call, verdict, status, findings, not_compared, stack, replay };
            sink(&trial)?;
            trials.push(trial);
        }
        Ok(trials)
    }

    /// The run without a fault: its stacks, and the rule for each fault that one of them may meet.
    fn discover(&self) -> io::Result<(Ended, Vec<Planned>)> {
        let witness = Witness::default();
        // Guests ask with the conditions of the faults, so that the same calls are counted here as
        // in the run with the fault.
        let mut asked = BTreeMap::<&str, BTreeSet<&str>>::new();
        for fault in &self.faults {
            asked.entry(fault.conditions).or_default().extend(fault.calls);
        }
        let asking = asked.iter().map(|(conditions, calls)| {
            let calls: Vec<&str> = calls.iter().copied().collect();
            format!("{}{conditions} -> ask stack", calls.join("|"))
        });
        let asking: Vec<String> = asking.collect();
        let conditions: Vec<&str> = asked.keys().copied().collect();
        let options = Options { rules: witness::rules(Some(&asking.join("\n")))?, ..Options::default() };
        let (ended, _) = self.watched_by(&witness, options, None)?;
        let mut plan = Vec::new();
        for first in witness.stacks() {
            let faults = self.faults.iter().filter(|fault| conditions.get(first.rule) == Some(&fault.conditions));
            for fault in faults.filter(|fault| fault.calls.contains(&first.call)) {
                let (conditions, after) = (fault.conditions, first.order);
                let rule = format!("{}{conditions} -> {} after {after} once", first.call, fault.action);
                plan.push(Planned { fault: fault.name, call: first.call, site: first.site, conditions, after, rule });
            }
        }
        plan.sort_by(|a, b| (a.fault, a.call, a.after).cmp(&(b.fault, b.call, b.after)));
        Ok((ended, plan))
    }

    /// A run with a fault, and the stack at the call that met it.
    fn trial(&self, planned: &Planned, limit: Duration) -> io::Result<(Ended, Stack)> {
        let Planned { call, conditions, after, rule, .. } = planned;
        let mut rules = witness::rules(Some(&format!("{call}{conditions} -> ask site after {after} once")))?;
        rules.extend(parsed(rule)?).map_err(|error| io::Error::other(error.to_string()))?;
        self.watched(Options { rules, ..Options::default() }, Some(limit))
    }

    /// One run with the commands around it; the last of the rules is the fault's.
    fn watched(&self, options: Options, limit: Option<Duration>) -> io::Result<(Ended, Stack)> {
        self.watched_by(&Witness::default(), options, limit)
    }

    fn watched_by(
        &self,
        witness: &Witness,
        mut options: Options,
        limit: Option<Duration>,
    ) -> io::Result<(Ended, Stack)> {
        if let Some(command) = &self.prepare {
            match shell(command)? {
                (0, _) => {}
                (status, text) => {
                    let text = String::from_utf8_lossy(&text);
                    return Err(io::Error::other(format!("--prepare failed with status {status}: {text}")));
                }
            }
        }
        options.decider = Some(witness.decider());
        options.ask_limit = Some(ASK_LIMIT);
        let began = SystemTime::now();
        let mut ended = run(&options, &self.arguments, limit)?;
        let mut stack = Stack::default();
        if let Some(pid) = ended.pid {
            (ended.held, stack) = witness.ended(pid);
        }
        ended.files = witness.files(began);
        ended.check = self.check.as_deref().map(shell).transpose()?;
        Ok((ended, stack))
    }

    /// The command line that runs the program with this rule.
    fn replay(&self, rule: &str) -> String {
        let words: Vec<String> = self.arguments.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        let prepare = self.prepare.as_ref().map(|command| format!("{command} && ")).unwrap_or_default();
        format!("{prepare}orbit hijack --inject {} -- {}", quoted(rule), words.join(" "))
    }
}

fn parsed(rule: &str) -> io::Result<Rules> {
    Rules::parse(rule).map_err(|error: RuleError| io::Error::other(error.to_string()))
}

/// A word as the shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Status (or 128 and the signal) and output of a command.
fn shell(command: &str) -> io::Result<(i32, Vec<u8>)> {
    let done = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).output()?;
    let status = done.status.code().unwrap_or(128 + done.status.signal().unwrap_or(0));
    Ok((status, [done.stdout, done.stderr].concat()))
}

/// Runs the program in a process group of its own; what is left of the group at its end is killed.
fn run(options: &Options, arguments: &[OsString], limit: Option<Duration>) -> io::Result<Ended> {
    let mut session = Session::start_with(options, arguments, |command| {
        use std::os::unix::process::CommandExt;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        // Ctrl-C does not reach that group: the program ends with the campaign.
        // SAFETY: the closure makes one system call.
        unsafe { command.pre_exec(|| orbit_linux::process::set_parent_death_signal(libc::SIGKILL)) };
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
        None => session.follow(|_| Ok(())).map(|()| true)?,
        Some(limit) => session.wait_for(limit)?,
    };
    let left = if is_in_time { witness::group(group, EXIT_GRACE) } else { Vec::new() };
    // What is left of the group holds the pipe, and must not outlive the run.
    let _ = orbit_linux::signals::send_to_group(group, libc::SIGKILL);
    if !is_in_time {
        session.follow(|_| Ok(()))?;
    }
    let outcome = session.outcome();
    let output = reader.join().unwrap_or_default();
    Ok(Ended {
        status: is_in_time.then_some(outcome.status),
        output,
        acted: outcome.rules.last().map_or(0, |(_, _, acted)| *acted),
        pid: Some(session.pid()),
        left,
        ..Ended::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_replays_is_quoted_for_the_shell() {
        let campaign = Campaign::new("eintr", vec!["./a test".into(), "it's".into(), "-v".into()]).expect("known");
        let line = campaign.prepare(Some("rm -f out".to_owned())).replay("read(size>1) -> size=1 after 0 once");
        let rule = "'read(size>1) -> size=1 after 0 once'";
        assert_eq!(line, format!("rm -f out && orbit hijack --inject {rule} -- './a test' 'it'\\''s' -v"));
    }
}
