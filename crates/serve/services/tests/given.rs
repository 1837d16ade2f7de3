//! A service uses descriptors that its owner gave it: while the owner sleeps, is stopped or spins,
//! with the rights and at the rate that it was given, until one of both ends.

mod common;

use common::{Killed, cpu, host, is_root, native, services, spec, times, until};
use orbit_services::{Budget, Dispatch, Given, Happened, Host, Kind, ServiceId, Spec};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A service with a thread, of so much of its CPU that clients do not wait for the next window.
fn threaded(name: &str, owner: i32) -> Spec {
    let mut spec = spec(name, Dispatch::Thread, vec![]);
    spec.budget = Budget::new(Duration::from_millis(4), Duration::from_millis(10)).expect("a budget");
    (spec.owner, spec.period, spec.raise) = (owner, Duration::ZERO, Some(50));
    spec
}

fn given(socket: impl Into<std::os::fd::OwnedFd>, terms: &str) -> Given {
    Given::new(socket.into(), terms).expect("terms")
}

fn responder(host: &mut Host, owner: i32, terms: &str) -> (ServiceId, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = socket.local_addr().expect("its address");
    let given = vec![given(socket, terms)];
    (host.load_with(&threaded("answers", owner), &native("answers"), given).expect("loaded"), address)
}

/// So many questions one by one. How long each answer took.
fn ask(address: SocketAddr, times: usize) -> Vec<Duration> {
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    client.connect(address).expect("connected");
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let mut bytes = [0u8; 64];
    let mut ask = |nth| {
        let began = Instant::now();
        client.send(format!("hello {nth}").as_bytes()).expect("sent");
        let length = client.recv(&mut bytes).expect("an answer");
        assert_eq!(&bytes[..length], format!("HELLO {nth}").as_bytes());
        began.elapsed()
    };
    (0..times).map(&mut ask).collect()
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{what}: median {:?}, p99 {:?}, of {}", at(0.5), at(0.99), times.len());
}

fn signal(process: i32, signal: i32) {
    // SAFETY: an own child.
    assert_eq!(unsafe { libc::kill(process, signal) }, 0);
}

/// The same answers from an ordinary process on the same processor.
struct Epoll {
    _process: Killed,
    address: SocketAddr,
}

impl Epoll {
    fn start() -> Epoll {
        let program = std::env::temp_dir().join(format!("orbit-test-{}-epoll", std::process::id()));
        let source = services().join("tests/native/epoll.c");
        let compiler = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
        let built = Command::new(compiler).arg("-O2").arg("-o").arg(&program).arg(source).status();
        assert!(built.expect("clang").success());
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu().to_string()]).arg(&program).stdout(Stdio::piped());
        let mut child = command.spawn().expect("taskset");
        let mut port = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut port).expect("a line");
        let _ = std::fs::remove_file(program);
        let address = format!("127.0.0.1:{}", port.trim()).parse().expect("an address");
        Epoll { _process: Killed(child), address }
    }
}

#[test]
fn answers_and_pages_come_while_the_owner_sleeps_is_stopped_or_spins() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let n = times(200, 10_000);
    let rival = Epoll::start();
    let object = native("health");
    let spins = || {
        let mut command = Command::new("taskset");
        Killed(command.args(["-c", &cpu().to_string(), "sh", "-c", "while :; do :; done"]).spawn().expect("sh"))
    };
    for (what, owner) in [("sleeps", Killed::sleeper()), ("is stopped", Killed::sleeper()), ("spins", spins())] {
        if what == "is stopped" {
            signal(owner.pid(), libc::SIGSTOP);
        }
        let (id, address) = responder(&mut host, owner.pid(), "rs");
        report(&format!("the owner {what}: an answer of its service"), ask(address, n));
        report(&format!("the owner {what}: an answer of a process"), ask(rival.address, n));
        assert_eq!(host.status(id).expect("loaded").account.aborts(), 0);
        host.unload(id).expect("unloaded");

        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("its address");
        let terms = "rwa,moved";
        let id = host.load_with(&threaded("health", owner.pid()), &object, vec![given(listener, terms)]);
        let id = id.expect("loaded");
        let page = || {
            let began = Instant::now();
            let mut client = TcpStream::connect(address).expect("connected");
            client.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
            client.write_all(b"GET /health HTTP/1.1\r\n\r\n").expect("sent");
            let mut text = String::new();
            client.read_to_string(&mut text).expect("a page");
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nok\n"), "{text}");
            began.elapsed()
        };
        // More than there are places at the same time; a client that says nothing delays no other.
        let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).expect("connected")).collect();
        report(&format!("the owner {what}: a page of its service"), (0..n.min(1000)).map(|_| page()).collect());
        drop(silent);
        assert_eq!(host.status(id).expect("loaded").account.aborts(), 0);
        host.unload(id).expect("unloaded");
        // Another test's fork may have it for a moment.
        until("it is closed", || TcpStream::connect(address).is_err());
    }
}

#[test]
fn what_was_given_is_closed_when_the_owner_ends() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let mut owner = Killed::sleeper();
    let (_, address) = responder(&mut host, owner.pid(), "rs");
    ask(address, 1);
    let life = host.lives().next().expect("an owner").try_clone_to_owned().expect("a copy");
    owner.0.kill().expect("own child");
    let mut polled = [libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&life), events: libc::POLLIN, revents: 0 }];
    assert_eq!(orbit_linux::poll::poll(&mut polled, Some(Duration::from_secs(60))).expect("polled"), 1);
    let began = Instant::now();
    let happened = host.tend();
    // Nobody has the socket any more, but for a moment another test's fork: the port can be bound.
    until("the socket is closed", || UdpSocket::bind(address).is_ok());
    println!("closed {:?} after the owner's end was seen", began.elapsed());
    assert!(matches!(happened[..], [Happened::OwnerEnded { .. }]), "{happened:?}");
}

#[test]
fn only_the_places_and_rights_that_were_given_are_there() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let object = native("answers");
    let me = std::process::id() as i32;
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    client.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    // One that may only read, or write to a peer, does not answer; a place that has none is no
    // descriptor.
    for (rights, place) in [("r", b'0'), ("rwa", b'0'), ("rs", b'1'), ("rs", b'9')] {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = socket.local_addr().expect("its address");
        let mut spec = threaded("answers", me);
        spec.arguments = vec![place];
        socket.set_nonblocking(true).expect("set");
        let id = host.load_with(&spec, &object, vec![given(socket, rights)]).expect("loaded");
        client.send_to(b"x", address).expect("sent");
        until("a run", || host.status(id).expect("loaded").account.runs > 0);
        assert!(client.recv(&mut [0; 8]).is_err(), "{rights} {place}");
        host.unload(id).expect("unloaded");
    }
    let socket = || given(UdpSocket::bind("127.0.0.1:0").expect("a socket"), "rs");
    let mut refused = |spec: &Spec, given: Vec<Given>| {
        let error = host.load_with(spec, &object, given).expect_err("refused");
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
        error.to_string()
    };
    let mut spec = threaded("answers", me);
    assert!(refused(&spec, (0..9).map(|_| socket()).collect()).contains("at most 8"));
    let file = given(std::fs::File::open("/proc/self/exe").expect("a file"), "r");
    assert!(refused(&spec, vec![file]).contains("no socket or pipe"));
    // An owner that has the descriptor still.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let copy = || listener.try_clone().expect("a copy");
    assert!(refused(&spec, vec![given(copy(), "ra,moved")]).contains("has it open still"));
    assert!(refused(&spec, vec![given(copy(), "ra")]).contains("would wait"));
    spec.dispatch = Dispatch::Upcall;
    assert!(refused(&spec, vec![socket()]).contains("with a thread"));
}

#[test]
fn a_rate_delays_and_loses_nothing_and_a_closed_place_is_gone() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let me = std::process::id() as i32;
    // Three calls an answer, and one that finds nothing: of 400 a second 40 at once.
    let (id, address) = responder(&mut host, me, "rs,400/s");
    let began = Instant::now();
    ask(address, 100);
    let took = began.elapsed();
    assert!(took > Duration::from_millis(400), "{took:?}");
    assert!(host.status(id).expect("loaded").account.refused > 0);
    host.unload(id).expect("unloaded");

    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = socket.local_addr().expect("its address");
    let id = host.load_with(&threaded("closes", me), &native("closes"), vec![given(socket, "rs")]).expect("loaded");
    assert!(host.post(id, 0).expect("loaded"));
    until("the host has closed it", || {
        host.tend();
        UdpSocket::bind(address).is_ok()
    });
    assert_eq!(host.status(id).expect("loaded").account.aborts(), 0);
    host.unload(id).expect("unloaded");
}
