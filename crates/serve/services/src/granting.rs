//! What the host grants: handles of attributes, for processes of the owner's user, noted so that
//! they are put back.

use super::Host;
use crate::error::{Error, Kind, Result};
use crate::grant::Granted;
use crate::manager::GrantRequest;
use crate::region;
use crate::spec::Spec;
use orbit_linux::pidfd;
use orbit_sandbox_lib::abi::{self, GRANTS, SET};
use std::fs;
use std::sync::Arc;

impl Host {
    /// Makes what a service of this owner asks for, all of it or nothing. What may be set is noted,
    /// to be put back.
    ///
    /// # Errors
    /// `NotFound` for classes, owners and targets that are not there; `Denied` for what the owner's
    /// user may not have; `Invalid` beyond [`GRANTS`]; `Full` beyond [`abi::LEDGER`] attributes of
    /// all services together.
    pub fn grant(&mut self, owner: i32, requests: &[GrantRequest]) -> Result<Vec<Granted>> {
        let mut grants = Vec::new();
        for request in requests {
            match self.grant_one(owner, request) {
                Ok(granted) => grants.push(granted),
                Err(error) => {
                    self.release(&grants);
                    return Err(error);
                }
            }
        }
        if grants.len() > GRANTS {
            self.release(&grants);
            return Err(Error::new(Kind::Invalid, format!("{} handles, of at most {GRANTS}", grants.len())));
        }
        Ok(grants)
    }

    /// The attributes that a native service asks for. They are its own from now on, or nobody's.
    pub fn grant_native(&mut self, spec: &Spec) -> Result<Vec<Granted>> {
        let name = &spec.name;
        let grants = self.grant(spec.owner, &spec.grants)?;
        if let Some(strange) =
            grants.iter().find(|granted| crate::managers::classes().all(|c| c.id != granted.class.id))
        {
            let text =
                format!("service {name:?}: native services cannot reach {}: load it as wasm", strange.class.name);
            self.release(&grants);
            return Err(Error::new(Kind::Unsupported, text));
        }
        grants.iter().for_each(|granted| granted.belongs_to(name, false));
        Ok(grants)
    }

    fn grant_one(&self, owner: i32, request: &GrantRequest) -> Result<Granted> {
        use std::os::unix::fs::MetadataExt;
        let gone = |_| Error::new(Kind::NotFound, format!("the owner, process {owner}, is gone"));
        let user = fs::metadata(format!("/proc/{owner}")).map_err(gone)?.uid();
        let own = orbit_linux::host::user();
        let target_user = fs::metadata(format!("/proc/{}", request.target)).map_or(own, |about| about.uid());
        for (what, whose) in [("owner", user), ("target", target_user)] {
            if own != 0 && whose != own {
                let process = if what == "owner" { owner } else { request.target };
                let text = format!(
                    "the {what}, process {process}, is user {whose}'s: this host is user {own}'s, and acts for \
                     processes of that user only"
                );
                return Err(Error::new(Kind::Denied, text));
            }
        }
        let found = self.managers.iter().find_map(|manager| {
            manager.classes().iter().find(|class| class.name == request.class).map(|class| (manager.clone(), *class))
        });
        let Some((manager, class)) = found else {
            let names: Vec<_> = self.classes().map(|class| class.name).collect();
            let text = format!("there is no class {:?}: there are {}", request.class, names.join(", "));
            return Err(Error::new(Kind::Invalid, text));
        };
        if request.rights & SET != 0 && !class.settable {
            return Err(Error::new(Kind::Denied, format!("{} can be read only", class.name)));
        }
        manager.may(user, request.target)?;
        let guard = request.guard.map_or(class.guard(), |guard| guard.within(&class.guard()));
        let (rights, target) = (request.rights, request.target);
        if rights & SET != 0 && guard.min > guard.max {
            let text = format!(
                "{} of {target}: no value would pass from {} to {}: the class has {} to {}",
                class.name, guard.min, guard.max, class.min, class.max
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        // What another service has set meanwhile is not what to put back.
        let life = pidfd::open(target).ok().map(Arc::new);
        let began = region::began(target);
        let now = manager.read(&class, target)?;
        let original = self.region.noted(class.id, target, began).unwrap_or(now);
        let mut entry = None;
        if rights & SET != 0 {
            let Some(place) = self.region.note(class.id, target, began, original) else {
                let text =
                    format!("services may set {} attributes already, as many as a host has room for", abi::LEDGER);
                return Err(Error::new(Kind::Full, text));
            };
            self.sets.begin(place, class.id, target, began);
            entry = Some(place);
        }
        let sets = self.sets.clone();
        let (checked_at, journal, tick_ns) = (Arc::default(), Arc::default(), self.region.directory().tick_ns);
        Ok(Granted {
            manager,
            class,
            target,
            began,
            life,
            rights,
            guard,
            original,
            entry,
            sets,
            checked_at,
            tick_ns,
            journal,
        })
    }

    /// Reads an attribute in the name of this process, or sets it through its guard, for good.
    /// Answers the value that it has then.
    ///
    /// # Errors
    /// As [`Host::grant`]; `Invalid` for a value that the guard refuses; those of the manager.
    pub fn attribute(&mut self, request: &GrantRequest, value: Option<i64>) -> Result<i64> {
        let granted = self.grant_one(std::process::id() as i32, request)?;
        if let Some(entry) = granted.entry {
            self.sets.end(entry);
            self.region.strike(entry);
        }
        if let Some(value) = value {
            let (verdict, applied) = granted.set(value);
            applied?;
            if verdict.value().is_none() {
                return Err(Error::new(
                    Kind::Invalid,
                    format!("{} of {}: {value} is out of range", request.class, request.target),
                ));
            }
        }
        granted.read()
    }

    /// Puts back what was set through these, and strikes them off. No service may use them any
    /// more.
    pub fn release(&mut self, grants: &[Granted]) {
        for granted in grants {
            granted.notice();
            if let Err(error) = granted.restore() {
                self.unrestored.push(error.to_string());
            }
            if let Some(entry) = granted.entry {
                self.sets.end(entry);
                self.region.strike(entry);
            }
        }
    }

    /// What services have set, would have set in a dry run, or could not set, since the last call
    /// of this: a line each, but for what is the same as the line before it. Of what native
    /// handlers set, the values that [`Host::tend`] has seen.
    pub fn changes(&self) -> Vec<String> {
        self.sets.take_changes()
    }

    /// What was put back since the last call of this, a line each.
    pub fn put_back(&self) -> Vec<String> {
        self.sets.take_lines()
    }
}

/// A number that nobody can guess, not 0.
pub(super) fn random() -> Result<u64> {
    let mut bytes = [0u8; 8];
    loop {
        // SAFETY: the buffer has the length given.
        let read = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        match (read, u64::from_ne_bytes(bytes)) {
            (8, 0) => {}
            (8, number) => return Ok(number),
            _ => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(Error::system("random numbers for handles", &error));
                }
            }
        }
    }
}
