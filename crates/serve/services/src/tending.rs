//! What the host does between events: owners that ended, services that were aborted too often,
//! agents and threads that died, runs that do not end.

use super::Host;
use crate::account::Account;
use crate::agent::Agent;
use crate::grant::Granted;
use crate::spec::{Happened, ServiceId};
use orbit_linux::pidfd;
use orbit_sandbox_lib::abi;
use orbit_sandbox_lib::sys;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// A run in an agent that lasts this much longer than its budget ends with that agent: its handler
/// keeps the budget's signal from coming. Ordinary agents only, since the kernel kills real-time
/// ones.
const BEYOND_BUDGET: Duration = Duration::from_secs(2);
/// A service in whose runs more agents died is revoked.
const MAX_AGENTS_LOST: u32 = 1;

impl Host {
    /// Checks owners, accounts and agents, and does what is due. Answers what happened.
    pub fn tend(&mut self) -> Vec<Happened> {
        let mut happened = Vec::new();
        if let Some(clocks) = &mut self.clocks {
            clocks.refresh();
        }
        for slot in abi::FIRST_SERVICE..abi::SLOTS {
            let Some(loaded) = &self.services[slot] else { continue };
            let (name, owner) = (loaded.name.clone(), loaded.owner);
            let id = ServiceId { slot, generation: self.generations[slot] };
            if pidfd::has_ended(loaded.life.as_fd()) {
                if self.unload(id).is_ok() {
                    happened.push(Happened::OwnerEnded { id, name, owner });
                }
            } else if !loaded.is_revoked {
                let account = Account::read(self.region.control(slot), loaded.since.elapsed(), usize::MAX);
                if account.is_abusive(self.options.aborts) && self.stop(slot).is_ok() {
                    happened.push(Happened::Revoked { id, name, aborts: account.aborts() });
                }
            }
        }
        self.close_given();
        self.note_values();
        self.tend_threads(&mut happened);
        self.tend_agents(&mut happened);
        happened.extend(self.unrestored.drain(..).map(|what| Happened::NotRestored { what }));
        happened
    }

    /// Writes down what handlers in members and agents have set, and that values were refused.
    fn note_values(&mut self) {
        for slot in abi::FIRST_SERVICE..abi::SLOTS {
            let Some(loaded) = &mut self.services[slot] else { continue };
            loaded.grants.iter().for_each(Granted::notice);
            let refused = self.region.control(slot).refused.load(Relaxed);
            if refused > loaded.refused {
                let name = &loaded.name;
                self.sets.changed(format!("{name}: {} values or calls refused", refused - loaded.refused));
            }
            loaded.refused = refused;
        }
    }

    /// Closes the descriptors that services have closed.
    fn close_given(&mut self) {
        for slot in abi::FIRST_SERVICE..abi::SLOTS {
            let closed = self.region.control(slot).closed.load(SeqCst);
            let Some(loaded) = self.services[slot].as_mut().filter(|_| closed != 0) else { continue };
            for (place, given) in loaded.given.iter_mut().enumerate() {
                if closed & 1 << place != 0 && given.take().is_some() {
                    self.region.directory().services[slot].file[place].rights.store(0, SeqCst);
                }
            }
        }
    }

    /// Starts the threads of runs that were promoted, and those that died once more.
    fn tend_threads(&mut self, happened: &mut Vec<Happened>) {
        for slot in abi::FIRST_SERVICE..abi::SLOTS {
            let Some(loaded) = self.services[slot].as_ref().filter(|loaded| !loaded.is_revoked) else { continue };
            let has_ended = self.threads.get(&slot).map(Agent::has_ended);
            let is_wanted = self.region.control(slot).promoted.load(SeqCst) == abi::MAY_WAIT;
            if has_ended == Some(false) || has_ended.is_none() && !is_wanted {
                continue;
            }
            if has_ended == Some(true) {
                happened.push(Happened::ThreadDied { name: loaded.name.clone() });
            }
            // What could not be started is tried again with the next call.
            if let Ok(thread) = self.thread(slot, loaded.priority) {
                self.threads.insert(slot, thread);
            }
        }
    }

    /// Starts agents again that died. The run that one was in counts as aborted.
    fn tend_agents(&mut self, happened: &mut Vec<Happened>) {
        for slot in abi::FIRST_SERVICE..abi::SLOTS {
            let control = self.region.control(slot);
            let began = control.began.load(SeqCst);
            let budget = Duration::from_nanos(self.region.directory().services[slot].budget_ns);
            let lasts = Duration::from_nanos(sys::now().saturating_sub(began));
            if began != 0 && began & 1 == 0 && lasts > budget * 200 + BEYOND_BUDGET {
                self.kill_runner(slot);
            }
        }
        for part in 0..self.agents.len() {
            if !self.agents[part].has_ended() {
                continue;
            }
            let (cpu, pid) = (self.agents[part].cpu(), self.agents[part].pid());
            happened.push(Happened::AgentDied { cpu });
            self.settle_runs_of(pid, happened);
            if let Ok(agent) = self.agent(part) {
                self.agents[part] = agent;
            }
        }
        if self.restorer.as_ref().is_none_or(Agent::has_ended) {
            happened.push(Happened::AgentDied { cpu: self.options.cpus[0] });
            self.restorer = self.start_restorer().ok();
        }
    }

    /// Releases the slots that a dead agent had claimed, and charges their services.
    fn settle_runs_of(&mut self, agent: i32, happened: &mut Vec<Happened>) {
        for slot in abi::FIRST_SERVICE..abi::SLOTS {
            let control = self.region.control(slot);
            let claim = control.runner.load(SeqCst);
            if claim >> 32 != agent as u64 {
                continue;
            }
            control.began.store(0, SeqCst);
            for count in [&control.runs, &control.faults, &control.orphaned] {
                count.fetch_add(1, Relaxed);
            }
            let _ = control.runner.compare_exchange(claim, 0, SeqCst, Relaxed);
            let aborts = Account::read(control, Duration::MAX, 1).aborts();
            let Some(loaded) = self.services[slot].as_mut().filter(|loaded| !loaded.is_revoked) else { continue };
            loaded.agents_lost += 1;
            // Each has kept a CPU for as long as the kernel lets it; one may have been killed from
            // outside.
            let is_deadly = loaded.agents_lost > MAX_AGENTS_LOST;
            let (id, name) = (ServiceId { slot, generation: self.generations[slot] }, loaded.name.clone());
            if is_deadly && self.stop(slot).is_ok() {
                happened.push(Happened::Revoked { id, name, aborts });
            }
        }
    }

    /// Kills the agent that is in a run of this slot, and waits for its end. False if no agent is.
    pub(super) fn kill_runner(&mut self, slot: usize) -> bool {
        let process = (self.region.control(slot).runner.load(SeqCst) >> 32) as i32;
        let Some(agent) = self.agents.iter().find(|agent| agent.pid() == process) else { return false };
        agent.kill();
        agent.wait(Duration::from_secs(1))
    }
}
