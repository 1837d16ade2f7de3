//! The parser of rules. Its errors name the rule, the position and what would be right.

use super::{Action, Asked, Condition, NO_ARGUMENT, ROLES, Rule, Test, roles};
use crate::calls::{self, Call, Kind};
use crate::shared::{MAX_CONDITIONS, MAX_RULES, PATTERN_BYTES};
use crate::time::{Jump, Speed};
use std::fmt;

const ACTIONS: &str = "an error (ENOSPC), a result (0), \"text\", delay 200ms, kill, kill SIGTERM, size=1, pass, \
    count, ask, ask service NAME or virtual x100";
const VIRTUAL: &str = "virtual x100, virtual x0.5, virtual frozen, virtual +1h, virtual -30s after 10s";
/// Words that say when a rule acts.
const WHEN: [&str; 5] = ["after", "once", "times", "every", "p"];
/// Calls that show a clock.
const CLOCKS: [&str; 3] = ["clock_gettime", "gettimeofday", "time"];
/// Calls that return nothing, so that they cannot be answered.
const NO_ANSWER: [&str; 3] = ["rt_sigreturn", "exit", "exit_group"];

/// Why a rule makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    line: usize,
    /// In bytes, from 0, in `content`.
    column: usize,
    content: String,
    problem: String,
    right: String,
}

impl RuleError {
    fn new(column: usize, problem: impl Into<String>, right: impl Into<String>) -> RuleError {
        RuleError { line: 1, column, content: String::new(), problem: problem.into(), right: right.into() }
    }

    /// Places the error in the text it came from.
    pub(super) fn at(mut self, line: usize, offset: usize, content: &str) -> RuleError {
        self.line = line;
        self.column += offset;
        self.content = content.to_owned();
        self
    }

    /// Something that is no rule at all.
    pub(super) fn file(line: usize, content: &str, problem: &str, right: &str) -> RuleError {
        RuleError::new(0, problem, right).at(line, 0, content)
    }

    pub(super) fn too_many(rule: &str) -> RuleError {
        let problem = format!("more than {MAX_RULES} rules");
        RuleError::new(0, problem, "fewer rules; `a|b` and `*` name several calls in one").at(1, 0, rule)
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.content.get(..self.column).map_or(0, |before| before.chars().count());
        writeln!(f, "rule in line {}, column {}: {}", self.line, before + 1, self.problem)?;
        writeln!(f, "  {}", self.content)?;
        writeln!(f, "  {}^", " ".repeat(before))?;
        write!(f, "  right would be: {}", self.right)
    }
}

impl std::error::Error for RuleError {}

/// The rules of a line with their offsets, without comments. `;` and `#` in quotes mean nothing.
pub(super) fn split(line: &str) -> Vec<(usize, &str)> {
    let (mut parts, mut begin, mut is_quoted, mut end) = (Vec::new(), 0, false, line.len());
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b';' if !is_quoted => {
                parts.push((begin, &line[begin..at]));
                begin = at + 1;
            }
            b'#' if !is_quoted => {
                end = at;
                break;
            }
            _ => {}
        }
    }
    parts.push((begin, &line[begin..end]));
    parts.retain(|(_, part)| !part.trim().is_empty());
    parts
}

/// Parses one rule.
pub(super) fn rule(text: &str) -> Result<Rule, RuleError> {
    let mut cursor = Cursor { text, at: 0 };
    let (begin, names) = cursor.word(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '*' | '?' | '|'));
    let mut named = named_calls(begin, names)?;
    let mut conditions = Vec::new();
    if cursor.takes("(") && !cursor.takes(")") {
        loop {
            if conditions.len() == MAX_CONDITIONS {
                return Err(RuleError::new(
                    cursor.at,
                    format!("more than {MAX_CONDITIONS} conditions"),
                    "fewer conditions",
                ));
            }
            conditions.push(condition(&mut cursor, &mut named)?);
            if cursor.takes(")") {
                break;
            }
            cursor.needs(",", "`,` and a condition, or `)`")?;
        }
    }
    let mut site = 0;
    if cursor.takes_word("at") {
        cursor.needs_word("site", "`at site 12`")?;
        site = cursor.number("the number of a site, from 1")?;
    }
    cursor.needs("->", "`->` and an action")?;
    let begin = cursor.skip();
    let action = action(&mut cursor, &mut named)?;
    if matches!(action, Action::Answer(_) | Action::Ask(_)) {
        // A pattern leaves them out; a name is a mistake.
        if named.iter().all(|call| NO_ANSWER.contains(&call.name)) {
            return Err(RuleError::new(
                begin,
                "these calls never return, so they have no result",
                "delay, kill or count",
            ));
        }
        named.retain(|call| !NO_ANSWER.contains(&call.name));
    }
    let mut rule = Rule {
        text: text.trim().to_owned(),
        calls: named.iter().map(|call| call.number).collect(),
        conditions,
        site,
        action,
        skip: 0,
        times: 0,
        every: 1,
        chance: u32::MAX,
    };
    modifiers(&mut cursor, &mut rule)?;
    Ok(rule)
}

fn modifiers(cursor: &mut Cursor<'_>, rule: &mut Rule) -> Result<(), RuleError> {
    loop {
        let at = cursor.skip();
        if cursor.is_at_end() {
            return Ok(());
        }
        if cursor.takes_word("once") {
            rule.times = 1;
        } else if cursor.takes_word("after") {
            rule.skip = cursor.number("the number of matches that pass")?;
        } else if cursor.takes_word("times") {
            rule.times = positive(cursor, "how often it acts")?;
        } else if cursor.takes_word("every") {
            rule.every = positive(cursor, "at each how many matches it acts")?;
        } else if cursor.takes_word("p") {
            cursor.needs("=", "p=0.1")?;
            let at = cursor.skip();
            let (_, word) = cursor.word(|c| c.is_ascii_digit() || c == '.');
            match word.parse::<f64>() {
                Ok(chance) if (0.0..=1.0).contains(&chance) => rule.chance = (chance * f64::from(u32::MAX)) as u32,
                _ => {
                    return Err(RuleError::new(
                        at,
                        format!("`{word}` is not a chance"),
                        "a number from 0 to 1, as p=0.1",
                    ));
                }
            }
        } else {
            let found = cursor.rest();
            return Err(RuleError::new(
                at,
                format!("`{found}` is unknown here"),
                "after 10, once, times 3, every 5 or p=0.1",
            ));
        }
    }
}

fn positive(cursor: &mut Cursor<'_>, what: &str) -> Result<u64, RuleError> {
    let at = cursor.skip();
    match cursor.number(what)? {
        0 => Err(RuleError::new(at, "0 makes a rule that never acts", format!("{what}, from 1"))),
        number => Ok(number),
    }
}

fn named_calls(begin: usize, names: &str) -> Result<Vec<&'static Call>, RuleError> {
    let mut found: Vec<&Call> = Vec::new();
    let mut at = begin;
    for name in names.split('|') {
        let before = found.len();
        found.extend(calls::all().filter(|call| matches(name, call.name)));
        if found.len() == before {
            let problem =
                if name.is_empty() { "no call is named".to_owned() } else { format!("no system call `{name}`") };
            return Err(RuleError::new(at, problem, format!("a name of `orbit hijack --policies`{}", near(name))));
        }
        at += name.len() + 1;
    }
    found.sort_by_key(|call| call.number);
    found.dedup_by_key(|call| call.number);
    Ok(found)
}

/// A hint at the call whose name differs by the fewest letters, two at most, or begins alike.
fn near(name: &str) -> String {
    let start = &name[..name.len().min(4)];
    let closest = calls::all().map(|call| (distance(name, call.name), call.name)).min();
    let close = match closest {
        _ if name.is_empty() => None,
        Some((0..=2, call)) => Some(call),
        _ => calls::all().map(|call| call.name).find(|call| call.starts_with(start)),
    };
    close.map_or_else(String::new, |call| format!(", as `{call}`"))
}

/// Letters to add, drop or change to make one word of another.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// `*` and `?`, as the executive matches patterns.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.as_bytes().split_first() {
        None => text.is_empty(),
        Some((b'*', _)) => (0..=text.len()).any(|skip| matches(&pattern[1..], &text[skip..])),
        Some((first, _)) => {
            text.bytes().next().is_some_and(|byte| byte == *first || *first == b'?')
                && matches(&pattern[1..], &text[1..])
        }
    }
}

/// An argument by its role or as `arg0`; leaves the calls that have it.
fn argument(cursor: &mut Cursor<'_>, named: &mut Vec<&'static Call>) -> Result<(u8, String), RuleError> {
    let (at, word) = cursor.word(|c| c.is_ascii_alphanumeric() || c == '_');
    let role = if word == "port" { "address" } else { word };
    if let Some(nth) = ROLES.iter().position(|known| *known == role) {
        let all = named.clone();
        named.retain(|call| roles(call)[nth] != NO_ARGUMENT);
        let Some(first) = all.first() else { return Ok((0x80 | nth as u8, word.to_owned())) };
        if named.is_empty() {
            let known = super::named_arguments(first);
            let right = if known.is_empty() {
                "arg0 to arg5".to_owned()
            } else {
                format!("{}, or arg0 to arg5", known.join(", "))
            };
            return Err(RuleError::new(at, format!("{} has no argument `{word}`", first.name), right));
        }
        return Ok((0x80 | nth as u8, word.to_owned()));
    }
    match word.strip_prefix("arg").and_then(|digits| digits.parse::<u8>().ok()) {
        Some(nth) if nth < 6 => Ok((nth, word.to_owned())),
        _ => Err(RuleError::new(
            at,
            format!("no argument `{word}`"),
            format!("{}, port, or arg0 to arg5", ROLES.join(", ")),
        )),
    }
}

fn condition(cursor: &mut Cursor<'_>, named: &mut Vec<&'static Call>) -> Result<Condition, RuleError> {
    let (argument, word) = argument(cursor, named)?;
    let at = cursor.skip();
    let operator = ["!=", "<=", ">=", "=", "<", ">", "&"].into_iter().find(|operator| cursor.takes(operator));
    let Some(operator) = operator else {
        return Err(RuleError::new(at, "no comparison", "=, !=, <, <=, >, >= or &"));
    };
    let at = cursor.skip();
    let is_text = matches!(word.as_str(), "path" | "path2");
    let test = if cursor.takes_word("path") {
        cursor.needs("(", "path(\"/var/log/*\")")?;
        let pattern = cursor.string()?;
        cursor.needs(")", "`)`")?;
        Test::FdPath(pattern)
    } else if cursor.peek() == Some('"') {
        Test::Text(cursor.string()?)
    } else if is_text {
        return Err(RuleError::new(at, format!("`{word}` is a string"), format!("{word}=\"/etc/*\"")));
    } else {
        let low = value(cursor, named, argument)?;
        let high = if operator != "&" && cursor.takes("..") { value(cursor, named, argument)? } else { low };
        numbers(operator, &word, low, high, at)?
    };
    if matches!(test, Test::Text(_) | Test::FdPath(_)) && !matches!(operator, "=" | "!=") {
        return Err(RuleError::new(at, format!("`{operator}` compares numbers"), "= or != for a pattern"));
    }
    Ok(Condition { argument, is_negated: operator == "!=", test })
}

fn numbers(operator: &str, word: &str, low: i64, high: i64, at: usize) -> Result<Test, RuleError> {
    let is_int = matches!(word, "fd" | "signal" | "pid");
    if let (true, Some(number)) = (word == "port", [low, high].iter().find(|port| !(0..=65535).contains(*port))) {
        return Err(RuleError::new(at, format!("there is no port {number}"), "a number from 0 to 65535"));
    }
    let (low, high) = match operator {
        "=" | "!=" => (low, high),
        "&" => return Ok(Test::Bits(low as u64)),
        "<" => (i64::MIN, low - 1),
        "<=" => (i64::MIN, low),
        ">" => (low + 1, i64::MAX),
        _ => (low, i64::MAX),
    };
    if low > high {
        return Err(RuleError::new(at, "an empty range", "the smaller number first"));
    }
    let bounded = |number: i64| number.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    Ok(match word {
        "port" => Test::Port(low.max(0) as u64, high.max(0) as u64),
        _ if is_int => Test::Int(bounded(low), bounded(high)),
        _ if low == high => Test::Range(low as u64, low as u64),
        _ => Test::Range(low.max(0) as u64, high as u64),
    })
}

/// A number, or names of the argument's tables joined by `|`.
fn value(cursor: &mut Cursor<'_>, named: &[&'static Call], argument: u8) -> Result<i64, RuleError> {
    if !cursor.peek().is_some_and(|c| c.is_ascii_uppercase()) {
        return cursor.signed("a number");
    }
    let tables = named.iter().filter_map(|call| {
        let index = if argument & 0x80 == 0 { argument } else { roles(call)[usize::from(argument & 7)] };
        match call.arguments.get(usize::from(index)) {
            Some(Kind::Flags(table) | Kind::Enum(table)) => Some(*table),
            Some(Kind::Signal) => Some("signal"),
            _ => None,
        }
    });
    let tables: Vec<&str> = tables.collect();
    let mut all = 0;
    loop {
        let (at, word) = cursor.word(|c| c.is_ascii_alphanumeric() || c == '_');
        match tables.iter().find_map(|table| calls::value_of(table, word)) {
            Some(bits) => all |= bits as i64,
            None => {
                let known = tables.first().map_or_else(String::new, |table| {
                    let names: Vec<&str> = calls::names(table).iter().take(6).map(|(_, name)| *name).collect();
                    format!(": {}, ...", names.join(", "))
                });
                return Err(RuleError::new(
                    at,
                    format!("no name `{word}` for this argument"),
                    format!("a number{known}"),
                ));
            }
        }
        if !cursor.takes("|") {
            return Ok(all);
        }
    }
}

fn action(cursor: &mut Cursor<'_>, named: &mut Vec<&'static Call>) -> Result<Action, RuleError> {
    let at = cursor.skip();
    let wrong = |problem: String| RuleError::new(at, problem, ACTIONS);
    match cursor.peek() {
        None => return Err(wrong("no action".into())),
        Some('"') => {
            let text = cursor.string()?;
            let has_path = |call: &&Call| call.arguments.iter().any(|kind| matches!(kind, Kind::Text(true)));
            if !named.iter().any(has_path) {
                return Err(wrong(format!(
                    "{} has no path to replace",
                    named.first().map_or("the call", |call| call.name)
                )));
            }
            named.retain(has_path);
            return Ok(Action::Text(0x80, text));
        }
        Some(c) if c.is_ascii_digit() || c == '-' => return cursor.signed("a result").map(Action::Answer),
        _ => {}
    }
    for (word, action) in [("pass", Action::Pass), ("count", Action::Count)] {
        if cursor.takes_word(word) {
            return Ok(action);
        }
    }
    if cursor.takes_word("ask") {
        return asked(cursor).map(Action::Ask);
    }
    if cursor.takes_word("virtual") {
        return virtual_time(cursor, named);
    }
    if cursor.takes_word("delay") {
        return cursor.duration().map(Action::Delay);
    }
    if cursor.takes_word("kill") {
        let at = cursor.skip();
        let (_, name) = cursor.peek_word();
        if !name.starts_with("SIG") {
            return Ok(Action::Kill(libc::SIGKILL.into()));
        }
        cursor.word(|c| c.is_ascii_alphanumeric());
        let signal = calls::value_of("signal", name);
        return signal
            .map(|signal| Action::Kill(signal as i64))
            .ok_or_else(|| RuleError::new(at, format!("no signal `{name}`"), "a name as SIGTERM"));
    }
    let (_, word) = cursor.peek_word();
    if let Some(errno) = calls::value_of("errno", word) {
        cursor.word(|c| c.is_ascii_alphanumeric());
        return Ok(Action::Answer(-(errno as i64)));
    }
    let assigns = cursor.text[cursor.at + word.len()..].trim_start().starts_with('=');
    if assigns && !word.is_empty() {
        let (target, _) = argument(cursor, named)?;
        cursor.needs("=", "size=1")?;
        return value(cursor, named, target).map(|value| Action::Argument(target, value));
    }
    Err(wrong(format!("no action `{}`", if word.is_empty() { cursor.rest() } else { word })))
}

/// Whom a rule asks: `service NAME`, a name, or nothing.
fn asked(cursor: &mut Cursor<'_>) -> Result<Asked, RuleError> {
    let is_service = cursor.takes_word("service");
    let at = cursor.skip();
    let (_, next) = cursor.peek_word();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let name = if WHEN.contains(&next) { "" } else { cursor.word(is_name).1 };
    match (is_service, name) {
        (false, name) => Ok(Asked::Decider(name.to_owned())),
        (true, "") => Err(RuleError::new(at, "no service is named", "ask service firewall")),
        (true, name) => Ok(Asked::Service(name.to_owned())),
    }
}

/// What follows `virtual`, to the end of the rule. All clocks, sleeps and time-outs change
/// together, so the rule must name a clock, and need not name them all.
fn virtual_time(cursor: &mut Cursor<'_>, named: &[&'static Call]) -> Result<Action, RuleError> {
    let at = cursor.skip();
    let text = cursor.rest();
    cursor.at += text.len();
    if !named.iter().any(|call| CLOCKS.contains(&call.name)) {
        return Err(RuleError::new(at, "these calls are no clocks", "clock_* -> virtual x100"));
    }
    if text == "frozen" {
        return Ok(Action::Speed(Speed::FROZEN));
    }
    let speed = text.strip_prefix('x').and_then(|times| times.parse().ok()).and_then(Speed::times).map(Action::Speed);
    let action = speed.or_else(|| Jump::parse(text).map(Action::Jump));
    action.ok_or_else(|| RuleError::new(at, format!("`{text}` is no virtual time"), VIRTUAL))
}

/// Where the parser is in the text of a rule.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Passes over blanks; returns the position.
    fn skip(&mut self) -> usize {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.at
    }

    fn rest(&mut self) -> &'a str {
        self.skip();
        self.text[self.at..].trim_end()
    }

    fn is_at_end(&mut self) -> bool {
        self.rest().is_empty()
    }

    fn peek(&mut self) -> Option<char> {
        self.rest().chars().next()
    }

    fn word(&mut self, fits: impl Fn(char) -> bool) -> (usize, &'a str) {
        let at = self.skip();
        let rest = &self.text[at..];
        let end = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        self.at += end;
        (at, &rest[..end])
    }

    fn peek_word(&mut self) -> (usize, &'a str) {
        let before = self.skip();
        let found = self.word(|c| c.is_ascii_alphanumeric() || c == '_');
        self.at = before;
        found
    }

    fn takes(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let found = self.peek_word().1 == word;
        if found {
            self.at += word.len();
        }
        found
    }

    fn needs(&mut self, token: &str, right: &str) -> Result<(), RuleError> {
        let at = self.skip();
        if self.takes(token) {
            return Ok(());
        }
        let found = if self.is_at_end() {
            "the rule ends here".to_owned()
        } else {
            format!("`{}` is unknown here", self.rest())
        };
        Err(RuleError::new(at, found, right))
    }

    fn needs_word(&mut self, word: &str, right: &str) -> Result<(), RuleError> {
        let at = self.skip();
        if self.takes_word(word) {
            Ok(())
        } else {
            Err(RuleError::new(at, format!("`{}` is unknown here", self.rest()), right))
        }
    }

    fn number(&mut self, what: &str) -> Result<u64, RuleError> {
        let at = self.skip();
        u64::try_from(self.signed(what)?).map_err(|_| RuleError::new(at, "a negative number", what))
    }

    /// Decimal, `0x` hexadecimal, `0o` octal; K, M, G.
    fn signed(&mut self, what: &str) -> Result<i64, RuleError> {
        let at = self.skip();
        let is_negative = self.takes("-");
        let (_, word) = self.word(|c| c.is_ascii_alphanumeric());
        let (digits, base) = match word.get(..2) {
            Some("0x") => (&word[2..], 16),
            Some("0o") => (&word[2..], 8),
            _ => (word, 10),
        };
        let (digits, shift) = match digits.as_bytes().last() {
            Some(b'K') if base == 10 => (&digits[..digits.len() - 1], 10),
            Some(b'M') if base == 10 => (&digits[..digits.len() - 1], 20),
            Some(b'G') if base == 10 => (&digits[..digits.len() - 1], 30),
            _ => (digits, 0),
        };
        let number = i64::from_str_radix(digits, base).ok().and_then(|number| number.checked_mul(1 << shift));
        let number = number.ok_or_else(|| {
            // The word that stands there, or what stands in its place.
            let rest = &self.text[at..];
            let end = rest.find(|c: char| c.is_whitespace() || ",)".contains(c)).unwrap_or(rest.len());
            let found = if end == 0 { rest.trim_end() } else { &rest[..end] };
            RuleError::new(at, format!("`{found}` is not a number"), what)
        })?;
        Ok(if is_negative { -number } else { number })
    }

    /// A number with ns, us, ms or s, in nanoseconds.
    fn duration(&mut self) -> Result<i64, RuleError> {
        let (at, word) = self.word(|c| c.is_ascii_alphanumeric() || c == '.');
        let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &word[digits.len()..] {
            "ns" => 1.0,
            "us" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => 0.0,
        };
        match digits.parse::<f64>() {
            Ok(number) if unit > 0.0 && (0.0..=86_400e9).contains(&(number * unit)) => Ok((number * unit) as i64),
            _ => Err(RuleError::new(
                at,
                format!("`{word}` is not a duration"),
                "a number with ns, us, ms or s, a day at most: 200ms",
            )),
        }
    }

    fn string(&mut self) -> Result<String, RuleError> {
        let at = self.skip();
        let inner = self.rest().strip_prefix('"').and_then(|rest| rest.split_once('"')).map(|(inner, _)| inner);
        let inner = inner.ok_or_else(|| RuleError::new(at, "no string in quotes", "\"/var/log/*\""))?;
        if inner.len() >= PATTERN_BYTES || inner.contains('\0') {
            return Err(RuleError::new(
                at,
                format!("{} bytes are too long", inner.len()),
                format!("{} bytes at most", PATTERN_BYTES - 1),
            ));
        }
        self.at += inner.len() + 2;
        Ok(inner.to_owned())
    }
}
