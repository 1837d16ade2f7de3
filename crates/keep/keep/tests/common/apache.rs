//! A kept Apache (prefork) with a module that has a bug, in request mode, and its clients.

use super::campaign::{Client, Server};
use super::nginx::Requests;
use super::{KEEP, PATIENCE, Scratch, events, until};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Children of the server.
pub const CHILDREN: usize = 3;

/// The module, compiled; `None`, and says so, if something for it is missing.
pub fn module() -> Option<PathBuf> {
    let needed = ["/usr/sbin/apache2", "/usr/include/apache2/httpd.h", "/usr/include/apr-1.0/apr.h"];
    if !needed.iter().all(|path| Path::new(path).exists()) {
        println!("SKIP: needs apache2 and apache2-dev");
        return None;
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("mod_crash-{}-{}.so", std::process::id(), NEXT.fetch_add(1, SeqCst));
    let module = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/mod_crash.c");
    let made = Command::new("cc")
        .args(["-O1", "-fPIC", "-shared", "-DLINUX", "-D_REENTRANT", "-D_GNU_SOURCE"])
        .args(["-I/usr/include/apache2", "-I/usr/include/apr-1.0", source, "-o"])
        .arg(&module)
        .status()
        .expect("cc");
    assert!(made.success(), "the module is compiled");
    Some(module)
}

/// An Apache with [`CHILDREN`] children under `orbit-keep --family --requests`.
pub struct Apache {
    pub keeper: Child,
    scratch: Scratch,
    parent: i32,
    pub children: Vec<i32>,
    next: AtomicUsize,
    events: PathBuf,
    module: PathBuf,
    port: u16,
}

impl Apache {
    /// `requests`: the option that says where a request is waited for; `more`: lines of its
    /// settings.
    pub fn start(name: &str, module: &Path, requests: &str, more: &str) -> Apache {
        let scratch = Scratch::new(name);
        let (at, modules) = (scratch.0.display(), "/usr/lib/apache2/modules");
        let events_file = scratch.join("events");
        let (mut port, mut parent) = (0, None);
        let launch = |port: u16| {
            let settings = format!(
                "ServerRoot {at}\nPidFile {at}/pid\nErrorLog {at}/error.log\nServerName test\n\
                 LoadModule mpm_prefork_module {modules}/mod_mpm_prefork.so\n\
                 LoadModule authz_core_module {modules}/mod_authz_core.so\nLoadModule crash_module {}\n\
                 Listen 127.0.0.1:{port}\nStartServers {CHILDREN}\nMinSpareServers {CHILDREN}\n\
                 MaxSpareServers {CHILDREN}\nServerLimit {CHILDREN}\nMaxRequestWorkers {CHILDREN}\nKeepAlive On\n\
                 MaxKeepAliveRequests 0\nKeepAliveTimeout 60\nUser www-data\nGroup www-data\n\
                 <Location />\n SetHandler crash\n</Location>\n{more}\n",
                module.display()
            );
            fs::write(scratch.join("httpd.conf"), settings).expect("written");
            Command::new(KEEP)
                .args(["--log", "--log-size", "64M", requests, "--allow-repeats", "--family", "--events"])
                .arg(&events_file)
                .args(["--", "/usr/sbin/apache2", "-D", "FOREGROUND", "-f"])
                .arg(scratch.join("httpd.conf"))
                // At its end it sends a signal to its whole process group.
                .process_group(0)
                .stdout(Stdio::null())
                .stderr(fs::File::create(scratch.join("keeper.log")).expect("made"))
                .spawn()
                .expect("orbit-keep")
        };
        let pid_file = scratch.join("pid");
        // Another process may take the port before apache2 does.
        let keeper = until("apache2 has begun", || {
            port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
            let mut keeper = launch(port);
            let has_ended = until("apache2 has begun, or not", || {
                parent = fs::read_to_string(&pid_file).ok().and_then(|text| text.trim().parse().ok());
                let ended = keeper.try_wait().expect("a child").is_some();
                (ended || parent.is_some()).then_some(ended)
            });
            (!has_ended).then_some(keeper)
        });
        let parent: i32 = parent.expect("begun");
        let mut apache = Apache {
            keeper,
            scratch,
            parent,
            children: Vec::new(),
            next: AtomicUsize::new(0),
            events: events_file,
            module: module.into(),
            port,
        };
        apache.children = until("its children are kept", || {
            // Those that wait for a mutex are, once they have had it.
            if let Some(stream) = apache.stream() {
                let _ = Requests::new(stream, "first".into()).ask();
            }
            let kept = events(&apache.events).into_iter().filter(|e| e["event"] == "kept");
            let pids = kept.filter_map(|e| e["pid"].as_i64()).map(|pid| pid as i32).filter(|pid| *pid != parent);
            let pids: Vec<i32> = pids.collect();
            (pids.len() >= CHILDREN).then_some(pids)
        });
        apache
    }

    fn stream(&self) -> Option<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE / 3)).ok()?;
        Some(stream)
    }

    /// Whether the children that it began with still live.
    pub fn has_kept_its_children(&self) -> bool {
        self.children.iter().all(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        })
    }

    /// Asks it to end; returns the keeper's exit status.
    pub fn stop(mut self) -> Option<i32> {
        // SAFETY: a child of our child, which lives until that has seen it exit.
        unsafe { libc::kill(self.parent, libc::SIGTERM) };
        until("it exits", || self.keeper.try_wait().expect("a child")).code()
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.module);
        if self.keeper.try_wait().ok().flatten().is_some() {
            return;
        }
        if self.parent > 0 {
            // SAFETY: as in stop.
            unsafe { libc::kill(self.parent, libc::SIGTERM) };
        }
        let end = std::time::Instant::now() + PATIENCE;
        while self.keeper.try_wait().ok().flatten().is_none() && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Asks on connections of one to eight requests: each takes a child until it ends.
struct Visitor<'a> {
    apache: &'a Apache,
    name: String,
    requests: Option<Requests<TcpStream>>,
    left: usize,
    visits: usize,
}

impl Client for Visitor<'_> {
    fn ask(&mut self) -> Result<(), String> {
        if self.left == 0 {
            self.visits += 1;
            self.left = 1 + self.visits % 8;
            let stream = self.apache.stream().ok_or("no connection")?;
            self.requests = Some(Requests::new(stream, format!("{}-{}", self.name, self.visits)));
        }
        self.left -= 1;
        let done = self.requests.as_mut().expect("connected").ask();
        if self.left == 0 {
            self.requests = None;
        }
        done
    }
}

impl Server for Apache {
    fn pid(&self) -> i32 {
        self.children[self.next.fetch_add(1, SeqCst) % self.children.len()]
    }

    fn connect(&self, nth: usize) -> Option<Box<dyn Client + '_>> {
        Some(Box::new(Visitor { apache: self, name: format!("client{nth}"), requests: None, left: 0, visits: 0 }))
    }

    fn poison(&self) -> Box<dyn std::any::Any> {
        let mut client = Requests::new(self.stream().expect("apache2 accepts connections"), "poison".into());
        client.request("/poison").expect("sent");
        Box::new(client)
    }

    fn events(&self) -> &Path {
        &self.events
    }
}
