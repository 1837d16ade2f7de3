//! Running an agent and asking it.

use crate::guard_common::{Dir, Owned, signal, until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An agent that runs; ended when dropped.
pub struct Agent {
    child: Owned,
    pub folder: PathBuf,
}

impl Agent {
    /// Starts one with this configuration and waits until it answers.
    pub fn start(dir: &Dir, config: &str) -> Agent {
        Agent::start_by(dir, config, Command::new(env!("CARGO_BIN_EXE_orbit")))
    }

    /// The same by a command that becomes `orbit`.
    pub fn start_by(dir: &Dir, config: &str, mut orbit: Command) -> Agent {
        let config = dir.file("agent.toml", config);
        let log = std::fs::File::create(dir.0.join("agent.log")).expect("a file");
        let child = orbit
            .args(["agent", "--config"])
            .arg(config)
            .arg("--run-dir")
            .arg(dir.0.join("run"))
            .arg("--reports-dir")
            .arg(dir.0.join("reports"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("orbit");
        let agent = Agent { child: Owned(child), folder: dir.0.clone() };
        until("the agent", || agent.ask());
        agent
    }

    /// Its status, if it answers.
    pub fn ask(&self) -> Option<Value> {
        let socket = self.folder.join("run/agent.sock");
        let orbit = Command::new(env!("CARGO_BIN_EXE_orbit"))
            .args(["agent", "status", "--json", "--socket"])
            .arg(socket)
            .output()
            .expect("orbit");
        let read = || serde_json::from_slice(&orbit.stdout).expect("JSON");
        orbit.status.success().then(|| orbit_testing::described("agent-status", read()))
    }

    pub fn status(&self) -> Value {
        self.ask().unwrap_or_else(|| panic!("no answer: {}", self.log()))
    }

    /// Waits until so many processes of this policy are watched.
    pub fn watches(&self, policy: &str, processes: u64) {
        until("processes to be watched", || {
            let status = self.status();
            let of_policy = status["services"].as_array()?.iter().filter(|service| service["policy"] == policy);
            let watched: u64 = of_policy.filter_map(|service| service["processes"].as_u64()).sum();
            (watched >= processes).then_some(())
        });
    }

    /// The page of metrics.
    pub fn page(&self, accept: &str) -> String {
        let status = self.status();
        let mut stream = TcpStream::connect(status["metrics"].as_str().expect("an address")).expect("connected");
        write!(stream, "GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        body.to_owned()
    }

    /// The sum of the samples whose line begins so.
    pub fn figure(&self, begin: &str) -> f64 {
        let page = self.page("text/plain");
        let samples = page.lines().filter(|line| line.starts_with(begin));
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("agent.log")).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub fn hang_up(&self) {
        signal(self.child.0.id() as i32, libc::SIGHUP);
    }

    /// Ends it and waits for that.
    pub fn end(mut self) -> std::process::ExitStatus {
        signal(self.child.0.id() as i32, libc::SIGTERM);
        until("the agent's end", || self.child.0.try_wait().expect("a child"))
    }

    pub fn reports(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.join("reports")).expect("a folder").flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

/// A program of `tests/c/hangs.c` under a name of its own, so that a policy selects it alone.
pub fn program(dir: &Dir, name: &str) -> PathBuf {
    let built = crate::guard_common::build(dir, "hangs.c");
    let path = dir.0.join(name);
    orbit_testing::copy_of_program(built.as_ref(), &path);
    path
}

/// A program under this name that is well for as long as it is left alone: it sleeps.
pub fn well(dir: &Dir, name: &str) -> PathBuf {
    let folder = dir.0.join("well");
    std::fs::create_dir_all(&folder).expect("made");
    orbit_testing::copy_of_program("/bin/sleep".as_ref(), &folder.join(name));
    folder.join(name)
}

/// Starts it, in a control group if one is given.
pub fn start(program: &Path, way: &str, group: Option<&Group>) -> Owned {
    let mut command = match group {
        None => Command::new(program),
        Some(Group(path)) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(path).arg(program);
            shell
        }
    };
    Owned(command.arg(way).stdout(Stdio::null()).spawn().expect("started"))
}

/// A control group, removed at the end.
pub struct Group(PathBuf);

impl Group {
    /// One of this name below a slice of the test's own; `None`, with a line that says so, where
    /// none can be made.
    pub fn make(slice: &str, name: &str) -> Option<Group> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup"].map(Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.procs").exists());
        let path = root.map(|root| root.join(slice).join(name));
        match path {
            Some(path) if std::fs::create_dir_all(&path).is_ok() => Some(Group(path)),
            _ => {
                println!("SKIP: needs the right to make a control group");
                None
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes leave it when they are reaped, which may come a little later.
        for _ in 0..500 {
            if std::fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.0.parent().map(std::fs::remove_dir);
    }
}
