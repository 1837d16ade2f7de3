//! Loading of services of all classes: what is asked for is judged, granted, and put where it runs.

use super::{Daemon, Which, read_object};
use crate::in_kernel;
use crate::protocol::{Class, Load};
use crate::ready;
use orbit_linux::pidfd;
use orbit_services::budget::{self, Budget};
use orbit_services::{Dispatch, Error, Given, GrantRequest, Kind, Opened, Result, Source, Spec};
use orbit_services_wasm::{Id, WasmSpec};
use std::time::Duration;

impl Daemon {
    pub(super) fn load(&mut self, load: &Load) -> Result<String> {
        let bytes = if load.is_ready { ready::module(&load.file)?.to_vec() } else { read_object(&load.file)? };
        let name = load.file.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let budget: Budget = load.budget.parse()?;
        let grants = load.grants.iter().map(|text| text.parse()).collect::<Result<Vec<GrantRequest>>>()?;
        let (owner, arguments) = (load.owner, load.arguments.clone().into_bytes());
        if load.class != Class::Wasm && load.memory.is_some() {
            let text =
                format!("service {name:?}: memory is chosen for wasm modules; this class has what its file asks for");
            return Err(Error::new(Kind::Invalid, text));
        }
        if load.dry_run && !matches!(load.class, Class::Wasm | Class::Bpf) {
            let text = format!(
                "service {name:?}: a dry run is for wasm modules and services in the kernel: native handlers set \
                 attributes where they run, out of the host's sight"
            );
            return Err(Error::new(Kind::Unsupported, text));
        }
        let came = std::mem::take(&mut self.came);
        if came.len() != load.gives.len() || !load.gives.is_empty() && load.class != Class::Thread {
            let text = format!(
                "service {name:?}: {} descriptors came of {}; they are for services with a thread (--class thread)",
                came.len(),
                load.gives.len()
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        let given = came.into_iter().zip(&load.gives).map(|(fd, rights)| Given::new(fd, rights));
        let given = given.collect::<Result<Vec<Given>>>()?;
        let period = load.period_ns.map(Duration::from_nanos);
        let sources = load.sources.iter().map(|text| Events::parse(text, owner)).collect::<Result<Vec<Events>>>()?;
        if load.class == Class::Bpf {
            if !load.sources.is_empty() {
                let text = format!(
                    "service {name:?}: a BPF object has ticks, and programs on_NAME at tracepoints: {} cannot start it",
                    load.sources.join(", ")
                );
                return Err(Error::new(Kind::Invalid, text));
            }
            let dry_run = load.dry_run;
            let wanted = in_kernel::Wanted { name, owner, budget, period, arguments, cpu: self.cpu, dry_run };
            return self.kernels.load(&mut self.host, wanted, &grants, &bytes);
        }
        // Each of the two classes knows its own reservations; they share one processor.
        let wasm = self.runner.list().into_iter().map(|status| (status.is_revoked, status.budget));
        let native = self.host.list().into_iter().map(|(_, status)| (status.is_revoked, status.budget));
        let admitted = wasm.chain(native).filter(|(is_revoked, _)| !is_revoked).map(|(_, budget)| budget);
        budget::admit(admitted, budget, self.limit)?;
        if load.class != Class::Wasm {
            let period = period.unwrap_or(Duration::ZERO);
            let dispatch = if load.class == Class::Thread { Dispatch::Thread } else { Dispatch::Upcall };
            let spec = Spec { name, owner, budget, period, dispatch, raise: None, arguments, grants };
            let id = self.host.load_with(&spec, &bytes, given)?;
            for source in &sources {
                let watched = self.open(source).and_then(|opened| self.host.watch_opened(id, opened));
                if let Err(error) = watched {
                    self.host.unload(id)?;
                    return Err(error);
                }
            }
            return Ok(id.to_string());
        }
        let there = self.runner.list().iter().filter(|status| !status.is_revoked).map(|status| status.memory).sum();
        let memory = load.memory.unwrap_or(Load::MEMORY);
        admit_memory(&name, memory, there, machine_memory())?;
        let gone = |_| Error::new(Kind::NotFound, format!("service {name:?}: its owner, process {owner}, is gone"));
        let life = pidfd::open(owner).map_err(gone)?;
        let grants = self.host.grant(owner, &grants)?;
        grants.iter().for_each(|granted| granted.belongs_to(&name, load.dry_run));
        let spec = WasmSpec { name, owner, budget, memory, period, arguments };
        let loaded = self.loader.load(&spec, &bytes, grants.clone()).and_then(|service| self.runner.add(spec, service));
        match loaded {
            Ok(id) => {
                self.owners.insert(id, life);
                if let Err(error) = self.watch(id, &sources) {
                    self.unload(id)?;
                    return Err(error);
                }
                Ok(format!("w{}", id.0))
            }
            Err(error) => {
                self.host.release(&grants);
                Err(error)
            }
        }
    }

    /// Lets events of these sources start a wasm service.
    fn watch(&mut self, id: Id, sources: &[Events]) -> Result<()> {
        for source in sources {
            let opened = self.open(source)?;
            let number = self.host.sources()?.add(opened, self.runner.sink(id))?;
            self.sources.entry(id).or_default().push(number);
        }
        Ok(())
    }

    /// Opens a source of events.
    fn open(&self, source: &Events) -> Result<Opened> {
        let followed = match source {
            Events::Of(source) => return source.open(),
            Events::Service(id) => id,
        };
        let runs = match self.find(followed)? {
            Which::Wasm(id) => self.runner.follow(id)?,
            Which::Native(id) => self.host.follow(id)?,
            Which::Kernel(_) => {
                let text = format!("service {followed} is in the kernel: its runs cannot start another service");
                return Err(Error::new(Kind::Unsupported, text));
            }
        };
        Ok(Opened::service(runs))
    }
}

/// Bytes of memory of the machine; as many as can be where it does not say.
fn machine_memory() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    total.map_or(usize::MAX, |kib: usize| kib.saturating_mul(1024))
}

/// Whether a module may have so many bytes beside those that others may have already.
fn admit_memory(name: &str, wanted: usize, there: usize, machine: usize) -> Result<()> {
    if wanted.saturating_add(there) <= machine {
        return Ok(());
    }
    let text = format!(
        "service {name:?}: {wanted} bytes of memory: the machine has {machine}, and services may use {there} of them \
         already: ask for less"
    );
    Err(Error::new(Kind::Full, text))
}

/// Where events of a service come from.
enum Events {
    Of(Source),
    /// The runs of another service, by its number.
    Service(String),
}

impl Events {
    fn parse(text: &str, owner: i32) -> Result<Events> {
        match text.strip_prefix("service=") {
            Some(id) => Ok(Events::Service(id.to_owned())),
            None => Source::parse(text, owner).map(Events::Of),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_no_more_memory_together_than_the_machine_has() {
        assert!(admit_memory("a", 100, 0, 100).is_ok() && admit_memory("a", 40, 60, 100).is_ok());
        for (wanted, there) in [(101, 0), (41, 60), (usize::MAX, 1)] {
            let error = admit_memory("a", wanted, there, 100).expect_err("more than there is");
            assert!(error.kind() == Kind::Full && error.to_string().contains(&wanted.to_string()), "{error}");
        }
        assert!(machine_memory() > 1 << 20);
    }
}
