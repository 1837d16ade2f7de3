//! Service managers: each owns attribute classes, reads them, and applies what a guard has passed.

use crate::error::{Error, Kind, Result};
use orbit_sandbox_lib::abi::{GET, SET};
use orbit_sandbox_lib::guard::Guard;
use std::fmt;
use std::str::FromStr;

/// A class of attributes: every target of it has one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeClass {
    /// Its number, as handles have it.
    pub id: u32,
    /// Manager and attribute: `cpu:priority`.
    pub name: &'static str,
    /// Of the value.
    pub unit: &'static str,
    /// The least value that may be set.
    pub min: i64,
    /// The largest value that may be set.
    pub max: i64,
    /// Whether it may be set at all.
    pub settable: bool,
    /// What it is, in one sentence.
    pub about: &'static str,
}

impl AttributeClass {
    /// The guard generated from the class. It clamps, since a class says what is in range, not what
    /// is an error.
    pub fn guard(&self) -> Guard {
        Guard { min: self.min, max: self.max, clamp: true }
    }
}

/// A service manager. Any thread may call its methods; they may block for a system call, no longer.
pub trait Manager: fmt::Debug + Send + Sync {
    /// The classes it owns.
    fn classes(&self) -> &'static [AttributeClass];

    /// Reads an attribute.
    ///
    /// # Errors
    /// `NotFound` when the target is gone; `System`.
    fn read(&self, class: &AttributeClass, target: i32) -> Result<i64>;

    /// Applies a value that a guard has passed.
    ///
    /// # Errors
    /// `NotFound` when the target is gone; `Denied`; `System`.
    fn apply(&self, class: &AttributeClass, target: i32, value: i64) -> Result<()>;

    /// Whether a user may have a handle on this target: on processes of that user; 0 on all.
    ///
    /// # Errors
    /// `NotFound` when the target is gone, `Denied` when it is another user's.
    fn may(&self, user: u32, target: i32) -> Result<()> {
        use std::os::unix::fs::MetadataExt;
        let gone = |_| Error::new(Kind::NotFound, format!("process {target} is gone"));
        let owner = std::fs::metadata(format!("/proc/{target}")).map_err(gone)?.uid();
        if user == 0 || user == owner {
            return Ok(());
        }
        Err(Error::new(
            Kind::Denied,
            format!(
                "process {target} is user {owner}'s: a service of user {user} may have handles on processes of that \
                 user only"
            ),
        ))
    }
}

/// What a service asks a handle for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRequest {
    /// The class, by name.
    pub class: String,
    /// [`GET`], [`SET`].
    pub rights: u32,
    /// The thread or process it is about.
    pub target: i32,
    /// A narrower guard than the class's.
    pub guard: Option<Guard>,
}

impl GrantRequest {
    /// A handle to read `class` of `target`.
    pub fn get(class: &str, target: i32) -> GrantRequest {
        GrantRequest { class: class.to_owned(), rights: GET, target, guard: None }
    }

    /// A handle to read and set `class` of `target`.
    pub fn set(class: &str, target: i32) -> GrantRequest {
        GrantRequest { class: class.to_owned(), rights: GET | SET, target, guard: None }
    }
}

impl FromStr for GrantRequest {
    type Err = Error;

    /// `cpu:priority:set(pid=42)`, with `min=` and `max=` for a narrower range, and `refuse` for no
    /// clamping.
    fn from_str(text: &str) -> Result<GrantRequest> {
        let wrong = |why: &str| {
            let text = format!(
                "grant {text:?}: {why}: write CLASS:get(pid=N) or CLASS:set(pid=N,min=A,max=B), as in \
                 cpu:priority:set(pid=42,max=80)"
            );
            Error::new(Kind::Invalid, text)
        };
        let (what, rest) = text.split_once('(').ok_or_else(|| wrong("no target"))?;
        let inner = rest.strip_suffix(')').ok_or_else(|| wrong("no closing parenthesis"))?;
        let (class, right) = what.rsplit_once(':').ok_or_else(|| wrong("no right"))?;
        let rights = match right {
            "get" => GET,
            "set" => GET | SET,
            _ => return Err(wrong("the right is get or set")),
        };
        let (mut target, mut min, mut max, mut clamp) = (None, None, None, true);
        for part in inner.split(',') {
            let number = |text: &str| text.parse::<i64>().map_err(|_| wrong("a number is none"));
            match part.split_once('=') {
                Some(("pid", value)) => {
                    target = Some(i32::try_from(number(value)?).map_err(|_| wrong("no process has this number"))?);
                }
                Some(("min", value)) => min = Some(number(value)?),
                Some(("max", value)) => max = Some(number(value)?),
                None if part == "refuse" => clamp = false,
                _ => return Err(wrong("unknown word")),
            }
        }
        let target = target.filter(|pid| *pid > 0).ok_or_else(|| wrong("no target"))?;
        let is_plain = min.is_none() && max.is_none() && clamp;
        let guard = Guard { min: min.unwrap_or(i64::MIN), max: max.unwrap_or(i64::MAX), clamp };
        Ok(GrantRequest { class: class.to_owned(), rights, target, guard: (!is_plain).then_some(guard) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_read() {
        let grant: GrantRequest = "cpu:priority:set(pid=42,max=80,refuse)".parse().expect("a grant");
        assert_eq!((grant.class.as_str(), grant.rights, grant.target), ("cpu:priority", GET | SET, 42));
        assert_eq!(grant.guard, Some(Guard { min: i64::MIN, max: 80, clamp: false }));
        assert_eq!("cpu:used:get(pid=7)".parse(), Ok(GrantRequest::get("cpu:used", 7)));
        for bad in [
            "",
            "cpu:priority:set",
            "cpu:priority:own(pid=1)",
            "cpu:x:get(pid=0)",
            "cpu:x:get(pid=1,foo=2)",
            "set(pid=1)",
        ] {
            assert_eq!(bad.parse::<GrantRequest>().map_err(|e| e.kind()), Err(Kind::Invalid), "{bad:?}");
        }
    }
}
