//! What the tests of services share: members, native services compiled on the spot, and waiting.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]

use orbit_services::{Budget, Dispatch, GrantRequest, Host, Options, Spec};
pub use orbit_testing::{Folder, Killed, PATIENCE, needs_root as is_root, times, until};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The last processor this process may use: tests that need one CPU share it.
pub fn cpu() -> usize {
    *orbit_linux::sched::affinity(0).expect("own affinity").last().expect("a processor")
}

/// A host on one processor.
pub fn host() -> Host {
    Host::new(Options { cpus: vec![cpu()], ..Options::default() }).expect("a host")
}

/// The folder of `orbit-services`, also for tests of crates beside it.
pub fn services() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../services")
}

/// Compiles `tests/native/NAME.c`, or `native/NAME.c` of the crate, to wasm. `None` where there is
/// no linker for it.
pub fn wasm(name: &str) -> Option<Vec<u8>> {
    let object = format!("orbit-test-{}-{name}-{:?}.wasm", std::process::id(), std::thread::current().id());
    let object = std::env::temp_dir().join(object);
    let done = Command::new(std::env::var_os("CLANG").unwrap_or_else(|| "clang".into()))
        .args(["--target=wasm32", "-O2", "-nostdlib", "-ffreestanding", "-Wl,--no-entry", "-Wl,--allow-undefined"])
        .arg("-I")
        .arg(services().join("include"))
        .arg("-o")
        .arg(&object)
        .arg(source(name))
        .output()
        .expect("clang");
    let said = String::from_utf8_lossy(&done.stderr);
    if !done.status.success() && said.contains("unable to execute") {
        println!("SKIP: needs wasm-ld (package lld): {said}");
        return None;
    }
    assert!(done.status.success(), "{said}");
    let bytes = std::fs::read(&object).expect("the module");
    let _ = std::fs::remove_file(object);
    Some(bytes)
}

/// The source of a service: one of the tests, or one that comes with the crate.
fn source(name: &str) -> std::path::PathBuf {
    let of_tests = services().join("tests/native").join(format!("{name}.c"));
    if of_tests.exists() { of_tests } else { services().join("native").join(format!("{name}.c")) }
}

/// Compiles a native service from `tests/native/NAME.c`, or `native/NAME.c` of the crate.
pub fn native(name: &str) -> Vec<u8> {
    let here = services();
    let object = std::env::temp_dir().join(format!(
        "orbit-test-{}-{name}-{:?}.so",
        std::process::id(),
        std::thread::current().id()
    ));
    let done = Command::new(std::env::var_os("CLANG").unwrap_or_else(|| "clang".into()))
        .args([
            "-O2",
            "-fPIC",
            "-shared",
            "-nostdlib",
            "-ffreestanding",
            "-fno-stack-protector",
            "-Wl,--hash-style=sysv",
        ])
        .arg("-I")
        .arg(here.join("include"))
        .arg(format!("-Wl,-T,{}", here.join("include/orbit_service.ld").display()))
        .arg("-o")
        .arg(&object)
        .arg(source(name))
        .output()
        .expect("clang");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let bytes = std::fs::read(&object).expect("the object");
    let _ = std::fs::remove_file(object);
    bytes
}

/// Compiles `tests/native/NAME.bpf.c`, a service in the kernel.
pub fn bpf(name: &str) -> Vec<u8> {
    let object = std::env::temp_dir().join(format!("orbit-test-{}-{name}.bpf.o", std::process::id()));
    let done = Command::new(std::env::var_os("CLANG").unwrap_or_else(|| "clang".into()))
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-D__TARGET_ARCH_x86", "-I/usr/include/x86_64-linux-gnu"])
        .arg("-I")
        .arg(services().join("include"))
        .arg("-c")
        .arg(services().join(format!("tests/native/{name}.bpf.c")))
        .arg("-o")
        .arg(&object)
        .output()
        .expect("clang");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let bytes = std::fs::read(&object).expect("the object");
    let _ = std::fs::remove_file(object);
    bytes
}

/// A service of this process, every 2 ms, 1 ms of CPU time in each 10 ms.
pub fn spec(name: &str, dispatch: Dispatch, grants: Vec<GrantRequest>) -> Spec {
    Spec {
        name: name.to_owned(),
        owner: std::process::id() as i32,
        budget: Budget::new(Duration::from_millis(1), Duration::from_millis(10)).expect("a budget"),
        period: Duration::from_millis(2),
        dispatch,
        raise: None,
        arguments: Vec::new(),
        grants,
    }
}

/// A program that joins and computes until it is killed. Its only output is what it found wrong
/// with its own results.
pub struct Member(pub Child);

impl Member {
    /// Starts one, on the CPU of [`cpu`]. `program` is the test function that calls
    /// [`member_program`].
    pub fn start(host: &mut Host, program: &str) -> Member {
        let member = Member::alone(host, program);
        let pid = member.pid();
        until("the member joins", || host.add_member(pid).is_ok());
        member
    }

    /// Starts one, and does not add it to the host.
    pub fn alone(host: &Host, program: &str) -> Member {
        let child = Command::new(std::env::current_exe().expect("own program"))
            .args([program, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(orbit_services::Invitation::VARIABLE, host.invitation().to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("a member");
        Member(child)
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Whether it still runs: it exits when its results are wrong.
    pub fn is_alive(&mut self) -> bool {
        self.0.try_wait().expect("own child").is_none()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The member's program: joins, then computes the same thing again and again and compares.
pub fn member_program() {
    let Ok(value) = std::env::var(orbit_services::Invitation::VARIABLE) else { return };
    orbit_linux::sched::set_affinity(0, &[cpu()]).expect("own affinity");
    orbit_services::Invitation::parse(&value).expect("an invitation").accept().expect("joining");
    let parent = std::os::unix::process::parent_id();
    let expected = compute();
    loop {
        assert_eq!(compute().to_bits(), expected.to_bits(), "an upcall changed what this program computes");
        if std::os::unix::process::parent_id() != parent {
            std::process::exit(0);
        }
    }
}

/// Floating point and integers, so that every kind of register is in use.
#[inline(never)]
fn compute() -> f64 {
    let (mut x, mut n) = (1.5f64, 1u64);
    for i in 0..100_000u64 {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i);
        x = x.mul_add(0.999_99, (n >> 40) as f64);
    }
    x
}

/// A process that computes, on the CPU of [`cpu`].
pub struct Busy(Killed);

impl Busy {
    /// Starts one.
    pub fn start() -> Busy {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu().to_string(), "sh", "-c", "while :; do :; done"]);
        Busy(Killed(command.spawn().expect("taskset")))
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.0.pid()
    }
}

/// Kills a process of this test's own making.
pub fn kill(pid: i32) {
    // SAFETY: a process that this test's host made.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// A program that computes and checks itself, compiled on the spot; killed when this is dropped.
pub struct Subject(pub Child, std::path::PathBuf);

impl Subject {
    /// Starts one, compiled with these flags more, on the CPU of [`cpu`].
    pub fn start(flags: &[&str]) -> Subject {
        let name = format!("orbit-join-{}-{}", std::process::id(), flags.concat().replace('-', ""));
        let program = std::env::temp_dir().join(name);
        let source = services().join("tests/native/subject.c");
        let done = Command::new("cc").arg("-O2").args(flags).arg("-o").arg(&program).arg(source).status().expect("cc");
        assert!(done.success());
        Subject::of(program)
    }

    /// As [`Subject::start`], in Go, with three goroutines that compute. `None` without a compiler.
    pub fn go() -> Option<Subject> {
        let folder = std::env::temp_dir().join(format!("orbit-join-go-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let source = "package main\nimport \"os\"\nfunc sum() uint64 \
            { n := uint64(1); for i := uint64(0); i < 300000; i++ { n = n*6364136223846793005 + i }; return n }\n\
                      func work(e uint64) { for { if sum() != e { os.Exit(1) } } }\n\
                      func main() { e := sum(); go work(e); go work(e); work(e) }\n";
        std::fs::write(folder.join("subject.go"), source).expect("written");
        let program = folder.with_extension("program");
        let built = Command::new("go")
            .args(["build", "-o"])
            .arg(&program)
            .arg("subject.go")
            .current_dir(&folder)
            .env("GO111MODULE", "off")
            .env("GOCACHE", folder.join("cache"))
            .status();
        let _ = std::fs::remove_dir_all(&folder);
        if !built.is_ok_and(|status| status.success()) {
            println!("SKIP: needs go (package golang-go)");
            return None;
        }
        Some(Subject::of(program))
    }

    fn of(program: std::path::PathBuf) -> Subject {
        let mut child = Command::new("taskset");
        child.args(["-c", &cpu().to_string()]).arg(&program).stdout(Stdio::null());
        Subject(child.spawn().expect("the program"), program)
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Whether it is the program by now, and not the one that binds it to a CPU.
    pub fn is_running(&self) -> bool {
        std::fs::read_link(format!("/proc/{}/exe", self.pid())).is_ok_and(|exe| exe == self.1)
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.0.try_wait().expect("own child")
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_file(&self.1);
    }
}
