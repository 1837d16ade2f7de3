//! Compiles the kernel half of the pins (`bpf/rmk.bpf.c`) with clang into `OUT_DIR`; the library embeds the object.
use std::{env, path::PathBuf, process::Command};

const NEEDS: &str = "the pins' kernel programs need clang 12 or newer and libbpf's headers to build: install them \
    (Debian, Ubuntu: apt-get install clang libbpf-dev; Fedora: dnf install clang libbpf-devel), or set CLANG to another clang";

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("rmk.bpf.o");
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "arm64",
        _ => "x86",
    };
    let mut command = Command::new(&clang);
    command.args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"]);
    command.arg(format!("-D__TARGET_ARCH_{arch}"));
    // Debian keeps <asm/types.h> in a folder named for the machine, which a bpf target does not search.
    for machine in ["x86_64-linux-gnu", "aarch64-linux-gnu"] {
        if machine.starts_with(env::var("CARGO_CFG_TARGET_ARCH").as_deref().unwrap_or("x86_64")) {
            command.arg(format!("-I/usr/include/{machine}"));
        }
    }
    command.args(["-c", "bpf/rmk.bpf.c", "-o"]).arg(&object);
    match command.output() {
        Ok(done) if done.status.success() => {}
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr);
            println!("cargo::error={clang} could not compile bpf/rmk.bpf.c; {NEEDS}");
            for line in said.lines().take(20) {
                println!("cargo::error={line}");
            }
        }
        Err(error) => println!("cargo::error={clang} could not be run: {error}; {NEEDS}"),
    }
}
