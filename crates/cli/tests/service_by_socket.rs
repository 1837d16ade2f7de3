//! `orbit service`: a host, a wasm service loaded by a command, what it set, what is put back, and
//! what is rejected.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A child that is killed at the end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder with a host's socket in it; both are gone when this is dropped.
struct Stage {
    folder: PathBuf,
    socket: PathBuf,
}

impl Stage {
    fn new(name: &str) -> Stage {
        let folder = std::env::temp_dir().join(format!("orbit-service-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Stage { socket: folder.join("host.sock"), folder }
    }

    /// Starts a host, and answers it with the line that it prints once it answers commands.
    fn host(&self, args: &[&str]) -> (Running, String) {
        let mut host = Running(
            Command::new(env!("CARGO_BIN_EXE_orbit"))
                .args(["service", "run", "--socket"])
                .arg(&self.socket)
                .args(args)
                .stdout(Stdio::piped())
                .spawn()
                .expect("a host"),
        );
        let mut line = String::new();
        BufReader::new(host.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("services at"), "{line}");
        (host, line)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn orbit(socket: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orbit"))
        .arg("service")
        .arg("--socket")
        .arg(socket)
        .args(args)
        .output()
        .expect("orbit")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(60), "waited a minute for: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Compiles the test service of `crates/serve/services`. `None` where there is no linker for wasm.
fn module(folder: &Path) -> Option<PathBuf> {
    let services = Path::new(env!("CARGO_MANIFEST_DIR")).join("../serve/services");
    let module = folder.join("count.wasm");
    let done = Command::new(std::env::var_os("CLANG").unwrap_or_else(|| "clang".into()))
        .args([
            "--target=wasm32",
            "-O2",
            "-nostdlib",
            "-ffreestanding",
            "-Wl,--no-entry",
            "-Wl,--allow-undefined",
            "-I",
        ])
        .arg(services.join("include"))
        .arg("-o")
        .arg(&module)
        .arg(services.join("tests/native/count.c"))
        .output()
        .expect("clang");
    let errors = String::from_utf8_lossy(&done.stderr);
    if errors.contains("unable to execute") {
        println!("SKIP: needs wasm-ld (package lld)");
        return None;
    }
    assert!(done.status.success(), "{errors}");
    Some(module)
}

#[test]
fn services_are_loaded_run_listed_and_revoked() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root: what is put back is a lower niceness");
        return;
    }
    let stage = Stage::new("load");
    let socket = stage.socket.clone();
    let Some(module) = module(&stage.folder) else { return };
    let module = module.to_str().expect("a path");
    assert!(said(&orbit(&socket, &["ls"])).contains("orbit service run"), "without a host");
    let (mut host, _) = stage.host(&[]);

    let target = Running(Command::new("sleep").arg("infinity").spawn().expect("sleep"));
    let pid = target.0.id().to_string();
    let nice = || orbit_linux::sched::nice(target.0.id() as i32).expect("its niceness");
    let before = nice();
    let grant = format!("cpu:nice:set(pid={pid},min={})", before + 1);
    let load = ["load", module, "--owner", &pid, "--on", "tick=5ms", "--budget", "1ms/10ms", "--grant", &grant];
    let loaded = orbit(&socket, &load);
    assert!(loaded.status.success(), "{}", said(&loaded));
    let id = said(&loaded).trim().to_owned();
    until("the service sets the niceness", || nice() > before);
    let listed: Value = serde_json::from_slice(&orbit(&socket, &["ls", "--json"]).stdout).expect("JSON");
    let service = &listed["list"]["services"][0];
    assert!(
        service["id"] == id.as_str() && service["class"] == "wasm" && service["runs"].as_u64() > Some(0),
        "{listed}"
    );

    for (args, hint) in [
        (["load", module, "--owner", "1", "--budget", "9ms/10ms"], "of a CPU"),
        (["load", "/etc/passwd", "--owner", "1", "--budget", "50us/10ms"], "no wasm module"),
        (["load", module, "--owner", "1", "--grant", "cpu:luck:set(pid=1)"], "there is no class"),
        (["load", module, "--owner", "1", "--grant", "cpu:used:set(pid=1)"], "can be read only"),
        (["load", module, "--owner", "1", "--grant", "cpu:nice:set(pid=1,min=10,max=0)"], "no value would pass"),
        (["load", module, "--owner", "1", "--on", "tick=1us"], "the least is 100"),
        (["load", "/dev/zero", "--owner", "1", "--budget", "50us/10ms"], "no regular file"),
        (["load", module, "--owner", "999999999", "--budget", "50us/10ms"], "is gone"),
    ] {
        let refused = orbit(&socket, &args);
        assert!(!refused.status.success() && said(&refused).contains(hint), "{args:?}: {}", said(&refused));
    }
    assert!(orbit(&socket, &["revoke", &id]).status.success());
    assert_eq!(nice(), before);
    assert!(said(&orbit(&socket, &["log"])).contains(&format!("revoked {id}")));

    assert!(said(&orbit(&socket, &["revoke", &id])).contains("orbit service ls"), "revoked twice");
    let posted = orbit(&socket, &["load", module, "--owner", &pid, "--budget", "1ms/10ms", "--grant", &grant]);
    let posted_id = said(&posted).trim().to_owned();
    assert!(orbit(&socket, &["post", &posted_id, "5"]).status.success());
    until("a posted event starts it", || nice() == 1.max(before + 1));
    assert_eq!(said(&orbit(&socket, &["attr", "cpu:nice", &pid])).trim(), nice().to_string());
    assert!(orbit(&socket, &["revoke", &posted_id]).status.success());
    assert_eq!(nice(), before);
    assert_eq!(said(&orbit(&socket, &["attr", "cpu:nice", &pid, "3"])).trim(), "3");
    assert!(orbit(&socket, &["attr", "cpu:nice", &pid, &before.to_string()]).status.success());

    let owner = Running(Command::new("sleep").arg("infinity").spawn().expect("sleep"));
    let owner_pid = owner.0.id().to_string();
    let owned = orbit(
        &socket,
        &["load", module, "--owner", &owner_pid, "--on", "tick=5ms", "--budget", "1ms/10ms", "--grant", &grant],
    );
    assert!(owned.status.success(), "{}", said(&owned));
    until("the owned service runs", || nice() > before);
    drop(owner);
    until("its owner's exit puts the niceness back", || nice() == before);
    let no_cpu = orbit(&socket.with_extension("other"), &["run", "--cpu", "1000"]);
    assert!(!no_cpu.status.success() && said(&no_cpu).contains("--cpu"), "{}", said(&no_cpu));

    // A host that is asked to end puts back what services set.
    assert!(orbit(&socket, &load).status.success());
    until("it runs again", || nice() > before);
    // SAFETY: an own child.
    unsafe { libc::kill(host.0.id() as i32, libc::SIGTERM) };
    let ended = host.0.wait().expect("own child");
    assert!(ended.success(), "{ended}");
    assert_eq!(nice(), before);
    assert!(!socket.exists());
}

#[test]
fn a_program_starts_as_a_member_and_a_running_one_joins_and_leaves() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root");
        return;
    }
    let stage = Stage::new("member");
    let socket = stage.socket.clone();
    let (mut host, _) = stage.host(&[]);
    let inside = orbit(&socket, &["exec", "--", "sh", "-c", "grep -c orbit-sandbox /proc/$$/maps; exit 7"]);
    assert_eq!(inside.status.code(), Some(7), "{}", said(&inside));
    assert!(said(&inside).trim().parse::<u32>().is_ok_and(|mappings| mappings >= 3), "{}", said(&inside));
    let program = Running(Command::new("sleep").arg("infinity").spawn().expect("sleep"));
    let pid = program.0.id().to_string();
    let is_member = || std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps").contains("orbit-sandbox");
    let joined = orbit(&socket, &["join", &pid]);
    assert!(joined.status.success() && is_member(), "{}", said(&joined));
    assert!(said(&orbit(&socket, &["ls"])).contains(&format!("members: {pid}")));
    let left = orbit(&socket, &["leave", &pid]);
    assert!(left.status.success() && !is_member(), "{}", said(&left));
    let again = orbit(&socket, &["leave", &pid]);
    assert!(!again.status.success() && said(&again).contains("is not a member"), "{}", said(&again));

    // A member that exits is off the list; a host that ends lets the others leave.
    let gone = Running(Command::new("sleep").arg("infinity").spawn().expect("sleep"));
    let gone_pid = gone.0.id().to_string();
    assert!(orbit(&socket, &["join", &gone_pid]).status.success());
    drop(gone);
    assert!(orbit(&socket, &["join", &pid]).status.success());
    let listed: Value = serde_json::from_slice(&orbit(&socket, &["ls", "--json"]).stdout).expect("JSON");
    assert_eq!(listed["list"]["members"], serde_json::json!([program.0.id()]));
    // SAFETY: an own child.
    unsafe { libc::kill(host.0.id() as i32, libc::SIGTERM) };
    assert!(host.0.wait().expect("own child").success() && !is_member());
}

#[test]
fn a_host_that_is_killed_leaves_no_process_and_nothing_set() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root: what is put back is a lower niceness");
        return;
    }
    let stage = Stage::new("killed");
    let socket = stage.socket.clone();
    let Some(module) = module(&stage.folder) else { return };
    let (mut host, _) = stage.host(&[]);
    let target = Running(Command::new("sleep").arg("infinity").spawn().expect("sleep"));
    let pid = target.0.id().to_string();
    let nice = || orbit_linux::sched::nice(target.0.id() as i32).expect("its niceness");
    let before = nice();
    let grant = format!("cpu:nice:set(pid={pid},min={})", before + 1);
    let module = module.to_str().expect("a path");
    let load = ["load", module, "--owner", &pid, "--on", "tick=5ms", "--budget", "1ms/10ms", "--grant", &grant];
    let loaded = orbit(&socket, &load);
    assert!(loaded.status.success(), "{}", said(&loaded));
    until("the service sets the niceness", || nice() > before);
    let children = format!("/proc/{0}/task/{0}/children", host.0.id());
    let agents = std::fs::read_to_string(children).expect("its children");
    assert!(!agents.trim().is_empty(), "a host has an agent");
    host.0.kill().expect("own child");
    host.0.wait().expect("own child");
    until("the niceness is put back", || nice() == before);
    let runs = |agent: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{agent}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
    };
    until("its agents exit", || !agents.split_whitespace().any(runs));
    // The next host replaces the socket's file.
    drop(stage.host(&[]));
}

#[test]
fn a_host_begins_with_what_its_file_names_and_says_what_it_used() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root: what is put back is a lower niceness");
        return;
    }
    let stage = Stage::new("config");
    if module(&stage.folder).is_none() {
        return;
    }
    let target = Running(Command::new("sleep").arg("infinity").spawn().expect("sleep"));
    let nice = || orbit_linux::sched::nice(target.0.id() as i32).expect("its niceness");
    let before = nice();
    std::fs::write(stage.folder.join("pid"), format!("{}\n", target.0.id())).expect("written");
    let file = stage.folder.join("services.toml");
    let text = format!(
        "tick = \"5ms\"\n[[service]]\nfile = \"count.wasm\"\nowner = \"{}/pid\"\nbudget = \"1ms/10ms\"\non = \
         [\"tick=5ms\", \"tracepoint=sched_process_exec\"]\n\
         grant = [\"cpu:nice:set(pid=OWNER,min={})\"]\n",
        stage.folder.display(),
        before + 1
    );
    std::fs::write(&file, &text).expect("written");
    let path = file.to_str().expect("a path");
    let (mut host, line) = stage.host(&["-c", path]);
    assert!(line.contains("1 loaded"), "{line}");
    until("the service sets the niceness", || nice() > before);
    let metrics = said(&orbit(&stage.socket, &["metrics"]));
    let runs = metrics
        .lines()
        .find(|line| line.starts_with("orbit_service_runs_total{id=\"w1\",name=\"count\",class=\"wasm\""));
    assert!(runs.is_some_and(|line| line.rsplit(' ').next().is_some_and(|runs| runs != "0")), "{metrics}");
    let top = said(&orbit(&stage.socket, &["top", "-n", "1", "--interval", "200ms"]));
    assert!(top.contains("RUNS/S") && top.contains("count"), "{top}");
    // SAFETY: an own child.
    unsafe { libc::kill(host.0.id() as i32, libc::SIGTERM) };
    assert!(host.0.wait().expect("own child").success());
    assert_eq!(nice(), before);

    std::fs::write(&file, text.replace("count.wasm", "none.wasm")).expect("written");
    let refused = orbit(&stage.socket, &["run", "-c", path]);
    assert!(!refused.status.success() && said(&refused).contains("none.wasm"), "{}", said(&refused));
}

#[test]
fn a_service_in_the_kernel_is_loaded_by_its_class_and_one_service_starts_another() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root");
        return;
    }
    let stage = Stage::new("classes");
    let socket = stage.socket.clone();
    let Some(module) = module(&stage.folder) else { return };
    let module = module.to_str().expect("a path");
    let (mut host, _) = stage.host(&[]);
    let target = Running(Command::new("sleep").arg("infinity").spawn().expect("sleep"));
    let pid = target.0.id().to_string();
    let nice = || orbit_linux::sched::nice(target.0.id() as i32).expect("its niceness");
    let before = nice();

    // One wasm service runs by ticks; the other, which sets the niceness, by the runs of the first.
    let grant = format!("cpu:nice:set(pid={pid},min={})", before + 1);
    let first = orbit(&socket, &["load", module, "--owner", &pid, "--on", "tick=5ms", "--budget", "1ms/10ms"]);
    let first = said(&first).trim().to_owned();
    let on = format!("service={first}");
    let second =
        orbit(&socket, &["load", module, "--owner", &pid, "--on", &on, "--budget", "1ms/10ms", "--grant", &grant]);
    assert!(second.status.success(), "{}", said(&second));
    until("the second is started by the first", || nice() > before);
    for id in [&first, said(&second).trim()] {
        assert!(orbit(&socket, &["revoke", id]).status.success());
    }
    assert_eq!(nice(), before);
    let none = orbit(&socket, &["load", module, "--owner", &pid, "--on", &on]);
    assert!(!none.status.success() && said(&none).contains("orbit service ls"), "{}", said(&none));

    let object = stage.folder.join("nice.bpf.o");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Command::new(std::env::var_os("CLANG").unwrap_or_else(|| "clang".into()))
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-I/usr/include/x86_64-linux-gnu", "-c", "-o"])
        .arg(&object)
        .arg("-I")
        .arg(root.join("crates/serve/services/include"))
        .arg(root.join("examples/services/nice.bpf.c"))
        .status();
    assert!(built.expect("clang").success());
    let object = object.to_str().expect("a path");
    // It asks for 7; the tests themselves may have a niceness.
    let clamped = 7.clamp(before + 1, before + 2);
    let grant = format!("cpu:nice:set(pid={pid},min={},max={})", before + 1, before + 2);
    let load = ["load", object, "--class", "bpf", "--owner", &pid, "--on", "tick=5ms", "--grant", &grant];
    let loaded = orbit(&socket, &load);
    if said(&loaded).contains("CAP_BPF") {
        return println!("SKIP: needs BPF: {}", said(&loaded));
    }
    assert_eq!(said(&loaded).trim(), "k1");
    until("the kernel's service sets the niceness through its guard", || nice() == clamped);
    let listed: Value = serde_json::from_slice(&orbit(&socket, &["ls", "--json"]).stdout).expect("JSON");
    let service = &listed["list"]["services"][0];
    assert!(service["class"] == "bpf" && service["runs"].as_u64() > Some(0), "{listed}");
    for (args, hint) in [
        (&["load", object, "--class", "bpf", "--owner", &pid][..], "--on tick"),
        (&["load", module, "--class", "bpf", "--owner", &pid, "--on", "tick=5ms"], "no BPF object"),
        (&["load", object, "--class", "bpf", "--owner", &pid, "--on", "tick=5ms", "--on", "fd=0"], "fd=0"),
        (&["post", "k1"], "its ticks start it"),
    ] {
        let refused = orbit(&socket, args);
        assert!(!refused.status.success() && said(&refused).contains(hint), "{args:?}: {}", said(&refused));
    }
    assert!(orbit(&socket, &["revoke", "k1"]).status.success());
    assert_eq!(nice(), before);
    // SAFETY: an own child.
    unsafe { libc::kill(host.0.id() as i32, libc::SIGTERM) };
    assert!(host.0.wait().expect("own child").success());
}

/// Compiles the test service as a native object.
fn object(folder: &Path) -> PathBuf {
    let services = Path::new(env!("CARGO_MANIFEST_DIR")).join("../serve/services");
    let object = folder.join("count.so");
    let mut script = std::ffi::OsString::from("-Wl,-T,");
    script.push(services.join("include/orbit_service.ld"));
    let done = Command::new("cc")
        .args(["-O2", "-fPIC", "-shared", "-nostdlib", "-ffreestanding", "-fno-stack-protector"])
        .args(["-Wl,--hash-style=sysv", "-Wl,--build-id=none"])
        .arg(script)
        .arg("-I")
        .arg(services.join("include"))
        .arg("-o")
        .arg(&object)
        .arg(services.join("tests/native/count.c"))
        .output()
        .expect("cc");
    assert!(done.status.success() && done.stderr.is_empty(), "{}", said(&done));
    object
}

#[test]
fn native_and_wasm_services_share_one_limit() {
    let stage = Stage::new("limit");
    let Some(module) = module(&stage.folder) else { return };
    let object = object(&stage.folder);
    let (_host, _) = stage.host(&[]);
    let load = |file: &Path, class: &str| {
        let file = file.to_str().expect("a path");
        let owner = std::process::id().to_string();
        orbit(&stage.socket, &["load", file, "--class", class, "--owner", &owner, "--budget", "3ms/10ms"])
    };
    let first = load(&module, "wasm");
    assert!(first.status.success(), "{}", said(&first));
    let second = load(&object, "native");
    assert!(!second.status.success() && said(&second).contains("30.00 % of 50.00 %"), "{}", said(&second));
    assert!(orbit(&stage.socket, &["revoke", said(&first).trim()]).status.success());
    assert!(load(&object, "native").status.success());
}

#[test]
fn a_client_that_sends_a_byte_now_and_then_does_not_keep_the_host() {
    use std::io::Write;
    let stage = Stage::new("trickle");
    let (_host, _) = stage.host(&[]);
    let mut slow = std::os::unix::net::UnixStream::connect(&stage.socket).expect("connected");
    let sender = std::thread::spawn(move || {
        let begin = Instant::now();
        // Fails once the host has dropped the connection.
        while slow.write_all(b"x").is_ok() {
            assert!(begin.elapsed() < Duration::from_secs(20), "the host still listens to it");
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(orbit(&stage.socket, &["ls"]).status.success());
    sender.join().expect("dropped");
}

#[test]
fn a_signal_reaches_the_program_that_was_started_and_its_end_is_reported() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root");
        return;
    }
    let stage = Stage::new("exec");
    let _host = stage.host(&[]);
    let exec = |script: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
        command.args(["service", "exec", "--socket"]).arg(&stage.socket).args(["--", "sh", "-c", script]);
        Running(command.stdout(Stdio::piped()).spawn().expect("orbit"))
    };
    let ended_by = |script: &str, signal: i32| {
        let mut exec = exec(script);
        let mut line = String::new();
        BufReader::new(exec.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        // SAFETY: an own child.
        unsafe { libc::kill(exec.0.id() as i32, signal) };
        (line.trim().to_owned(), exec.0.wait().expect("own child").code())
    };
    // By its own action, and by the default one: no program is left.
    let handled = "trap 'exit 9' TERM; echo $$; while :; do sleep 0.05; done";
    let (pid, code) = ended_by(handled, libc::SIGTERM);
    assert_eq!(code, Some(9));
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "program {pid} is left");
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
        let (pid, code) = ended_by("echo $$; exec sleep infinity", signal);
        assert_eq!(code, Some(128 + signal));
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "program {pid} is left");
    }
    // One that the program gives itself.
    assert_eq!(exec("kill -9 $$").0.wait().expect("own child").code(), Some(128 + 9));
    // One that comes while the program starts.
    let mut early = exec("sleep infinity");
    std::thread::sleep(Duration::from_millis(3));
    // SAFETY: an own child.
    unsafe { libc::kill(early.0.id() as i32, libc::SIGTERM) };
    assert!(!early.0.wait().expect("own child").success());
}

#[test]
fn memory_of_modules_has_bounds() {
    let stage = Stage::new("memory");
    let socket = stage.socket.clone();
    let Some(module) = module(&stage.folder) else { return };
    let (_host, _) = stage.host(&[]);
    let me = std::process::id().to_string();
    let load = |memory: &str| {
        let module = module.to_str().expect("a path");
        orbit(&socket, &["load", module, "--owner", &me, "--memory", memory])
    };
    for (memory, hint) in [
        ("0", "0 bytes of memory"),
        ("0K", "0 bytes of memory"),
        ("4096M", "4294967296 bytes of memory"),
        ("99999999999M", "bytes"),
        ("99999999999999999999", "write bytes"),
        ("-1", "unexpected argument"),
        ("1", "give --memory 128K"),
    ] {
        let refused = load(memory);
        assert!(!refused.status.success() && said(&refused).contains(hint), "--memory {memory}: {}", said(&refused));
    }
    assert!(load("256K").status.success());
    let native = module.to_str().expect("a path");
    let refused = orbit(&socket, &["load", native, "--class", "native", "--owner", &me, "--memory", "256K"]);
    assert!(!refused.status.success() && said(&refused).contains("memory is chosen for wasm"), "{}", said(&refused));
}

#[test]
fn what_cannot_be_put_back_is_in_the_log() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root, to start a host without rights");
        return;
    }
    let stage = Stage::new("unrestored");
    let socket = stage.socket.clone();
    let Some(module) = module(&stage.folder) else { return };
    std::fs::set_permissions(&stage.folder, std::fs::Permissions::from_mode(0o777)).expect("own folder");
    let as_nobody = |program: &str| {
        let mut command = Command::new(program);
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    let mut host = as_nobody(env!("CARGO_BIN_EXE_orbit"));
    host.args(["service", "run", "--socket"]).arg(&socket).stdout(Stdio::piped());
    let mut host = match host.spawn() {
        Ok(host) => Running(host),
        Err(error) => return println!("SKIP: needs a build that other users may run: {error}"),
    };
    let mut line = String::new();
    BufReader::new(host.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let target = Running(as_nobody("sleep").arg("infinity").spawn().expect("sleep"));
    let pid = target.0.id().to_string();
    let before = orbit_linux::sched::nice(target.0.id() as i32).expect("its niceness");
    let grant = format!("cpu:nice:set(pid={pid},min={})", before + 1);
    let module = module.to_str().expect("a path");
    let load = ["load", module, "--owner", &pid, "--on", "tick=5ms", "--budget", "1ms/10ms", "--grant", &grant];
    let loaded = orbit(&socket, &load);
    assert!(loaded.status.success(), "{line}: {}", said(&loaded));
    until("the service sets the niceness", || {
        orbit_linux::sched::nice(target.0.id() as i32).expect("its niceness") > before
    });
    assert!(orbit(&socket, &["revoke", said(&loaded).trim()]).status.success());
    let wanted = format!("cpu:nice of {pid} could not be put back to {before}");
    until("the log says what could not be put back", || said(&orbit(&socket, &["log"])).contains(&wanted));
}

/// What a service sets, and what its guard bounds, is a line each; a dry run sets nothing and says
/// what it would have set; a template of each language builds and is loaded.
#[test]
fn each_set_is_a_line_a_dry_run_sets_nothing_and_templates_build() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root: what is put back is a lower niceness");
        return;
    }
    let stage = Stage::new("new");
    let socket = stage.socket.clone();
    let (_host, _) = stage.host(&[]);
    let target = Running(Command::new("sleep").arg("infinity").spawn().expect("sleep"));
    let pid = target.0.id().to_string();
    let nice = || orbit_linux::sched::nice(target.0.id() as i32).expect("its niceness");
    let before = nice();
    let log = || said(&orbit(&socket, &["log"]));
    for (language, missing) in
        [("c", "wasm-ld"), ("rust", "can't find crate for `core`"), ("assemblyscript", "asc: not found")]
    {
        let name = format!("in-{language}");
        let made = Command::new(env!("CARGO_BIN_EXE_orbit"))
            .args(["service", "new", "--lang", language, &name])
            .current_dir(&stage.folder)
            .output()
            .expect("orbit");
        assert!(made.status.success() && said(&made).contains(&format!("make -C {name}")), "{}", said(&made));
        let built = Command::new("make").arg("-C").arg(stage.folder.join(&name)).output().expect("make");
        if !built.status.success() {
            let why = said(&built);
            let is_missing = why.contains(missing) || why.contains("asc: No such file");
            assert!(is_missing, "{language}: {why}");
            println!("SKIP: needs {language}'s compiler for wasm ({missing})");
            continue;
        }
        let module = stage.folder.join(&name).join(format!("{name}.wasm"));
        let grant = format!("cpu:nice:set(pid={pid},max={})", before + 2);
        let load = |more: &[&str]| {
            let module = module.to_str().expect("a path");
            let mut args = vec!["load", module, "--owner", &pid, "--on", "tick=5ms", "--budget", "1ms/10ms"];
            args.extend(["--grant", &grant]);
            args.extend(more);
            let loaded = orbit(&socket, &args);
            assert!(loaded.status.success(), "{}", said(&loaded));
            said(&loaded).trim().to_owned()
        };
        let id = load(&["--dry-run"]);
        let would = format!("{name} would have set cpu:nice of {pid} to {}", before + 1);
        until("the dry run has a line", || log().contains(&would));
        assert_eq!(nice(), before, "a dry run sets nothing");
        assert!(orbit(&socket, &["revoke", &id]).status.success());
        assert!(!log().contains(&format!("{name} set")), "{}", log());
        let id = load(&[]);
        let lines = [
            format!("{name} set cpu:nice of {pid} to {}", before + 1),
            format!("{name} set cpu:nice of {pid} to {}, the bound of the {} asked for", before + 2, before + 3),
        ];
        until("each set has a line", || lines.iter().all(|line| log().contains(line)));
        assert!(orbit(&socket, &["revoke", &id]).status.success());
        assert!(nice() == before && log().contains(&format!("cpu:nice of {pid} put back")), "{}", log());
    }
    let refused = orbit(&socket, &["load", "/bin/true", "--class", "native", "--owner", &pid, "--dry-run"]);
    assert!(!refused.status.success() && said(&refused).contains("a dry run is for"), "{}", said(&refused));
}
