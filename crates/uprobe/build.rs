//! Compiles the kernel half (`bpf/uprobe.bpf.c`) with clang into `OUT_DIR`; the library embeds the object.
use std::{env, path::PathBuf, process::Command};

const NEEDS: &str = "sections by name need clang 12 or newer and libbpf's headers to build: install them \
    (Debian, Ubuntu: apt-get install clang libbpf-dev; Fedora: dnf install clang libbpf-devel), or set CLANG to another clang";

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("uprobe.bpf.o");
    let machine = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_else(|_| "x86_64".into());
    let arch = if machine == "aarch64" { "arm64" } else { "x86" };
    let mut command = Command::new(&clang);
    command.args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"]);
    // Debian keeps <asm/types.h> in a folder named for the machine, which a bpf target does not search.
    command.arg(format!("-D__TARGET_ARCH_{arch}")).arg(format!("-I/usr/include/{machine}-linux-gnu"));
    command.args(["-c", "bpf/uprobe.bpf.c", "-o"]).arg(&object);
    let why = match command.output() {
        Ok(done) if done.status.success() => return,
        Ok(done) => String::from_utf8_lossy(&done.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    println!("cargo::error={clang} could not compile bpf/uprobe.bpf.c; {NEEDS}");
    for line in why.lines().take(20) {
        println!("cargo::error={line}");
    }
}
