//! A program with an in-memory SQLite database, whose heap is in areas by `orbit_jemalloc.h`: built
//! and run for its tests.
//!
//! The program itself is C, in `extension/`, with a Makefile of its own.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::path::Path;
use std::process::{Command, Output};

/// Debian's jemalloc, of any architecture.
const JEMALLOC: &str = "libjemalloc.so.2";

/// Runs the program with these arguments (see `extension/query.c`) to its end; `None`, having said
/// so, where SQLite's header or jemalloc are missing.
///
/// # Panics
/// Where it does not build or cannot be started.
pub fn query(arguments: &[&str]) -> Option<Output> {
    let loaded = Command::new("cat").arg("/dev/null").env("LD_PRELOAD", JEMALLOC).output();
    let has_jemalloc = loaded.is_ok_and(|said| said.stderr.is_empty());
    if !has_jemalloc || !Path::new("/usr/include/sqlite3.h").exists() {
        println!(
            "SKIP: needs libsqlite3-dev and libjemalloc2 (Debian 12: apt-get install libsqlite3-dev libjemalloc2)"
        );
        return None;
    }
    let built = orbit_apps::make(env!("CARGO_MANIFEST_DIR"), "orbit-sqlite");
    let program = built.unwrap_or_else(|error| panic!("the program does not build: {error}")).join("query");
    let mut command = Command::new(program);
    Some(command.args(arguments).env("LD_PRELOAD", JEMALLOC).output().expect("the program starts"))
}
