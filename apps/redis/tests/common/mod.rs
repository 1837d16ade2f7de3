//! A real server with the module, in a directory of its own; both gone when it is dropped.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use orbit_testing::Folder;
use redis::{Connection, Value};

pub use orbit_testing::PATIENCE;

pub struct Server {
    child: Child,
    dir: Folder,
}

/// The module that cargo has built with this test.
pub fn module() -> PathBuf {
    let program = std::env::current_exe().expect("own path");
    let deps = program.parent().expect("a directory");
    let found = [deps, deps.parent().expect("a directory")].map(|dir| dir.join("liborbit_redis.so"));
    found.into_iter().find(|path| path.exists()).expect("cargo builds the module with its tests")
}

impl Server {
    /// Starts a server with the module and these arguments of it; `None`, having said so, where
    /// there is no server.
    pub fn start(arguments: &str) -> Option<Server> {
        if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIP: needs redis-server (Debian: apt-get install redis-server)");
            return None;
        }
        let dir = Folder::new("redis");
        let log = std::fs::File::create(dir.join("log")).expect("a log");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", "s", "--save", "", "--appendonly", "no"])
            .args(["--enable-module-command", "yes", "--enable-debug-command", "yes", "--loadmodule"])
            .arg(module())
            .args(arguments.split_whitespace())
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log)
            .spawn()
            .expect("redis-server starts");
        let mut server = Server { child, dir };
        let until = Instant::now() + PATIENCE;
        while !server.dir.join("s").exists() || server.try_connect().is_none() {
            let ended = server.child.try_wait().expect("its state");
            assert!(ended.is_none() && Instant::now() < until, "the server did not start:\n{}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn log(&self) -> String {
        self.dir.read("log")
    }

    fn try_connect(&self) -> Option<Connection> {
        let address = format!("redis+unix://{}", self.dir.join("s").display());
        let mut connection = redis::Client::open(address).expect("an address").get_connection().ok()?;
        redis::cmd("PING").query::<String>(&mut connection).ok()?;
        Some(connection)
    }

    pub fn connect(&self) -> Connection {
        self.try_connect().unwrap_or_else(|| panic!("no connection:\n{}", self.log()))
    }

    /// Waits until the server has ended.
    pub fn wait(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().expect("its state").is_none() {
            assert!(Instant::now() < until, "the server did not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

/// One command, in words.
pub fn run(connection: &mut Connection, words: &str) -> Value {
    command(words).query(connection).unwrap_or_else(|e| panic!("{e}"))
}

/// The same for a command that is a call into the orbit; made again if it never ran: on a loaded
/// machine its deadline may come first, or the end of the call before it takes it along.
pub fn run_in_orbit(connection: &mut Connection, words: &str) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = command(words).query::<Value>(connection);
        let said = match &answer {
            Ok(answer @ (Value::SimpleString(_) | Value::BulkString(_))) => text(answer),
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        let never_ran = said.contains("before it had begun") || said.contains("cancelled before it ran");
        if !never_ran || Instant::now() > until {
            return answer.unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

fn command(words: &str) -> redis::Cmd {
    let mut words = words.split_whitespace();
    let mut command = redis::cmd(words.next().expect("a command"));
    words.for_each(|word| {
        command.arg(word);
    });
    command
}

pub fn number(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        other => panic!("not a number: {other:?}"),
    }
}

pub fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".to_owned(),
        other => panic!("not a string: {other:?}"),
    }
}

pub fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        other => panic!("not a list: {other:?}"),
    }
}

/// Entries of a `GET`, the newest first.
pub fn entries(answer: Value) -> Vec<Vec<Value>> {
    let entries: Vec<_> = list(answer).into_iter().map(list).collect();
    assert!(entries.iter().all(|entry| entry.len() == 6), "{entries:?}");
    entries
}

/// Whether an entry of Redis' own log is about a command that a module ran: its client has no
/// connection.
pub fn by_module(entry: &[Value]) -> bool {
    matches!(text(&entry[4]).as_str(), "?:0" | "")
}

/// All entries of Redis' own log since the module was loaded with the server, the newest first, as
/// if its reads of that log were no commands: without those, and numbered without them.
pub fn redis_own(connection: &mut Connection) -> Vec<Vec<Value>> {
    let mut entries = entries(run(connection, "SLOWLOG GET -1"));
    assert!(entries.last().is_none_or(|oldest| number(&oldest[0]) == 0), "it goes back to the start");
    entries.retain(|entry| !(by_module(entry) && text(&list(entry[3].clone())[0]) == "SLOWLOG"));
    // What it did to load comes before its log.
    while entries.last().is_some_and(|entry| by_module(entry)) {
        entries.pop();
    }
    let count = entries.len() as i64;
    for (entry, id) in entries.iter_mut().zip((0..count).rev()) {
        entry[0] = Value::Int(id);
    }
    entries
}

/// What `ORBIT.INFO` says.
pub fn info(connection: &mut Connection) -> HashMap<String, String> {
    let answer = text(&run(connection, "ORBIT.INFO"));
    answer.lines().filter_map(|line| line.split_once(':')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// One number of it.
pub fn count(connection: &mut Connection, name: &str) -> u64 {
    let info = info(connection);
    info.get(name).and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("no number {name} in {info:?}"))
}
