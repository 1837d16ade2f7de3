//! Building the extension: `make` in `extension/`, once for each process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The extension as built.
#[derive(Clone, Debug)]
pub struct Extension {
    /// `orbit_deadlock.so`.
    pub library: PathBuf,
    /// Its declarations, with MODULE_PATHNAME in place of the library's path.
    pub sql: PathBuf,
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("extension")
}

/// Builds the extension for the `pg_config` of PostgreSQL 15 into the target directory, if anything
/// of it changed.
///
/// # Errors
/// What `make` said.
pub fn build() -> Result<Extension, String> {
    static BUILT: OnceLock<Result<Extension, String>> = OnceLock::new();
    BUILT.get_or_init(make).clone()
}

fn make() -> Result<Extension, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| source().join("../../../target"), PathBuf::from);
    let out = target.join("orbit-postgres");
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    // Several test programs build at a time: flock lets one make after the other.
    let made = Command::new("flock")
        .arg(out.join("lock"))
        .args(["make", "-s", "-C"])
        .arg(source())
        .arg(format!("BUILD={}", out.display()))
        .arg(format!("TARGET={}", target.display()))
        .output()
        .map_err(|error| format!("flock make: {error}"))?;
    if !made.status.success() {
        return Err(format!("make: {}", String::from_utf8_lossy(&made.stderr)));
    }
    Ok(Extension { library: out.join("orbit_deadlock.so"), sql: source().join("orbit_deadlock--1.0.sql") })
}
