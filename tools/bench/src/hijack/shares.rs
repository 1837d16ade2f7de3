//! Programs in Python and Go that make many kinds of calls for two seconds: which share of the
//! calls of the second second comes by signal.

use super::failure;
use super::servers::Server;
use orbit_console::out::Failure;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

const PYTHON: &str = "
import os, socket, subprocess, tempfile, threading, time
end = time.monotonic() + 2.5
a, b = socket.socketpair()
def files():
    with tempfile.TemporaryDirectory() as place:
        while time.monotonic() < end:
            with open(place + '/f', 'w') as f: f.write('x' * 100)
            os.stat(place + '/f'); os.listdir(place); os.rename(place + '/f', place + '/g'); os.unlink(place + '/g')
            a.send(b'x'); b.recv(1); time.sleep(0)
threads = [threading.Thread(target=files) for _ in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
";

const GO: &str = r#"package main

import (
	"os"
	"sync"
	"time"
)

func main() {
	place, err := os.MkdirTemp("", "orbit-bench-go")
	if err != nil {
		os.Exit(1)
	}
	defer os.RemoveAll(place)
	end := time.Now().Add(2500 * time.Millisecond)
	var all sync.WaitGroup
	for i := 0; i < 4; i++ {
		all.Add(1)
		go func(path string) {
			defer all.Done()
			for time.Now().Before(end) {
				os.WriteFile(path, []byte("text"), 0o600)
				os.ReadFile(path)
				os.Stat(path)
				os.Rename(path, path+"x")
				os.Remove(path + "x")
			}
		}(place + "/" + string(rune('a'+i)))
	}
	all.Wait()
}
"#;

/// Percentage of Python's calls; `None`: it is not installed.
pub fn python() -> Result<Option<f64>, Failure> {
    let name = "/usr/bin/python3";
    if !fs::exists(name).unwrap_or(false) {
        return Ok(None);
    }
    share(&[name.into(), "-c".into(), PYTHON.into()]).map(Some).map_err(|error| failure("python3", &error))
}

/// Percentage of a Go program's calls; `None`: no compiler is installed.
pub fn go() -> Result<Option<f64>, Failure> {
    let failed = |error: std::io::Error| failure("a Go program", &error);
    let place = std::env::temp_dir().join(format!("orbit-bench-hijack-go-{}", std::process::id()));
    fs::create_dir_all(&place)?;
    let (source, program) = (place.join("calls.go"), place.join("calls"));
    fs::write(&source, GO)?;
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(&source).env("GO111MODULE", "off").env("GOFLAGS", "");
    let is_built = build.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    let share = is_built.then(|| share(&[program.into()])).transpose().map_err(failed);
    // A folder of this process; what remains in it is of no use.
    let _ = fs::remove_dir_all(&place);
    share
}

/// Runs a program that ends by itself.
fn share(arguments: &[std::ffi::OsString]) -> std::io::Result<f64> {
    let mut server = Server::start(true, arguments, |_| ())?;
    // The first half second starts and warms up.
    std::thread::sleep(Duration::from_millis(500));
    server.settle();
    server.end(true)
}
