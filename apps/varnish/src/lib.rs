//! Stock Varnish servers with the library `orbit_herder` preloaded, for its tests and bench: each
//! has a directory of its own with a unix socket in it, and is gone with everything when it is
//! dropped.
//!
//! The library itself is C, in `extension/`, with a Makefile of its own.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use orbit_linux::child::Exit;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use orbit_apps::{Directory, make};
pub use orbit_apps::{Named, signal, started, wait_until, wait_until_gone};

const VARNISHD: &str = "/usr/sbin/varnishd";
const VCL: &str = "vcl 4.1;
import vtc;
backend default none;
sub vcl_recv {
    if (req.url ~ \"^/slow\") { vtc.sleep(1s); }
    return (synth(200, \"Fine\"));
}
";

/// What runs the herder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Herder {
    /// Varnish, as it is installed.
    Stock,
    /// The orbit.
    Orbit,
}

/// A running server. Dropping it stops the server and removes its directory.
pub struct Server {
    child: Child,
    directory: Directory,
}

fn is_version_7_1() -> bool {
    let said = Command::new(VARNISHD).arg("-V").output().map(|said| [said.stderr, said.stdout].concat());
    String::from_utf8_lossy(&said.unwrap_or_default()).contains("varnish-7.1.")
        && Path::new("/usr/include/varnish/cache/cache.h").exists()
}

impl Server {
    /// One pool of 10 to 40 threads; those idle for more than 10 s end. `parameters`: others, as
    /// `thread_pools=2`. `None`, having said so, where Varnish 7.1 or its headers are missing.
    ///
    /// # Panics
    /// With what it said, where it does not start.
    pub fn start(herder: Herder, parameters: &[&str]) -> Option<Server> {
        if !is_version_7_1() {
            println!("SKIP: needs Varnish 7.1 and its headers (Debian 12: apt-get install varnish libvarnishapi-dev)");
            return None;
        }
        let built = make(env!("CARGO_MANIFEST_DIR"), "orbit-varnish");
        let library =
            built.unwrap_or_else(|error| panic!("the library does not build: {error}")).join("orbit_herder.so");
        let directory = Directory::new("varnish", None);
        // A copy of its own, which a test may replace.
        fs::copy(&library, directory.path().join("orbit_herder.so")).expect("a copy of the library");
        // Where root starts it, the worker process is another user.
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
        mode(directory.path(), 0o755);
        fs::write(directory.path().join("test.vcl"), VCL).expect("a configuration");
        fs::write(directory.path().join("faults"), "").expect("a file");
        mode(&directory.path().join("faults"), 0o666);
        let log = fs::File::create(directory.path().join("stderr")).expect("a log");
        let at = |name: &str| directory.path().join(name);
        let mut command = Command::new(VARNISHD);
        command.arg("-n").arg(at("work")).arg("-a").arg(at("s")).arg("-f").arg(at("test.vcl")).arg("-F");
        let usual = ["thread_pools=1", "thread_pool_min=10", "thread_pool_max=40", "thread_pool_timeout=10"];
        for parameter in usual.iter().chain(parameters) {
            command.args(["-p", parameter]);
        }
        if herder == Herder::Orbit {
            command.env("LD_PRELOAD", at("orbit_herder.so")).env("ORBIT_HERDER_FAULTS", at("faults"));
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("varnishd starts");
        let mut server = Server { child, directory };
        wait_until("the server answers", || {
            let ended = server.child.exited().expect("its state");
            assert!(ended.is_none(), "varnishd did not start:\n{}", server.said());
            server.get("/").is_ok_and(|status| status == 200)
        });
        wait_until("all threads are there", || server.count("threads") >= 10);
        Some(server)
    }

    /// Its own pid: the manager's.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The worker process, which serves.
    pub fn worker(&self) -> i32 {
        let mut found = None;
        wait_until("there is a worker process", || {
            let below = orbit_apps::below(self.pid());
            found = below.into_iter().find(|pid| comm(*pid).starts_with("cache-main"));
            found.is_some()
        });
        found.expect("waited for")
    }

    /// The orbit's process, where it is up.
    pub fn orbit(&self) -> Option<i32> {
        self.processes()
            .into_iter()
            .map(|(pid, _)| pid)
            .find(|pid| comm(*pid) == "pool_herder" || comm(*pid) == "varnish-herder")
    }

    /// Its processes: manager, worker, template, orbits.
    pub fn processes(&self) -> Named {
        let work = self.directory.path().join("work").display().to_string();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_its =
            |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| contains(&words, work.as_bytes()));
        pids.filter(is_its).map(|pid| (pid, started(pid))).collect()
    }

    /// CPU time of all its processes, seconds.
    pub fn cpu(&self) -> f64 {
        self.processes().into_iter().map(|(pid, _)| orbit_apps::own_cpu(pid)).sum()
    }

    /// The socket of clients.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    /// Status of one request on a connection of its own. `/slow` takes a second.
    ///
    /// # Errors
    /// Where the connection is lost.
    pub fn get(&self, path: &str) -> std::io::Result<u16> {
        get(&self.socket(), path)
    }

    /// What the manager said.
    pub fn said(&self) -> String {
        self.directory.read("stderr")
    }

    fn tool(&self, program: &str, arguments: &[&str]) -> String {
        let said = Command::new(program).arg("-n").arg(self.directory.path().join("work")).args(arguments).output();
        said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default()
    }

    /// A counter of the worker process, as `threads`.
    pub fn count(&self, name: &str) -> u64 {
        let said = self.tool("varnishstat", &["-1", "-f", &format!("MAIN.{name}")]);
        said.split_whitespace().nth(1).and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// What Varnish' log has of the library, oldest first.
    pub fn log(&self) -> String {
        let all = self.tool("varnishlog", &["-d", "-g", "raw", "-i", "Error"]);
        all.lines()
            .filter_map(|line| Some(line.split_once("orbit_herder: ")?.1))
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// The file that orders faults: a word, and how many calls are still to do that harm.
    pub fn faults(&self) -> PathBuf {
        self.directory.path().join("faults")
    }

    /// Has the next calls of the herder do harm.
    ///
    /// # Panics
    /// Where the order cannot be written.
    pub fn order_fault(&self, fault: &str, calls: u32) {
        fs::write(self.faults(), format!("{fault} {calls}\n")).expect("an order");
    }

    /// Replaces the library's file, as an upgrade of its package does.
    ///
    /// # Panics
    /// Where it cannot be replaced.
    pub fn replace_library(&self) {
        let (file, new) = (self.directory.path().join("orbit_herder.so"), self.directory.path().join("new.so"));
        fs::copy(&file, &new).expect("a copy of the library");
        fs::rename(new, file).expect("the library replaced");
    }

    /// Stops it, and waits until it has ended.
    pub fn stop(&mut self, with: i32) {
        signal(self.pid(), with);
        wait_until("the server has ended", || self.child.exited().expect("its state").is_some());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for (pid, _) in self.processes() {
            signal(pid, 9);
        }
        let _ = self.child.wait_for_exit();
        if std::thread::panicking() {
            eprintln!("{}", self.said());
        }
    }
}

fn comm(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Status of one request on a connection of its own.
///
/// # Errors
/// Where the connection is lost.
pub fn get(socket: &Path, path: &str) -> std::io::Result<u16> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(orbit_apps::PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::UnexpectedEof, format!("not a response: {first:?}")))
}

/// So many requests at once, each on a connection of its own. Returns how many were answered with
/// 200.
pub fn burst(socket: &Path, path: &str, requests: usize) -> usize {
    let clients: Vec<_> = (0..requests)
        .map(|_| {
            let (socket, path) = (socket.to_owned(), path.to_owned());
            std::thread::spawn(move || get(&socket, &path).is_ok_and(|status| status == 200))
        })
        .collect();
    clients.into_iter().filter_map(|client| client.join().ok()).filter(|is_good| *is_good).count()
}
