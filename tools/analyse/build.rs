//! Compiles the recorder (`side/record.c`) to a library that is part of the analyser: it needs no
//! installed file.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=side");
    println!("cargo::rerun-if-env-changed=CC");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let library = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("record.so");
    let mut command = Command::new(&compiler);
    command.args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]);
    // No call is made the last one of its function: the stacks have fixed frames above the
    // program's.
    command.args(["-fno-optimize-sibling-calls", "-fno-inline", "-fno-builtin", "-D_GNU_SOURCE"]);
    command.args(["-U_FORTIFY_SOURCE", "-fno-stack-protector", "-Wl,-z,now", "-o"]).arg(&library);
    let why = match command.args(["side/record.c", "-lpthread"]).output() {
        Ok(done) if done.status.success() => return,
        Ok(done) => String::from_utf8_lossy(&done.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let _ = fs::remove_file(library);
    println!(
        "cargo::error={compiler} could not compile tools/analyse/side: install a C compiler (Debian: apt-get \
         install gcc), or set CC"
    );
    for line in why.lines().take(20) {
        println!("cargo::error={line}");
    }
}
