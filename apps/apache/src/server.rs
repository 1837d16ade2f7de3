//! A server of its own: directory, port, settings, log.

use orbit_linux::child::Exit;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use orbit_apps::{Directory, make, user_of_servers};

use crate::client::{Answer, get};
use crate::{Named, below, signal, wait_until};

const APACHE: &str = "/usr/sbin/apache2";
const MODULES: &str = "/usr/lib/apache2/modules";

/// The module as built.
#[derive(Clone, Debug)]
pub struct Module {
    /// `mod_orbit.so`.
    pub module: PathBuf,
    /// `orbit_apr.so`, for LD_PRELOAD.
    pub preload: PathBuf,
}

/// Builds the module into the target directory, if anything of it changed.
///
/// # Errors
/// What `make` said.
pub fn build() -> Result<Module, String> {
    static BUILT: OnceLock<Result<Module, String>> = OnceLock::new();
    let made = || {
        let out = make(env!("CARGO_MANIFEST_DIR"), "orbit-apache")?;
        Ok(Module { module: out.join("mod_orbit.so"), preload: out.join("orbit_apr.so") })
    };
    BUILT.get_or_init(made).clone()
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// With `mod_orbit`.
    pub has_module: bool,
    /// With `orbit_apr.so` in LD_PRELOAD, for the watchdog.
    pub has_preload: bool,
    /// event, worker or prefork.
    pub mpm: &'static str,
    /// Children that serve, all the time.
    pub children: usize,
    /// Lines of configuration beside the usual ones.
    pub lines: String,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { has_module: true, has_preload: true, mpm: "event", children: 1, lines: String::new() }
    }
}

impl Setup {
    /// Proxies `/app/` to these ports, with a share for each, by this method.
    pub fn balance(mut self, method: &str, backends: &[(u16, u32)]) -> Setup {
        self.lines += "ProxyRequests Off\n<Proxy balancer://app>\n";
        for (port, factor) in backends {
            self.lines += &format!("BalancerMember http://127.0.0.1:{port} loadfactor={factor} retry=1\n");
        }
        self.lines += &format!("ProxySet lbmethod={method}\n</Proxy>\nProxyPass /app/ balancer://app/\n");
        self
    }

    /// Adds a line of configuration.
    pub fn line(mut self, line: &str) -> Setup {
        self.lines += line;
        self.lines += "\n";
        self
    }
}

/// A running server. Dropping it stops the server and removes its directory.
pub struct Server {
    directory: Directory,
    port: u16,
    child: Child,
}

impl Server {
    /// Starts a server; `None`, having said so, where Apache or what building for it needs is
    /// missing.
    ///
    /// # Panics Where it does not start.
    pub fn start(setup: &Setup) -> Option<Server> {
        let missing = [APACHE, "/usr/bin/apxs2", "/usr/include/apache2/mod_proxy.h"]
            .iter()
            .find(|path| !Path::new(path).exists());
        if let Some(missing) = missing {
            println!("SKIP: needs {missing} (Debian 12: apt-get install apache2 apache2-dev)");
            return None;
        }
        let built = build().unwrap_or_else(|error| panic!("the module does not build: {error}"));
        let directory = Directory::new("apache", None);
        // A copy of its own, which a test may replace.
        for file in [&built.module, &built.preload] {
            let name = file.file_name().expect("a file");
            fs::copy(file, directory.path().join(name)).expect("a copy of the module");
        }
        let port = orbit_apps::free_port();
        fs::create_dir(directory.path().join("htdocs")).expect("a directory");
        fs::write(directory.path().join("htdocs/page"), "x".repeat(1024)).expect("a page");
        fs::write(directory.path().join("conf"), configuration(setup, directory.path(), port)).expect("written");
        let out = fs::File::create(directory.path().join("out")).expect("a file");
        let mut command = Command::new(APACHE);
        command.arg("-DFOREGROUND").arg("-f").arg(directory.path().join("conf")).current_dir(directory.path());
        if setup.has_module && setup.has_preload {
            command.env("LD_PRELOAD", directory.path().join("orbit_apr.so"));
        }
        // Its own process group: Apache's prefork sends SIGTERM to all of its group.
        command.process_group(0);
        let child = command.stdin(Stdio::null()).stdout(out.try_clone().expect("a file")).stderr(out).spawn();
        let mut server = Server { child: child.expect("apache2 starts"), directory, port };
        wait_until("the server answers", || {
            let ended = server.child.exited().expect("its state");
            assert!(ended.is_none(), "the server did not start:\n{}{}", server.directory.read("out"), server.log());
            get(port, "/page").is_ok_and(|answer| answer.status == 200)
        });
        Some(server)
    }

    /// The server's first process, which starts the children.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What it has written to its error log.
    pub fn log(&self) -> String {
        self.directory.read("log")
    }

    /// Waits until the log contains this.
    ///
    /// # Panics
    /// With the log, where it does not.
    pub fn wait_for_log(&self, text: &str) {
        let until = std::time::Instant::now() + crate::PATIENCE;
        while !self.log().contains(text) {
            assert!(std::time::Instant::now() < until, "not in the log: {text}\n{}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// One request on a connection of its own.
    ///
    /// # Panics
    /// With the log, where there is no answer.
    pub fn get(&self, path: &str) -> Answer {
        get(self.port, path).unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.log()))
    }

    /// A number of the status page.
    ///
    /// # Panics
    /// Where there is none.
    pub fn state(&self, name: &str) -> i64 {
        let page = self.get("/orbit").body;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.parse().ok());
        value.unwrap_or_else(|| panic!("the status page has no {name}: {page}"))
    }

    /// Orders a fault: the next call of this task (`balancer`, `watchdog`) does this harm.
    ///
    /// # Panics
    /// Where the server takes no such order.
    pub fn fault(&self, task: &str, fault: &str) {
        assert_eq!(self.get(&format!("/orbit?fault={task}:{fault}")).status, 200, "{}", self.log());
    }

    /// The children that serve: those with the server's name that the first process started.
    pub fn children(&self) -> Vec<i32> {
        let own = |pid: &i32| orbit_apps::parent(*pid) == Some(self.pid());
        below(self.pid()).into_iter().filter(own).collect()
    }

    /// All processes of a server with one child: its own, the child's orbits, and the template,
    /// which is nobody's child.
    pub fn processes(&self) -> Named {
        let mut found = Vec::new();
        wait_until("the orbits are there", || {
            found = below(self.pid());
            for task in ["balancer_orbit_pid", "watchdog_orbit_pid"] {
                let orbit = self.state(task) as i32;
                found.extend([orbit, orbit_apps::parent(orbit).unwrap_or(0)]);
            }
            found.sort_unstable();
            found.dedup();
            !found.contains(&0) && !found.contains(&1)
        });
        found.into_iter().map(|pid| (pid, orbit_apps::started(pid))).collect()
    }

    /// CPU time so far of the server and what it started, seconds; with the module, that of the
    /// template and its orbits too.
    pub fn cpu(&self) -> f64 {
        let page = get(self.port, "/orbit").map(|answer| answer.body).unwrap_or_default();
        let orbit = ["balancer_orbit_pid:", "watchdog_orbit_pid:"].iter().find_map(|name| {
            let pid: i32 = page.lines().find_map(|line| line.strip_prefix(name)?.parse().ok())?;
            (pid > 0).then_some(pid)
        });
        let template = orbit.and_then(orbit_apps::parent).filter(|template| *template > 1);
        orbit_apps::family_cpu(self.pid()) + template.map_or(0.0, orbit_apps::family_cpu)
    }

    /// Rereads its configuration; children end when they have served what they began.
    pub fn reload_gracefully(&self) {
        signal(self.pid(), libc::SIGUSR1);
    }

    /// Stops it by this signal and waits for its end; its directory stays until the drop.
    pub fn stop(&mut self, with: i32) {
        let mut shared = BTreeSet::new();
        if let Ok(None) = self.child.exited() {
            // One that is killed leaves its files of shared memory, as in stock.
            if with == libc::SIGKILL {
                shared = shared_memory(self.pid());
            }
            signal(self.pid(), with);
        }
        let _ = self.child.wait_for_exit();
        for file in shared {
            let _ = fs::remove_file(file);
        }
    }
}

/// Files of APR's shared memory that a process has mapped.
fn shared_memory(pid: i32) -> BTreeSet<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.find("/dev/shm/ShM.").map(|at| PathBuf::from(&line[at..])));
    files.collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        let all = below(self.pid());
        self.stop(libc::SIGTERM);
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}\nprocesses that it had: {all:?}", self.log());
        }
    }
}

fn configuration(setup: &Setup, directory: &Path, port: u16) -> String {
    let threads = if setup.mpm == "prefork" { 1 } else { 16 };
    let (children, here) = (setup.children, directory.display());
    let mut lines = format!("ServerRoot {here}\nServerName localhost\nListen 127.0.0.1:{port}\nPidFile {here}/pid\n");
    lines += &format!("ErrorLog {here}/log\nLogLevel notice\nDefaultRuntimeDir {here}\n");
    if user_of_servers("www-data").is_some() {
        lines += "User www-data\nGroup www-data\n";
    }
    let modules = ["authz_core", "proxy", "proxy_http", "proxy_balancer", "slotmem_shm", "lbmethod_byrequests"];
    for module in [format!("mpm_{}", setup.mpm).as_str()].iter().chain(&modules) {
        lines += &format!("LoadModule {module}_module {MODULES}/mod_{module}.so\n");
    }
    lines += &format!("ServerLimit {children}\nStartServers {children}\nMaxRequestWorkers {}\n", children * threads);
    if setup.mpm == "event" || setup.mpm == "worker" {
        lines += &format!(
            "ThreadsPerChild {threads}\nThreadLimit {threads}\nMinSpareThreads 1\nMaxSpareThreads {}\n",
            children * threads
        );
    }
    lines += &format!("KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 60\nDocumentRoot {here}/htdocs\n");
    lines += &format!("<Directory {here}/htdocs>\nRequire all granted\n</Directory>\n");
    if setup.has_module {
        lines += &format!("LoadModule orbit_module {here}/mod_orbit.so\nOrbitFaults On\nOrbitDeadline 500\n");
        lines += "<Location /orbit>\nSetHandler orbit-status\n</Location>\n";
    }
    lines + &setup.lines
}
