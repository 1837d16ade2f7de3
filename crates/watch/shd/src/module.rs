//! System hang detection as a module of the reliability microkernel: `shd`.
//!
//! Owns the module's settings ([`Orders`]) and how it reports. The watchers run as without it,
//! pinned one to each CPU, in the module's process: an event is logged, acted on and left to a
//! writer on the same CPU straight from there. That needs neither the module's own loop, nor the
//! core, nor any other process: those may be scheduled on the CPU that hangs. Only then the line
//! goes to the core as a report too, at the latest with the next period once the loop runs again; a
//! report that finds 256 others waiting is not made. Its memory is locked. It uses no pin: its
//! kernel half is its own, so nothing it needs is loaded, shared or unloaded by others.

use crate::{Action, Options, Shd, watch};
use orbit_rmk::{Context, Event, Module, ModuleOptions};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Where events go straight from the watchers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Nowhere: they are reported to the core alone.
    #[default]
    None,
    /// The stdout that the program had when it called `orbit::init`.
    Stdout,
    /// The end of this file.
    File(PathBuf),
}

/// The module's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// How to judge.
    pub options: Options,
    /// What to do about a hang.
    pub action: Action,
    /// Where events go.
    pub output: Output,
}

/// The module. Its settings are made by [`options`].
pub struct Watch {
    orders: Option<Orders>,
    at_work: Option<(Shd, Receiver<String>)>,
}

/// How it is best installed. A call that does not end proves nothing while a CPU hangs, so only one
/// of more than an hour counts as an endless loop.
pub fn options(orders: &Orders) -> ModuleOptions {
    ModuleOptions {
        settings: orders.write(),
        deadline: Duration::from_secs(3600),
        memory: 256 << 20,
        ..ModuleOptions::default()
    }
}

impl Module for Watch {
    const NAME: &'static str = "shd";
    const PINS: &'static [&'static str] = &[];
    const PERIOD: Option<Duration> = Some(Duration::from_millis(100));

    fn create(settings: &[u8]) -> Watch {
        Watch {
            orders: if settings.is_empty() { Some(Orders::default()) } else { Orders::read(settings) },
            at_work: None,
        }
    }

    fn start(&mut self, context: &mut Context) {
        let begun = match &self.orders {
            Some(orders) => orders.begin(),
            None => Err("its settings make no sense".to_owned()),
        };
        match begun {
            Ok(begun) => self.at_work = Some(begun),
            Err(why) => context.fail(why),
        }
    }

    fn event(&mut self, _context: &mut Context, _event: &Event) {}

    fn tick(&mut self, context: &mut Context) {
        for line in self.at_work.iter().flat_map(|(_, lines)| lines.try_iter()) {
            context.report(line);
        }
    }
}

impl Orders {
    fn begin(&self) -> Result<(Shd, Receiver<String>), String> {
        let to = match &self.output {
            Output::None => None,
            Output::Stdout => {
                let stdout = std::io::stdout().as_fd().try_clone_to_owned();
                Some(File::from(stdout.map_err(|e| format!("duplicating stdout: {e}"))?))
            }
            Output::File(path) => {
                let file = File::options().create(true).append(true).open(path);
                Some(file.map_err(|e| format!("cannot write events to {}: {e}", path.display()))?)
            }
        };
        let (lines, repeated) = watch::again();
        let shd = watch::begin(&self.options, self.action, to, lines).map_err(|e| e.to_string())?;
        Ok((shd, repeated))
    }

    /// Times in nanoseconds, priority, action, and what is left is the output.
    fn write(&self) -> Vec<u8> {
        let Options { period, check_least, check_most, priority } = &self.options;
        let [period, least, most] = [period, check_least, check_most].map(Duration::as_nanos);
        let action = self.action.word();
        let mut bytes = format!("{period} {least} {most} {priority} {action} ").into_bytes();
        match &self.output {
            Output::None => bytes.extend(b"none"),
            Output::Stdout => bytes.extend(b"stdout"),
            Output::File(path) => {
                bytes.extend(b"file ");
                bytes.extend(path.as_os_str().as_encoded_bytes());
            }
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Orders> {
        use std::os::unix::ffi::OsStrExt;
        let mut words = bytes.splitn(7, |b| *b == b' ');
        let mut word = || std::str::from_utf8(words.next()?).ok();
        let mut time = || word()?.parse().ok().map(Duration::from_nanos);
        let (period, check_least, check_most) = (time()?, time()?, time()?);
        let priority = word()?.parse().ok()?;
        let action = Action::from_str(word()?).ok()?;
        let kind = word()?;
        let output = match (kind, words.next()) {
            ("none", None) => Output::None,
            ("stdout", None) => Output::Stdout,
            ("file", Some(path)) => Output::File(std::ffi::OsStr::from_bytes(path).into()),
            _ => return None,
        };
        Some(Orders { options: Options { period, check_least, check_most, priority }, action, output })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_way() {
        for output in [Output::None, Output::Stdout, Output::File("/tmp/a file".into())] {
            let orders = Orders { action: Action::Reboot, output, ..Orders::default() };
            assert_eq!(Orders::read(&orders.write()), Some(orders));
        }
        assert_eq!(Orders::read(b"1 2 3 4 explode none"), None);
        assert_eq!(Orders::read(b""), None);
    }
}
