//! What a peer may do, by its certificate. Pure.
//!
//! A certificate grants by names of the form of a URI (subjectAltName):
//!
//! | name | grants |
//! |---|---|
//! | `orbit:pin/P_NET` | the pin's operations that read facts, and its events |
//! | `orbit:pin/*` | the same of all pins |
//! | `orbit:pin/P_MEM/MemoryRead` | that operation also, which reads contents or changes something |
//!
//! Without such a name nothing is granted. What is not understood grants nothing.

use orbit_rmk::{Command, Touches};
use std::collections::BTreeSet;

/// The scheme of a name that grants.
const SCHEME: &str = "orbit:pin/";
/// Names that a certificate may have: more grant nothing.
const MAX_NAMES: usize = 256;

/// See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Pins whose facts may be read; `*`: all.
    facts: BTreeSet<String>,
    /// Pin and operation.
    operations: BTreeSet<(String, String)>,
}

impl Rights {
    /// Those of a certificate with these names.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Rights {
        let mut rights = Rights::default();
        for name in names.into_iter().take(MAX_NAMES) {
            let Some(what) = name.strip_prefix(SCHEME) else { continue };
            match what.split('/').collect::<Vec<_>>()[..] {
                [pin] if is_name(pin) || pin == "*" => drop(rights.facts.insert(pin.to_owned())),
                [pin, operation] if is_name(pin) && is_name(operation) => {
                    rights.operations.insert((pin.to_owned(), operation.to_owned()));
                }
                _ => {}
            }
        }
        rights
    }

    /// Whether nothing is granted.
    pub fn is_empty(&self) -> bool {
        self.facts.is_empty() && self.operations.is_empty()
    }

    /// Whether the pin may do this for the peer.
    ///
    /// # Errors
    /// A sentence: which name the certificate lacks.
    pub fn command(&self, pin: &str, command: &Command) -> Result<(), String> {
        let name = command.name();
        let is_granted = self.operations.contains(&(pin.to_owned(), name.to_owned()))
            || (command.touches() == Touches::Facts && self.reads(pin));
        if is_granted {
            return Ok(());
        }
        let missing = match command.touches() {
            Touches::Facts => format!("{SCHEME}{pin}"),
            Touches::Contents | Touches::Changes => format!("{SCHEME}{pin}/{name}"),
        };
        Err(format!("the certificate of this node does not grant it: it needs the name URI:{missing}"))
    }

    /// Whether the peer may have events of the pin.
    ///
    /// # Errors
    /// As for [`Rights::command`].
    pub fn events(&self, pin: &str) -> Result<(), String> {
        if self.reads(pin) {
            return Ok(());
        }
        Err(format!("the certificate of this node does not grant its events: it needs the name URI:{SCHEME}{pin}"))
    }

    fn reads(&self, pin: &str) -> bool {
        self.facts.contains("*") || self.facts.contains(pin)
    }
}

/// Whether it can be the name of a pin or an operation.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Command = Command::CpuStates;
    const CONTENTS: Command = Command::MemoryRead { pid: 1, address: 0, length: 1 };
    const CHANGES: Command = Command::SignalSend { pid: 1, signal: 9 };

    #[test]
    fn without_a_name_nothing_is_granted() {
        for names in [&[][..], &["https://orbit:pin/P_NET", "orbit:pin/", "orbit:pin//x", "orbit:pin/P_NET/x/y", "x"]] {
            let rights = Rights::of(names.iter().copied());
            assert!(rights.is_empty());
            for command in [FACTS, CONTENTS, CHANGES] {
                assert!(rights.command("P_NET", &command).is_err(), "{names:?} {command:?}");
            }
            assert!(rights.events("P_NET").is_err());
        }
    }

    #[test]
    fn a_pin_is_read_and_what_changes_is_named_one_by_one() {
        let rights = Rights::of(["orbit:pin/P_MEM", "orbit:pin/P_SIG/SignalSend"]);
        assert_eq!(rights.command("P_MEM", &FACTS), Ok(()));
        assert_eq!(rights.command("P_SIG", &CHANGES), Ok(()));
        assert_eq!((rights.events("P_MEM"), rights.events("P_SIG").is_err()), (Ok(()), true));
        let why = rights.command("P_MEM", &CONTENTS).expect_err("contents are no facts");
        assert!(why.ends_with("URI:orbit:pin/P_MEM/MemoryRead"), "{why}");
        assert!(rights.command("P_NET", &FACTS).is_err_and(|why| why.ends_with("URI:orbit:pin/P_NET")));
        assert!(rights.command("P_NET", &CHANGES).is_err(), "granted at another pin");
        let all = Rights::of(["orbit:pin/*"]);
        assert_eq!((all.command("P_NET", &FACTS), all.events("P_SCHL")), (Ok(()), Ok(())));
        assert!(all.command("P_MEM", &CONTENTS).is_err() && all.command("P_SIG", &CHANGES).is_err());
    }

    #[test]
    fn names_beyond_the_bound_grant_nothing() {
        let many = vec!["orbit:other"; MAX_NAMES];
        assert!(Rights::of(many.iter().copied().chain(["orbit:pin/*"])).is_empty());
    }
}
