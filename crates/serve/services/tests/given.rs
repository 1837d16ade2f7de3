//! A service uses a descriptor that its owner gave it: while the owner is stopped, with the rights
//! that it was given, until one of both ends.

mod common;

use common::{Killed, host, is_root, native, spec, until};
use orbit_services::{Dispatch, Given, Happened, Kind};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

#[test]
fn datagrams_are_answered_while_the_owner_is_stopped_and_until_it_ends() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let mut owner = Killed::sleeper();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = socket.local_addr().expect("its address");
    let mut spec = spec("answers", Dispatch::Thread, vec![]);
    (spec.owner, spec.period, spec.raise) = (owner.pid(), Duration::ZERO, Some(50));
    let given = Given::new(socket.into(), "rw").expect("rights");
    let id = host.load_with(&spec, &native("answers"), vec![given]).expect("loaded");
    // SAFETY: an own child.
    assert_eq!(unsafe { libc::kill(owner.pid(), libc::SIGSTOP) }, 0);
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    client.connect(address).expect("connected");
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let (mut bytes, mut times) = ([0u8; 64], Vec::new());
    for nth in 0..200 {
        let began = Instant::now();
        client.send(format!("hello {nth}").as_bytes()).expect("sent");
        let length = client.recv(&mut bytes).expect("an answer");
        assert_eq!(&bytes[..length], format!("HELLO {nth}").as_bytes());
        times.push(began.elapsed());
    }
    times.sort();
    println!("answers of 200: median {:?}, p99 {:?}", times[100], times[198]);
    assert_eq!(host.status(id).expect("loaded").account.aborts(), 0);
    owner.0.kill().expect("own child");
    let mut happened = Vec::new();
    until("it ends with its owner", || {
        happened.extend(host.tend());
        !happened.is_empty()
    });
    assert!(matches!(happened[..], [Happened::OwnerEnded { .. }]), "{happened:?}");
    // Nobody has the socket any more: the port can be bound.
    until("the socket is closed", || UdpSocket::bind(address).is_ok());
}

#[test]
fn only_the_places_and_rights_that_were_given_are_there() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let object = native("answers");
    let mut spec = spec("answers", Dispatch::Thread, vec![]);
    spec.period = Duration::ZERO;
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    client.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    // One that may only read does not answer; a place that has none is no descriptor.
    for (rights, place) in [("r", b'0'), ("rw", b'1'), ("rw", b'3')] {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = socket.local_addr().expect("its address");
        spec.arguments = vec![place];
        let given = Given::new(socket.into(), rights).expect("rights");
        let id = host.load_with(&spec, &object, vec![given]).expect("loaded");
        client.send_to(b"x", address).expect("sent");
        until("a run", || host.status(id).expect("loaded").account.runs > 0);
        assert!(client.recv(&mut [0; 8]).is_err(), "{rights} {place}");
        host.unload(id).expect("unloaded");
    }
    let socket = || Given::new(UdpSocket::bind("127.0.0.1:0").expect("a socket").into(), "rw").expect("rights");
    let mut refused = |spec: &orbit_services::Spec, given: Vec<Given>| {
        let error = host.load_with(spec, &object, given).expect_err("refused");
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
        error.to_string()
    };
    assert!(refused(&spec, (0..9).map(|_| socket()).collect()).contains("at most 8"));
    let file = Given::new(std::fs::File::open("/proc/self/exe").expect("a file").into(), "r").expect("rights");
    assert!(refused(&spec, vec![file]).contains("no socket or pipe"));
    spec.dispatch = Dispatch::Upcall;
    assert!(refused(&spec, vec![socket()]).contains("with a thread"));
    assert!(Given::new(UdpSocket::bind("127.0.0.1:0").expect("a socket").into(), "x").is_err());
}
