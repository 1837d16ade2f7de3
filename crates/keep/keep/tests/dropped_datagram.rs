//! A datagram that kills the program each time is lost on its way: nothing is answered in its
//! place, to nobody.

mod common;

use common::{KEEP, Scratch, events, lacks, lacks_tracking, until};
use std::os::unix::net::UnixDatagram;
use std::process::Command;

fn ask(client: &UnixDatagram, text: &str) -> String {
    client.send(text.as_bytes()).expect("sent");
    answer(client)
}

fn answer(client: &UnixDatagram) -> String {
    let mut bytes = [0; 16];
    let count = client.recv(&mut bytes).expect("answered");
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

#[test]
fn a_datagram_that_kills_is_lost_on_its_way() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    for how in ["polls", "drains"] {
        let scratch = Scratch::new(&format!("datagram-{how}"));
        let (program, socket, log) = (scratch.join("datagrams"), scratch.join("socket"), scratch.join("events"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/datagrams.c");
        let compiled = Command::new("cc").args(["-O1", source, "-o"]).arg(&program).status();
        assert!(compiled.expect("cc").success());
        let mut keeper = Command::new(KEEP)
            .args(["--log", "--every", "60s", "--events"])
            .arg(&log)
            .arg("--")
            .args([&program, &socket])
            .arg(how)
            .spawn()
            .expect("orbit-keep");
        until("it is kept", || events(&log).into_iter().find(|e| e["event"] == "kept"));
        let [innocent, other] = ["innocent", "other"].map(|name| {
            let client = UnixDatagram::bind(scratch.join(name)).expect("bound");
            client.connect(&socket).expect("it is bound");
            client.set_read_timeout(Some(common::PATIENCE)).expect("set");
            client
        });
        assert_eq!((ask(&other, "x"), ask(&innocent, "x")), ("1".into(), "2".into()));
        other.send(b"p").expect("sent");
        let recovered = until("it recovers", || events(&log).into_iter().find(|e| e["event"] == "recovered"));
        let lost = recovered["lost"][0].as_str().unwrap_or_default();
        assert!(
            recovered["rung"] == "drop" && lost.starts_with("the input of 1 bytes") && !lost.contains("connection"),
            "{recovered}"
        );
        assert_eq!(ask(&innocent, "x"), "3", "{how}: nothing that it did not ask for");
        assert_eq!(ask(&other, "x"), "4", "{how}");
        innocent.send(b"e").expect("sent");
        let status = until("it ends", || keeper.try_wait().expect("a child"));
        assert_eq!(status.code(), Some(7), "{how}: its own status");
    }
}
