//! Two cores as two nodes, with a connection that a test can cut or let stand still.

use orbit_remote::files::Files;
use orbit_remote::link::{LOST_AFTER, Link, Node, Standing};
use orbit_remote::{pin, server};
use orbit_rmk::{Command, Core, Event, Filter, Kind, Loads, Pin, PinError, PinKind, Probe, Reply, Subscription};
use orbit_testing::{Authority, until, until_some};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn thread(name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(|_| ())
}

fn authority() -> Option<Authority> {
    let made = Authority::new();
    if made.is_none() {
        println!("SKIP: needs openssl");
    }
    made
}

fn files(authority: &Authority, node: &str, names: &[&str]) -> Files {
    let (certificate, key) = authority.sign(node, names);
    Files { certificate, key, ca: authority.ca() }
}

fn core() -> Core {
    orbit_pins::builder().kernel_programs(false).build().expect("a core")
}

/// A node that serves its pins; what it says of its peers.
struct Served {
    core: Core,
    address: SocketAddr,
    said: Arc<Mutex<Vec<String>>>,
}

impl Served {
    fn new(files: Files) -> Served {
        let core = core();
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let its = said.clone();
        let say: server::Say = Arc::new(move |text: &str| its.lock().expect("sound").push(text.to_owned()));
        let any = ([127, 0, 0, 1], 0).into();
        let address = server::serve(core.clone(), any, files, thread, say).expect("served");
        Served { core, address, said }
    }

    fn has_said(&self, part: &str) -> bool {
        self.said.lock().expect("sound").iter().any(|text| text.contains(part))
    }
}

fn link(name: &str, address: SocketAddr, files: Files) -> Arc<Link> {
    Link::start(Node { name: name.into(), address }, files, thread).expect("a thread")
}

fn until_up(link: &Link) {
    until("the link", || matches!(link.standing(), Standing::Up { .. }));
}

/// A core that has the pins of the node.
fn core_with(link: &Arc<Link>) -> Core {
    let core = core();
    for kind in pin::of_node(link, &orbit_pins::all()) {
        core.register_pin(kind).expect("a name of its own");
    }
    core
}

/// Something between two nodes that passes bytes on, or keeps them, or ends.
struct Between {
    address: SocketAddr,
    stands: Arc<AtomicBool>,
    /// How long each piece takes, in ms.
    delay: Arc<AtomicU64>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Between {
    fn new(to: SocketAddr) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let (stands, sockets) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<TcpStream>>>::default());
        let delay = Arc::<AtomicU64>::default();
        let (its, all, slow) = (stands.clone(), sockets.clone(), delay.clone());
        std::thread::spawn(move || {
            for from in listener.incoming() {
                let (from, to) = (from.expect("a connection"), TcpStream::connect(to).expect("the node"));
                let copy = |socket: &TcpStream| socket.try_clone().expect("a descriptor");
                all.lock().expect("sound").extend([copy(&from), copy(&to)]);
                let (back, forth) = (copy(&from), copy(&to));
                for (mut source, mut sink) in [(from, forth), (to, back)] {
                    let (stands, slow) = (its.clone(), slow.clone());
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(n @ 1..) = source.read(&mut bytes) {
                            while stands.load(SeqCst) {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                            std::thread::sleep(Duration::from_millis(slow.load(SeqCst)));
                            if sink.write_all(&bytes[..n]).is_err() {
                                break;
                            }
                        }
                        let _ = sink.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Between { address, stands, delay, sockets }
    }

    fn cut(&self) {
        for socket in self.sockets.lock().expect("sound").drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn a_pin_of_another_node_is_used_as_ones_own() {
    let Some(authority) = authority() else { return };
    let node = Served::new(files(&authority, "db1", &[]));
    let link = link("db1", node.address, files(&authority, "web1", &["URI:orbit:pin/*"]));
    until_up(&link);
    let core = core_with(&link);
    let module = core.client("asks");
    module.use_pin("P_NET@db1").expect("the link is up");
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (local, peer) = (client.local_addr().expect("bound"), client.peer_addr().expect("connected"));
    let ask = Command::SocketHolders { local: local.to_string(), peer: peer.to_string() };
    let there = module.issue_cmd("P_NET@db1", &ask).expect("granted");
    let own = core.client("here");
    own.use_pin("P_NET").expect("the same machine");
    assert_eq!(own.issue_cmd("P_NET", &ask).expect("here"), there);
    let Reply::Holders { holders } = there else { panic!("{there:?}") };
    assert_eq!(holders[0].pid, std::process::id());
    // Events: a pin's own, until the module gives it back.
    module.use_pin("P_PERI@db1").expect("the link is up");
    let filter = Filter::everyone().interval(Duration::from_millis(5));
    let periods = module.subscr_event("P_PERI@db1", Kind::Period, filter).expect("granted");
    let mut events: Vec<Event> = Vec::new();
    until("events of the node", || {
        module.wait(100, Duration::from_secs(1), &mut events);
        events.len() >= 3
    });
    assert!(events.iter().all(|event| event.kind() == Some(Kind::Period) && event.subscription == periods));
    let counts = module.counts(periods).expect("subscribed");
    assert!(counts.passed >= 3 && counts.due <= counts.delivered + counts.waiting + counts.lost, "{counts:?}");
    let users = |pin: &str| node.core.pins().into_iter().find(|status| status.name == pin).expect("a pin").users.len();
    assert_eq!(users("P_PERI"), 1);
    module.release_pin("P_PERI@db1").expect("used");
    until("the node forgets it", || users("P_PERI") == 0);
    assert_eq!(users("P_NET"), 1);
    drop(module);
    until("the node forgets all", || users("P_NET") == 0);
}

#[test]
fn what_a_certificate_does_not_name_is_refused_with_the_name_that_it_needs() {
    let Some(authority) = authority() else { return };
    let node = Served::new(files(&authority, "db1", &[]));
    let pid = std::process::id();
    let send = Command::SignalSend { pid, signal: 0 };
    let read = Command::MemoryRead { pid, address: 4096, length: 1 };
    let reads = link("db1", node.address, files(&authority, "web1", &["URI:orbit:pin/*"]));
    until_up(&reads);
    let limit = Duration::from_secs(60);
    let why = reads.command(1, "P_SIG", &send, limit).expect_err("it changes something").to_string();
    assert!(why.contains("node db1") && why.ends_with("URI:orbit:pin/P_SIG/SignalSend"), "{why}");
    let why = reads.command(1, "P_MEM", &read, limit).expect_err("contents").to_string();
    assert!(why.ends_with("URI:orbit:pin/P_MEM/MemoryRead"), "{why}");
    reads.command(1, "P_SCHL", &Command::ThreadTimes { pid }, limit).expect("facts");
    let nothing = link("db1", node.address, files(&authority, "web2", &[]));
    until_up(&nothing);
    let why = nothing.command(1, "P_SCHL", &Command::ThreadTimes { pid }, limit).expect_err("nothing granted");
    assert!(why.to_string().ends_with("URI:orbit:pin/P_SCHL"), "{why}");
    until("the node says so", || node.has_said("node web2 has connected; its certificate grants nothing"));
    let whole = Command::MemoryRead { pid, address: 4096, length: 1 << 30 };
    let granted = ["URI:orbit:pin/P_MEM/MemoryRead"];
    let contents = link("db1", node.address, files(&authority, "web3", &granted));
    until_up(&contents);
    let why = contents.command(1, "P_MEM", &whole, limit).expect_err("over the bound").to_string();
    assert!(why.contains("read in parts"), "{why}");
}

#[test]
fn nobody_without_a_certificate_of_the_authority_is_spoken_with() {
    let (Some(ours), Some(theirs)) = (authority(), Authority::new()) else { return };
    let node = Served::new(files(&ours, "db1", &[]));
    let lost = |link: &Link| {
        until_some("an attempt", || match link.standing() {
            Standing::Lost { why, .. } => Some(why),
            _ => None,
        })
    };
    let (certificate, key) = theirs.sign("web1", &["URI:orbit:pin/*"]);
    // Trusted by it is the node; it is not trusted.
    let stranger = link("db1", node.address, Files { certificate, key, ca: ours.ca() });
    let why = lost(&stranger);
    until("the node has seen it", || node.has_said("ended: "));
    assert!(!node.has_said("has connected"), "{why}");
    // The node does not prove to be the one that was asked for.
    let wrong = link("db2", node.address, files(&ours, "web1", &["URI:orbit:pin/*"]));
    assert!(lost(&wrong).contains("certificate"), "{}", lost(&wrong));
    let error = wrong.command(1, "P_SCHL", &Command::CpuStates, Duration::from_secs(60)).expect_err("lost");
    assert!(error.to_string().contains("node db2 is lost since"), "{error}");
    // No TLS at all, and a text in its place.
    let mut plain = TcpStream::connect(node.address).expect("it listens");
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let mut answer = Vec::new();
    plain.read_to_end(&mut answer).expect("its end");
    let ours = link("db1", node.address, files(&ours, "web1", &["URI:orbit:pin/*"]));
    until_up(&ours);
}

#[test]
fn a_lost_link_is_an_event_and_calls_fail_at_once() {
    let Some(authority) = authority() else { return };
    let node = Served::new(files(&authority, "db1", &[]));
    let between = Between::new(node.address);
    let link = link("db1", between.address, files(&authority, "web1", &["URI:orbit:pin/*"]));
    until_up(&link);
    let core = core_with(&link);
    let module = core.client("watches");
    module.use_pin("P_LINK@db1").expect("always");
    module.use_pin("P_PERI@db1").expect("the link is up");
    let lost = module.subscr_event("P_LINK@db1", Kind::LinkLost, Filter::everyone()).expect("the link's");
    let back = module.subscr_event("P_LINK@db1", Kind::LinkBack, Filter::everyone()).expect("the link's");
    let every = Filter::everyone().interval(Duration::from_millis(20));
    let periods = module.subscr_event("P_PERI@db1", Kind::Period, every).expect("granted");
    let next = |subscription: u64, what: &str| {
        let mut events: Vec<Event> = Vec::new();
        until_some(what, || {
            events.clear();
            module.wait(1, Duration::from_millis(100), &mut events);
            events.first().copied().filter(|event| event.subscription == subscription)
        })
    };
    next(periods, "a period");
    for ends in [false, true] {
        // Half open: nothing arrives, and TCP knows of nothing.
        let since = Instant::now();
        if ends {
            between.cut()
        } else {
            between.stands.store(true, SeqCst)
        }
        let event = next(lost, "the link to be lost");
        assert_eq!(event.kind(), Some(Kind::LinkLost));
        assert!(ends || since.elapsed() >= LOST_AFTER - Duration::from_secs(1), "{:?}", since.elapsed());
        between.stands.store(false, SeqCst);
        if !ends {
            between.cut();
        }
        let event = next(back, "the link to be back");
        assert!(event.values[0] > 0, "{event:?}");
        next(periods, "a period of the subscription from before");
    }
    between.stands.store(true, SeqCst);
    next(lost, "the link to be lost");
    let asked = Instant::now();
    let error = module.issue_cmd("P_PERI@db1", &Command::HeartbeatStop).expect_err("lost").to_string();
    assert!(error.contains("node db1 is lost since") && error.contains("nothing was heard"), "{error}");
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    let error = core.client("late").use_pin("P_NET@db1").expect_err("lost").to_string();
    assert!(error.contains("node db1 is lost"), "{error}");
}

#[test]
fn a_slow_link_is_no_lost_one() {
    let Some(authority) = authority() else { return };
    let node = Served::new(files(&authority, "db1", &[]));
    let between = Between::new(node.address);
    let link = link("db1", between.address, files(&authority, "web1", &["URI:orbit:pin/*"]));
    until_up(&link);
    let up = link.standing();
    between.delay.store(300, SeqCst);
    let pid = std::process::id();
    for _ in 0..5 {
        let asked = Instant::now();
        link.command(1, "P_SCHL", &Command::ThreadTimes { pid }, Duration::from_secs(60)).expect("an answer");
        assert!(asked.elapsed() >= Duration::from_millis(600), "{:?}", asked.elapsed());
    }
    assert_eq!(link.standing(), up);
}

/// Does not answer before the flag is set.
struct Bog(Arc<AtomicBool>);

impl Pin for Bog {
    fn command(&mut self, _user: u64, _command: &Command) -> Result<Reply, PinError> {
        while !self.0.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Reply::Done)
    }
    fn subscribe(&mut self, _subscription: &Arc<Subscription>) -> Result<(), PinError> {
        Ok(())
    }
    fn unsubscribe(&mut self, _subscription: &Subscription) {}
    fn forget(&mut self, _user: u64) {}
}

#[test]
fn a_call_that_has_no_answer_ends_and_the_link_stays() {
    let Some(authority) = authority() else { return };
    let node = Served::new(files(&authority, "db1", &[]));
    let done = Arc::new(AtomicBool::new(false));
    let its = done.clone();
    let load: Box<Loads> = Box::new(move |_| Ok(Box::new(Bog(its.clone()))));
    let bog = PinKind {
        name: "P_BOG",
        about: "waits",
        facility: "",
        operations: &[],
        events: &[],
        probe: &|_| Probe::Full,
        load: Box::leak(load),
    };
    node.core.register_pin(bog).expect("registered");
    let link = link("db1", node.address, files(&authority, "web1", &["URI:orbit:pin/*"]));
    until_up(&link);
    let asked = Instant::now();
    let limit = Duration::from_millis(200);
    let error = link.command(1, "P_BOG", &Command::CpuStates, limit).expect_err("no answer").to_string();
    assert!(error.contains("has not answered within 200ms") && asked.elapsed() >= limit, "{error}");
    let up = link.standing();
    // Longer than a link without signs of life would hold.
    std::thread::sleep(LOST_AFTER + Duration::from_secs(1));
    assert_eq!(link.standing(), up, "signs of life come all the same");
    // More than may wait: said at once, not kept.
    let refused = until_some("a full queue", || {
        let error = link.command(1, "P_BOG", &Command::CpuStates, Duration::from_millis(1)).expect_err("no answer");
        Some(error.to_string()).filter(|error| error.contains("wait already"))
    });
    assert!(refused.contains("node db1"), "{refused}");
    done.store(true, SeqCst);
    let pid = std::process::id();
    until("the node answers again", || {
        link.command(1, "P_SCHL", &Command::ThreadTimes { pid }, Duration::from_secs(60)).is_ok()
    });
}
