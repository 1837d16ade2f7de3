//! Rules as TOML. A table for each rule, whose parts are those of the language:
//!
//! ```toml
//! [[rule]]
//! calls = "write|pwrite64"
//! where = 'fd=path("/var/log/*"), size>4K'   # optional
//! site = 12                                  # optional
//! action = "ENOSPC"
//! after = 10                                 # optional, as times, every, p
//! ```

use super::{RuleError, Rules, parse};
use serde::Deserialize;
use toml::Spanned;

const FORM: &str = "[[rule]] tables with calls, action, and where, site, after, times, every, p if need be";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Spanned<Table>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    calls: String,
    #[serde(default, rename = "where")]
    conditions: String,
    site: Option<u64>,
    action: String,
    after: Option<u64>,
    times: Option<u64>,
    every: Option<u64>,
    p: Option<f64>,
}

impl Table {
    /// The rule in the language.
    fn text(&self) -> String {
        let number = |word: &str, value: Option<u64>| value.map(|value| format!(" {word} {value}")).unwrap_or_default();
        let conditions = if self.conditions.is_empty() { String::new() } else { format!("({})", self.conditions) };
        let site = number("at site", self.site);
        let when = [("after", self.after), ("times", self.times), ("every", self.every)];
        let when: String = when.iter().map(|(word, value)| number(word, *value)).collect();
        let chance = self.p.map(|p| format!(" p={p}")).unwrap_or_default();
        format!("{}{conditions}{site} -> {}{when}{chance}", self.calls, self.action)
    }
}

pub(super) fn parse(text: &str) -> Result<Rules, RuleError> {
    let line_of = |at: usize| 1 + text.get(..at).unwrap_or(text).matches('\n').count();
    let file: File = toml::from_str(text).map_err(|error| {
        let line = line_of(error.span().map_or(0, |span| span.start));
        RuleError::file(line, text.lines().nth(line - 1).unwrap_or(""), error.message(), FORM)
    })?;
    let mut rules = Rules::default();
    for table in &file.rule {
        let (line, rule) = (line_of(table.span().start), table.as_ref().text());
        rules.push(parse::rule(&rule).map_err(|error| error.at(line, 0, &rule)))?;
    }
    Ok(rules)
}
