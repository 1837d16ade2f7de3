//! Compiles the program's side (`side/*.c`) to a library that is part of the keeper: it needs no
//! installed file.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

const PARTS: [&str; 19] = [
    "asks.c",
    "once.c",
    "turns.c",
    "deliver.c",
    "exec.c",
    "threads.c",
    "start.c",
    "log.c",
    "confined.c",
    "drop.c",
    "raw.c",
    "signals.c",
    "calls.c",
    "time.c",
    "heap.c",
    "map.c",
    "moments.c",
    "mutex.c",
    "point.c",
];

/// What a program without a log has from us: handlers for fatal signals and their stacks, the heap
/// that can be changed, children, what it executes.
const PLAIN: [&str; 35] = [
    "syscall",
    "sigaltstack",
    "sigaction",
    "pthread_sigmask",
    "sigprocmask",
    "signal",
    "sysv_signal",
    "__sysv_signal",
    "bsd_signal",
    "ssignal",
    "sigset",
    "sigignore",
    "__sigaction",
    "malloc",
    "free",
    "calloc",
    "realloc",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "mallctl",
    "execve",
    "execveat",
    "fexecve",
    "execv",
    "execvpe",
    "execvp",
    "execl",
    "execle",
    "execlp",
    "fork",
    "vfork",
    "pthread_create",
    "orbit_keep_point",
    "orbit_keep_output_barrier",
];

/// The handler for a running program: bare code, as `orbit keep --pid` maps it.
const ARMED: &[&str] = &[
    "-O2",
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-U_FORTIFY_SOURCE",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fcf-protection=none",
    "-fno-toplevel-reorder",
    "-nostdlib",
    "-static",
    "-Wl,--oformat=binary,-Ttext=0,--build-id=none,-N,-e,0",
    "side/armed.c",
    "-o",
];

fn main() {
    println!("cargo::rerun-if-changed=side");
    println!("cargo::rerun-if-changed=include");
    println!("cargo::rerun-if-env-changed=CC");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let (library, armed) = (out.join("keep_side.so"), out.join("armed.bin"));
    let (plain, names) = (out.join("keep_plain.so"), out.join("plain.map"));
    let mut command = Command::new(&compiler);
    command.args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]);
    // The library defines what these macros would turn into other names.
    command.args(["-D_GNU_SOURCE", "-U_FORTIFY_SOURCE", "-fno-stack-protector", "-Wl,-z,now"]);
    // Its own calls reach its own functions: a program that has one of the same name, which passes
    // on to another name of the library's, would be called by that in turn, without end.
    command.args(["-Wl,-Bsymbolic-functions", "-o"]).arg(&library);
    command.args(PARTS.map(|part| format!("side/{part}"))).args(["-ldl", "-lpthread"]);
    // Without a log nothing but these is interposed.
    fs::write(&names, format!("{{ global: {}; local: *; }};\n", PLAIN.join("; "))).expect("OUT_DIR is writable");
    let mut second = Command::new(&compiler);
    second.args(command.get_args().map(|word| if word == library.as_os_str() { plain.as_os_str() } else { word }));
    second.arg(format!("-Wl,--version-script={}", names.display()));
    let mut bare = Command::new(&compiler);
    bare.args(ARMED).arg(&armed);
    let built = run(&mut command).and_then(|()| run(&mut second)).and_then(|()| run(&mut bare));
    let Err(why) = built else { return };
    let _ = fs::remove_file(library);
    println!(
        "cargo::error={compiler} could not compile crates/keep/keep/side: install a C compiler (Debian: apt-get \
         install gcc), or set CC"
    );
    for line in why.lines().take(20) {
        println!("cargo::error={line}");
    }
}

/// Runs the compiler; `Err` is what it said.
fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
        Err(error) => Err(error.to_string()),
    }
}
