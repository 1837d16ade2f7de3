//! The host's process: owns native and wasm services, answers commands one by one, and tends owners
//! and accounts between.

use crate::asked;
use crate::config::Config;
use crate::in_kernel::Kernels;
use crate::protocol::{self, Reply, Request};
use orbit_linux::{pidfd, poll, sched, signals, socket};
use orbit_services::budget::Budget;
use orbit_services::{Error, GrantRequest, Happened, Host, Kind, Options, Result, ServiceId, Upcalls};
use orbit_services_wasm::{Id, Loader, Runner};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Lines of the log that are kept.
const LOG: usize = 1000;
/// Time between two checks of owners and accounts.
const TEND: Duration = Duration::from_millis(100);
/// Time between two searches for owners that are not there.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// The largest object that is loaded, bytes.
const OBJECT: u64 = 64 << 20;
/// A command that takes longer to arrive is dropped.
const ARRIVE: Duration = Duration::from_secs(1);

#[path = "loading.rs"]
mod loading;
#[path = "planned.rs"]
mod planned;

use planned::Waiting;

/// Set by SIGTERM and SIGINT.
static STOP: AtomicBool = AtomicBool::new(false);

/// What the host's process has.
struct Daemon {
    host: Host,
    /// Makes handlers of wasm modules.
    loader: Box<dyn Loader>,
    runner: Runner,
    /// Services in the kernel.
    kernels: Kernels,
    /// The processor of agents and ticks.
    cpu: usize,
    /// Share of that processor that native and wasm services may reserve together.
    limit: f64,
    /// Owners of wasm services.
    owners: BTreeMap<Id, OwnedFd>,
    /// Sources of wasm services.
    sources: BTreeMap<Id, Vec<u64>>,
    /// Wasm services whose revocation is in the log.
    revoked: BTreeSet<Id>,
    log: VecDeque<String>,
    began: Instant,
    /// What the configuration has loaded for owners that come and go.
    planned: Vec<Waiting>,
    /// Descriptors that came with the command in progress.
    came: Vec<OwnedFd>,
    /// When their owners were last searched for.
    planned_at: Instant,
}

/// Reads from a connection until a time: a peer that sends one byte now and then does not keep the
/// host for longer.
struct Until<'a> {
    stream: &'a UnixStream,
    by: Instant,
    /// Descriptors that came.
    came: &'a mut Vec<OwnedFd>,
}

impl Read for Until<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let left = self.by.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        socket::receive(self.stream.as_fd(), to, self.came, false)
    }
}

/// Reads an object. Of regular files only: a pipe nobody writes to would keep the host, a device
/// would fill its memory.
fn read_object(path: &Path) -> Result<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt;
    let failed = |error: std::io::Error| Error::system(path.display(), &error);
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    let wrong = |why: String| Err(Error::new(Kind::Invalid, format!("{}: {why}", path.display())));
    if !about.is_file() {
        return wrong("no regular file: a service is loaded from one".to_owned());
    }
    if about.len() > OBJECT {
        return wrong(format!("{} bytes, of at most {OBJECT}", about.len()));
    }
    let mut bytes = Vec::new();
    file.take(OBJECT).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The socket's file, removed at the end.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What a host says once it answers commands.
#[derive(Debug, serde::Serialize)]
pub struct Ready {
    /// Where it listens.
    pub socket: PathBuf,
    /// Its process.
    pub pid: u32,
    /// The processor of agents and ticks.
    pub cpu: usize,
    /// What starts upcalls.
    pub upcalls: &'static str,
    /// Why there are no upcalls, if there are none.
    pub no_ticks: Option<String>,
    /// Services that the configuration had loaded.
    pub services: usize,
    /// Real-time priority of agents; 0: they are ordinary processes.
    pub priority: i32,
}

impl std::fmt::Display for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let agents = if self.priority > 0 { "real-time agents" } else { "ordinary agents" };
        write!(f, "services at {}: CPU {}, {agents}, ", self.socket.display(), self.cpu)?;
        f.write_str(self.upcalls)?;
        if self.services > 0 {
            write!(f, ", {} loaded", self.services)?;
        }
        self.no_ticks.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// Runs until SIGTERM or SIGINT; then what services set is put back. `ready` runs once commands are
/// answered.
///
/// # Errors
/// When another host listens there, or the region, the interpreter or the socket is not available.
pub fn run(
    socket: &Path,
    config: Config,
    loader: impl FnOnce() -> Result<Box<dyn Loader>>,
    ready: impl FnOnce(&Ready),
) -> Result<()> {
    let (cpu, tick) = (config.cpu.unwrap_or(0), config.tick.unwrap_or(Duration::from_millis(10)));
    if UnixStream::connect(socket).is_ok() {
        let text =
            format!("a host of services listens at {} already: use it, or name another socket", socket.display());
        return Err(Error::new(Kind::Invalid, text));
    }
    check(cpu)?;
    let (listener, _socket) = listen(socket)?;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler stores one atomic word.
        unsafe { signals::handle(signal, stop) }.map_err(|e| Error::system("handling a request to end", &e))?;
    }
    // Before there is a thread: agents are forks.
    let host = make_host(&config, cpu, tick)?;
    let loader = loader()?;
    let runner = Runner::start(cpu, 99, config.limit, config.aborts)?;
    let (owners, sources, revoked, log) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new(), VecDeque::new());
    let (kernels, began) = (Kernels::default(), Instant::now());
    let limit = config.limit;
    let planned = Vec::new();
    let mut daemon = Daemon {
        host,
        loader,
        runner,
        kernels,
        cpu,
        limit,
        owners,
        sources,
        revoked,
        log,
        began,
        planned,
        came: Vec::new(),
        planned_at: began,
    };
    daemon.begin(config)?;
    let (no_ticks, priority) = (daemon.host.no_ticks().map(str::to_owned), daemon.runner.priority());
    let upcalls = match daemon.host.upcalls() {
        Upcalls::Kernel => "upcalls",
        Upcalls::Clocks => "upcalls by clocks of the members' threads",
        Upcalls::None => "no upcalls",
    };
    let services = daemon.list().len();
    ready(&Ready { socket: socket.to_owned(), pid: std::process::id(), cpu, upcalls, no_ticks, priority, services });
    daemon.answer_until_stopped(&listener);
    daemon.end();
    Ok(())
}

/// Takes the socket's name, and listens. The name goes with the second value.
fn listen(socket: &Path) -> Result<(UnixListener, Socket)> {
    let failed = |error: std::io::Error| Error::system(format!("listening at {}", socket.display()), &error);
    match std::fs::symlink_metadata(socket) {
        // A host that was killed left it.
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(socket).map_err(failed)?,
        Ok(_) => {
            let text = format!("{} exists and is no socket: name another path with --socket", socket.display());
            return Err(Error::new(Kind::Invalid, text));
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(socket).map_err(failed)?;
    let name = Socket(socket.to_owned());
    // The host's own user and root: a client that may load native code is as powerful as the host.
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok((listener, name))
}

/// A host with ticks, by the kernel's upcalls or, without the rights for them, by clocks of the
/// members' threads.
fn make_host(config: &Config, cpu: usize, tick: Duration) -> Result<Host> {
    let options = Options { cpus: vec![cpu], limit: config.limit, aborts: config.aborts, ..Options::default() };
    let mut host = Host::new(options.clone())?;
    host.start_ticks(tick);
    if host.upcalls() == Upcalls::Clocks {
        drop(host);
        host = Host::new(Options { signals: Options::WITHOUT_RIGHTS, ..options })?;
        host.start_clocks(tick)?;
    }
    Ok(host)
}

/// Writes a line to whoever is at the other end.
pub(crate) fn reply(mut to: &UnixStream, answer: &Reply) -> std::io::Result<()> {
    let mut bytes = serde_json::to_vec(answer)?;
    bytes.push(b'\n');
    to.write_all(&bytes)
}

/// Whether this process may run on a processor: agents would fail there without a word.
fn check(cpu: usize) -> Result<()> {
    let failed = |error: std::io::Error| Error::system("the processors of this process", &error);
    let before = sched::affinity(0).map_err(failed)?;
    let refused = |_| {
        let text = format!("CPU {cpu} is not there or not allowed here: choose --cpu out of {before:?}");
        Error::new(Kind::Invalid, text)
    };
    sched::set_affinity(0, &[cpu]).map_err(refused)?;
    sched::set_affinity(0, &before).map_err(failed)
}

extern "C" fn stop(_: i32) {
    STOP.store(true, Ordering::Relaxed);
}

impl Daemon {
    /// Answers commands, and tends owners and accounts between, until the host is asked to exit.
    fn answer_until_stopped(&mut self, listener: &UnixListener) {
        let mut tended = Instant::now();
        while !STOP.load(Ordering::Relaxed) {
            let of = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut polled: Vec<libc::pollfd> = self.host.lives().map(|life| of(life.as_raw_fd())).collect();
            polled.push(of(listener.as_raw_fd()));
            let _ = poll::poll(&mut polled, Some(TEND.saturating_sub(tended.elapsed())));
            // What an owner gave its service is closed at once. The last one is the listener.
            let has_ended = polled.iter().rev().skip(1).any(|life| life.revents != 0);
            // One command at a time: a flood of them delays neither the end nor what is due to
            // owners and accounts.
            if let Ok((stream, _)) = listener.accept() {
                // A client that went away is its own affair.
                let _ = self.serve(&stream);
            }
            if has_ended || tended.elapsed() >= TEND {
                self.tend();
                tended = Instant::now();
            }
        }
    }

    /// Unloads what is loaded, and puts back what services set.
    fn end(&mut self) {
        let ids: Vec<Id> = self.owners.keys().copied().collect();
        ids.into_iter().for_each(|id| drop(self.unload(id)));
        self.kernels.unload_all(&mut self.host);
        let natives: Vec<ServiceId> = self.host.list().into_iter().map(|(id, _)| id).collect();
        // One whose run does not end is stopped once more when the host is dropped.
        natives.into_iter().for_each(|id| drop(self.host.unload(id)));
        for line in self.host.put_back() {
            eprintln!("orbit service: {line}");
        }
        for happened in self.host.tend() {
            if let Happened::NotRestored { what } = happened {
                // Nobody can ask for the log any more.
                eprintln!("orbit service: {what}");
            }
        }
        // Otherwise they could not join the next host. One that has exited or cannot be stopped
        // stays as it is.
        let members: Vec<i32> = self.members().collect();
        members.into_iter().for_each(|pid| drop(self.host.leave(pid)));
    }

    /// Members that have not exited and have not executed another program since.
    fn members(&mut self) -> impl Iterator<Item = i32> {
        self.host.forget_former_members();
        self.host.members()
    }

    fn serve(&mut self, stream: &UnixStream) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(ARRIVE))?;
        let mut line = String::new();
        let by = Instant::now() + ARRIVE;
        let mut came = Vec::new();
        BufReader::new(Until { stream, by, came: &mut came }.take(protocol::LINE)).read_line(&mut line)?;
        self.came = came;
        let answer = match serde_json::from_str::<Request>(&line) {
            Ok(Request::Ask(ask)) => match self.ask(&ask, stream) {
                Ok(()) => return Ok(()),
                Err(error) => Reply::Failed(error.to_string()),
            },
            Ok(request) => self.answer(request).unwrap_or_else(|error| Reply::Failed(error.to_string())),
            Err(error) => Reply::Failed(format!("no command: {error}")),
        };
        // What no service took is closed.
        self.came.clear();
        reply(stream, &answer)
    }

    /// Puts a question to a service; its answer is passed on when it comes.
    fn ask(&mut self, ask: &protocol::Ask, stream: &UnixStream) -> Result<()> {
        let question = asked::question(ask);
        let pending = match self.find_named(&ask.service)? {
            Which::Wasm(id) => self.runner.ask(id, &question)?,
            Which::Native(id) => self.host.ask(id, &question)?,
            Which::Kernel(_) => {
                let text = format!("service {} is in the kernel, and answers no questions", ask.service);
                return Err(Error::new(Kind::Unsupported, text));
            }
        };
        let stream = stream.try_clone().map_err(|error| Error::system("the connection of a question", &error))?;
        asked::pass_on(pending, ask, stream)
    }

    /// A service by its number, or by its name if no other has that.
    fn find_named(&self, text: &str) -> Result<Which> {
        let found = self.find(text);
        if found.is_ok() {
            return found;
        }
        let named = self.list().into_iter().filter(|service| service.name == text && !service.is_revoked);
        let ids: Vec<String> = named.map(|service| service.id).collect();
        match &ids[..] {
            [] => found,
            [id] => self.find(id),
            _ => {
                let text = format!("{} services are named {text:?}: use one of {}", ids.len(), ids.join(", "));
                Err(Error::new(Kind::Invalid, text))
            }
        }
    }

    fn note(&mut self, line: String) {
        if self.log.len() == LOG {
            self.log.pop_front();
        }
        self.log.push_back(format!("{:10.3} {line}", self.began.elapsed().as_secs_f64()));
    }

    /// What services have set, and what was put back.
    fn note_changes(&mut self) {
        let lines = self.host.changes().into_iter().chain(self.host.put_back());
        lines.collect::<Vec<_>>().into_iter().for_each(|line| self.note(line));
    }

    fn answer(&mut self, request: Request) -> Result<Reply> {
        let done = |text: String| Ok(Reply::Done(text));
        match request {
            Request::Load(load) => {
                let id = self.load(&load)?;
                self.note(format!("loaded {id} from {}, owner {}, {}", load.file.display(), load.owner, load.budget));
                done(id)
            }
            Request::List => Ok(Reply::List {
                services: self.list(),
                members: self.members().collect(),
                no_ticks: self.host.no_ticks().map(str::to_owned),
            }),
            Request::Attr { class, pid, value } => {
                let request =
                    if value.is_some() { GrantRequest::set(&class, pid) } else { GrantRequest::get(&class, pid) };
                self.host.attribute(&request, value).map(|value| Reply::Done(value.to_string()))
            }
            Request::Revoke { id } => {
                match self.find(&id)? {
                    Which::Wasm(id) => self.unload(id)?,
                    Which::Native(id) => self.host.unload(id)?,
                    Which::Kernel(id) => self.kernels.unload(&mut self.host, id),
                }
                self.note_changes();
                self.note(format!("revoked {id}"));
                done(id)
            }
            Request::Post { id, value } => {
                match self.find(&id)? {
                    Which::Wasm(id) => self.runner.post(id, value)?,
                    // What is dropped is counted.
                    Which::Native(id) => drop(self.host.post(id, value)?),
                    Which::Kernel(_) => {
                        let text =
                            format!("service {id} is in the kernel: its ticks start it, events cannot be posted");
                        return Err(Error::new(Kind::Unsupported, text));
                    }
                }
                done(id)
            }
            Request::Plan { owner, load } => self.plan(&owner, load).map(Reply::Done),
            Request::Ask(_) => Err(Error::new(Kind::Invalid, "a question is answered on its own connection")),
            Request::Log => Ok(Reply::Lines(self.log.iter().cloned().collect())),
            Request::Join { pid } => {
                let stopped = self.host.join(pid)?;
                self.note(format!("process {pid} joined, stopped for {stopped:.1?}"));
                done(format!("process {pid} is a member; it was stopped for {stopped:.1?}"))
            }
            Request::Leave { pid } => {
                if !self.members().any(|member| member == pid) {
                    let text = format!("process {pid} is not a member: see orbit service ls");
                    return Err(Error::new(Kind::NotFound, text));
                }
                self.host.leave(pid)?;
                self.note(format!("process {pid} left"));
                done(format!("process {pid} is a member no more"))
            }
            Request::Invite => done(self.host.invitation().to_string()),
            Request::Add { pid } => {
                self.host.add_member(pid)?;
                self.note(format!("process {pid} started as a member"));
                done(String::new())
            }
        }
    }

    /// Takes a wasm service off.
    fn unload(&mut self, id: Id) -> Result<()> {
        self.owners.remove(&id);
        for number in self.sources.remove(&id).unwrap_or_default() {
            self.host.sources()?.remove(number);
        }
        self.revoked.remove(&id);
        let service = self.runner.unload(id)?;
        self.host.release(service.grants());
        Ok(())
    }

    fn find(&self, text: &str) -> Result<Which> {
        let wasm = text.strip_prefix('w').and_then(|number| number.parse().ok()).map(Id);
        if let Some(id) = wasm.filter(|id| self.owners.contains_key(id)) {
            return Ok(Which::Wasm(id));
        }
        if let Some(id) = self.kernels.find(text) {
            return Ok(Which::Kernel(id));
        }
        let native = self.host.list().into_iter().find(|(id, _)| id.to_string() == text);
        native
            .map(|(id, _)| Which::Native(id))
            .ok_or_else(|| Error::new(Kind::NotFound, format!("there is no service {text:?}: see orbit service ls")))
    }

    fn list(&self) -> Vec<protocol::Service> {
        let wasm = self.runner.list().into_iter().map(|status| {
            let id = format!("w{}", status.id.0);
            entry(
                id,
                "wasm",
                (status.name, status.owner, status.budget, status.is_revoked),
                &status.account,
                status.lost,
            )
        });
        let native = self.host.list().into_iter().map(|(id, status)| {
            let about = (status.name, status.owner, status.budget, status.is_revoked);
            entry(id.to_string(), "native", about, &status.account, status.account.lost)
        });
        let kernel = self.kernels.list().map(|(id, about, account)| {
            entry(id, "bpf", (about.name.clone(), about.owner, about.budget, false), &account, account.lost)
        });
        wasm.chain(native).chain(kernel).collect()
    }

    fn tend(&mut self) {
        if self.planned_at.elapsed() >= TRY_AGAIN {
            // What fails is in the log, and is tried again.
            let _ = self.load_planned();
            self.planned_at = Instant::now();
        }
        for happened in self.host.tend() {
            self.note(match happened {
                Happened::OwnerEnded { id, owner, .. } => format!("{id}: unloaded, its owner {owner} has exited"),
                Happened::Revoked { id, aborts, .. } => format!("{id}: revoked after {aborts} aborts"),
                Happened::ThreadDied { name } => format!("{name}: its thread died and was started again"),
                Happened::NotRestored { what } => what,
                Happened::AgentDied { cpu } => format!("the agent of CPU {cpu} died and was started again"),
            });
        }
        self.note_changes();
        for id in self.kernels.tend(&mut self.host) {
            self.note(format!("{id}: unloaded, its owner has exited"));
        }
        for status in self.runner.list().into_iter().filter(|status| status.is_revoked) {
            if self.revoked.insert(status.id) {
                self.note(format!("w{}: revoked after {} aborts", status.id.0, status.account.aborts()));
                status.unrestored.into_iter().for_each(|what| self.note(what));
            }
        }
        let ended: Vec<Id> =
            self.owners.iter().filter(|(_, life)| pidfd::has_ended(life.as_fd())).map(|(id, _)| *id).collect();
        for id in ended {
            if self.unload(id).is_ok() {
                self.note(format!("w{}: unloaded, its owner has exited", id.0));
            }
        }
    }
}

/// A service by its class.
enum Which {
    Wasm(Id),
    Native(ServiceId),
    Kernel(u64),
}

fn entry(
    id: String,
    class: &str,
    (name, owner, budget, is_revoked): (String, i32, Budget, bool),
    account: &orbit_services::Account,
    lost: u64,
) -> protocol::Service {
    protocol::Service {
        id,
        name,
        class: class.to_owned(),
        owner,
        budget: budget.to_string(),
        is_revoked,
        runs: account.runs,
        upcalls: account.upcalls,
        cpu_ns: account.cpu_ns,
        aborts: account.aborts(),
        dropped: account.unpaid.saturating_add(lost),
        refused: account.refused,
        ticks_due: account.ticks_due,
        ticks_ran: account.ticks_ran(),
        ticks_merged: account.ticks_merged,
        ticks_missed: account.ticks_missed,
    }
}
