//! A kept nginx with a module that has a bug, and its clients.

use super::campaign::{Client, Server};
use super::{KEEP, PATIENCE, Scratch, events, until};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The module, compiled once; `None`, and says so, if something for it is missing.
pub fn module() -> Option<PathBuf> {
    let installed = ["/usr/share/nginx/src/configure", "/usr/sbin/nginx"].iter().all(|path| Path::new(path).exists());
    if !installed {
        println!("SKIP: needs nginx and nginx-dev");
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ngx-crash");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/nginx-module.sh");
    let made = Command::new("sh").arg(script).arg(&folder).status().expect("sh");
    assert!(made.success(), "the module is compiled");
    Some(folder.join("crash.so"))
}

/// An nginx with one worker under `orbit-keep --family`.
pub struct Nginx {
    pub keeper: Child,
    scratch: Scratch,
    pub worker: i32,
    /// It and those before.
    workers: Vec<i64>,
    events: PathBuf,
}

impl Nginx {
    pub fn start(name: &str, module: &Path, options: &[&str]) -> Nginx {
        let scratch = Scratch::new(name);
        let at = scratch.0.display();
        let folders: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|of| format!("  {of}_temp_path {at}/{of};\n"))
            .collect();
        let settings = format!(
            "load_module {};\ndaemon off;\nworker_processes 1;\nerror_log {at}/error.log notice;\npid {at}/pid;\n\
             events {{ worker_connections 256; }}\nhttp {{\n  access_log off;\n  keepalive_requests 100000000;\n{folders}  \
             server {{ listen unix:{at}/socket; location / {{ crash; }} }}\n}}\n",
            module.display()
        );
        fs::write(scratch.join("nginx.conf"), settings).expect("written");
        let events_file = scratch.join("events");
        let keeper = Command::new(KEEP)
            .args(["--log", "--log-size", "64M", "--family", "--events"])
            .arg(&events_file)
            .args(options)
            .args(["--", "/usr/sbin/nginx", "-c"])
            .arg(scratch.join("nginx.conf"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(scratch.join("keeper.log")).expect("made"))
            .spawn()
            .expect("orbit-keep");
        let mut nginx = Nginx { keeper, scratch, worker: 0, workers: Vec::new(), events: events_file };
        let pid_file = nginx.scratch.join("pid");
        let master: i32 = until("nginx has begun", || fs::read_to_string(&pid_file).ok()?.trim().parse().ok());
        let kept = until("its worker is kept", || {
            let is_worker = |e: &serde_json::Value| e["event"] == "kept" && e["pid"] != master;
            events(&nginx.events).into_iter().find(is_worker)
        });
        nginx.becomes(kept["pid"].as_i64().expect("a number") as i32);
        nginx
    }

    /// The master process.
    fn master(&self) -> i32 {
        let text = fs::read_to_string(self.scratch.join("pid")).expect("a pid");
        text.trim().parse().expect("a number")
    }

    /// Sends the master a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a child of our child, which lives until that has seen it exit.
        unsafe { libc::kill(self.master(), signal) };
    }

    /// Its error log.
    pub fn log(&self) -> PathBuf {
        self.scratch.join("error.log")
    }

    /// Whether a process is the master, or was a worker.
    pub fn knows(&self, pid: i64) -> bool {
        pid == i64::from(self.master()) || self.workers.contains(&pid)
    }

    /// It has another worker.
    pub fn becomes(&mut self, worker: i32) {
        self.worker = worker;
        self.workers.push(worker.into());
    }

    /// Whether the worker that it has, as far as is known, lives.
    pub fn has_kept_its_worker(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.worker)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    /// Asks nginx to end; returns the keeper's exit status.
    pub fn stop(mut self) -> Option<i32> {
        self.signal(libc::SIGQUIT);
        until("it exits", || self.keeper.try_wait().expect("a child")).code()
    }

    pub fn client(&self, name: String) -> Option<Requests<UnixStream>> {
        let stream = UnixStream::connect(self.scratch.join("socket")).ok()?;
        stream.set_read_timeout(Some(PATIENCE / 3)).ok()?;
        Some(Requests::new(stream, name))
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if self.keeper.try_wait().ok().flatten().is_some() {
            return;
        }
        if let Ok(Ok(master)) = fs::read_to_string(self.scratch.join("pid")).map(|text| text.trim().parse::<i32>()) {
            // SAFETY: as in stop.
            unsafe { libc::kill(master, libc::SIGTERM) };
        }
        let end = std::time::Instant::now() + PATIENCE;
        while self.keeper.try_wait().ok().flatten().is_none() && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// A connection that stays open for many requests.
pub struct Requests<S> {
    stream: BufReader<S>,
    name: String,
    next: u64,
}

impl<S: Read + Write> Requests<S> {
    pub fn new(stream: S, name: String) -> Requests<S> {
        Requests { stream: BufReader::new(stream), name, next: 0 }
    }

    pub fn request(&mut self, path: &str) -> std::io::Result<()> {
        self.stream.get_mut().write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
    }

    fn answer(&mut self) -> std::io::Result<(String, Vec<u8>)> {
        let (mut status, mut length) = (String::new(), 0);
        self.stream.read_line(&mut status)?;
        if status.is_empty() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(n) = line.strip_prefix("content-length:") {
                length = n.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status.trim().to_owned(), body))
    }
}

impl<S: Read + Write + Send> Client for Requests<S> {
    fn ask(&mut self) -> Result<(), String> {
        self.next += 1;
        let question = format!("{}-{}", self.name, self.next);
        self.request(&format!("/?{question}")).map_err(|e| format!("{question}: {e}"))?;
        let (status, body) = self.answer().map_err(|e| format!("{question}: {e}"))?;
        if status != "HTTP/1.1 200 OK" || body != question.as_bytes() {
            return Err(format!("{question}: {status}, {:?}", String::from_utf8_lossy(&body)));
        }
        Ok(())
    }
}

impl Server for Nginx {
    /// The worker; after one was given up, the one that the master has made in its place.
    fn pid(&self) -> i32 {
        if self.has_kept_its_worker() {
            return self.worker;
        }
        let kept = events(&self.events).into_iter().filter(|e| e["event"] == "kept");
        let mut workers = kept.filter_map(|e| e["pid"].as_i64()).filter(|pid| *pid != i64::from(self.master()));
        workers.next_back().map_or(self.worker, |pid| pid as i32)
    }

    fn connect(&self, nth: usize) -> Option<Box<dyn Client + '_>> {
        Some(Box::new(self.client(format!("client{nth}"))?))
    }

    fn poison(&self) -> Box<dyn std::any::Any> {
        let mut client = self.client("poison".into()).expect("nginx accepts connections");
        client.request("/poison").expect("sent");
        Box::new(client)
    }

    fn events(&self) -> &Path {
        &self.events
    }
}
