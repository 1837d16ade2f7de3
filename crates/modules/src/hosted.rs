//! A core with its modules by name, as a command holds them: what can be asked of it from outside, and what its modules report.
//!
//! Promises: no call but that which installs a module waits for it, so reports are read and others answered meanwhile; to unload
//! one kills its process.

use super::builtin;
use super::control::{self, Answer, Ask};
use orbit_rmk::{Core, Counts, Installed, Report};
use serde_json::{Value, json};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// See the module's head.
pub struct Hosted {
    core: Core,
    modules: Mutex<Vec<Entry>>,
}

/// A module of this core.
struct Entry {
    name: &'static str,
    installed: Installed,
    reloads: u64,
    gave_up: bool,
}

impl Hosted {
    /// A core without modules. Makes the process from which modules' processes are made.
    pub fn new() -> Result<Arc<Hosted>, String> {
        orbit::init().map_err(|error| error.to_string())?;
        let core = orbit_pins::core().map_err(|error| error.to_string())?;
        Ok(Arc::new(Hosted { core, modules: Mutex::default() }))
    }

    /// The core.
    pub fn core(&self) -> &Core {
        &self.core
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a module of the command's own, with its usual settings, and guards these programs for it alone.
    pub fn load(&self, name: &str, pids: &[u32]) -> Result<(), String> {
        let builtin = builtin::find(name)?;
        self.install(builtin.name, pids, builtin.install)
    }

    /// Installs a module in another way.
    pub fn install(
        &self,
        name: &'static str,
        pids: &[u32],
        install: impl FnOnce(&Core) -> orbit_rmk::Result<Installed>,
    ) -> Result<(), String> {
        let loaded = || Err(format!("module \"{name}\" is loaded already"));
        if self.has(name) {
            return loaded();
        }
        let installed = install(&self.core).map_err(|error| error.to_string())?;
        for pid in pids {
            installed.guard(*pid).map_err(|error| error.to_string())?;
        }
        let mut modules = self.lock();
        if modules.iter().any(|entry| entry.name == name) {
            return loaded();
        }
        modules.push(Entry { name, installed, reloads: 0, gave_up: false });
        Ok(())
    }

    fn unload(&self, name: &str) -> Result<(), String> {
        let mut modules = self.lock();
        let Some(at) = modules.iter().position(|entry| entry.name == name) else {
            let names: Vec<_> = modules.iter().map(|entry| entry.name).collect();
            return Err(format!("module \"{name}\" is not loaded; loaded: {}", names.join(", ")));
        };
        let entry = modules.remove(at);
        drop(modules);
        entry.installed.remove();
        Ok(())
    }

    fn unguard(&self, pids: &[u32]) -> Result<(), String> {
        let guarded = self.core.guarded();
        for pid in pids {
            if !guarded.contains(pid) {
                return Err(format!("process {pid} is not guarded for all modules; guarded: {guarded:?}"));
            }
            self.core.unguard(*pid);
        }
        Ok(())
    }

    /// Whether a module of this name is loaded.
    pub fn has(&self, name: &str) -> bool {
        self.lock().iter().any(|entry| entry.name == name)
    }

    /// The process a module runs in; 0 if it is down or not loaded.
    pub fn process_of(&self, name: &str) -> i32 {
        self.lock().iter().find(|entry| entry.name == name).map_or(0, |entry| entry.installed.status().pid)
    }

    /// What the modules reported, and the core about them, since the last time. Does not wait.
    pub fn reports(&self) -> Vec<(&'static str, Report)> {
        let mut all = Vec::new();
        for entry in self.lock().iter_mut() {
            while let Some(report) = entry.installed.report(Duration::ZERO) {
                match report {
                    Report::Reloaded { .. } => entry.reloads += 1,
                    Report::GaveUp => entry.gave_up = true,
                    _ => {}
                }
                all.push((entry.name, report));
            }
        }
        all
    }

    /// Descriptors that are readable while reports wait; of the modules that are loaded now.
    pub fn descriptors(&self) -> Vec<OwnedFd> {
        self.lock().iter().filter_map(|entry| entry.installed.as_fd().try_clone_to_owned().ok()).collect()
    }

    /// Removes all modules.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }

    /// From now on `orbit modules` sees this core and may change it.
    pub fn serve(self: &Arc<Hosted>) -> io::Result<()> {
        let hosted = self.clone();
        control::serve(move |ask| hosted.answer(ask))
    }

    fn answer(&self, ask: Ask) -> Answer {
        match ask {
            Ask::List => {}
            Ask::Load { name, pids } => self.load(&name, &pids)?,
            Ask::Unload(name) => self.unload(&name)?,
            Ask::Guard(pids) => {
                pids.iter().try_for_each(|&pid| self.core.guard(pid)).map_err(|error| error.to_string())?
            }
            Ask::Unguard(pids) => self.unguard(&pids)?,
        }
        Ok(self.state())
    }

    /// The core as the list has it.
    fn state(&self) -> Value {
        let pins = self.core.pins();
        let of_entry = |entry: &Entry| {
            let status = entry.installed.status();
            let state = match (status.up, entry.gave_up) {
                (true, _) => "up",
                (false, true) => "given up",
                (false, false) => "down",
            };
            let used: Vec<_> =
                pins.iter().filter(|pin| pin.users.iter().any(|user| user == entry.name)).map(|pin| pin.name).collect();
            json!({
                "module": entry.name, "pid": status.pid, "state": state, "pins": used, "delivered": status.handled,
                "missed": status.missed, "lost": status.lost, "faults": status.failures, "reloads": entry.reloads,
                "unread": status.unread,
            })
        };
        let modules: Vec<Value> = self.lock().iter().map(of_entry).collect();
        let loaded = pins.iter().filter(|pin| pin.loaded).map(|pin| {
            let Counts { passed, due, delivered, waiting, lost, unlisted } = pin.counts;
            json!({
                "pin": pin.name, "users": pin.users, "passed": passed, "due": due, "delivered": delivered,
                "waiting": waiting, "lost": lost, "unlisted": unlisted,
            })
        });
        let loaded: Vec<Value> = loaded.collect();
        json!({ "core": std::process::id(), "guarded": self.core.guarded(), "modules": modules, "pins": loaded })
    }
}

/// The core's word for a report, and its text.
pub fn words(report: Report) -> (&'static str, String) {
    match report {
        Report::Said(text) => ("said", text),
        Report::Failed(how) => ("failed", how),
        Report::Reloaded { missed } => ("reloaded", format!("events missed so far: {missed}")),
        Report::GaveUp => ("gave up", "it failed too often and stays unloaded".to_owned()),
        Report::Refused(why) => ("refused", why),
        Report::Dropped(reports) => ("dropped", format!("{reports} reports: nobody read them in time")),
        other => ("said", format!("{other:?}")),
    }
}
