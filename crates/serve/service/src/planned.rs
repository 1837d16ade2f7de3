//! The services of the configuration: each is loaded whenever its owner is there, also after the
//! owner was started anew.

use super::{Daemon, read_object};
use crate::config::{Config, Planned};
use crate::owners::Owner;
use crate::protocol::Load;
use orbit_services::{Error, Kind, Result};
use std::collections::BTreeSet;
use std::path::Path;

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

    /// Loads a service whenever its owner is there, from now on. Answers its number, or why it is
    /// not loaded yet.
    ///
    /// # Errors
    /// What keeps it from being loaded that has nothing to do with its owner: it is not planned
    /// then.
    pub(super) fn plan(&mut self, owner: &str, load: Load) -> Result<String> {
        let owner = Owner::parse(owner, Path::new("/")).map_err(|why| Error::new(Kind::Invalid, why))?;
        let planned = Planned::new(owner, load);
        let (id, why) = match self.load_now(&planned) {
            Ok((id, _)) => (Some(id), String::new()),
            Err(error) if error.kind() == Kind::NotFound => (None, error.to_string()),
            Err(error) => return Err(error),
        };
        let answer = id.clone().unwrap_or_else(|| format!("waits: {why}"));
        self.note(format!("planned {} for {}: {answer}", planned.file().display(), planned.owner));
        self.planned.push(Waiting { planned, id, why });
        Ok(answer)
    }

    /// Loads it if its owner is there. Answers its number and the owner.
    fn load_now(&mut self, planned: &Planned) -> Result<(String, i32)> {
        let Some(owner) = planned.owner.process() else {
            return Err(Error::new(Kind::NotFound, format!("{} is not there", planned.owner)));
        };
        self.load(&planned.load(owner)).map(|id| (id, owner))
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
            match self.load_now(&waiting.planned) {
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
