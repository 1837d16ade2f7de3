//! Where a thread is made to hang, and in what ways.

use std::path::PathBuf;

/// A program to hang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    Redis,
    Nginx,
    /// Any other program, with its arguments.
    Program(Vec<String>),
}

impl Host {
    /// Its name.
    pub fn name(&self) -> String {
        match self {
            Host::Redis => "redis".to_owned(),
            Host::Nginx => "nginx".to_owned(),
            Host::Program(all) => {
                let path = PathBuf::from(all.first().map_or("", String::as_str));
                path.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
        }
    }
}

/// One place: a function that a thread calls.
#[derive(Clone, Debug)]
pub struct Place {
    pub host: Host,
    pub function: &'static str,
    /// Another thread than the main one.
    pub side: bool,
    /// Of a name that begins so.
    pub comm: &'static str,
    /// Called some times a second at most: hangs at the first call or so, and is given time to be
    /// known.
    pub rare: bool,
}

impl Place {
    /// `redis bio_aof fdatasync`.
    pub fn name(&self) -> String {
        let thread = match (self.side, self.comm) {
            (false, _) => "main",
            (true, "") => "thread",
            (true, comm) => comm,
        };
        format!("{} {thread} {}", self.host.name(), self.function)
    }
}

const REDIS_MAIN: [&str; 13] = [
    "epoll_wait",
    "read",
    "write",
    "accept4",
    "close",
    "malloc",
    "gettimeofday",
    "qsort",
    "strcoll",
    "strtold",
    "getrusage",
    "asin",
    "command",
];
const REDIS_MAIN_RARE: [&str; 1] = ["rename"];
const NGINX_MAIN: [&str; 11] = [
    "epoll_wait",
    "accept4",
    "recv",
    "writev",
    "sendfile64",
    "open64",
    "close",
    "write",
    "gettimeofday",
    "malloc",
    "posix_memalign",
];
const PROGRAM_SIDE: [&str; 4] = ["usleep", "nanosleep", "clock_nanosleep", "malloc"];

/// All places of a Redis.
pub fn redis() -> Vec<Place> {
    let place = |function, side, comm, rare| Place { host: Host::Redis, function, side, comm, rare };
    let mut all: Vec<Place> = REDIS_MAIN.map(|function| place(function, false, "", false)).into();
    all.extend(REDIS_MAIN_RARE.map(|function| place(function, false, "", true)));
    all.push(place("free", true, "bio_lazy_free", false));
    all.push(place("fdatasync", true, "bio_aof", true));
    all
}

/// All places of an nginx worker.
pub fn nginx() -> Vec<Place> {
    let place = |function, side| Place { host: Host::Nginx, function, side, comm: "", rare: false };
    let mut all: Vec<Place> = NGINX_MAIN.map(|function| place(function, false)).into();
    all.push(place("pread64", true));
    all
}

/// Places that threads of any program may come by.
pub fn program(line: &str) -> Vec<Place> {
    let host = Host::Program(line.split_whitespace().map(str::to_owned).collect());
    PROGRAM_SIDE.map(|function| Place { host: host.clone(), function, side: true, comm: "", rare: false }).into()
}

/// A way to hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// As the injected library knows it.
    pub name: &'static str,
    /// In words.
    pub words: &'static str,
    pub class: Class,
}

/// What must be reported how soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Busy,
    /// A ring of this many.
    Ring(usize),
    Blocked,
}

/// All ways.
pub const WAYS: [Way; 8] = [
    Way { name: "loop", words: "endless loop", class: Class::Busy },
    Way { name: "self", words: "lock taken twice", class: Class::Ring(1) },
    Way { name: "ring2", words: "ring of 2 locks", class: Class::Ring(2) },
    Way { name: "ring5", words: "ring of 5 locks", class: Class::Ring(5) },
    Way { name: "signal", words: "lost wake-up: signalled before the wait", class: Class::Blocked },
    Way { name: "wake", words: "lost wake-up: lock free, nobody woken", class: Class::Blocked },
    Way { name: "pipe", words: "dead peer on a pipe", class: Class::Blocked },
    Way { name: "dead", words: "lock of a thread that ended", class: Class::Blocked },
];
