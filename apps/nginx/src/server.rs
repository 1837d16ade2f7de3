//! A server of its own: directory, socket, configuration, log.

use orbit_linux::child::Exit;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::processes::{cpu_seconds, of_server, started, title};
use crate::{Client, PATIENCE, wait_until};

const NGINX: &str = "/usr/sbin/nginx";

/// Builds the module into the target directory, if anything of it changed, and returns its path.
/// `None`, having said so, where nginx 1.22 or its headers are missing.
///
/// # Panics
/// With what `make` said, where it fails.
pub fn build() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(make).clone()
}

fn make() -> Option<PathBuf> {
    let version = Command::new(NGINX).arg("-v").output().map(|said| said.stderr).unwrap_or_default();
    let is_known = String::from_utf8_lossy(&version).contains("nginx/1.22.");
    if !is_known || !Path::new("/usr/share/nginx/src/conf_flags").exists() {
        println!("SKIP: needs nginx 1.22 and its headers (Debian 12: apt-get install nginx nginx-dev)");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("extension");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| source.join("../../../target"), PathBuf::from);
    let out = target.join("orbit-nginx");
    fs::create_dir_all(&out).expect("a directory to build in");
    let out = fs::canonicalize(out).expect("its path");
    let target = fs::canonicalize(target).expect("its path");
    // Several test programs build at a time: flock lets one make after the other.
    let made = Command::new("flock")
        .arg(out.join("lock"))
        .args(["make", "-s", "-C"])
        .arg(&source)
        .arg(format!("BUILD={}", out.display()))
        .arg(format!("TARGET={}", target.display()))
        .output()
        .expect("flock and make run");
    assert!(made.status.success(), "make: {}", String::from_utf8_lossy(&made.stderr));
    Some(out.join("orbit_dav.so"))
}

/// The side that does PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// nginx' own module.
    Stock,
    /// The orbit.
    Orbit,
}

/// What a server is like.
#[derive(Clone, Debug)]
pub struct How {
    /// The side that does PUT.
    pub put: Put,
    /// Worker processes.
    pub workers: u32,
    /// Lines for the location.
    pub location: String,
    /// Where bodies are written first; `None`: in the server's directory, on the file system of the
    /// targets.
    pub bodies: Option<PathBuf>,
}

impl How {
    /// One worker, the given lines for the location.
    pub fn new(put: Put, location: &str) -> How {
        How { put, workers: 1, location: location.to_owned(), bodies: None }
    }
}

/// A running server. Dropping it kills the server and removes its directory.
pub struct Server {
    child: Child,
    directory: PathBuf,
    how: How,
}

impl Server {
    /// Starts one; `None`, having said so, where nginx 1.22 or its headers are missing.
    ///
    /// # Panics
    /// With its log, where it does not start.
    pub fn start(how: How) -> Option<Server> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let built = build()?;
        let name = format!("orbit-nginx-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        // Workers of a server that root starts are another user.
        for part in ["www", "bodies"] {
            fs::create_dir_all(directory.join(part)).expect("a directory");
            fs::set_permissions(directory.join(part), fs::Permissions::from_mode(0o777)).expect("its mode");
        }
        // A copy: a package is upgraded while its server runs.
        fs::copy(built, directory.join("orbit_dav.so")).expect("the module");
        write_conf(&directory, &how, how.put == Put::Orbit);
        let mut command = Command::new(NGINX);
        command.arg("-c").arg(directory.join("nginx.conf")).args(["-g", "daemon off;"]).process_group(0);
        let log = fs::File::create(directory.join("stderr")).expect("a log");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("nginx starts");
        let mut server = Server { child, directory, how };
        wait_until("the server answers", || {
            let ended = server.child.exited().expect("its state");
            assert!(ended.is_none(), "the server did not start:\n{}", server.log());
            Client::connect(&server.socket()).is_ok_and(|mut c| c.request("GET", "/", &[], b"").is_ok())
        });
        Some(server)
    }

    /// Reads its configuration again, with these lines for the location and with the module or
    /// without it. Returns when the workers before have ended.
    pub fn reload(&mut self, location: &str, with_module: bool) {
        location.clone_into(&mut self.how.location);
        let before: Vec<_> = self.processes().into_iter().filter(|(pid, _)| *pid != self.pid()).collect();
        write_conf(&self.directory, &self.how, with_module);
        self.signal(self.pid(), libc::SIGHUP);
        wait_until("the workers before have ended", || before.iter().all(|process| crate::is_gone(*process)));
        wait_until("there is a worker", || self.find("worker process").is_some());
    }

    /// Replaces the module's file, as an upgrade of its package does.
    pub fn replace_module(&self) {
        let copy = self.directory.join("new.so");
        fs::copy(self.directory.join("orbit_dav.so"), &copy).expect("a copy");
        fs::rename(copy, self.directory.join("orbit_dav.so")).expect("the module replaced");
    }

    /// The master's pid.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Its processes: master, workers, templates, orbits; each with its start.
    pub fn processes(&self) -> Vec<(i32, Option<u64>)> {
        of_server(self.pid(), &self.directory).into_iter().map(|pid| (pid, started(pid))).collect()
    }

    /// The first process whose title contains this.
    pub fn find(&self, part: &str) -> Option<i32> {
        of_server(self.pid(), &self.directory).into_iter().find(|pid| title(*pid).contains(part))
    }

    /// The same, waiting for it.
    ///
    /// # Panics
    /// Where there is none in the end.
    pub fn wait_for(&self, part: &str) -> i32 {
        wait_until(&format!("there is a process \"{part}\""), || self.find(part).is_some());
        self.find(part).expect("waited for")
    }

    /// Sends a signal to a process of this server.
    pub fn signal(&self, pid: i32, signal: i32) {
        // One that has ended needs none.
        let _ = orbit_linux::signals::send(pid, signal);
    }

    /// CPU time of all its processes, seconds.
    pub fn cpu(&self) -> f64 {
        cpu_seconds(&of_server(self.pid(), &self.directory))
    }

    /// The directory of the targets.
    pub fn www(&self) -> PathBuf {
        self.directory.join("www")
    }

    /// Bodies that lie where they were written first.
    pub fn bodies(&self) -> Vec<String> {
        names(&self.bodies_directory())
    }

    /// Targets, and what else lies beside them.
    pub fn targets(&self) -> Vec<String> {
        names(&self.www())
    }

    fn bodies_directory(&self) -> PathBuf {
        self.how.bodies.clone().unwrap_or_else(|| self.directory.join("bodies"))
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    /// What it has written to its log.
    pub fn log(&self) -> String {
        let read = |name| fs::read_to_string(self.directory.join(name)).unwrap_or_default();
        read("log") + &read("stderr")
    }

    /// Waits until the log contains this.
    ///
    /// # Panics
    /// With the log, where it does not.
    pub fn wait_for_log(&self, text: &str) {
        let until = std::time::Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(std::time::Instant::now() < until, "not in the log: {text}\n{}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// A new client.
    ///
    /// # Panics
    /// With the log, where it cannot connect.
    pub fn connect(&self) -> Client {
        Client::connect(&self.socket()).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// Waits until the master has ended.
    pub fn wait(&mut self) {
        wait_until("the server has ended", || self.child.exited().expect("its state").is_some());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for (pid, _) in self.processes() {
            self.signal(pid, libc::SIGKILL);
        }
        let _ = self.child.wait_for_exit();
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn write_conf(directory: &Path, how: &How, with_module: bool) {
    let here = directory.display();
    let bodies = how.bodies.clone().unwrap_or_else(|| directory.join("bodies"));
    let load = if with_module { format!("load_module {here}/orbit_dav.so;\n") } else { String::new() };
    let user = if orbit_linux::host::user() == 0 { "user www-data;\n" } else { "" };
    let put = match (how.put, with_module) {
        (Put::Orbit, true) => "orbit_dav_put on; orbit_dav_faults on;",
        (Put::Orbit, false) => "",
        (Put::Stock, _) => "dav_methods PUT;",
    };
    let conf = format!(
        "{load}{user}worker_processes {}; pid {here}/pid; error_log {here}/log info;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; client_max_body_size 256m; client_body_temp_path {};\n\
         server {{ listen unix:{here}/s; root {here}/www; keepalive_requests 1000000;\n\
         location / {{ {put} {} }} }} }}\n",
        how.workers,
        bodies.display(),
        how.location,
    );
    fs::write(directory.join("nginx.conf"), conf).expect("a configuration");
}
