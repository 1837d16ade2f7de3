//! Programs that nobody here wrote join while they run, upcalls run in them, they leave, and are as
//! they were: redis-server, nginx, memcached, python3, node, a Go program that recovers from faults
//! of its own, java.

mod common;

use common::{Folder, Killed, host, is_root, native, spec, times, until};
use orbit_services::{Dispatch, Host, Options};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Starts a program on the CPU of ticks. `None` where it is not installed.
fn start(program: &str, args: &[&str], folder: &Path) -> Option<Killed> {
    let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    if !there.expect("sh").success() {
        println!("SKIP: needs {program}");
        return None;
    }
    let mut command = Command::new("taskset");
    command.args(["-c", &common::cpu().to_string(), program]).args(args).current_dir(folder);
    let output = std::fs::File::create(folder.join("output")).expect("a file");
    command.stdin(Stdio::null()).stderr(output.try_clone().expect("a file")).stdout(output);
    Some(Killed(command.spawn().expect("taskset")))
}

/// What is mapped, which signals are caught, which descriptors are open.
fn traces(pid: i32) -> (bool, String) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let caught = status.lines().find(|line| line.starts_with("SigCgt")).expect("a line").to_owned();
    (maps.contains("orbit-sandbox"), caught)
}

/// Joins, lets upcalls happen while the program works, leaves; again and again. `works` gives it
/// something to do and checks it.
fn campaign(program: &mut Killed, folder: &Path, mut works: impl FnMut() -> bool) {
    let mut host: Host = host();
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        return println!("SKIP: needs ticks: {why}");
    }
    let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &native("count")).expect("loaded");
    let pid = program.pid();
    let output = || std::fs::read_to_string(folder.join("output")).unwrap_or_default();
    until("it works", &mut works);
    let before = traces(pid);
    for round in 0..times(3, 100) {
        let stopped = host.join(pid).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let upcalls = host.status(id).expect("loaded").account.upcalls;
        until("upcalls in it", || {
            assert!(works(), "round {round}, stopped for {stopped:?}: {}", output());
            host.status(id).expect("loaded").account.upcalls > upcalls + 3
        });
        host.leave(pid).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(works(), "round {round}, after it left: {}", output());
        assert_eq!(traces(pid), before, "round {round}");
        assert!(program.0.try_wait().expect("own child").is_none(), "{}", output());
    }
    assert_eq!(host.status(id).expect("loaded").account.aborts(), 0);
}

/// One request to a server on a socket.
fn asks(socket: &Path, request: &str, answer: &str) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
    let mut bytes = vec![0u8; answer.len()];
    stream.write_all(request.as_bytes()).is_ok() && stream.read_exact(&mut bytes).is_ok() && bytes == answer.as_bytes()
}

#[test]
fn redis_server() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("redis");
    let args = ["--port", "0", "--unixsocket", "s", "--save", "", "--appendonly", "no"];
    let Some(mut server) = start("redis-server", &args, folder.path()) else { return };
    // Something that takes the server some milliseconds.
    let script = "EVAL \"local x = 0 for i = 1, 200000 do x = (x * 31 + i) % 1000003 end return x\" 0\r\n";
    let socket = folder.path().join("s");
    until("it answers", || asks(&socket, "PING\r\n", "+PONG"));
    campaign(&mut server, folder.path(), || asks(&socket, script, ":") && asks(&socket, "PING\r\n", "+PONG"));
}

#[test]
fn nginx() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("nginx");
    let here = folder.path().display();
    std::fs::write(folder.path().join("page"), "x".repeat(300_000)).expect("a page");
    let conf = format!(
        "daemon off; master_process off; user root; pid {here}/pid; error_log {here}/error;\n\
         events {{}}\nhttp {{ access_log off; client_body_temp_path {here}/b; proxy_temp_path {here}/p; fastcgi_temp_path {here}/f;\n\
         uwsgi_temp_path {here}/u; scgi_temp_path {here}/s; gzip on; gzip_types *; gzip_min_length 1; gzip_comp_level \
         9;\n\
         server {{ listen unix:{here}/socket; root {here}; }} }}\n"
    );
    std::fs::write(folder.path().join("conf"), conf).expect("a file");
    let path = format!("{here}/conf");
    let Some(mut server) = start("nginx", &["-c", &path, "-e", &format!("{here}/error")], folder.path()) else {
        return;
    };
    let socket = folder.path().join("socket");
    let request = "GET /page HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n";
    campaign(&mut server, folder.path(), || asks(&socket, request, "HTTP/1.1 200 OK"));
}

#[test]
fn memcached() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("memcached");
    let socket = folder.path().join("s");
    let path = socket.to_str().expect("a path");
    let Some(mut server) = start("memcached", &["-u", "root", "-s", path, "-t", "2"], folder.path()) else { return };
    // Keys that are set, read back and compared: some milliseconds of the server.
    let value = "v".repeat(900);
    let set: String = (0..400).map(|n| format!("set k{n} 0 0 900\r\n{value}\r\n")).collect();
    let get: String = (0..400).map(|n| format!("get k{n}\r\n")).collect();
    let stored = "STORED\r\n".repeat(400);
    let values: String = (0..400).map(|n| format!("VALUE k{n} 0 900\r\n{value}\r\nEND\r\n")).collect();
    campaign(&mut server, folder.path(), || asks(&socket, &set, &stored) && asks(&socket, &get, &values));
}

#[test]
fn node() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("node");
    let script = "const {createHash} = require('crypto');\n\
                  function f() { let n = 1, s = ''; for (let i = 0; i < 50000; i++) { n = (n * 31 + i) % 1000003; s += n & 7; }\n\
                  return createHash('sha256').update(s).digest('hex'); }\n\
                  const e = f(); function g() { console.log(f() === e ? 'well' : 'wrong'); setTimeout(g, 1); }\ng();\n";
    let Some(mut program) = start("node", &["-e", script], folder.path()) else { return };
    campaign(&mut program, folder.path(), follows(folder.path()));
}

/// Waits until a program has written one more line that says that all is well.
fn follows(folder: &Path) -> impl FnMut() -> bool {
    let path = folder.join("output");
    let mut seen = 0;
    move || {
        let begin = std::time::Instant::now();
        loop {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            // A line may be half written.
            let text = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
            if text.lines().any(|line| line != "well") {
                return false;
            }
            if text.len() > seen {
                seen = text.len();
                return true;
            }
            if begin.elapsed() > Duration::from_secs(50) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn python3() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("python");
    let script = "import hashlib\ndef f():\n  return hashlib.sha256(str([i*i%7 for i in \
        range(20000)]).encode()).hexdigest()\n\
                  e = f()\nwhile True:\n  print('well' if f() == e else 'wrong', flush=True)\n";
    let Some(mut program) = start("python3", &["-c", script], folder.path()) else { return };
    campaign(&mut program, folder.path(), follows(folder.path()));
}

/// Builds a program that recovers from faults of its own. `None` without Go.
fn go_program(folder: &Folder) -> Option<PathBuf> {
    let source = "package main\nimport (\"fmt\"; \"os\"; \"time\")\nfunc fault() (ok bool) \
        {\n\tdefer func() { ok = recover() != nil }()\n\tvar p *int\n\treturn *p == 1\n}\n\
                  func sum() uint64 { n := uint64(1); for i := uint64(0); i < 300000; i++ { n = n*6364136223846793005 + i }; return n }\n\
                  func main() {\n\te := sum()\n\tfor w := 0; w < 3; w++ { go func() { for { if sum() != e { fmt.Println(\"wrong\"); os.Exit(1) } } }() }\n\
                  \tfor { if !fault() || sum() != e { fmt.Println(\"wrong\"); os.Exit(1) }; fmt.Println(\"well\"); time.Sleep(2 * time.Millisecond) }\n}\n";
    std::fs::write(folder.path().join("main.go"), source).expect("written");
    let built = Command::new("go")
        .args(["build", "-o", "subject", "main.go"])
        .current_dir(folder.path())
        .env("GOFLAGS", "-mod=mod")
        .status();
    if !built.is_ok_and(|status| status.success()) {
        println!("SKIP: needs go (package golang-go)");
        return None;
    }
    Some(folder.path().join("subject"))
}

#[test]
fn a_go_program_that_recovers_from_its_own_faults() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("go");
    let Some(program) = go_program(&folder) else { return };
    let Some(mut program) = start(program.to_str().expect("a path"), &[], folder.path()) else { return };
    campaign(&mut program, folder.path(), follows(folder.path()));
}

/// Runs a Go program as a member of a host: started as one (its runtime then installs a handler of
/// its own for every signal), or joined while it runs. Answers the upcalls that happened meanwhile.
fn go_as_a_member(mut host: Host, is_started: bool, name: &str) -> Option<u64> {
    let folder = Folder::new(name);
    let program = go_program(&folder)?;
    let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &native("count")).expect("loaded");
    // The program inherits it.
    orbit_linux::sched::set_affinity(0, &[common::cpu()]).expect("own affinity");
    let output = std::fs::File::create(folder.path().join("output")).expect("a file");
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stderr(output.try_clone().expect("a file")).stdout(output);
    let started = if is_started { host.launch(command).expect("started") } else { command.spawn().expect("started") };
    let mut program = Killed(started);
    let (mut works, before) = (follows(folder.path()), host.status(id).expect("loaded").account.runs);
    if !is_started {
        assert!(works());
        host.join(program.pid()).expect("joined");
    }
    until("the service runs while the program works", || {
        let text = || std::fs::read_to_string(folder.path().join("output")).unwrap_or_default();
        assert!(works(), "{}", text());
        assert!(program.0.try_wait().expect("own child").is_none(), "{}", text());
        host.tend();
        host.status(id).expect("loaded").account.runs > before + 300
    });
    let upcalls = host.status(id).expect("loaded").account.upcalls;
    if !is_started {
        host.leave(program.pid()).expect("left");
        assert!(works());
    }
    Some(upcalls)
}

#[test]
fn a_go_program_that_is_started_as_a_member() {
    if !is_root() {
        return;
    }
    let mut host: Host = host();
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        return println!("SKIP: needs ticks: {why}");
    }
    go_as_a_member(host, true, "go-started");
}

/// Where a host has no rights, clocks of the program's threads make upcalls, whatever it did with
/// its handlers.
#[test]
fn a_go_program_that_is_a_member_of_a_host_without_rights() {
    let options = || Options { cpus: vec![common::cpu()], signals: Options::WITHOUT_RIGHTS, ..Options::default() };
    let with_clocks = || {
        let mut host = Host::new(options()).expect("a host");
        host.start_clocks(Duration::from_millis(2)).map(|()| host)
    };
    match with_clocks() {
        Err(error) => return println!("SKIP: needs clocks: {error}"),
        Ok(host) => drop(go_as_a_member(host, true, "go-clocks-started")),
    }
    let upcalls = go_as_a_member(with_clocks().expect("as before"), false, "go-clocks-joined");
    assert!(upcalls.is_none_or(|upcalls| upcalls > 0), "upcalls in the program that was joined: {upcalls:?}");
}

#[test]
fn java() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("java");
    let source = "class Subject { static Object none; static long sum() { long n = 1; for (int i = 0; i < 3000000; i++) n = n * 6364136223846793005L + i; return n; }\n\
                  static boolean fault() { try { return none.hashCode() == 1; } catch (NullPointerException e) { return true; } }\n\
                  public static void main(String[] a) { long e = sum(); while (true) { boolean ok = sum() == e; for (int i = 0; i < 1000; i++) ok &= fault();\n\
                  System.out.println(ok ? \"well\" : \"wrong\"); } } }\n";
    std::fs::write(folder.path().join("Subject.java"), source).expect("written");
    // The compiler comes with it, or it does not.
    let built = Command::new("javac").arg("Subject.java").current_dir(folder.path()).stderr(Stdio::null()).status();
    if !built.is_ok_and(|status| status.success()) {
        return println!("SKIP: needs java with its compiler (package default-jdk-headless)");
    }
    let Some(mut program) = start("java", &["-Xmx64m", "Subject"], folder.path()) else { return };
    campaign(&mut program, folder.path(), follows(folder.path()));
}
