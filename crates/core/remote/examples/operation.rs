//! What an operation of another node's pin takes, over loopback with mutual TLS, beside the same
//! operation here: medians and 99th percentiles.

use orbit_remote::files::Files;
use orbit_remote::link::{CALL_TIME, Link, Node, Standing};
use orbit_remote::server;
use orbit_rmk::Command;
use orbit_testing::{Authority, until};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TIMES: usize = 10_000;

fn thread(name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(|_| ())
}

fn main() {
    let authority = Authority::new().expect("openssl");
    let files = |node: &str, names: &[&str]| {
        let (certificate, key) = authority.sign(node, names);
        Files { certificate, key, ca: authority.ca() }
    };
    let core = || orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let any = ([127, 0, 0, 1], 0).into();
    let say: server::Say = Arc::new(|text: &str| println!("{text}"));
    let address = server::serve(core(), any, files("db1", &[]), thread, say).expect("served");
    let names = ["URI:orbit:pin/P_SCHL"];
    let link = Link::start(Node { name: "db1".into(), address }, files("web1", &names), thread).expect("a thread");
    until("the link", || matches!(link.standing(), Standing::Up { .. }));
    let ask = Command::ThreadTimes { pid: std::process::id() };
    let there = times(|| drop(link.command(1, "P_SCHL", &ask, CALL_TIME).expect("granted")));
    let own = core();
    let module = own.client("here");
    module.use_pin("P_SCHL").expect("the pin");
    let here = times(|| drop(module.issue_cmd("P_SCHL", &ask).expect("the pin")));
    for (what, times) in [("another node's", there), ("here", here)] {
        println!("{what}: {:?} (p50), {:?} (p99) of {TIMES}", times[TIMES / 2], times[TIMES * 99 / 100]);
    }
}

fn times(mut operation: impl FnMut()) -> Vec<Duration> {
    let mut all: Vec<Duration> = (0..TIMES)
        .map(|_| {
            let start = Instant::now();
            operation();
            start.elapsed()
        })
        .collect();
    all.sort();
    all
}
