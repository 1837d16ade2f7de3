//! A core with its modules by name, as a command holds it: requests from other processes, and the
//! reports of its modules.
//!
//! Promises: only the call that installs a module waits for it; meanwhile reports are read and
//! other requests answered. Unloading a module kills its process.

use super::builtin;
use super::control::{self, Answer, Request};
use orbit_console::control::SocketFile;
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
    /// Makes a core without modules, and the template process that its modules are cloned from.
    ///
    /// # Errors
    /// A sentence that says what could not be made.
    pub fn new() -> Result<Arc<Hosted>, String> {
        // A watcher's modules are its work: the kernel is not to kill them before the programs they
        // watch. Where the library is set up already, it stays as it is.
        let set_up = orbit::init_with(orbit::Config::new().killed_first(false));
        set_up.or_else(|_| orbit::init()).map_err(|error| error.to_string())?;
        let core = crate::core().map_err(|error| error.to_string())?;
        Ok(Arc::new(Hosted { core, modules: Mutex::default() }))
    }

    /// The core.
    pub fn core(&self) -> &Core {
        &self.core
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a built-in module with its default settings, and guards these programs for it
    /// alone. Blocks until it has started.
    ///
    /// # Errors
    /// A sentence: no such module, loaded already, a missing pin, a process that cannot be guarded.
    pub fn load(&self, name: &str, pids: &[u32]) -> Result<(), String> {
        let builtin = builtin::find(name)?;
        self.install(builtin.name, pids, builtin.install)
    }

    /// Installs a module by `install`, as [`Hosted::load`] does.
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

    /// The number of the process in which a module runs; 0 if it is down or not loaded.
    pub fn process_of(&self, name: &str) -> i32 {
        self.lock().iter().find(|entry| entry.name == name).map_or(0, |entry| entry.installed.status().pid)
    }

    /// Returns what the modules reported, and what the core reported about them, since the last
    /// call. Does not block.
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

    /// Returns descriptors that are readable while reports wait, one for each module that is loaded
    /// now.
    pub fn descriptors(&self) -> Vec<OwnedFd> {
        self.lock().iter().filter_map(|entry| entry.installed.as_fd().try_clone_to_owned().ok()).collect()
    }

    /// Removes all modules.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }

    /// Starts a thread that serves `orbit modules`. The socket's file is removed with the value
    /// that is answered.
    ///
    /// # Errors
    /// Those of making the socket or the thread.
    pub fn serve(self: &Arc<Hosted>) -> io::Result<SocketFile> {
        let hosted = self.clone();
        control::serve(move |ask| hosted.answer(ask))
    }

    fn answer(&self, request: Request) -> Answer {
        match request {
            Request::List => {}
            Request::Load { name, pids } => self.load(&name, &pids)?,
            Request::Unload(name) => self.unload(&name)?,
            Request::Guard(pids) => {
                pids.iter().try_for_each(|&pid| self.core.guard(pid)).map_err(|error| error.to_string())?
            }
            Request::Unguard(pids) => self.unguard(&pids)?,
        }
        Ok(self.state())
    }

    /// The state of the core as `orbit modules` lists it.
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

/// Returns the kind of a report in one word, and its text.
pub fn words(report: Report) -> (&'static str, String) {
    match report {
        Report::Said(text) => ("said", text),
        Report::Failed(how) => ("failed", how),
        Report::Reloaded { missed } => ("reloaded", format!("events missed so far: {missed}")),
        Report::GaveUp => ("gave up", "it failed too often and stays unloaded".to_owned()),
        Report::Refused(why) => ("refused", why),
        Report::Dropped(reports) => ("dropped", format!("{reports} reports: they were not read in time")),
        other => ("said", format!("{other:?}")),
    }
}
