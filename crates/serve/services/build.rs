//! Compiles what runs elsewhere than in the host: the kernel half (`bpf/ticks.bpf.c`), the library
//! inside the sandbox region (the crate `orbit-sandbox-lib` once more, as a shared object without
//! libc), and the native services that come with the crate. The library embeds all of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    for program in ["ticks", "tracepoint", "cpu"] {
        orbit_bpf::compile(program, "the services' kernel programs");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let script = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("include/orbit_service.ld");
    println!("cargo::rerun-if-changed=../sandbox-lib/src");
    println!("cargo::rerun-if-changed=include");
    println!("cargo::rerun-if-changed=native");
    library(&script, &out.join("library.so"));
    for entry in fs::read_dir("native").expect("native services are beside the build script").flatten() {
        let source = entry.path();
        if source.extension().is_some_and(|ending| ending == "c") {
            let name = source.file_stem().expect("a file has a name").to_string_lossy().into_owned();
            native(&script, &source, &out.join(format!("{name}.so")));
        }
    }
}

/// Compiles the library inside the region.
fn library(script: &Path, object: &Path) {
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"));
    rustc.args([
        "--edition",
        "2024",
        "--crate-name",
        "orbit_sandbox",
        "--crate-type",
        "cdylib",
        "--cfg",
        "sandbox_object",
    ]);
    for flag in [
        "panic=abort",
        "opt-level=3",
        "force-unwind-tables=no",
        "relocation-model=pic",
        "codegen-units=1",
        "debuginfo=0",
        "strip=debuginfo",
        "link-arg=-nostdlib",
        "link-arg=-nostartfiles",
        "link-arg=-Wl,--hash-style=sysv",
        "link-arg=-Wl,--build-id=none",
    ] {
        rustc.args(["-C", flag]);
    }
    rustc.arg("-C").arg(format!("link-arg=-Wl,-T,{}", script.display()));
    rustc.arg("-o").arg(object).arg("../sandbox-lib/src/lib.rs");
    run(rustc, "the library of the sandbox region");
}

/// Compiles a native service.
fn native(script: &Path, source: &Path, object: &Path) {
    println!("cargo::rerun-if-env-changed=CLANG");
    let mut clang = Command::new(env::var_os("CLANG").unwrap_or_else(|| "clang".into()));
    clang.args(["-O2", "-fPIC", "-shared", "-nostdlib", "-ffreestanding", "-fno-stack-protector"]);
    clang.args(["-Wall", "-Wextra", "-Werror", "-Iinclude", "-Wl,--hash-style=sysv", "-Wl,--build-id=none"]);
    clang.arg(format!("-Wl,-T,{}", script.display())).arg("-o").arg(object).arg(source);
    run(clang, "a native service");
}

/// Runs a compiler; the build fails with what it said if it does.
fn run(mut compiler: Command, what: &str) {
    let why = match compiler.output() {
        Ok(done) if done.status.success() => return,
        Ok(done) => String::from_utf8_lossy(&done.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    println!("cargo::error={compiler:?} could not compile {what}");
    for line in why.lines().take(20) {
        println!("cargo::error={line}");
    }
}
