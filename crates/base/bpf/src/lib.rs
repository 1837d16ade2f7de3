//! For build scripts: compiles a kernel half written in C to a BPF object.
//!
//! Owns: the compiler's options, and the message where it is missing. The crates `pins`,
//! `shd` and `uprobe` embed what it makes.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// Compiles `bpf/NAME.bpf.c` of the package that is built to `NAME.bpf.o` in `OUT_DIR`, with clang
/// or what `CLANG` names. If that fails, so does the build, with a message that says what `purpose`
/// (a plural or "sections by name") needs.
///
/// # Panics
/// Outside a build script: cargo sets `OUT_DIR` there.
pub fn compile(name: &str, purpose: &str) {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let source = format!("bpf/{name}.bpf.c");
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(format!("{name}.bpf.o"));
    let machine = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_else(|_| "x86_64".into());
    let arch = if machine == "aarch64" { "arm64" } else { "x86" };
    let mut command = Command::new(&clang);
    command.args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"]);
    // Debian keeps <asm/types.h> in a folder named for the machine, which a bpf target does not
    // search.
    command.arg(format!("-D__TARGET_ARCH_{arch}")).arg(format!("-I/usr/include/{machine}-linux-gnu"));
    command.args(["-c", &source, "-o"]).arg(&object);
    let why = match command.output() {
        Ok(done) if done.status.success() => return,
        Ok(done) => String::from_utf8_lossy(&done.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    // A part of it must not be taken for the whole.
    let _ = fs::remove_file(object);
    println!(
        "cargo::error={clang} could not compile {source}; {purpose} need clang 12 or newer and libbpf's headers to \
         build: install them \
         (Debian, Ubuntu: apt-get install clang libbpf-dev; Fedora: dnf install clang libbpf-devel), or set CLANG to \
         another clang"
    );
    for line in why.lines().take(20) {
        println!("cargo::error={line}");
    }
}
