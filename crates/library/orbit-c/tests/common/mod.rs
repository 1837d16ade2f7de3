//! Compiles C and C++ programs against the library as cargo built it, and runs them with a limit of
//! time.

#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The package's directory.
pub fn package() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The directory of the profile that cargo built, with `deps/liborbit_c.so` in it.
pub fn profile() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target directory");
    target.join(if cfg!(debug_assertions) { "debug" } else { "release" })
}

/// A directory of its own, gone at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("orbit-c-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a scratch directory");
        Scratch(path)
    }

    /// The names that programs link by, in `lib` of this directory.
    pub fn library(&self) -> PathBuf {
        let lib = self.0.join("lib");
        if !lib.exists() {
            fs::create_dir(&lib).expect("a directory");
            let deps = profile().join("deps");
            symlink(deps.join("liborbit_c.a"), lib.join("liborbit.a")).expect("a link");
            // A copy, for programs that continue as an ordinary user, which may have no right to
            // read the project.
            fs::copy(deps.join("liborbit_c.so"), lib.join("liborbit.so.0")).expect("the library as built");
            symlink("liborbit.so.0", lib.join("liborbit.so")).expect("a link");
        }
        lib
    }

    /// Compiles these sources (paths below the package) into a program.
    pub fn compile(&self, name: &str, sources: &[&str], flags: &[&str]) -> PathBuf {
        let cpp = sources.iter().any(|s| s.ends_with(".cpp"));
        let lib = self.library();
        let program = self.0.join(name);
        let mut compiler = Command::new(if cpp { "c++" } else { "cc" });
        compiler
            .arg(if cpp { "-std=c++17" } else { "-std=gnu11" })
            .args(["-g", "-O1", "-Wall", "-Wextra", "-Werror"])
            .arg(format!("-I{}", package().join("include").display()))
            .arg("-o")
            .arg(&program)
            .args(sources.iter().map(|s| package().join(s)))
            .args(flags)
            .arg(format!("-L{}", lib.display()))
            .args(["-lorbit", "-lpthread"])
            .arg(format!("-Wl,-rpath,{}", lib.display()));
        must(&mut compiler, Duration::from_secs(120));
        program
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a program printed, both streams.
pub struct Ran {
    pub code: Option<i32>,
    pub text: String,
}

/// Runs a command for at most this long; then it is killed, and the test fails.
pub fn run(command: &mut Command, limit: Duration) -> Ran {
    let shown = format!("{command:?}");
    // cargo's own would come before the paths that the programs are linked with.
    if !command.get_envs().any(|(name, _)| name == "LD_LIBRARY_PATH") {
        command.env_remove("LD_LIBRARY_PATH");
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{shown}: {e}"));
    let out = child.stdout.take().expect("a pipe");
    let err = child.stderr.take().expect("a pipe");
    let readers = [read(out), read(err)];
    let code = wait(&mut child, limit, &shown);
    let text = readers.map(|r| r.join().expect("a reader")).concat();
    Ran { code, text }
}

fn read(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child, limit: Duration, shown: &str) -> Option<i32> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status.code();
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{shown}: not done after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a command that must end with status 0; hands on its skips.
pub fn must(command: &mut Command, limit: Duration) -> String {
    let shown = format!("{command:?}");
    let ran = run(command, limit);
    assert_eq!(ran.code, Some(0), "{shown}:\n{}", ran.text);
    for line in ran.text.lines().filter(|line| line.starts_with("SKIP:")) {
        println!("{line}");
    }
    ran.text
}

/// Whether a tool is there; if not, says that the test is skipped.
pub fn needs(tool: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(tool).is_file()));
    if !found {
        println!("SKIP: needs {tool}");
    }
    found
}

/// Whether the sources can be read, which an ordinary user may not be able to (a contained run of a
/// project in /root).
pub fn sources() -> bool {
    let readable = fs::File::open(package().join("include/orbit.h")).is_ok()
        && fs::File::open(profile().join("deps/liborbit_c.so")).is_ok();
    if !readable {
        println!("SKIP: needs a project directory that this user may read");
    }
    readable && needs("cc") && needs("c++")
}
