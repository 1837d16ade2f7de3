//! The managers of memory and descriptors, on a server of ours and a program that publishes its
//! cache.

mod common;

use common::{host, is_root, until};
use orbit_services::{Budget, Dispatch, GrantRequest, Host, Program, Spec, objects};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A manager, with a budget that a handler of microseconds exceeds only if the machine stands
/// still: what a hypervisor takes is charged to whoever runs.
fn service(name: &str, owner: i32, grants: &[String]) -> Spec {
    Spec {
        name: name.to_owned(),
        owner,
        budget: Budget::new(Duration::from_millis(4), Duration::from_millis(10)).expect("a budget"),
        period: Duration::from_millis(10),
        dispatch: Dispatch::Upcall,
        raise: None,
        arguments: Vec::new(),
        grants: grants.iter().map(|text| text.parse().expect("a grant")).collect(),
    }
}

/// `examples/services/connections.c`, with a limit of 64 descriptors.
struct Server(Child, std::path::PathBuf, u16, BufReader<std::process::ChildStdout>);

impl Server {
    fn start(host: &Host) -> Server {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
        let program = std::env::temp_dir().join(format!(
            "orbit-connections-{:?}-{}",
            std::thread::current().id(),
            std::process::id()
        ));
        let done = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
            .arg(format!("-I{root}/crates/serve/services/include"))
            .arg("-o")
            .arg(&program)
            .arg(format!("{root}/examples/services/connections.c"))
            .status()
            .expect("cc");
        assert!(done.success());
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -n 64; exec \"$0\" 0"])
            .arg(&program)
            .env(orbit_services::Invitation::VARIABLE, host.invitation().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server");
        let mut line = String::new();
        // Kept open: the server writes to it.
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("its port");
        Server(child, program, line.trim().parse().expect("a port"), output)
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// What it printed, once it is killed.
    fn output(&mut self) -> String {
        let _ = self.0.kill();
        let mut text = String::new();
        let _ = self.3.read_to_string(&mut text);
        text
    }

    /// A connection that is served, if the server has a descriptor for it within ten seconds.
    fn connect(&self) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.2)).expect("the backlog has room");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        stream.write_all(b"x").ok()?;
        stream.read_exact(&mut [0]).ok().map(|()| stream)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_file(&self.1);
    }
}

#[test]
fn idle_connections_are_closed_near_the_limit_so_that_new_ones_are_served() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let mut server = Server::start(&host);
    let pid = server.pid();
    let idle = GrantRequest::get("descriptors:idle", pid);
    until("it publishes", || host.attribute(&idle, None).is_ok());
    let open = GrantRequest::get("descriptors:open", pid);
    if let Err(error) = host.attribute(&open, None) {
        return println!("SKIP: needs Linux 6.2: {error}");
    }
    assert_eq!(host.attribute(&GrantRequest::get("descriptors:limit", pid), None), Ok(64));
    assert_eq!(host.attribute(&idle, None), Ok(60_000));
    let grants = [
        format!("descriptors:open:get(pid={pid})"),
        format!("descriptors:limit:get(pid={pid})"),
        format!("descriptors:idle:set(pid={pid},min=500,max=60000)"),
    ];
    let id = host.load(&service("descriptors", pid, &grants), objects::DESCRIPTORS).expect("loaded");
    // Three times as many connections as the server may have open, all kept.
    let mut kept = Vec::new();
    for nth in 0..200 {
        match server.connect() {
            Some(connection) => kept.push(connection),
            None => {
                let (idle, open) = (host.attribute(&idle, None), host.attribute(&open, None));
                panic!("connection {nth}: {idle:?} {open:?} {:?} {}", host.status(id), server.output());
            }
        }
    }
    let mut now = || host.attribute(&open, None).inspect_err(|error| println!("not read: {error}"));
    until("no more than its limit are open", || now().is_ok_and(|open| open <= 64));
    drop(kept);
    until("with descriptors to spare it is patient again", || host.attribute(&idle, None) == Ok(60_000));
    let account = host.status(id).expect("loaded").account;
    assert_eq!(account.aborts(), 0, "{account:?}");
}

#[test]
fn without_the_service_the_same_server_runs_out_of_descriptors() {
    let host = host_without_rights();
    let server = Server::start(&host);
    let kept: Vec<_> = (0..65).map_while(|_| fast(&server)).collect();
    assert!(kept.len() < 64, "64 descriptors, some of them the server's own");
}

/// As [`Server::connect`], but waits for five seconds only.
fn fast(server: &Server) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.2)).expect("the backlog has room");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    stream.write_all(b"x").ok()?;
    stream.read_exact(&mut [0]).ok().map(|()| stream)
}

/// A host whose agents are ordinary processes.
fn host_without_rights() -> Host {
    Host::new(orbit_services::Options { cpus: vec![common::cpu()], agent_priority: 0, ..Default::default() })
        .expect("a host")
}

#[test]
fn a_published_cache_is_asked_to_shrink_within_its_range_and_gets_back_what_it_was() {
    let mut host = host_without_rights();
    let me = std::process::id() as i32;
    let program = Program::connect(&host.invitation()).expect("connected");
    let mut cache = program.publish("memory:cache", (1 << 20, 64 << 20), 64 << 20).expect("published");
    assert!(program.publish("cpu:nice", (0, 1), 0).is_err(), "not a program's to publish");
    let grants = [format!("memory:cache:set(pid={me},min=4194304)")];
    let mut spec = service("memory", me, &grants);
    spec.period = Duration::ZERO;
    let id = host.load(&spec, objects::MEMORY).expect("loaded");
    // As a pressure event does, by hand: the handler ignores what is posted, so each value comes
    // from a source.
    let source = orbit_services::Source::parse("psi=cpu:1ms/2s", me).expect("a source");
    if let Err(error) = host.watch(id, &source) {
        return println!("SKIP: needs pressure stall information: {error}");
    }
    let load: Vec<_> = (0..3).map(|_| common::Busy::start()).collect();
    let (mut last, begin) = (64 << 20, std::time::Instant::now());
    while last > 30 << 20 {
        assert!(begin.elapsed() < common::PATIENCE, "{last}");
        if let Some(value) = cache.wait(Duration::from_millis(100)) {
            assert_eq!(value, (last - last / 4).max(4 << 20), "a quarter less");
            cache.report(value);
            last = value;
        }
    }
    drop(load);
    host.unload(id).expect("unloaded");
    assert_eq!(cache.wait(Duration::from_secs(10)), Some(64 << 20), "as it was before the service");
    drop(cache);
    assert!(host.attribute(&GrantRequest::get("memory:cache", me), None).is_err(), "withdrawn");
    assert!(program.has_host());
    drop(host);
}

/// A control group of the cpu controller, of either version; `None` where none can be made. Removed
/// when this is dropped.
struct Group(std::path::PathBuf, bool);

impl Group {
    fn make() -> Option<Group> {
        let name = format!("orbit-test-weight-{}", std::process::id());
        // The second version first: there the root has the controller for its children, or not.
        for (root, is_first) in [("/sys/fs/cgroup", false), ("/sys/fs/cgroup/cpu", true)] {
            let folder = std::path::Path::new(root).join(&name);
            if std::fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Group(folder, is_first);
            if group.0.join(if is_first { "cpu.shares" } else { "cpu.weight" }).exists() {
                return Some(group);
            }
        }
        None
    }

    fn read(&self, second: &str, first: &str) -> String {
        std::fs::read_to_string(self.0.join(if self.1 { first } else { second }))
            .expect("a file of the group")
            .trim()
            .to_owned()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        until("the group is empty", || std::fs::remove_dir(&self.0).is_ok() || !self.0.exists());
    }
}

#[test]
fn a_weight_and_a_maximum_are_set_in_the_control_group_of_a_process_and_put_back() {
    if !is_root() {
        return;
    }
    let Some(group) = Group::make() else { return println!("SKIP: needs a control group with the cpu controller") };
    let target = common::Killed::sleeper();
    std::fs::write(group.0.join("cgroup.procs"), target.pid().to_string()).expect("moved");
    let mut host = host();
    let me = std::process::id() as i32;
    let requests = [GrantRequest::set("cpu:weight", target.pid()), GrantRequest::set("cpu:max", target.pid())];
    let before = (group.read("cpu.weight", "cpu.shares"), group.read("cpu.max", "cpu.cfs_quota_us"));
    let grants = host.grant(me, &requests).expect("granted");
    for (grant, value) in grants.iter().zip([50, 30]) {
        grant.set(value).1.expect("set");
        assert_eq!(grant.read().expect("read"), value);
    }
    let set = (group.read("cpu.weight", "cpu.shares"), group.read("cpu.max", "cpu.cfs_quota_us"));
    let expected = if group.1 { ("512", "30000") } else { ("50", "30000 100000") };
    assert_eq!((set.0.as_str(), set.1.as_str()), expected);
    host.release(&grants);
    assert_eq!((group.read("cpu.weight", "cpu.shares"), group.read("cpu.max", "cpu.cfs_quota_us")), before);
    drop(target);
}

#[test]
fn without_a_control_group_a_weight_is_a_niceness_and_a_maximum_is_refused() {
    if !is_root() {
        return;
    }
    let target = common::Killed::sleeper();
    if orbit_services::group::has_group(target.pid()) {
        return println!("SKIP: needs a process without a control group of its own");
    }
    let mut host = host();
    let before = orbit_linux::sched::nice(target.pid()).expect("its niceness");
    let grants =
        host.grant(std::process::id() as i32, &[GrantRequest::set("cpu:weight", target.pid())]).expect("granted");
    grants[0].set(10).1.expect("set");
    assert_eq!(orbit_linux::sched::nice(target.pid()).expect("its niceness"), 10);
    host.release(&grants);
    assert_eq!(orbit_linux::sched::nice(target.pid()).expect("its niceness"), before);
    let max = host.attribute(&GrantRequest::set("cpu:max", target.pid()), Some(10)).expect_err("no group");
    assert!(max.to_string().contains("control group"), "{max}");
}
