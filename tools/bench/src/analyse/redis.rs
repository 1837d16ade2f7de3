//! Redis' slow log and its save to a file (the paper's t6 and t7), as the stock server runs them in
//! its own thread.

use orbit_console::out::Failure;
use orbit_redis_rdb::Connection;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Keys and values of all types and of both of their encodings where they have two, and a save.
pub const SAVE: [&[&str]; 12] = [
    &["SET", "number", "12345678901"],
    &["SET", "short", "value"],
    &["SET", "long", LONG],
    &["SET", "expires", "v", "EX", "1000"],
    &["RPUSH", "list", "a", "b", "c"],
    &["SADD", "numbers", "1", "2", "3"],
    &["SADD", "set", "a", "b", "c"],
    &["HSET", "hash", "f", "v", "g", LONG],
    &["ZADD", "sorted", "1", "a", "2", LONG],
    &["XADD", "stream", "1-1", "f", "v"],
    &["FUNCTION", "LOAD", "#!lua name=lib\nredis.register_function('f', function() return 1 end)"],
    &["SAVE"],
];
/// Commands with short, long and many arguments from a named client; the log has room for four, so
/// old entries leave it.
pub const SLOW: [&[&str]; 8] = [
    &["CLIENT", "SETNAME", "me"],
    &["SET", "short", "value"],
    &["SET", "long", LONG],
    &["SET", "number", "12345"],
    &["RPUSH", "list", "a", "b", "c", "d"],
    &["GET", "short"],
    &["EVAL", "return 1", "0"],
    &["GET", "long"],
];
/// Longer than what Redis keeps beside an object's header.
const LONG: &str = "0123456789012345678901234567890123456789012345678901234567890123456789";

/// Has `watch` run a stock server to its end, which gets these commands meanwhile.
pub fn run<T>(
    commands: &[&[&str]],
    watch: impl FnOnce(Vec<OsString>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let directory = std::env::temp_dir().join(format!("orbit-bench-analyse-redis-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let done = watch_in(&directory, commands, watch);
    // A directory of this process; what is left in it is of no use.
    let _ = std::fs::remove_dir_all(&directory);
    done
}

fn watch_in<T>(
    directory: &Path,
    commands: &[&[&str]],
    watch: impl FnOnce(Vec<OsString>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let socket = directory.join("s");
    let words =
        ["redis-server", "--port", "0", "--save", "", "--slowlog-log-slower-than", "0", "--slowlog-max-len", "4"];
    let mut program: Vec<OsString> = words.map(OsString::from).into();
    program.extend(["--unixsocket".into(), socket.clone().into(), "--dir".into(), directory.into()]);
    program.extend(["--logfile".into(), directory.join("log").into()]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| drive(&socket, commands, &is_over));
        let watched = watch(program);
        is_over.store(true, Ordering::Relaxed);
        let driven = client.join().map_err(|_| Failure::text("the client's thread ended"))?;
        let watched = watched?;
        driven?;
        Ok(watched)
    })
}

/// A client: the commands, then the server's end.
fn drive(socket: &Path, commands: &[&[&str]], is_over: &AtomicBool) -> std::io::Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    let mut connection = loop {
        match Connection::open(socket) {
            Ok(connection) => break connection,
            Err(error) if is_over.load(Ordering::Relaxed) || Instant::now() > until => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    for words in commands {
        let said = connection.run(words)?;
        if said.starts_with('-') {
            return Err(std::io::Error::other(format!("{}: {said}", words[0])));
        }
    }
    // The server ends without an answer.
    let _ = connection.run(&["SHUTDOWN", "NOSAVE"]);
    Ok(())
}
