//! PUT by the orbit is PUT by nginx: the same responses, files, modes and times.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use orbit_nginx::{How, Load, Put, Server, started, wait_until};

/// A directory on another file system than that of temporary files.
struct Elsewhere(PathBuf);

impl Elsewhere {
    fn new(name: &str) -> Option<Elsewhere> {
        let directory = Path::new("/dev/shm").join(format!("orbit-nginx-{name}-{}", std::process::id()));
        let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
        if fs::create_dir_all(&directory).is_err() || device(&directory) == device(&std::env::temp_dir()) {
            println!("SKIP: needs /dev/shm on another file system than {}", std::env::temp_dir().display());
            return None;
        }
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("its mode");
        Some(Elsewhere(directory))
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// All below a directory: mode, and contents of files; times where they were long ago.
fn tree(directory: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>, Option<i64>)> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).expect("a directory").flatten() {
            let (path, info) = (entry.path(), entry.metadata().expect("what it is"));
            let old = Some(info.mtime()).filter(|time| *time < 1_000_000_000);
            let bytes = if info.is_dir() { Vec::new() } else { fs::read(&path).expect("a file") };
            found.insert(path.strip_prefix(directory).expect("below it").to_owned(), (info.mode(), bytes, old));
            if info.is_dir() {
                left.push(path);
            }
        }
    }
    found
}

/// Status, location and body's length of each response, and the files in the end.
type Seen = (Vec<(u16, Option<String>, usize)>, BTreeMap<PathBuf, (u32, Vec<u8>, Option<i64>)>, usize);

fn play(put: Put, access: &str, full_path: bool, bodies: Option<&Path>) -> Option<Seen> {
    let prefix = if put == Put::Orbit { "orbit_dav_" } else { "dav_" };
    let create = if put == Put::Orbit { "orbit_dav_create_full_path" } else { "create_full_put_path" };
    let location = format!("{prefix}access {access}; {create} {};", if full_path { "on" } else { "off" });
    let mut how = How::new(put, &location);
    how.bodies = bodies.map(Path::to_owned);
    let server = Server::start(how)?;
    let mut client = server.connect();
    let large = vec![b'l'; 3 << 20];
    let date = "Date: Tue, 15 Nov 1994 08:12:31 GMT";
    let steps: [(&str, &str, &[&str], &[u8]); 15] = [
        ("PUT", "/one", &[], b"first"),
        ("PUT", "/one", &[], b"second"),
        ("PUT", "/large", &[], &large),
        ("PUT", "/dated", &[date], b"old"),
        ("PUT", "/dated", &["Date: never"], b"new"),
        ("PUT", "/dated-large", &[date], &large),
        ("PUT", "/a/deep/path", &[], b"deep"),
        ("PUT", "/a", &[], b"is a directory"),
        ("PUT", "/b/", &[], b""),
        ("PUT", "/one/below-a-file", &[], b"no"),
        ("PUT", "/empty", &["Content-Length: 0"], b""),
        ("PUT", "/no-body", &[], b""),
        ("PUT", "/range", &["Content-Range: bytes 0-1/2"], b"xx"),
        ("PUT", "/sp%20ace%25", &[], b"escaped"),
        ("PUT", "/chunked", &["Transfer-Encoding: chunked"], b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"),
    ];
    let mut responses = Vec::new();
    for (method, path, headers, body) in steps {
        let response = client.request(method, path, headers, body).unwrap_or_else(|e| panic!("{put:?} {path}: {e}"));
        responses.push((response.status, response.header("location").map(str::to_owned), response.body.len()));
        if response.header("connection") == Some("close") {
            client = server.connect();
        }
    }
    let left = server.bodies().len();
    Some((responses, tree(&server.www()), left))
}

#[test]
fn the_same_as_stock() {
    let Some(elsewhere) = Elsewhere::new("same") else { return };
    for (access, full_path, bodies) in [
        ("user:rw", false, None),
        ("user:rw group:rw all:r", true, None),
        ("user:rw", true, Some(&*elsewhere.0)),
        ("user:rw group:r", false, Some(&*elsewhere.0)),
    ] {
        let Some(ours) = play(Put::Orbit, access, full_path, bodies) else { return };
        let _ = fs::remove_dir_all(&elsewhere.0);
        fs::create_dir_all(&elsewhere.0).expect("a directory");
        fs::set_permissions(&elsewhere.0, fs::Permissions::from_mode(0o777)).expect("its mode");
        let stock = play(Put::Stock, access, full_path, bodies).expect("nginx is there");
        assert_eq!(ours, stock, "{access}, {full_path}, {bodies:?}");
        assert!(ours.0.iter().filter(|(status, ..)| *status == 201).count() >= 5, "{ours:?}");
    }
}

/// A PUT that takes long, or never ends, delays no other request of the same worker.
#[test]
fn the_worker_does_not_block() {
    let Some(server) = Server::start(How::new(Put::Orbit, "orbit_dav_deadline 4s;")) else { return };
    let worker = server.wait_for("worker process");
    server.connect().put("/page", b"hello").expect("a response");
    let socket = server.socket();
    let began = Instant::now();
    let hanging = std::thread::spawn(move || {
        let mut client = orbit_nginx::Client::connect(&socket).expect("a connection");
        let response = client.request("PUT", "/never", &["X-Orbit-Fault: hang"], b"x").expect("a response");
        (response.status, began.elapsed())
    });
    let orbit = server.wait_for("orbit of PUT");
    wait_until("the task loops", || orbit_nginx::cpu_seconds(&[orbit]) > 0.1);
    // PUTs wait their turn, and have it when the deadline of the one before has passed: none fails.
    let load = Load::start(&server.socket(), "behind", 3, 100, 1);
    let mut client = server.connect();
    let mut longest = Duration::ZERO;
    for _ in 0..200 {
        let since = Instant::now();
        let page = client.request("GET", "/page", &[], b"").expect("a response");
        longest = longest.max(since.elapsed());
        assert_eq!((page.status, &*page.body), (200, &b"hello"[..]));
    }
    let (status, took) = hanging.join().expect("the client ends");
    assert_eq!(status, 500);
    assert!(took >= Duration::from_secs(4), "{took:?}");
    assert!(longest < took / 2, "a GET took {longest:?}, the PUT {took:?}");
    wait_until("a PUT is stored again", || server.targets().iter().any(|name| name.starts_with("behind")));
    let loaded = load.stop();
    assert!(loaded.wrong.is_empty() && loaded.failed == 0 && loaded.stored >= 3, "{loaded:?}");
    assert_eq!(server.find("worker process"), Some(worker));
    assert!(started(worker).is_some());
}
