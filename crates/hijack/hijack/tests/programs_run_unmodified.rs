//! Real programs behave under the executive as they do alone, with each call recorded and none
//! lost.

mod common;
use common::{guest, has, run, run_with};
use orbit_hijack::Options;
use orbit_hijack::reader::What;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn traced() -> Options {
    Options { trace: true, ..Options::default() }
}

#[test]
fn a_trace_has_every_call_that_was_counted() {
    let run = run(&traced(), &["sh", "-c", "echo one | cat; echo two"]);
    assert_eq!((run.outcome.status, run.stdout.as_str()), (0, "one\ntwo\n"));
    assert_eq!((run.outcome.lost, run.outcome.damaged), (0, 0));
    let traced = run.events.iter().filter(|event| matches!(event.what, What::Call(_))).count() as u64;
    assert_eq!(traced, run.outcome.calls.values().sum::<u64>());
    let writes = run.calls("write");
    assert!(writes.iter().any(|call| call.blobs[0].bytes == b"two\n" && call.result == Some(4)));
}

#[test]
fn python_threads_and_children() {
    if !has("python3") {
        return;
    }
    let code = "import threading, subprocess, signal, os
signal.signal(signal.SIGUSR1, lambda *a: print('handled', flush=True))
os.kill(os.getpid(), signal.SIGUSR1)
ts = [threading.Thread(target=lambda: subprocess.run(['true'])) for i in range(8)]
[t.start() for t in ts]; [t.join() for t in ts]
print(subprocess.run(['sh', '-c', 'echo $0 $1; exit 3', 'a', 'b'], capture_output=True))";
    let run = run(&traced(), &["/usr/bin/python3", "-c", code]);
    assert_eq!(run.outcome.status, 0);
    assert!(
        run.stdout.starts_with("handled\n") && run.stdout.contains("returncode=3, stdout=b'a b\\n'"),
        "{}",
        run.stdout
    );
    assert!(run.outcome.calls["execve"] >= 10, "{:?}", run.outcome.calls);
}

#[test]
fn redis_serves_and_shuts_down() {
    if !has("redis-server") {
        return;
    }
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("redis");
    std::fs::create_dir_all(&place).expect("a folder");
    let socket = place.join("socket");
    let _ = std::fs::remove_file(&socket);
    let client = std::thread::spawn({
        let socket = socket.clone();
        move || {
            let limit = Instant::now() + Duration::from_secs(60);
            let mut stream = loop {
                match UnixStream::connect(&socket) {
                    Ok(stream) => break stream,
                    Err(error) => assert!(Instant::now() < limit, "no server: {error}"),
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            let mut answer = [0; 64];
            stream.write_all(b"PING\r\n").expect("sent");
            let length = stream.read(&mut answer).expect("answered");
            stream.write_all(b"SHUTDOWN NOSAVE\r\n").expect("sent");
            String::from_utf8_lossy(&answer[..length]).into_owned()
        }
    });
    let path = socket.to_str().expect("a path");
    let run = run_with(&traced(), &["redis-server", "--port", "0", "--unixsocket", path, "--save", ""], |command| {
        command.current_dir(&place);
    });
    assert_eq!(client.join().expect("client"), "+PONG\r\n");
    assert_eq!((run.outcome.status, run.outcome.lost), (0, 0));
    assert!(run.calls("write").iter().any(|call| call.blobs.first().is_some_and(|blob| blob.bytes == b"+PONG\r\n")));
}

#[test]
fn status_and_signal_of_the_program_are_the_outcome() {
    assert_eq!(run(&traced(), &["sh", "-c", "exit 7"]).outcome.status, 7);
    assert_eq!(run(&traced(), &["sh", "-c", "kill -9 $$"]).outcome.status, 128 + 9);
}

#[test]
fn an_emptied_environment_and_scripts_are_seen() {
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let script = place.join("script.sh");
    std::fs::write(&script, "#!/bin/sh -e\necho \"$0 $1\"\n").expect("written");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    let path = script.to_str().expect("a path");
    let run = run_with(&traced(), &["env", "-i", path, "word"], |command| {
        command.env_clear();
    });
    assert_eq!(run.stdout, format!("{path} word\n"));
    assert_eq!(run.outcome.calls["execve"], 2);
    assert!(
        run.calls("write").iter().any(|call| call.blobs[0].bytes.starts_with(&path.as_bytes()[..20])),
        "seen after exec"
    );
}

#[test]
fn a_deleted_binary_still_starts_itself() {
    let program = guest("interface", &["-DDELETED"]);
    let copy = program.with_extension("deleted");
    orbit_testing::copy_of_program(&program, &copy);
    let path = copy.to_str().expect("a path");
    let line = format!("exec 9<{path}; rm {path}; exec /proc/self/fd/9 5");
    let run = run(&traced(), &["bash", "-c", &line]);
    assert_eq!(run.outcome.status, 5);
}

#[test]
fn signals_and_exec_behave_as_natively() {
    let program = guest("interface", &[]);
    let path = program.to_str().expect("a path");
    for options in [Options::default(), traced(), Options { no_rewrite: true, ..Options::default() }] {
        let run = run(&options, &[path]);
        assert_eq!((run.outcome.status, run.stdout.as_str()), (0, "failures 0\n"), "{options:?}");
    }
}

#[test]
fn a_thousand_threads_at_once() {
    let program = guest("threads", &[]);
    let run = run(&traced(), &[program.to_str().expect("a path")]);
    assert_eq!((run.outcome.status, run.stdout.as_str(), run.outcome.lost), (0, "bad 0\n", 0));
}

#[test]
fn what_is_killed_leaves_its_open_call() {
    let run = run(&traced(), &["sh", "-c", "sleep 1000 & sleep 0.2; kill -9 $!; wait $!; exit 0"]);
    assert_eq!(run.outcome.status, 0);
    let naps = run.calls("clock_nanosleep");
    assert_eq!(naps.iter().filter(|call| call.result.is_none()).count(), 1, "{naps:?}");
}

/// Two processes with the same ids, of which the host's namespace has other ones.
#[test]
fn a_trace_of_other_pid_namespaces_is_whole_and_ends() {
    let possible = std::process::Command::new("unshare").args(["-rpf", "true"]).output();
    if !has("unshare") || !possible.is_ok_and(|done| done.status.success()) {
        println!("SKIP: needs the right to make user and PID namespaces");
        return;
    }
    let calls = "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); [ -e /none ]; done; /bin/true";
    let script = format!("unshare -rpf sh -c '{calls}' & unshare -rpf sh -c '{calls}'; wait; exit 3");
    let (to, from) = std::sync::mpsc::channel();
    // Whoever would receive it gave up, and the test has failed.
    std::thread::spawn(move || to.send(run(&traced(), &["sh", "-c", &script])).is_ok());
    let run = from.recv_timeout(Duration::from_secs(300)).expect("the trace ends with its guests");
    assert_eq!((run.outcome.status, run.outcome.lost, run.outcome.damaged), (3, 0, 0));
    let of_none = run.events.iter().filter(|event| match &event.what {
        What::Call(call) => call.blobs.iter().any(|blob| blob.bytes == b"/none"),
        _ => false,
    });
    assert_eq!(of_none.count(), 10_000);
}

#[test]
fn a_program_that_does_not_exist_is_a_sentence() {
    let start =
        |name: &str| orbit_hijack::Session::start(&traced(), &[name.into()]).err().map(|error| error.to_string());
    assert_eq!(start("no-such-program"), Some("no program no-such-program in PATH".to_owned()));
    assert!(start("/etc/passwd").is_some_and(|error| error == "/etc/passwd is not a program"));
}

#[test]
fn a_program_that_changes_its_user_starts_others() {
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } != 0 || !has("su") {
        println!("SKIP: needs root and su");
        return;
    }
    let run = run(&traced(), &["su", "nobody", "-s", "/bin/sh", "-c", "id -un"]);
    assert_eq!((run.outcome.status, run.stdout.as_str()), (0, "nobody\n"));
    assert!(run.calls("write").iter().any(|call| call.blobs[0].bytes == b"nobody\n"), "seen after the change");
}
