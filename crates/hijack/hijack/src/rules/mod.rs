//! Rules for system calls, in a small language.
//!
//! ```text
//! write(fd=path("/var/log/*")) -> ENOSPC after 10
//! connect(port=443) -> delay 200ms p=0.1
//! openat(path="/etc/hosts") -> "/run/fake"
//! read|recvfrom(size>4096) -> size=1
//! * at site 12 -> EINTR once
//! unlink* -> ask judge
//! connect -> ask service firewall
//! clock_* -> virtual x100
//! ```
//!
//! A rule names calls (`*` and `|` allowed), conditions on arguments, an action, and when it acts.
//! For each call the rules are tried in their order. An answer, `kill` or `pass` ends the search;
//! other actions let later rules act too.

mod file;
mod parse;
#[cfg(test)]
mod tests;

use crate::calls::{Call, Kind};
use crate::shared::{self, MAX_RULES, PATTERN_BYTES};
use crate::time::{Jump, Speed};
pub use parse::RuleError;

/// Roles that an argument may have, by which conditions name it: the first argument of that kind.
pub const ROLES: [&str; 8] = ["path", "path2", "fd", "address", "size", "flags", "signal", "pid"];
/// No argument of the call has the role.
const NO_ARGUMENT: u8 = 0xff;

/// The arguments of a call that have the roles, in the order of [`ROLES`].
pub(crate) fn roles(call: &Call) -> [u8; 8] {
    let nth = |nth: usize, fits: &dyn Fn(&Kind) -> bool| {
        let mut all = (0u8..).zip(&call.arguments).filter(|(_, kind)| fits(kind));
        all.nth(nth).map_or(NO_ARGUMENT, |(index, _)| index)
    };
    let is_text = |kind: &Kind| matches!(kind, Kind::Text(true));
    let has_text = call.arguments.iter().any(is_text);
    [
        // The path of a unix socket, where the call has no other.
        nth(0, &|kind| is_text(kind) || !has_text && matches!(kind, Kind::Address4(_))),
        nth(1, &|kind| matches!(kind, Kind::Text(true))),
        nth(0, &|kind| matches!(kind, Kind::Fd)),
        nth(0, &|kind| matches!(kind, Kind::Address4(_))),
        nth(0, &|kind| matches!(kind, Kind::Size)),
        nth(0, &|kind| matches!(kind, Kind::Flags(_))),
        nth(0, &|kind| matches!(kind, Kind::Signal)),
        nth(0, &|kind| matches!(kind, Kind::Pid)),
    ]
}

/// The roles that arguments of the call have.
pub fn named_arguments(call: &Call) -> Vec<&'static str> {
    ROLES.iter().zip(roles(call)).filter(|(_, index)| *index != NO_ARGUMENT).map(|(role, _)| *role).collect()
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Only counts.
    Count,
    /// The result, without a call: an error as its negative number.
    Answer(i64),
    /// Waits this many nanoseconds, then continues.
    Delay(i64),
    /// Sends this signal to the process, whatever it handles.
    Kill(i64),
    /// Replaces an argument: index, or `0x80 |` role.
    Argument(u8, i64),
    /// Replaces the string of an argument.
    Text(u8, String),
    /// The call is made; later rules are not asked.
    Pass,
    /// The host is asked.
    Ask(Asked),
    /// All clocks of guests run at this speed, from the start on.
    Speed(Speed),
    /// The guests' real-time clock jumps.
    Jump(Jump),
}

/// Who is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// [`crate::Options::decider`], by this name (which may be empty).
    Decider(String),
    /// [`crate::Options::services`]: the service of this name or number.
    Service(String),
}

/// What must hold of an argument: its index, or `0x80 |` role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Index of the argument, or `0x80 |` role.
    pub argument: u8,
    /// Whether the test must fail.
    pub is_negated: bool,
    /// The test.
    pub test: Test,
}

/// A test of one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// In this range, as unsigned 64-bit number.
    Range(u64, u64),
    /// All these bits are set.
    Bits(u64),
    /// The string matches.
    Text(String),
    /// The path of the descriptor matches.
    FdPath(String),
    /// The port of the socket address lies in this range.
    Port(u64, u64),
    /// In this range, as signed 32-bit number.
    Int(i32, i32),
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// As it was written.
    pub text: String,
    /// Numbers of the calls.
    pub calls: Vec<u16>,
    /// All of them hold, or the rule does not match.
    pub conditions: Vec<Condition>,
    /// Number of the site, from 1; 0: any.
    pub site: u64,
    /// What it does.
    pub action: Action,
    /// Matches that pass before it acts.
    pub skip: u64,
    /// How often it acts; 0: without limit.
    pub times: u64,
    /// It acts at each `every`-th match.
    pub every: u64,
    /// With which chance it acts, of `u32::MAX`.
    pub chance: u32,
}

impl Rule {
    /// Whom it asks; `None`: it does not ask.
    pub fn asks(&self) -> Option<&Asked> {
        if let Action::Ask(asked) = &self.action { Some(asked) } else { None }
    }
}

/// Rules in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// No rules.
    pub const fn none() -> Rules {
        Rules(Vec::new())
    }

    /// Reads rules: one a line, or separated by `;`. `#` begins a comment.
    ///
    /// # Errors
    /// The first rule that makes no sense, with the position and what would be right; more than 64
    /// rules.
    pub fn parse(text: &str) -> Result<Rules, RuleError> {
        let mut rules = Rules::default();
        for (line, content) in (1..).zip(text.lines()) {
            for (offset, rule) in parse::split(content) {
                rules.push(parse::rule(rule).map_err(|error| error.at(line, offset, content)))?;
            }
        }
        Ok(rules)
    }

    /// Reads rules from the text of a TOML file: see `rules/file.rs`.
    ///
    /// # Errors
    /// As [`Rules::parse`], and what is wrong with the TOML.
    pub fn parse_toml(text: &str) -> Result<Rules, RuleError> {
        file::parse(text)
    }

    fn push(&mut self, rule: Result<Rule, RuleError>) -> Result<(), RuleError> {
        let rule = rule?;
        if self.0.len() == MAX_RULES {
            return Err(RuleError::too_many(&rule.text));
        }
        self.0.push(rule);
        Ok(())
    }

    /// Adds a rule behind these, as [`Rules::extend`].
    pub(crate) fn add(&mut self, rule: Rule) -> Result<(), RuleError> {
        self.push(Ok(rule))
    }

    /// Adds rules behind these.
    ///
    /// # Errors
    /// More than 64 rules.
    pub fn extend(&mut self, more: Rules) -> Result<(), RuleError> {
        more.0.into_iter().try_for_each(|rule| self.push(Ok(rule)))
    }

    /// The rules.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    /// The speed of guests' clocks that the first such rule sets.
    pub fn speed(&self) -> Option<Speed> {
        self.0.iter().find_map(|rule| if let Action::Speed(speed) = rule.action { Some(speed) } else { None })
    }

    /// The jump of guests' real-time clock that the first such rule sets.
    pub fn jump(&self) -> Option<Jump> {
        self.0.iter().find_map(|rule| if let Action::Jump(jump) = rule.action { Some(jump) } else { None })
    }

    /// The rules as they were written.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|rule| rule.text.as_str())
    }

    /// The first rule that asks a service (or else the decider).
    pub fn asking(&self, service: bool) -> Option<&Rule> {
        let asks = |rule: &&Rule| rule.asks().is_some_and(|asked| matches!(asked, Asked::Service(_)) == service);
        self.0.iter().find(asks)
    }

    /// Writes the rules as the executive reads them; returns how many there are.
    pub(crate) fn compile_into(&self, to: &mut [shared::Rule]) -> u32 {
        for (rule, to) in self.0.iter().zip(to) {
            compile(rule, to);
        }
        self.0.len() as u32
    }
}

/// Codes of `executive/abi.h`.
fn compile(rule: &Rule, to: &mut shared::Rule) {
    for &call in &rule.calls {
        to.calls[usize::from(call) / 64] |= 1 << (call % 64);
    }
    to.condition_count = rule.conditions.len() as u32;
    for (condition, to) in rule.conditions.iter().zip(&mut to.conditions) {
        to.argument = condition.argument;
        to.negated = condition.is_negated.into();
        (to.kind, to.low, to.high) = match &condition.test {
            Test::Range(low, high) => (1, *low, *high),
            Test::Bits(bits) => (2, *bits, *bits),
            Test::Text(_) => (3, 0, 0),
            Test::FdPath(_) => (4, 0, 0),
            Test::Port(low, high) => (5, *low, *high),
            Test::Int(low, high) => (6, i64::from(*low) as u64, i64::from(*high) as u64),
        };
        if let Test::Text(pattern) | Test::FdPath(pattern) = &condition.test {
            copy_text(pattern, &mut to.pattern);
        }
    }
    to.site = rule.site;
    (to.skip, to.times, to.every, to.chance) = (rule.skip, rule.times, rule.every, rule.chance);
    (to.action, to.value, to.target) = match &rule.action {
        Action::Count | Action::Speed(_) | Action::Jump(_) => (0, 0, 0),
        Action::Answer(result) => (1, *result, 0),
        Action::Delay(nanoseconds) => (2, *nanoseconds, 0),
        Action::Kill(signal) => (3, *signal, 0),
        Action::Argument(target, value) => (4, *value, u32::from(*target)),
        Action::Text(target, text) => {
            copy_text(text, &mut to.text);
            (5, 0, u32::from(*target))
        }
        Action::Pass => (6, 0, 0),
        Action::Ask(_) => (7, 0, 0),
    };
}

/// The parser lets no text pass that is longer than a pattern may be.
fn copy_text(text: &str, to: &mut [u8; PATTERN_BYTES]) {
    to[..text.len()].copy_from_slice(text.as_bytes());
}
