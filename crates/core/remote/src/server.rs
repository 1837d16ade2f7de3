//! A core's pins, for peers.
//!
//! Each connection has two threads: one without rights parses what the peer sends ([`Spawn`]), one
//! of the core's does what is granted. Promises: [`MAX_PEERS`] connections at a time; what a peer
//! made (counters, subscriptions) is its own, by module of its side, and ends with its connection;
//! requests wait in a bounded queue and are rejected beyond it; a peer that says nothing for
//! [`SILENCE`] is left.

use crate::Spawn;
use crate::files::Files;
use crate::framed::{Framed, MAX_FRAME_BYTES};
use crate::rights::Rights;
use crate::wire::{Answer, Ask, Counts, VERSION};
use orbit_linux::eventfd;
use orbit_rmk::{Client, Command, Core, Event, Filter, Kind, Reply, Scope};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connections at a time.
pub const MAX_PEERS: usize = 16;
/// A peer that says nothing for so long is left.
pub const SILENCE: Duration = Duration::from_secs(10);
/// Until both sides have proven who they are.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Requests of a peer that wait.
const MAX_WAITING_ASKS: usize = 64;
/// Answers that wait for a peer to read: then its requests and events wait too.
const MAX_WAITING_ANSWERS: usize = 8;
/// Modules of a peer's side.
const MAX_USERS: usize = 64;
/// Bytes that one command reads: an answer fits a frame.
const MAX_READ_BYTES: u64 = MAX_FRAME_BYTES as u64 / 2;
/// Events in a frame.
const MAX_BATCH: usize = 4096;
const EVENTS_WAIT: Duration = Duration::from_secs(1);

/// What the server says of itself: a sentence.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// Serves the core's pins at this address from now on, for the life of the process. Returns the
/// address that was bound.
///
/// # Errors
/// The address is taken or none of this machine's, the files are not usable, no thread could be
/// made.
pub fn serve(core: Core, at: SocketAddr, files: Files, spawn: Spawn, say: Say) -> io::Result<SocketAddr> {
    files.check()?;
    let listener = TcpListener::bind(at)?;
    let bound = listener.local_addr()?;
    // Threads inherit what the one has that makes them: workers come of one with the core's rights.
    let (to, workers) = channel::<Worker>();
    std::thread::Builder::new().name("orbit-remote".into()).spawn(move || {
        for worker in workers {
            let core = core.clone();
            // A connection whose worker cannot be made ends: its channel does.
            let _ = std::thread::Builder::new().name("orbit-remote".into()).spawn(move || worker.run(&core));
        }
    })?;
    let accept = move || {
        let peers = Arc::new(AtomicUsize::new(0));
        for socket in listener.incoming() {
            let Ok(socket) = socket else {
                // No descriptor is free: one that ends makes room.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            let place = Place::take(&peers);
            let (files, to, say) = (files.clone(), to.clone(), say.clone());
            let Some(place) = place else {
                say(&format!("a node was turned away: {MAX_PEERS} use the pins of this one already"));
                continue;
            };
            let begun = spawn("orbit-peer", Box::new(move || peer(socket, &files, &to, &say, place)));
            // The socket went with it.
            let _ = begun;
        }
    };
    spawn("orbit-peers", Box::new(accept))?;
    Ok(bound)
}

/// One of the places for peers, free again when dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(peers: &Arc<AtomicUsize>) -> Option<Place> {
        if peers.fetch_add(1, Ordering::SeqCst) < MAX_PEERS {
            return Some(Place(peers.clone()));
        }
        peers.fetch_sub(1, Ordering::SeqCst);
        None
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Speaks with one peer until it goes.
fn peer(socket: TcpStream, files: &Files, workers: &Sender<Worker>, say: &Say, _place: Place) {
    let from = socket.peer_addr().map_or_else(|_| "somebody".to_owned(), |from| from.to_string());
    if let Err(e) = converse(socket, files, workers, say)
        && e.kind() != io::ErrorKind::UnexpectedEof
    {
        say(&format!("a connection from {from} ended: {e}"));
    }
}

fn converse(socket: TcpStream, files: &Files, workers: &Sender<Worker>, say: &Say) -> io::Result<()> {
    let mut framed = Framed::begin(socket, files.server()?, Instant::now() + HANDSHAKE_TIME)?;
    let (name, rights) = named(framed.peer())?;
    say(&if rights.is_empty() {
        format!("node {name} has connected; its certificate grants nothing (URI:orbit:pin/...)")
    } else {
        format!("node {name} has connected")
    });
    let (to_worker, asks) = sync_channel(MAX_WAITING_ASKS);
    let (out, answers) = sync_channel(MAX_WAITING_ANSWERS);
    let wake = Arc::new(eventfd::create()?);
    let out = Out { to: out, wake: wake.clone() };
    let worker = Worker { name, rights, asks, out };
    workers.send(worker).map_err(|_| io::Error::other("the core has ended"))?;
    framed.put(&Answer::Hello { version: VERSION })?;
    let mut heard = Instant::now();
    let mut is_greeted = false;
    loop {
        framed.wait(Some(wake.as_fd()), SILENCE.saturating_sub(heard.elapsed()))?;
        eventfd::drain(wake.as_fd());
        framed.exchange()?;
        while let Some(ask) = framed.next::<Ask>()? {
            heard = Instant::now();
            match ask {
                Ask::Hello { version: VERSION } => is_greeted = true,
                Ask::Hello { version } => {
                    let why = format!("it speaks version {version} and this node {VERSION}: install the same on both");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                _ if !is_greeted => return Err(io::Error::new(io::ErrorKind::InvalidData, "it did not greet first")),
                Ask::Ping => framed.put(&Answer::Pong)?,
                ask => match to_worker.try_send(ask) {
                    Ok(()) => {}
                    Err(TrySendError::Full(ask)) => {
                        if let Some(ticket) = ticket_of(&ask) {
                            let why = format!("{MAX_WAITING_ASKS} requests of this node wait already: ask later");
                            framed.put(&Answer::Done { ticket, result: Err(why) })?;
                        }
                    }
                    Err(TrySendError::Disconnected(_)) => return Err(io::Error::other("its worker has ended")),
                },
            }
        }
        while framed.has_room() {
            match answers.try_recv() {
                Ok(answer) => put(&mut framed, answer)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(io::Error::other("its worker has ended")),
            }
        }
        if heard.elapsed() >= SILENCE {
            let why = format!("it has said nothing for {SILENCE:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
    }
}

/// Sends an answer, or that it is too long.
fn put(framed: &mut Framed, answer: Answer) -> io::Result<()> {
    let sent = framed.put(&answer);
    match (sent, answer) {
        (Err(e), Answer::Done { ticket, .. }) if e.kind() == io::ErrorKind::InvalidInput => {
            framed.put(&Answer::Done { ticket, result: Err("the answer is over 1 MiB: ask for less".into()) })
        }
        (sent, _) => sent,
    }
}

fn ticket_of(ask: &Ask) -> Option<u64> {
    match ask {
        Ask::Command { ticket, .. } | Ask::Subscribe { ticket, .. } => Some(*ticket),
        _ => None,
    }
}

/// The name in a certificate, and what it grants.
fn named(certificate: Option<&[u8]>) -> io::Result<(String, Rights)> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let der = certificate.ok_or_else(|| invalid("it has shown no certificate"))?.into();
    let read = webpki::EndEntityCert::try_from(&der).map_err(|_| invalid("its certificate cannot be read"))?;
    let name = read.valid_dns_names().next().ok_or_else(|| invalid("its certificate names no node (DNS:...)"))?;
    Ok((name.to_owned(), Rights::of(read.valid_uri_names())))
}

/// Where answers go.
#[derive(Clone)]
struct Out {
    to: SyncSender<Answer>,
    wake: Arc<OwnedFd>,
}

impl Out {
    /// Waits while the peer does not read. False: it has gone.
    fn send(&self, answer: Answer) -> bool {
        // Before, so that whoever waits for room is woken; after, so that this one is.
        eventfd::signal(self.wake.as_fd());
        let is_there = self.to.send(answer).is_ok();
        eventfd::signal(self.wake.as_fd());
        is_there
    }
}

/// Does what one peer asks, with the core's rights.
struct Worker {
    name: String,
    rights: Rights,
    asks: Receiver<Ask>,
    out: Out,
}

/// A module of the peer's side.
struct User {
    client: Arc<Client>,
    /// Subscriptions here, by the peer's names for them.
    subscriptions: Arc<Mutex<BTreeMap<u64, u64>>>,
    has_events: bool,
    end: Arc<AtomicBool>,
}

impl Drop for User {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        self.client.wake();
    }
}

impl Worker {
    fn run(self, core: &Core) {
        let mut users = BTreeMap::new();
        for ask in &self.asks {
            let is_there = match ask {
                Ask::Command { ticket, user, pin, command } => {
                    let result = self.command(core, &mut users, user, &pin, &command);
                    self.out.send(Answer::Done { ticket, result })
                }
                Ask::Subscribe { ticket, user, handle, pin, kind, filter } => {
                    let result = self.subscribe(core, &mut users, (user, handle), &pin, kind, filter);
                    self.out.send(Answer::Done { ticket, result: result.map(|()| Reply::Done) })
                }
                Ask::Unsubscribe { user, handle } => {
                    if let Some(user) = users.get(&user)
                        && let Some(own) = lock(&user.subscriptions).remove(&handle)
                    {
                        // One that ended with its pin is gone already.
                        let _ = user.client.unsubscr_event(own);
                    }
                    true
                }
                Ask::Forget { user, pin } => {
                    if let Some(user) = users.get(&user) {
                        // It may never have used it.
                        let _ = user.client.release_pin(&pin);
                    }
                    true
                }
                Ask::Hello { .. } | Ask::Ping => true,
            };
            if !is_there {
                return;
            }
        }
    }

    fn command(
        &self,
        core: &Core,
        users: &mut BTreeMap<u64, User>,
        user: u64,
        pin: &str,
        command: &Command,
    ) -> Result<Reply, String> {
        self.rights.command(pin, command)?;
        if let Command::MemoryRead { length, .. } | Command::FileRead { length, .. } = command
            && *length > MAX_READ_BYTES
        {
            return Err(format!(
                "{length} bytes of another node in one command, {MAX_READ_BYTES} at most: read in parts"
            ));
        }
        let client = &self.user(core, users, user)?.client;
        client.use_pin(pin).and_then(|()| client.issue_cmd(pin, command)).map_err(|error| error.to_string())
    }

    fn subscribe(
        &self,
        core: &Core,
        users: &mut BTreeMap<u64, User>,
        (user, handle): (u64, u64),
        pin: &str,
        kind: Kind,
        filter: Filter,
    ) -> Result<(), String> {
        self.rights.events(pin)?;
        if filter.scope == Scope::Guarded {
            return Err("programs are guarded on their own node: name processes, or everyone".into());
        }
        let user = self.user(core, users, user)?;
        user.client.use_pin(pin).map_err(|error| error.to_string())?;
        // The thread of events finds the name before the first event.
        let mut subscriptions = lock(&user.subscriptions);
        let own = user.client.subscr_event(pin, kind, filter).map_err(|error| error.to_string())?;
        subscriptions.insert(handle, own);
        drop(subscriptions);
        if !user.has_events {
            let (client, names) = (user.client.clone(), user.subscriptions.clone());
            let (out, end) = (self.out.clone(), user.end.clone());
            std::thread::Builder::new()
                .name("orbit-remote".into())
                .spawn(move || events(&client, &names, &out, &end))
                .map_err(|e| format!("no thread for its events: {e}"))?;
            user.has_events = true;
        }
        Ok(())
    }

    fn user<'a>(&self, core: &Core, users: &'a mut BTreeMap<u64, User>, user: u64) -> Result<&'a mut User, String> {
        if !users.contains_key(&user) && users.len() >= MAX_USERS {
            return Err(format!("{MAX_USERS} modules of this node use pins here already"));
        }
        Ok(users.entry(user).or_insert_with(|| User {
            client: Arc::new(core.client(&format!("node {}", self.name))),
            subscriptions: Arc::default(),
            has_events: false,
            end: Arc::default(),
        }))
    }
}

/// Hands the events of one module on until the peer goes.
fn events(client: &Client, names: &Mutex<BTreeMap<u64, u64>>, out: &Out, end: &AtomicBool) {
    let mut taken: Vec<Event> = Vec::new();
    while !end.load(Ordering::SeqCst) {
        taken.clear();
        client.wait(MAX_BATCH, EVENTS_WAIT, &mut taken);
        for run in taken.chunk_by(|a, b| a.subscription == b.subscription) {
            let own = run[0].subscription;
            let name = lock(names).iter().find(|(_, of)| **of == own).map(|(handle, _)| *handle);
            let (Some(handle), Ok(counts)) = (name, client.counts(own)) else { continue };
            let counts =
                Counts { passed: counts.passed, due: counts.due, lost: counts.lost, unlisted: counts.unlisted };
            let events = run.iter().flat_map(Event::to_bytes).collect();
            if !out.send(Answer::Events { handle, counts, events }) {
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
