//! Two network namespaces as two nodes, an agent on each, and a real server on one of them.

use crate::guard_common::{Dir, Owned, signal, until};
use crate::running::Agent;
use orbit_testing::{Authority, needs_root};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Two namespaces with a cable between them; removed at the end, with what is in them.
struct Cable {
    names: [String; 2],
}

const ADDRESSES: [&str; 2] = ["10.213.7.1", "10.213.7.2"];

impl Cable {
    /// Nothing where none can be made.
    fn new() -> Option<Cable> {
        let names = ["a", "b"].map(|end| format!("orbit-{end}-{}", std::process::id()));
        let cable = Cable { names };
        for name in &cable.names {
            if !ip(&["netns", "add", name]) {
                return None;
            }
        }
        let [a, b] = &cable.names;
        let joined = ["link", "add", "wire", "netns", a, "type", "veth", "peer", "name", "wire", "netns", b];
        if !ip(&joined) {
            return None;
        }
        for (name, address) in cable.names.iter().zip(ADDRESSES) {
            assert!(ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", "wire"]));
            assert!(ip(&["-n", name, "link", "set", "wire", "up"]) && ip(&["-n", name, "link", "set", "lo", "up"]));
        }
        Some(cable)
    }

    fn set(&self, state: &str) {
        assert!(ip(&["-n", &self.names[1], "link", "set", "wire", state]));
    }

    /// A command on one of the nodes.
    fn on(&self, nth: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[nth], program]);
        command
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    let ran = Command::new("ip").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    ran.is_ok_and(|status| status.success())
}

/// Asks a server over and over, on many connections: how it answers is soon known.
const CLIENT: &str = "
import itertools, socket, sys, time
for to in itertools.cycle([socket.create_connection((sys.argv[1], 6379)) for _ in range(20)]):
    to.sendall(b'PING\\r\\n')
    assert to.recv(64) == b'+PONG\\r\\n'
    time.sleep(0.005)
";

#[test]
fn a_hang_names_the_process_on_the_other_node_and_a_lost_node_is_said() {
    if !needs_root() {
        return;
    }
    for tool in ["redis-server", "python3"] {
        if !orbit_testing::has(tool) {
            return println!("SKIP: needs {tool}");
        }
    }
    let Some(authority) = Authority::new() else { return println!("SKIP: needs openssl") };
    let Some(cable) = Cable::new() else { return println!("SKIP: needs network namespaces (ip netns, veth)") };
    let (here, there) = (Dir::new("node-a"), Dir::new("node-b"));
    let config = |node: &str, names: &[&str], more: &str| {
        let (certificate, key) = authority.sign(node, names);
        format!("[remote]\ncertificate = {certificate:?}\nkey = {key:?}\nca = {:?}\n{more}", authority.ca())
    };
    let node = |program: &str, nth: usize| cable.on(nth, program);
    let orbit = env!("CARGO_BIN_EXE_orbit");
    let served = config("db1", &[], &format!("listen = \"{}:9107\"\n", ADDRESSES[1]));
    let other = Agent::start_by(&there, &served, node(orbit, 1));
    let grants = ["P_NET", "P_SCHL"].map(|pin| format!("URI:orbit:pin/{pin}"));
    let more = format!(
        "[[remote.node]]\nname = \"db1\"\naddress = \"{}:9107\"\n\
         [[policy]]\nname = \"web\"\nmatch = {{ command = \"orbit-asks\" }}\nwatch = {{ limit = \"1s\" }}\n",
        ADDRESSES[1]
    );
    let asks = config("web1", &grants.each_ref().map(String::as_str), &more);
    let redis = node("redis-server", 1)
        .args(["--bind", ADDRESSES[1], "--port", "6379", "--save", "", "--protected-mode", "no"])
        .current_dir(&there.0)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server");
    let redis = Owned(redis);
    let server = redis.0.id() as i32;
    until("redis", || {
        let ping = node("redis-cli", 1).args(["-h", ADDRESSES[1], "ping"]).output().expect("redis-cli");
        ping.stdout.starts_with(b"PONG").then_some(())
    });
    let python = here.0.join("orbit-asks");
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().expect("python3");
    std::os::unix::fs::symlink(String::from_utf8_lossy(&found.stdout).trim(), &python).expect("a link");
    let client =
        node(python.to_str().expect("a name"), 0).args(["-c", CLIENT, ADDRESSES[1]]).spawn().expect("the client");
    let _client = Owned(client);
    let agent = Agent::start_by(&here, &asks, node(orbit, 0));
    agent.watches("web", 1);
    let heard = |state: &str| {
        until("the node's state", || {
            let status = agent.status();
            (status["nodes"][0]["state"] == state).then_some(status)
        })
    };
    heard("heard");
    assert!(other.log().contains("node web1 has connected"), "{}", other.log());
    let hang = || -> Option<Value> { agent.status()["hangs"].get(0).cloned() };
    // How long an answer takes has to be known first; nothing says when it is.
    let mut learning = 5;
    let why = loop {
        std::thread::sleep(Duration::from_secs(learning));
        signal(server, libc::SIGSTOP);
        let until = Instant::now() + Duration::from_secs(2 * learning);
        let found = std::iter::repeat_with(hang).take_while(|_| Instant::now() < until).flatten().next();
        signal(server, libc::SIGCONT);
        match found {
            Some(found) => break found["why"].as_str().expect("a sentence").to_owned(),
            None => learning *= 3,
        }
        assert!(learning < 100, "no hang is reported: {}", agent.log());
    };
    let said = format!("it waits for redis-server (process {server} on node db1), which is stopped");
    assert!(why.contains(&said), "{why}");
    let written = until("its report", || {
        agent.reports().iter().find_map(|path| serde_json::from_slice::<Value>(&std::fs::read(path).ok()?).ok())
    });
    assert_eq!(
        (&written["waits_for"]["node"], &written["waits_for"]["pid"]),
        (&Value::from("db1"), &Value::from(server)),
        "{written}"
    );
    until("its end", || hang().is_none().then_some(()));
    // The cable is cut: half open on both sides.
    cable.set("down");
    let status = heard("lost");
    assert!(status["nodes"][0]["why"].as_str().is_some_and(|why| why.contains("nothing was heard")), "{status}");
    let why = until("a hang", hang)["why"].as_str().expect("a sentence").to_owned();
    assert!(why.contains(":6379 on node db1: who serves it is not known:"), "{why}");
    until("the log", || agent.log().contains("node db1 is lost").then_some(()));
    cable.set("up");
    heard("heard");
    until("the log", || agent.log().contains("node db1 is back").then_some(()));
}
