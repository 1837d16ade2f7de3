//! The host: owns the region, the managers, the accounts and the agents, and decides what each
//! user may do.
//!
//! It is not on the path of an event: members and agents take events by themselves, under the rules
//! that the host wrote into the public part. [`Host::tend`] does the rest, whenever its caller has
//! time: owners that ended, services that were aborted too often, agents that died.

use crate::account::Account;
use crate::agent::{Agent, Part};
use crate::ask::{Pending, Question};
use crate::budget::{self, Budget};
use crate::clocks::Clocks;
use crate::elf;
use crate::error::{Error, Kind, Result};
use crate::given::{self, Given};
use crate::grant::Granted;
use crate::manager::{AttributeClass, Manager};
use crate::managers::BuiltIn;
use crate::member::{self, Invitation};
use crate::region::Region;
use crate::sets::Sets;
use crate::shared::Shared;
use crate::source::{Opened, Source, Sources};
use crate::spec::{Dispatch, Options, ServiceId, Spec, Status, Upcalls};
use crate::ticks::{Outcomes, Ticks};
use orbit_linux::{eventfd, pidfd};
use orbit_sandbox_lib::abi::{self, GRANTS, Grant};
use orbit_sandbox_lib::sys;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

#[path = "granting.rs"]
mod granting;
#[path = "tending.rs"]
mod tending;

/// A service in its slot.
#[derive(Debug)]
struct Loaded {
    name: String,
    owner: i32,
    life: OwnedFd,
    budget: Budget,
    grants: Vec<Granted>,
    since: Instant,
    is_revoked: bool,
    /// Its sources, by their numbers.
    sources: Vec<u64>,
    /// Real-time priority of its thread; 0: an ordinary one.
    priority: i32,
    /// Those that follow it know by this that it is gone.
    is_loaded: Arc<()>,
    /// Values refused that the log has.
    refused: u64,
    /// Agents that died in a run of it.
    agents_lost: u32,
    /// Descriptors that its owner gave it, by place; `None`: the service has closed it.
    given: Vec<Option<Given>>,
}

/// See the module's head. One thread makes and uses it: agents end when that thread does.
#[derive(Debug)]
pub struct Host {
    options: Options,
    managers: Vec<Arc<dyn Manager>>,
    services: [Option<Loaded>; abi::SLOTS],
    generations: [u64; abi::SLOTS],
    members: BTreeSet<i32>,
    ticks: Option<Ticks>,
    clocks: Option<Clocks>,
    no_ticks: Option<String>,
    /// Before what its sinks use.
    sources: Option<Sources>,
    shared: Arc<Shared>,
    /// What services have set.
    sets: Arc<Sets>,
    /// Threads of services that may wait, by slot.
    threads: BTreeMap<usize, Agent>,
    agents: Vec<Agent>,
    /// Puts back what services set when this process is gone.
    restorer: Option<Agent>,
    // Last: agents end before their region.
    region: Region,
    /// What could not be put back, and was not reported yet.
    unrestored: Vec<String>,
}

impl Host {
    /// Makes a region and starts an agent on each processor.
    ///
    /// # Errors
    /// `Invalid` without processors or with signals that are none; `System`.
    pub fn new(options: Options) -> Result<Host> {
        let (upcall, budget) = options.signals;
        if options.cpus.is_empty()
            || ![upcall, budget]
                .iter()
                .all(|signal| (34..=64).contains(signal) || [Options::STACK_FAULT, abi::URGENT].contains(signal))
            || upcall == budget
        {
            return Err(Error::new(
                Kind::Invalid,
                format!(
                    "a host needs a processor and two signals, of 34 to 64, 16 or 23: {:?} and {upcall}, {budget} \
                     given",
                    options.cpus
                ),
            ));
        }
        let region = Region::new(upcall, budget, options.grace.as_nanos() as u64)?;
        let shared = Arc::new(Shared::new(&region, options.cpus.len())?);
        let mut host = Host {
            managers: BuiltIn::all(&shared),
            services: Default::default(),
            generations: [0; abi::SLOTS],
            members: BTreeSet::new(),
            ticks: None,
            clocks: None,
            no_ticks: None,
            sources: None,
            sets: Arc::new(Sets::new(shared.clone())),
            shared,
            threads: BTreeMap::new(),
            agents: Vec::new(),
            restorer: None,
            region,
            unrestored: Vec::new(),
            options,
        };
        host.restorer = Some(host.start_restorer()?);
        for part in 0..host.options.cpus.len() {
            let agent = host.agent(part)?;
            host.agents.push(agent);
        }
        Ok(host)
    }

    fn start_restorer(&self) -> Result<Agent> {
        let (cpu, priority) = (self.options.cpus[0], self.options.agent_priority);
        Agent::start(&self.region, cpu, priority, Part::Restorer, self.shared.doorbell(0), &[])
    }

    fn agent(&self, part: usize) -> Result<Agent> {
        let cpus = &self.options.cpus;
        let which = Part::Of { part: part as u32, parts: cpus.len() as u32 };
        Agent::start(&self.region, cpus[part], self.options.agent_priority, which, self.shared.doorbell(part), &[])
    }

    /// Starts the thread of a service that may wait.
    fn thread(&self, slot: usize, priority: i32) -> Result<Agent> {
        let cpus = &self.options.cpus;
        let given = self.services[slot].iter().flat_map(|loaded| loaded.given.iter().flatten());
        let keeps: Vec<_> = given.map(|given| given.descriptor.as_raw_fd()).collect();
        Agent::start(
            &self.region,
            cpus[slot % cpus.len()],
            priority,
            Part::Only(slot as u32),
            self.shared.doorbell(slot),
            &keeps,
        )
    }

    /// All attribute classes.
    pub fn classes(&self) -> impl Iterator<Item = &'static AttributeClass> {
        self.managers.iter().flat_map(|manager| manager.classes())
    }

    /// Adds a manager. Services that run in the host (wasm, and what a service in the kernel asks
    /// for) reach its classes; native services do not, since its code is not in the region. What
    /// they set is put back by the host, not by agents after the host was killed.
    ///
    /// # Errors
    /// `Invalid` when a class has the number or name of one that is there.
    pub fn manage(&mut self, manager: Arc<dyn Manager>) -> Result<()> {
        for class in manager.classes() {
            if self.classes().any(|there| there.id == class.id || there.name == class.name) {
                let text = format!("class {} with number {} is there already", class.name, class.id);
                return Err(Error::new(Kind::Invalid, text));
            }
        }
        self.managers.push(manager);
        Ok(())
    }

    /// The region.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// How programs find the region.
    pub fn invitation(&self) -> Invitation {
        Invitation { host: std::process::id() as i32, files: self.region.descriptors() }
    }

    /// Takes a process that has joined for a member: upcalls may happen in it.
    ///
    /// # Errors
    /// `NotFound` when it is gone, `Invalid` when it has not joined, `Full`.
    pub fn add_member(&mut self, process: i32) -> Result<()> {
        if !member::has_joined(process, self.options.signals.0)? {
            return Err(Error::new(
                Kind::Invalid,
                format!("process {process} has not joined the sandbox region: an upcall would kill it"),
            ));
        }
        if let Some(ticks) = &mut self.ticks {
            ticks.add(process)?;
        } else if let Some(clocks) = &mut self.clocks {
            clocks.add(process)?;
        }
        self.members.insert(process);
        Ok(())
    }

    /// No more upcalls in this process, which is no member any more.
    pub fn remove_member(&mut self, process: i32) {
        self.pause_upcalls(process);
        self.members.remove(&process);
    }

    /// No more upcalls in this process, until it is added again.
    pub(crate) fn pause_upcalls(&mut self, process: i32) {
        if let Some(ticks) = &mut self.ticks {
            ticks.remove(process);
        }
        if let Some(clocks) = &mut self.clocks {
            clocks.remove(process);
        }
    }

    /// Takes off the list what is no member any more: it has exited, or executed another program.
    /// The kernel half has stopped upcalls there already.
    pub fn forget_former_members(&mut self) {
        let signal = self.options.signals.0;
        let (members, former): (BTreeSet<i32>, BTreeSet<i32>) =
            self.members.iter().partition(|process| member::has_joined(**process, signal).unwrap_or(false));
        self.members = members;
        if let Some(clocks) = &mut self.clocks {
            former.into_iter().for_each(|process| clocks.remove(process));
        }
    }

    /// Starts ticks that make upcalls, of this period: by a program in the kernel, else by clocks
    /// of the members' threads ([`Host::start_clocks`]). Where neither is possible, agents take
    /// every event, and [`Host::no_ticks`] says why.
    pub fn start_ticks(&mut self, period: Duration) {
        match Ticks::start(self.options.signals, period.as_nanos() as u64, &self.options.cpus) {
            Ok(mut ticks) => {
                for process in &self.members {
                    // One that cannot be added has its events taken by agents.
                    let _ = ticks.add(*process);
                }
                (self.ticks, self.clocks, self.no_ticks) = (Some(ticks), None, None);
            }
            Err(error) => {
                if let Err(other) = self.start_clocks(period) {
                    self.no_ticks = Some(format!("{error}; {other}"));
                }
            }
        }
    }

    /// Starts a clock in each thread of the members, which makes upcalls while the thread runs:
    /// that needs no rights, for processes of the own user. Threads that begin later are found by
    /// [`Host::tend`].
    ///
    /// # Errors
    /// `Unsupported`, with what the kernel said.
    pub fn start_clocks(&mut self, period: Duration) -> Result<()> {
        let mut clocks = Clocks::start(self.options.signals.0, period.as_nanos() as u64)?;
        for process in &self.members {
            // One that cannot be added has its events taken by agents.
            let _ = clocks.add(*process);
        }
        (self.ticks, self.clocks, self.no_ticks) = (None, Some(clocks), None);
        Ok(())
    }

    /// What starts upcalls.
    pub fn upcalls(&self) -> Upcalls {
        match (&self.ticks, &self.clocks) {
            (Some(_), _) => Upcalls::Kernel,
            (None, Some(_)) => Upcalls::Clocks,
            (None, None) => Upcalls::None,
        }
    }

    /// Why there are no ticks, after they were asked for.
    pub fn no_ticks(&self) -> Option<&str> {
        self.no_ticks.as_deref()
    }

    /// All native services, loaded or revoked.
    pub fn list(&self) -> Vec<(ServiceId, Status)> {
        (abi::FIRST_SERVICE..abi::SLOTS)
            .map(|slot| ServiceId { slot, generation: self.generations[slot] })
            .filter_map(|id| self.status(id).ok().map(|status| (id, status)))
            .collect()
    }

    /// The members.
    pub fn members(&self) -> impl Iterator<Item = i32> {
        self.members.iter().copied()
    }

    /// What became of ticks.
    pub fn tick_outcomes(&self) -> Option<Outcomes> {
        self.ticks.as_ref().map(Ticks::outcomes)
    }

    /// Loads a native service from an ELF object.
    ///
    /// # Errors
    /// `BadObject`; `Full` when slots or CPU time are used up; `Denied` for handles that the owner
    /// may not have; `NotFound` for classes, owners and targets that are not there; `Invalid`.
    pub fn load(&mut self, spec: &Spec, object: &[u8]) -> Result<ServiceId> {
        self.load_with(spec, object, Vec::new())
    }

    /// As [`Host::load`], for a service with a thread that is given these descriptors: its handler
    /// uses them by their places (`orbit_recv`, `orbit_send` and the others), and is started when
    /// there is something to read. They are closed when the service or its owner ends.
    ///
    /// # Errors
    /// As there; `Invalid` for more than [`abi::FILES`], for other descriptors than sockets and
    /// pipes, for a service without a thread, for one to be moved that its owner has still, and for
    /// one to accept from that waits.
    pub fn load_with(&mut self, spec: &Spec, object: &[u8], given: Vec<Given>) -> Result<ServiceId> {
        let name = &spec.name;
        given::check(name, spec.dispatch, spec.owner, &given)?;
        spec.check(self.options.agent_priority > 0)?;
        let admitted = self.services.iter().flatten().filter(|loaded| !loaded.is_revoked).map(|loaded| loaded.budget);
        budget::admit(admitted, spec.budget, self.options.limit)?;
        let slot = (abi::FIRST_SERVICE..abi::SLOTS).find(|slot| self.services[*slot].is_none()).ok_or_else(|| {
            let text = format!(
                "{} native services are loaded, as many as a region has slots: revoke one",
                abi::SLOTS - abi::FIRST_SERVICE
            );
            Error::new(Kind::Full, text)
        })?;
        let life = pidfd::open(spec.owner).map_err(|_| {
            Error::new(Kind::NotFound, format!("service {name:?}: its owner, process {}, is gone", spec.owner))
        })?;
        let image = elf::load(name, object, slot, self.region.library())?;
        let Some(entry) = image.exports.get("orbit_handler").copied() else {
            let text = format!("service {name:?} exports no orbit_handler: see orbit_service.h");
            return Err(Error::new(Kind::BadObject, text));
        };
        let grants = self.grant_native(spec)?;
        let mut handles = [Grant::default(); GRANTS];
        for (to, grant) in handles.iter_mut().zip(&grants) {
            *to = grant.native(granting::random()?);
        }
        let generation = self.generations[slot] + 1;
        self.region.clear_control(slot);
        self.region.install(slot, &image, &spec.arguments, |service| {
            service.flags = spec.flags(!given.is_empty());
            service.generation = generation;
            service.priority = spec.raise.unwrap_or(0);
            service.entry = entry;
            service.period_ns = spec.period.as_nanos() as u64;
            (service.budget_ns, service.reserve_ns) =
                (spec.budget.cpu().as_nanos() as u64, spec.budget.cpu().as_nanos() as u64);
            service.window_ns = spec.budget.window().as_nanos() as u64;
            service.grants = grants.len() as u32;
            service.grant = handles;
            service.file = Default::default();
            for (to, given) in service.file.iter_mut().zip(&given) {
                let (number, every_ns) = (given.descriptor.as_raw_fd(), given.terms.every_ns);
                *to = abi::File { number, rights: given.terms.rights.into(), every_ns };
            }
        });
        let (budget, owner) = (spec.budget, spec.owner);
        let loaded = Loaded {
            name: name.clone(),
            owner,
            life,
            budget,
            grants,
            since: Instant::now(),
            is_revoked: false,
            sources: Vec::new(),
            priority: if spec.dispatch == Dispatch::Thread { spec.raise.unwrap_or(0) } else { 0 },
            is_loaded: Arc::new(()),
            refused: 0,
            agents_lost: 0,
            given: given.into_iter().map(Some).collect(),
        };
        let priority = loaded.priority;
        self.services[slot] = Some(loaded);
        self.generations[slot] = generation;
        let id = ServiceId { slot, generation };
        if spec.dispatch == Dispatch::Thread {
            match self.thread(slot, priority) {
                Ok(thread) => drop(self.threads.insert(slot, thread)),
                Err(error) => {
                    self.unload(id)?;
                    return Err(error);
                }
            }
        }
        if !spec.period.is_zero() {
            let due = sys::now() + spec.period.as_nanos() as u64;
            self.region.control(slot).due.store(due, SeqCst);
        }
        self.shared.ring();
        Ok(id)
    }

    /// The service of this number.
    fn of(&self, id: ServiceId) -> Result<&Loaded> {
        let found = self.services[id.slot].as_ref().filter(|_| self.generations[id.slot] == id.generation);
        found.ok_or_else(|| Error::new(Kind::NotFound, "the service is not loaded any more"))
    }

    /// What a service is like now.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn status(&self, id: ServiceId) -> Result<Status> {
        let loaded = self.of(id)?;
        let control = self.region.control(id.slot);
        let account =
            Account::read(control, loaded.since.elapsed(), self.options.cpus.len().max(1) + self.members.len());
        let kept = (account.runs as usize).min(abi::KEPT);
        let latest =
            |words: &[std::sync::atomic::AtomicU32]| words[..kept].iter().map(|word| word.load(Relaxed)).collect();
        Ok(Status {
            name: loaded.name.clone(),
            owner: loaded.owner,
            budget: loaded.budget,
            is_revoked: loaded.is_revoked,
            account,
            delays_ns: latest(&control.delays),
            costs_ns: latest(&control.costs),
        })
    }

    /// Posts an event with this value: it starts the service's handler. Answers false when the
    /// service's queue is full: then the event is dropped and counted.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn post(&self, id: ServiceId, value: u64) -> Result<bool> {
        self.of(id)?;
        Ok(self.shared.post(id.slot, abi::POSTED, value))
    }

    /// Asks a service: an event starts its handler, which answers. See [`Pending::wait`].
    ///
    /// # Errors
    /// `NotFound`; `Full` while as many questions wait as there are places.
    pub fn ask(&self, id: ServiceId, question: &Question) -> Result<Pending> {
        let loaded = self.of(id)?;
        if loaded.is_revoked {
            return Err(Error::new(Kind::NotFound, format!("service {} was revoked", loaded.name)));
        }
        let loaded = Arc::downgrade(&loaded.is_loaded);
        let pending = Pending::of_slot(self.shared.clone(), id.slot, loaded, question);
        let pending = pending.filter(|asked| self.shared.post(id.slot, abi::QUESTION, asked.number()));
        pending.ok_or_else(|| Error::new(Kind::Full, "too many events and questions wait for the service"))
    }

    /// Lets events of a source start a service's handler, from now until it is unloaded or revoked.
    ///
    /// # Errors
    /// `NotFound`; those of [`Source::open`] and [`Sources::add`].
    pub fn watch(&mut self, id: ServiceId, source: &Source) -> Result<()> {
        self.of(id)?;
        self.watch_opened(id, source.open()?)
    }

    /// As [`Host::watch`], for a source that is open.
    ///
    /// # Errors
    /// `NotFound`; those of [`Sources::add`].
    pub fn watch_opened(&mut self, id: ServiceId, opened: Opened) -> Result<()> {
        self.of(id)?;
        let (shared, slot) = (self.shared.clone(), id.slot);
        // A full queue counts what it drops.
        let sink = Box::new(move |kind, value| {
            shared.post(slot, kind, value);
        });
        let number = self.sources()?.add(opened, sink)?;
        if let Some(loaded) = &mut self.services[slot] {
            loaded.sources.push(number);
        }
        Ok(())
    }

    /// An eventfd to which each run of a service adds 1, for [`Opened::service`]. A thread waits
    /// for the runs until all copies of the answer are dropped, or the service is unloaded.
    ///
    /// # Errors
    /// `NotFound`; `System`.
    pub fn follow(&self, id: ServiceId) -> Result<Arc<OwnedFd>> {
        let loaded = Arc::downgrade(&self.of(id)?.is_loaded);
        let failed = |error: std::io::Error| Error::system("following a service", &error);
        let runs = Arc::new(eventfd::create().map_err(failed)?);
        let mut counter = fs::File::from(runs.try_clone().map_err(failed)?);
        let (follower, shared, slot) = (Arc::downgrade(&runs), self.shared.clone(), id.slot);
        let control = shared.control(slot);
        control.followed.store(1, SeqCst);
        let mut before = control.runs.load(SeqCst);
        let follow = move || {
            let control = shared.control(slot);
            loop {
                let seen = control.ran.load(SeqCst);
                if follower.strong_count() == 0 || loaded.strong_count() == 0 {
                    return;
                }
                let now = control.runs.load(SeqCst);
                if now != before {
                    // A counter that a member falsified adds a wrong number, no more; a full one is
                    // readable anyhow.
                    let runs = now.saturating_sub(before).clamp(1, u64::from(u32::MAX));
                    let _ = counter.write(&runs.to_ne_bytes());
                    before = now;
                }
                // The thread ends soon after it is not needed.
                sys::sleep_on(&control.ran, seen, 200_000_000);
            }
        };
        std::thread::Builder::new().name("orbit-follow".into()).spawn(follow).map_err(failed)?;
        Ok(runs)
    }

    /// The thread of sources, which services of other classes use too.
    ///
    /// # Errors
    /// `System` when it cannot be started.
    pub fn sources(&mut self) -> Result<&mut Sources> {
        if self.sources.is_none() {
            self.sources = Some(Sources::start(self.options.agent_priority)?);
        }
        self.sources.as_mut().ok_or_else(|| Error::new(Kind::Unsupported, "there is no thread of sources"))
    }

    /// Unloads a service and puts back what it set. Waits until a run in progress is over: its
    /// budget at most, unless the thread that runs it does not get a CPU.
    ///
    /// # Errors
    /// `NotFound`; `System` with `EBUSY` when a run does not end within a second: the service
    /// starts no more runs, and the call may be repeated.
    pub fn unload(&mut self, id: ServiceId) -> Result<()> {
        self.of(id)?;
        self.stop(id.slot)?;
        self.region.set_state(id.slot, abi::EMPTY);
        self.services[id.slot] = None;
        Ok(())
    }

    /// Starts no more runs of a slot, waits for the one in progress, and puts back what the service
    /// set.
    fn stop(&mut self, slot: usize) -> Result<()> {
        self.region.set_state(slot, abi::REVOKED);
        if let (Some(loaded), Some(sources)) = (&mut self.services[slot], &self.sources) {
            loaded.sources.drain(..).for_each(|number| sources.remove(number));
        }
        // A handler that waits in its thread ends with it: nobody else runs that slot, so the claim
        // is nobody's then.
        if let Some(thread) = self.threads.remove(&slot) {
            let process = thread.pid() as u64;
            thread.kill();
            let runner = &self.region.control(slot).runner;
            let claim = runner.load(SeqCst);
            if claim >> 32 == process {
                let _ = runner.compare_exchange(claim, 0, SeqCst, Relaxed);
            }
        }
        let begin = Instant::now();
        while self.region.control(slot).runner.load(SeqCst) != 0 {
            if begin.elapsed() > Duration::from_secs(1) {
                // An agent is this host's own: it dies with the run.
                if self.kill_runner(slot) {
                    self.region.control(slot).runner.store(0, SeqCst);
                    break;
                }
                let busy = std::io::Error::from_raw_os_error(libc::EBUSY);
                return Err(Error::system("a run of the service does not end", &busy));
            }
            self.shared.ring();
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(loaded) = &mut self.services[slot] {
            loaded.is_revoked = true;
            // Nobody follows it, or waits for its answers, any longer.
            loaded.is_loaded = Arc::new(());
            let grants = std::mem::take(&mut loaded.grants);
            self.release(&grants);
        }
        Ok(())
    }

    /// Owners of services: readable once one has ended, and [`Host::tend`] has something to do.
    pub fn lives(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.services.iter().flatten().map(|loaded| loaded.life.as_fd())
    }

    /// Processes of the threads of services that may wait.
    pub fn threads(&self) -> impl Iterator<Item = i32> {
        self.threads.values().map(Agent::pid)
    }

    /// Whether a thread runs the service's handler at this moment.
    pub fn is_running(&self, id: ServiceId) -> bool {
        self.of(id).is_ok() && self.region.control(id.slot).began.load(SeqCst) != 0
    }

    /// The agents' processes.
    pub fn agents(&self) -> impl Iterator<Item = i32> {
        self.agents.iter().map(Agent::pid)
    }

    /// The process that puts back what services set when this one is gone.
    pub fn restorer(&self) -> Option<i32> {
        self.restorer.as_ref().map(Agent::pid)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // No upcall begins after this; what services set is put back once, here, and once more by
        // each agent.
        (self.ticks, self.clocks) = (None, None);
        for slot in abi::FIRST_SERVICE..abi::SLOTS {
            if self.services[slot].is_some() {
                let _ = self.stop(slot);
            }
        }
    }
}
