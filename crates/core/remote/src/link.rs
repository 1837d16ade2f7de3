//! The connection to one node: calls with a limit, heartbeats, subscriptions.
//!
//! One thread a node ([`Spawn`]) connects, speaks, and connects anew, after 1 s to 30 s. It asks
//! for a sign of life each second. Promises: a call ends within [`CALL_TIME`], or at once while the
//! link is lost; nothing heard for [`LOST_AFTER`] is a lost link, whatever TCP says; subscriptions
//! hold again once it is back; who subscribed to [`Kind::LinkLost`] and [`Kind::LinkBack`] has an
//! event of each.

use crate::Spawn;
use crate::files::Files;
use crate::framed::Framed;
use crate::wire::{Answer, Ask, Counts, VERSION};
use orbit_linux::eventfd;
use orbit_linux::poll::poll;
use orbit_rmk::{Command, Counted, Event, KernelSide, Kind, PinError, Reply, Subscription, now};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A call that has no answer by then fails.
pub const CALL_TIME: Duration = Duration::from_secs(2);
/// A node of which nothing was heard for so long is lost.
pub const LOST_AFTER: Duration = Duration::from_secs(3);
/// Between two signs of life that are asked for.
const PING_EVERY: Duration = Duration::from_secs(1);
const CONNECT_TIME: Duration = Duration::from_secs(3);
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Requests that wait to be sent.
const MAX_WAITING: usize = 256;

/// A node whose pins are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// As its certificate names it.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
}

/// How a link stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No attempt has ended yet.
    Begun,
    /// The node is heard.
    Up {
        /// Since then.
        since: Instant,
    },
    /// It is not.
    Lost {
        /// Since then.
        since: Instant,
        /// A sentence.
        why: String,
    },
}

/// See the module's head. Dropping it ends the thread and its connection.
pub struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    node: Node,
    standing: Mutex<Standing>,
    waiting: Mutex<VecDeque<(Ask, Option<Reporter>)>>,
    listeners: Mutex<BTreeMap<u64, Listener>>,
    wake: OwnedFd,
    next: AtomicU64,
    end: AtomicBool,
}

/// Whoever waits for the answer to a request.
type Reporter = SyncSender<Result<Reply, String>>;

/// A subscription here.
#[derive(Clone)]
struct Listener {
    subscription: Arc<Subscription>,
    pin: String,
    /// What was counted at the node, for one to its events; none for one to the link's.
    there: Option<Arc<There>>,
}

impl Link {
    /// Begins to connect to the node. Does not wait.
    ///
    /// # Errors
    /// No thread or descriptor.
    pub fn start(node: Node, files: Files, spawn: Spawn) -> io::Result<Arc<Link>> {
        let inner = Arc::new(Inner {
            node,
            standing: Mutex::new(Standing::Begun),
            waiting: Mutex::default(),
            listeners: Mutex::default(),
            wake: eventfd::create()?,
            next: AtomicU64::new(1),
            end: AtomicBool::new(false),
        });
        let its = inner.clone();
        spawn("orbit-link", Box::new(move || its.run(&files)))?;
        Ok(Arc::new(Link { inner }))
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.inner.node
    }

    /// How it stands now.
    pub fn standing(&self) -> Standing {
        lock(&self.inner.standing).clone()
    }

    /// Has a pin of the node do something on behalf of a module here. Waits for at most `limit`.
    ///
    /// # Errors
    /// A sentence: the link is lost, nothing was answered in time, or the node's own.
    pub fn command(&self, user: u64, pin: &str, command: &Command, limit: Duration) -> Result<Reply, PinError> {
        let (pin, command) = (pin.to_owned(), command.clone());
        self.ask(limit, |ticket| Ask::Command { ticket, user, pin, command })
    }

    /// From now on the subscription has the pin's events, also after the link was lost and is back.
    ///
    /// # Errors
    /// As for [`Link::command`].
    pub fn subscribe(&self, pin: &str, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        let is_links = matches!(subscription.kind, Kind::LinkLost | Kind::LinkBack);
        let there = (!is_links).then(Arc::<There>::default);
        if let Some(there) = &there {
            there.room.store(u64::from(subscription.filter.queue), Relaxed);
            subscription.bind(there.clone(), 0);
        }
        let listener = Listener { subscription: subscription.clone(), pin: pin.to_owned(), there };
        lock(&self.inner.listeners).insert(subscription.id, listener.clone());
        if is_links {
            return Ok(());
        }
        let asked = self.ask(CALL_TIME, |ticket| listener.ask(ticket));
        if asked.is_err() {
            lock(&self.inner.listeners).remove(&subscription.id);
        }
        asked.map(|_| ())
    }

    /// Ends a subscription.
    pub fn unsubscribe(&self, subscription: &Subscription) {
        let gone = lock(&self.inner.listeners).remove(&subscription.id);
        if gone.is_some_and(|gone| gone.there.is_some()) {
            self.say(Ask::Unsubscribe { user: subscription.client, handle: subscription.id });
        }
    }

    /// The module uses the pin no more.
    pub fn forget(&self, user: u64, pin: &str) {
        self.say(Ask::Forget { user, pin: pin.to_owned() });
    }

    /// Sends what has no answer; while the link is lost the node has forgotten it already.
    fn say(&self, ask: Ask) {
        if matches!(self.standing(), Standing::Up { .. }) {
            lock(&self.inner.waiting).push_back((ask, None));
            eventfd::signal(self.inner.wake.as_fd());
        }
    }

    fn ask(&self, limit: Duration, ask: impl FnOnce(u64) -> Ask) -> Result<Reply, PinError> {
        let name = &self.inner.node.name;
        let (to, answer) = sync_channel(1);
        let ticket = self.inner.next.fetch_add(1, Relaxed);
        {
            let standing = lock(&self.inner.standing);
            // With the lock: what is put while it is up is answered when it is lost.
            if let Some(why) = not_up(name, &standing) {
                return Err(PinError::Refused(why));
            }
            let mut waiting = lock(&self.inner.waiting);
            if waiting.len() >= MAX_WAITING {
                return Err(PinError::Refused(format!(
                    "{MAX_WAITING} requests to node {name} wait already: ask later"
                )));
            }
            waiting.push_back((ask(ticket), Some(to)));
        }
        eventfd::signal(self.inner.wake.as_fd());
        match answer.recv_timeout(limit) {
            Ok(result) => result.map_err(|why| PinError::Refused(format!("node {name}: {why}"))),
            Err(_) => Err(PinError::Refused(format!("node {name} has not answered within {limit:?}"))),
        }
    }
}

/// Why nothing can be asked, if so.
fn not_up(name: &str, standing: &Standing) -> Option<String> {
    match standing {
        Standing::Up { .. } => None,
        Standing::Begun => Some(format!("node {name} is not connected yet")),
        Standing::Lost { since, why } => {
            Some(format!("node {name} is lost since {:.1} s: {why}", since.elapsed().as_secs_f64()))
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("node", self.node()).field("standing", &self.standing()).finish()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.inner.end.store(true, SeqCst);
        eventfd::signal(self.inner.wake.as_fd());
    }
}

impl Inner {
    fn run(&self, files: &Files) {
        let mut pause = FIRST_PAUSE;
        while !self.end.load(SeqCst) {
            let ended = self.connect(files).and_then(|framed| {
                pause = FIRST_PAUSE;
                self.speak(framed)
            });
            if let Err(e) = ended {
                self.lose(&sentence(&e));
            }
            let until = Instant::now() + pause;
            pause = (pause * 2).min(MAX_PAUSE);
            while !self.end.load(SeqCst) && Instant::now() < until {
                self.sleep(until);
            }
        }
    }

    /// Until then, or until somebody wants something.
    fn sleep(&self, until: Instant) {
        let mut fds = [libc::pollfd { fd: self.wake.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        // Woken early, the clock decides.
        let _ = poll(&mut fds, Some(until.saturating_duration_since(Instant::now())));
        eventfd::drain(self.wake.as_fd());
    }

    /// A connection that has proven to be the node's, and speaks the same.
    fn connect(&self, files: &Files) -> io::Result<Framed> {
        let tls = files.client(&self.node.name)?;
        let socket = TcpStream::connect_timeout(&self.node.address, CONNECT_TIME)?;
        let until = Instant::now() + HANDSHAKE_TIME;
        let mut framed = Framed::begin(socket, tls, until)?;
        framed.put(&Ask::Hello { version: VERSION })?;
        loop {
            match framed.next()? {
                Some(Answer::Hello { version: VERSION }) => return Ok(framed),
                Some(Answer::Hello { version }) => {
                    let why = format!("it speaks version {version} and this node {VERSION}: install the same on both");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "it did not greet first")),
                None => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it did not greet in time"));
            }
            framed.wait(None, left)?;
            framed.exchange()?;
        }
    }

    /// Until the link is lost, or ends.
    fn speak(&self, mut framed: Framed) -> io::Result<()> {
        let mut answers: BTreeMap<u64, Reporter> = BTreeMap::new();
        self.subscribe_anew(&mut framed)?;
        self.rise();
        let spoken = self.speak_until_lost(&mut framed, &mut answers);
        let why = spoken.as_ref().map_or_else(sentence, |()| "it is not used any more".to_owned());
        for to in answers.into_values() {
            // Whoever asked may have given up.
            let _ = to.send(Err(format!("the link was lost before it answered: {why}")));
        }
        spoken
    }

    fn speak_until_lost(&self, framed: &mut Framed, answers: &mut BTreeMap<u64, Reporter>) -> io::Result<()> {
        let (mut heard, mut asked) = (Instant::now(), Instant::now());
        while !self.end.load(SeqCst) {
            framed.wait(Some(self.wake.as_fd()), PING_EVERY.saturating_sub(asked.elapsed()))?;
            eventfd::drain(self.wake.as_fd());
            framed.exchange()?;
            while let Some(answer) = framed.next::<Answer>()? {
                heard = Instant::now();
                self.answered(answer, answers);
            }
            if heard.elapsed() >= LOST_AFTER {
                let why = format!("nothing was heard of it for {LOST_AFTER:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            while framed.has_room() {
                let Some((ask, to)) = lock(&self.waiting).pop_front() else { break };
                let ticket =
                    if let Ask::Command { ticket, .. } | Ask::Subscribe { ticket, .. } = &ask { *ticket } else { 0 };
                match (framed.put(&ask), to) {
                    (Ok(()), Some(to)) => drop(answers.insert(ticket, to)),
                    (Err(e), Some(to)) if e.kind() == io::ErrorKind::InvalidInput => {
                        let _ = to.send(Err(format!("the request cannot be sent: {e}")));
                    }
                    (sent, _) => sent?,
                }
            }
            if asked.elapsed() >= PING_EVERY && framed.has_room() {
                asked = Instant::now();
                framed.put(&Ask::Ping)?;
                // Those who asked have given up by now.
                let oldest = self.next.load(Relaxed).saturating_sub(4 * MAX_WAITING as u64);
                *answers = answers.split_off(&oldest);
            }
        }
        Ok(())
    }

    fn answered(&self, answer: Answer, answers: &mut BTreeMap<u64, Reporter>) {
        match answer {
            Answer::Hello { .. } | Answer::Pong => {}
            Answer::Done { ticket, result } => {
                if let Some(to) = answers.remove(&ticket) {
                    // Whoever asked may have given up.
                    let _ = to.send(result);
                }
            }
            Answer::Events { handle, counts, events } => {
                let Some(listener) = lock(&self.listeners).get(&handle).cloned() else { return };
                let Some(there) = listener.there else { return };
                let events: Vec<Event> = events
                    .as_chunks::<{ Event::BYTES }>()
                    .0
                    .iter()
                    .map(|bytes| Event { subscription: handle, ..Event::from_bytes(bytes) })
                    .take(there.admit(counts, events.len() / Event::BYTES))
                    .collect();
                listener.subscription.queue_sent(&events);
            }
        }
    }

    /// What was subscribed to before the link was lost.
    fn subscribe_anew(&self, framed: &mut Framed) -> io::Result<()> {
        let listeners: Vec<Listener> = lock(&self.listeners).values().cloned().collect();
        for listener in listeners.iter().filter(|listener| listener.there.is_some()) {
            listener.there.iter().for_each(|there| there.begin_anew());
            // Nobody waits for its answer: a node that does not grant it any more sends nothing.
            framed.put(&listener.ask(self.next.fetch_add(1, Relaxed)))?;
        }
        Ok(())
    }

    fn rise(&self) {
        let before = std::mem::replace(&mut *lock(&self.standing), Standing::Up { since: Instant::now() });
        if let Standing::Lost { since, .. } = before {
            self.tell(Kind::LinkBack, since.elapsed());
        }
    }

    /// Notes that the node is lost, and answers all that waits.
    fn lose(&self, why: &str) {
        let mut standing = lock(&self.standing);
        let is_news = !matches!(*standing, Standing::Lost { .. });
        let since = match &*standing {
            Standing::Lost { since, .. } => *since,
            Standing::Begun | Standing::Up { .. } => Instant::now(),
        };
        *standing = Standing::Lost { since, why: why.to_owned() };
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        drop(standing);
        for to in waiting.into_iter().filter_map(|(_, to)| to) {
            // Whoever asked may have given up.
            let _ = to.send(Err(format!("the link is lost: {why}")));
        }
        if is_news {
            self.tell(Kind::LinkLost, Duration::ZERO);
        }
    }

    fn tell(&self, kind: Kind, time: Duration) {
        let mut event = Event::new(kind, now());
        event.values[0] = time.as_nanos() as u64;
        for listener in lock(&self.listeners).values().filter(|listener| listener.subscription.kind == kind) {
            listener.subscription.offer(event);
        }
    }
}

/// What ended a link, in words.
fn sentence(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => "it has closed the connection".into(),
        io::ErrorKind::ConnectionRefused => "nothing listens there".into(),
        _ => e.to_string(),
    }
}

impl Listener {
    fn ask(&self, ticket: u64) -> Ask {
        let Subscription { id, client, kind, ref filter, .. } = *self.subscription;
        Ask::Subscribe { ticket, user: client, handle: id, pin: self.pin.clone(), kind, filter: filter.clone() }
    }
}

/// Counts of a subscription's events, most of them at the node.
#[derive(Default)]
struct There {
    /// Those of connections before this one.
    before: Mutex<Counts>,
    latest: Mutex<Counts>,
    sent: AtomicU64,
    taken: AtomicU64,
    /// Found no room here.
    lost: AtomicU64,
    room: AtomicU64,
}

impl There {
    /// How many of so many events that arrived may be queued; the rest is lost, and counted.
    fn admit(&self, counts: Counts, arrived: usize) -> usize {
        *lock(&self.latest) = counts;
        let waiting = self.sent.load(Relaxed).saturating_sub(self.taken.load(Relaxed));
        let admitted = (arrived as u64).min(self.room.load(Relaxed).saturating_sub(waiting));
        self.sent.fetch_add(admitted, Relaxed);
        self.lost.fetch_add(arrived as u64 - admitted, Relaxed);
        admitted as usize
    }

    /// The node counts from 0.
    fn begin_anew(&self) {
        let latest = std::mem::take(&mut *lock(&self.latest));
        let mut before = lock(&self.before);
        *before = sum(*before, latest);
    }
}

fn sum(a: Counts, b: Counts) -> Counts {
    Counts {
        passed: a.passed.saturating_add(b.passed),
        due: a.due.saturating_add(b.due),
        lost: a.lost.saturating_add(b.lost),
        unlisted: a.unlisted.saturating_add(b.unlisted),
    }
}

impl KernelSide for There {
    fn took(&self, _slot: usize, events: u64) {
        self.taken.fetch_add(events, Relaxed);
    }

    fn counted(&self, _slot: usize) -> Counted {
        let all = sum(*lock(&self.before), *lock(&self.latest));
        let lost = all.lost.saturating_add(self.lost.load(Relaxed));
        Counted { passed: all.passed, due: all.due, sent: self.sent.load(Relaxed), lost, unlisted: all.unlisted }
    }

    fn list(&self, _pid: u32, _subscription: u64, _slot: usize, _follow: bool) -> Result<(), PinError> {
        Ok(())
    }

    fn unlist(&self, _pid: u32, _subscription: u64, _slot: usize) {}
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted_as_lost() {
        let there = There::default();
        there.room.store(4, Relaxed);
        let counts = |passed| Counts { passed, due: passed, lost: 0, unlisted: 0 };
        assert_eq!([there.admit(counts(3), 3), there.admit(counts(6), 3)], [3, 1]);
        there.took(0, 2);
        assert_eq!(there.admit(counts(9), 3), 2);
        there.begin_anew();
        assert_eq!(there.admit(counts(1), 1), 0);
        let all = there.counted(0);
        assert_eq!((all.passed, all.due, all.sent, all.lost), (10, 10, 6, 4));
    }
}
