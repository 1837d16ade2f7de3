//! Building a port: `make` in its folder `extension`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the port whose crate is in the directory `port` into the folder `name` of the target
/// directory, if anything of it changed, and returns that folder. Test programs that build at a
/// time wait for each other.
///
/// # Errors What `make` said.
pub fn make(port: &str, name: &str) -> Result<PathBuf, String> {
    let source = Path::new(port).join("extension");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| source.join("../../../target"), PathBuf::from);
    let out = target.join(name);
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let out = std::fs::canonicalize(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let target = std::fs::canonicalize(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    let made = Command::new("flock")
        .arg(out.join("lock"))
        .args(["make", "-s", "-C"])
        .arg(source)
        .arg(format!("BUILD={}", out.display()))
        .arg(format!("TARGET={}", target.display()))
        .output()
        .map_err(|error| format!("flock make: {error}"))?;
    if !made.status.success() {
        return Err(format!("make: {}", String::from_utf8_lossy(&made.stderr)));
    }
    Ok(out)
}
