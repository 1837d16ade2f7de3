//! A server of its own: directory, socket, log.

use orbit_linux::child::Exit;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::connection::Connection;
use crate::{PATIENCE, wait_until};

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("extension")
}

/// Builds the module into the target directory, if anything of it changed, and returns its path.
///
/// # Errors
/// What `make` said.
pub fn build() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(make).clone()
}

fn make() -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| source().join("../../../target"), PathBuf::from);
    let out = target.join("orbit-redis-rdb");
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    // Several test programs build at a time: flock lets one make after the other.
    let made = Command::new("flock")
        .arg(out.join("lock"))
        .args(["make", "-s", "-C"])
        .arg(source())
        .arg(format!("BUILD={}", out.display()))
        .arg(format!("TARGET={}", target.display()))
        .output()
        .map_err(|error| format!("flock make: {error}"))?;
    if !made.status.success() {
        return Err(format!("make: {}", String::from_utf8_lossy(&made.stderr)));
    }
    Ok(out.join("orbit_rdb.so"))
}

/// A running server. Dropping it kills the server and removes its directory.
pub struct Server {
    child: Child,
    directory: PathBuf,
}

impl Server {
    /// A server with the module; `None`, having said so, where Redis 7.0 is missing.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start(arguments: &[&str]) -> Option<Server> {
        Server::start_with(&[], arguments)
    }

    /// The same with these settings of the module.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_with(settings: &[&str], arguments: &[&str]) -> Option<Server> {
        let module = build().unwrap_or_else(|error| panic!("the module does not build: {error}"));
        let module = fs::canonicalize(module).expect("the module");
        Server::start_file(&module, settings, arguments)
    }

    /// The same with this file of the module.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_file(module: &Path, settings: &[&str], arguments: &[&str]) -> Option<Server> {
        let settings = [&["faults", "yes"], settings].concat();
        Server::start_in(make_directory(), Some((module, &settings, true)), arguments)
    }

    /// A server with another module, its settings, and nothing preloaded; `None`, having said so,
    /// where Redis 7.0 is missing.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_module(module: &Path, settings: &[&str]) -> Option<Server> {
        Server::start_in(make_directory(), Some((module, settings, false)), &[])
    }

    /// A server as it is installed.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_stock(arguments: &[&str]) -> Option<Server> {
        Server::start_in(make_directory(), None, arguments)
    }

    fn start_in(directory: PathBuf, module: Option<(&Path, &[&str], bool)>, arguments: &[&str]) -> Option<Server> {
        let version =
            Command::new("redis-server").arg("--version").output().map(|said| said.stdout).unwrap_or_default();
        let version = String::from_utf8_lossy(&version).into_owned();
        if !version.contains("v=7.0.") || !version.contains("malloc=jemalloc") {
            println!("SKIP: needs redis-server 7.0 with jemalloc (Debian 12: apt-get install redis-server)");
            return None;
        }
        let log = fs::File::create(directory.join("log")).expect("a log");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--unixsocket", "s", "--save", "", "--enable-module-command", "yes"]);
        command.args(["--enable-debug-command", "yes"]).args(arguments).current_dir(&directory);
        if let Some((module, settings, is_preloaded)) = module {
            command.arg("--loadmodule").arg(module).args(settings);
            if is_preloaded {
                command.env("LD_PRELOAD", module);
            }
        }
        let child = command.stdin(Stdio::null()).stderr(log.try_clone().expect("a log")).stdout(log).spawn();
        let mut server = Server { child: child.expect("redis-server starts"), directory };
        wait_until("the server answers", || {
            let ended = server.child.exited().expect("its state");
            assert!(ended.is_none(), "the server did not start:\n{}", server.log());
            Connection::open(&server.socket()).is_ok_and(|mut c| c.run(&["PING"]).is_ok_and(|pong| pong == "PONG"))
        });
        Some(server)
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    /// What it has written to its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// A new client.
    ///
    /// # Panics
    /// With the log, where it cannot connect.
    pub fn connect(&self) -> Connection {
        Connection::open(&self.socket()).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// One command, in words, by a client of its own.
    ///
    /// # Panics
    /// With the log, where the connection is lost.
    pub fn run(&self, words: &str) -> String {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.connect().run(&words).unwrap_or_else(|error| panic!("{words:?}: {error}\n{}", self.log()))
    }

    /// A field of `INFO`, or of `ORBIT.RDB INFO`.
    ///
    /// # Panics
    /// Where there is none.
    pub fn field(&self, command: &str, name: &str) -> String {
        let text = self.run(command);
        let value = text.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("{command} has no {name}: {text}")).to_owned()
    }

    /// The same as a number.
    ///
    /// # Panics
    /// Where it is none.
    pub fn number(&self, command: &str, name: &str) -> u64 {
        self.field(command, name).parse().expect("a number")
    }

    /// Waits until no background save is running. Returns whether the last one was good.
    pub fn wait_for_save(&self) -> bool {
        wait_until("the save has ended", || self.number("INFO persistence", "rdb_bgsave_in_progress") == 0);
        self.field("INFO persistence", "rdb_last_bgsave_status") == "ok"
    }

    /// Waits until the log contains this.
    ///
    /// # Panics
    /// With the log, where it does not.
    pub fn wait_for_log(&self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < until, "not in the log: {text}\n{}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) {
        wait_until("the server has ended", || self.child.exited().expect("its state").is_some());
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait_for_exit();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn make_directory() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("orbit-rdb-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let directory = std::env::temp_dir().join(name);
    fs::create_dir_all(&directory).expect("a directory");
    directory
}
