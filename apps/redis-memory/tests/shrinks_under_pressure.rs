//! A real Redis server with the module, in a control group that it shares with a program whose file
//! does not fit beside the cache: the service lowers `maxmemory`, Redis evicts, and it gets back
//! what it had when the service is gone.

use orbit_services::{Budget, Dispatch, Host, Options, Source, Spec, objects};
use orbit_testing::{needs_root, until};
use redis::Connection;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Processes, files and groups that are gone when this is dropped.
struct Stage {
    children: Vec<Child>,
    folder: PathBuf,
    groups: Vec<PathBuf>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for group in &self.groups {
            let begin = Instant::now();
            while fs::remove_dir(group).is_err() && group.exists() && begin.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A control group with a limit of memory and a pressure file: in version 2, or in both, where
/// memory is version 1's.
fn groups(name: &str, limit: u64) -> Result<Vec<PathBuf>, String> {
    let make = |parent: &str, file: &str| -> std::io::Result<PathBuf> {
        let group = Path::new(parent).join(name);
        fs::create_dir(&group)?;
        if !file.is_empty()
            && let Err(error) = fs::write(group.join(file), limit.to_string())
        {
            let _ = fs::remove_dir(&group);
            return Err(error);
        }
        Ok(group)
    };
    if let Ok(group) = make("/sys/fs/cgroup", "memory.max") {
        return Ok(vec![group]);
    }
    let old = make("/sys/fs/cgroup/memory", "memory.limit_in_bytes").map_err(|error| error.to_string())?;
    match make("/sys/fs/cgroup/unified", "") {
        Ok(unified) => Ok(vec![old, unified]),
        Err(error) => {
            let _ = fs::remove_dir(old);
            Err(error.to_string())
        }
    }
}

fn module() -> PathBuf {
    let program = std::env::current_exe().expect("own path");
    let deps = program.parent().expect("a directory");
    let found = [deps, deps.parent().expect("a directory")].map(|dir| dir.join("liborbit_redis_memory.so"));
    found.into_iter().find(|path| path.exists()).expect("cargo builds the module with its tests")
}

fn connect(folder: &Path) -> Option<Connection> {
    let address = format!("redis+unix://{}", folder.join("s").display());
    let mut connection = redis::Client::open(address).expect("an address").get_connection().ok()?;
    redis::cmd("PING").query::<String>(&mut connection).ok()?;
    Some(connection)
}

fn maxmemory(connection: &mut Connection) -> i64 {
    let answer: Vec<String> = redis::cmd("CONFIG").arg("GET").arg("maxmemory").query(connection).expect("an answer");
    answer[1].parse().expect("a number")
}

fn used(connection: &mut Connection) -> i64 {
    let answer: String = redis::cmd("INFO").arg("memory").query(connection).expect("an answer");
    let line = answer.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a line");
    line.trim().parse().expect("a number")
}

/// What a test needs, in a folder and control groups of its own. `None`, and a line that says what
/// is missing.
fn stage(name: &str) -> Option<Stage> {
    if !needs_root() {
        return None;
    }
    if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("SKIP: needs redis-server (Debian: apt-get install redis-server)");
        return None;
    }
    if let orbit_linux::Support::No(why) = orbit_linux::pressure::probe() {
        println!("SKIP: needs pressure stall information: {why}");
        return None;
    }
    let name = format!("orbit-redis-{name}-{}", std::process::id());
    let groups = match groups(&name, 96 << 20) {
        Ok(groups) => groups,
        Err(why) => {
            println!("SKIP: needs control groups with memory limits: {why}");
            return None;
        }
    };
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder).expect("a folder");
    Some(Stage { children: Vec::new(), folder, groups })
}

const MOST: i64 = 64 << 20;

impl Stage {
    fn enter(&self) -> String {
        self.groups.iter().map(|group| format!("echo $$ > {}/cgroup.procs; ", group.display())).collect()
    }

    /// A server with the module and these arguments of it, with 56 MiB in its cache. Answers its
    /// process.
    fn server(&mut self, arguments: &[&str], invitation: &str) -> (i32, Connection) {
        let server = Command::new("sh")
            .args(["-c", &format!("{} exec redis-server \"$@\"", self.enter()), "sh"])
            .args(["--port", "0", "--unixsocket", "s", "--save", "", "--appendonly", "no"])
            .args(["--maxmemory", &MOST.to_string(), "--maxmemory-policy", "allkeys-lru"])
            .args(["--loadmodule"])
            .arg(module())
            .args(arguments)
            .env(orbit_services::Invitation::VARIABLE, invitation)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(fs::File::create(self.folder.join("log")).expect("a log"))
            .spawn()
            .expect("redis-server starts");
        let pid = server.id() as i32;
        self.children.push(server);
        until("the server answers", || connect(&self.folder).is_some());
        let mut connection = connect(&self.folder).expect("it answers");
        for nth in 0..56 {
            let value = vec![b'x'; 1 << 20];
            redis::cmd("SET").arg(format!("k{nth}")).arg(value).query::<()>(&mut connection).expect("set");
        }
        assert!(used(&mut connection) > 50 << 20);
        (pid, connection)
    }

    /// A program that reads a file again and again, which fits into the group alone, and not beside
    /// the cache.
    fn stall(&mut self) {
        let hot = self.folder.join("hot");
        fs::write(&hot, vec![7u8; 72 << 20]).expect("a file");
        fs::File::open(&hot).expect("the file").sync_all().expect("written");
        let reader = format!("{} while :; do cat {} > /dev/null; done", self.enter(), hot.display());
        self.children.push(Command::new("sh").args(["-c", &reader]).spawn().expect("sh"));
    }
}

#[test]
fn maxmemory_is_lowered_while_tasks_stall_and_put_back_when_the_service_is_gone() {
    let Some(mut stage) = stage("memory") else { return };
    let cpu = orbit_linux::sched::affinity(0).expect("own affinity")[0];
    let mut host = Host::new(Options { cpus: vec![cpu], ..Options::default() }).expect("a host");
    let (pid, mut connection) = stage.server(&[], &host.invitation().to_string());
    let before = used(&mut connection);
    let grant: orbit_services::GrantRequest =
        format!("memory:cache:set(pid={pid},min=8388608)").parse().expect("a grant");
    until("the module publishes", || host.attribute(&grant, None) == Ok(MOST));
    let spec = Spec {
        name: "memory".into(),
        owner: pid,
        budget: Budget::new(Duration::from_micros(500), Duration::from_millis(100)).expect("a budget"),
        period: Duration::ZERO,
        dispatch: Dispatch::Upcall,
        raise: None,
        arguments: Vec::new(),
        grants: vec![grant],
    };
    let id = host.load(&spec, objects::MEMORY).expect("loaded");
    host.watch(id, &Source::parse("psi=memory:150ms/2s", pid).expect("a source")).expect("watched");
    assert_eq!(maxmemory(&mut connection), MOST);
    stage.stall();
    until("a stall lowers maxmemory", || {
        host.tend();
        maxmemory(&mut connection) < MOST
    });
    until("the server evicts", || used(&mut connection) < before);
    println!("maxmemory {} of {MOST}, used {} of {before}", maxmemory(&mut connection), used(&mut connection));
    let account = host.status(id).expect("loaded").account;
    assert!(account.runs > 0 && account.aborts() == 0, "{account:?}");
    redis::cmd("SET").arg("still").arg("here").query::<()>(&mut connection).expect("it serves");
    host.unload(id).expect("unloaded");
    until("maxmemory is what it was", || maxmemory(&mut connection) == MOST);
}

/// The same by two commands: a dry run first, which sets nothing and says what it would have set.
#[test]
fn the_ready_service_keeps_a_cache_within_its_range() {
    let Some(mut stage) = stage("ready") else { return };
    let program = std::env::current_exe().expect("own path");
    let orbit = program.ancestors().nth(2).expect("a folder").join("orbit");
    let service = |arguments: &[&str]| Command::new(&orbit).arg("service").args(arguments).output();
    if !service(&["add", "--help"]).is_ok_and(|done| done.status.success()) {
        return println!("SKIP: needs orbit, of this state (cargo build --release -p orbit-cli)");
    }
    let socket = stage.folder.join("host.sock");
    let socket = socket.to_str().expect("text").to_owned();
    let host = Command::new(&orbit).args(["service", "run", "--socket", &socket]).stdout(Stdio::null()).spawn();
    stage.children.push(host.expect("a host"));
    let ask = |arguments: &[&str]| {
        let done = service(&[arguments, &["--socket", &socket]].concat()).expect("orbit");
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    until("the host answers", || service(&["ls", "--socket", &socket]).is_ok_and(|done| done.status.success()));
    let (pid, mut connection) = stage.server(&["socket", &socket], "");
    let before = used(&mut connection);
    let pid = pid.to_string();
    let add = ["add", "cache-by-pressure", "--pid", &pid, "--min", "8M"];
    until("the module publishes", || {
        service(&["attr", "memory:cache", &pid, "--socket", &socket]).is_ok_and(|done| done.status.success())
    });
    let id = ask(&[&add[..], &["--dry-run"]].concat());
    stage.stall();
    let would = format!("cache-by-pressure would have set memory:cache of {pid} to {}", MOST - MOST / 4);
    until("the dry run says so", || ask(&["log"]).contains(&would));
    assert_eq!(maxmemory(&mut connection), MOST, "a dry run sets nothing");
    ask(&["revoke", &id]);
    let id = ask(&add);
    until("a stall lowers maxmemory", || maxmemory(&mut connection) < MOST);
    until("the server evicts", || used(&mut connection) < before);
    let set = format!("cache-by-pressure set memory:cache of {pid} to {}", MOST - MOST / 4);
    until("it is in the log", || ask(&["log"]).contains(&set));
    assert!(maxmemory(&mut connection) >= 8 << 20);
    ask(&["revoke", &id]);
    until("maxmemory is what it was", || maxmemory(&mut connection) == MOST);
    assert!(ask(&["log"]).contains(&format!("memory:cache of {pid} put back")), "{}", ask(&["log"]));
}
