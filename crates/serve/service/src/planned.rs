//! The services of the configuration: each is loaded whenever its owner is there, also after the
//! owner was started anew.

use super::{Daemon, read_object};
use crate::config::{Config, Planned};
use orbit_services::{Error, Kind, Result};
use std::collections::BTreeSet;

/// A service of the configuration.
pub(super) struct Waiting {
    planned: Planned,
    /// Its number while it is loaded.
    id: Option<String>,
    /// Why it is not loaded, as it was last logged.
    why: String,
}

impl Daemon {
    /// Loads what the configuration names. The first that fails fails the host: one that runs half
    /// of it would not be noticed. One whose owner is not there, or does not publish yet what the
    /// service is to set, waits.
    pub(super) fn begin(&mut self, config: Config) -> Result<()> {
        for process in &config.members {
            self.host.join(*process)?;
        }
        for planned in config.planned {
            // A file that is not there is a mistake, whoever owns the service.
            read_object(planned.file())?;
            self.planned.push(Waiting { planned, id: None, why: String::new() });
        }
        self.load_planned()
    }

    /// Loads the services of the configuration whose owners have come since.
    ///
    /// # Errors
    /// What keeps one from being loaded that has nothing to do with its owner.
    pub(super) fn load_planned(&mut self) -> Result<()> {
        let there: BTreeSet<String> = self.list().into_iter().map(|service| service.id).collect();
        let mut all = std::mem::take(&mut self.planned);
        let mut failed = Ok(());
        for waiting in &mut all {
            if waiting.id.as_ref().is_some_and(|id| there.contains(id)) {
                continue;
            }
            waiting.id = None;
            let file = waiting.planned.file().display().to_string();
            let loaded = match waiting.planned.owner.process() {
                None => Err(Error::new(Kind::NotFound, format!("{} is not there", waiting.planned.owner))),
                Some(owner) => self.load(&waiting.planned.load(owner)).map(|id| (id, owner)),
            };
            match loaded {
                Ok((id, owner)) => {
                    self.note(format!("loaded {id} from {file}, owner {owner}"));
                    (waiting.id, waiting.why) = (Some(id), String::new());
                }
                Err(error) => {
                    let why = error.to_string();
                    if waiting.why != why {
                        self.note(format!("{file} waits: {why}"));
                        waiting.why = why;
                    }
                    if error.kind() != Kind::NotFound {
                        failed = failed.and(Err(Error::new(error.kind(), format!("{file}: {error}"))));
                    }
                }
            }
        }
        self.planned = all;
        failed
    }
}
