//! A cargo project's crates and those that they depend on, compiled to LLVM's text.
//!
//! Owns: a target directory of its own below the project's, where a second run finds what the first
//! has built. Promises: the project's own builds stay fresh; build scripts and macros are built as
//! ever.

use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// What makes rustc write text that [`crate::ir`] can read; joined as cargo wants them.
pub(crate) const FLAGS: [&str; 5] =
    ["--emit=llvm-ir", "-g", "-Copt-level=0", "-Ccodegen-units=1", "-Csymbol-mangling-version=v0"];

#[derive(Deserialize)]
struct Metadata {
    target_directory: PathBuf,
}

/// A line of what cargo says of its work.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    target: Target,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

#[derive(Deserialize, Default)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Builds the project with this manifest; `flags` are cargo's, as `--features x`. Returns the text
/// of each crate. Blocks as long as a build of all crates takes.
pub(crate) fn texts(manifest: &Path, flags: &[String]) -> Result<Vec<PathBuf>, String> {
    let metadata = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"])
        .arg(manifest)
        .stderr(Stdio::inherit())
        .output();
    let metadata: Metadata = serde_json::from_slice(&metadata.map_err(|error| missing("cargo", &error))?.stdout)
        .map_err(|_| "cargo cannot read it".to_owned())?;
    let host = host()?;
    let target = metadata.target_directory.join("orbit-analyse");
    let build = Command::new("cargo")
        .args(["build", "--message-format=json", "--target", &host, "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .args(flags)
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"))
        .env("CARGO_INCREMENTAL", "0")
        .stderr(Stdio::inherit())
        .output();
    let build = build.map_err(|error| missing("cargo", &error))?;
    if !build.status.success() {
        return Err("cargo does not build it; what it says is above".to_owned());
    }
    let deps = target.join(&host).join("debug/deps");
    let said = String::from_utf8_lossy(&build.stdout);
    let messages = said.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    let compiled = |message: &Message| {
        let hosts = ["custom-build", "proc-macro"];
        message.reason == "compiler-artifact" && !message.target.kind.iter().any(|kind| hosts.contains(&kind.as_str()))
    };
    let mut found: Vec<PathBuf> = messages.filter(compiled).filter_map(|message| text(&message, &deps)).collect();
    found.sort();
    found.dedup();
    Ok(found)
}

fn missing(what: &str, error: &std::io::Error) -> String {
    format!("{what}: {error}; install it")
}

fn host() -> Result<String, String> {
    let said = Command::new("rustc").arg("-vV").output().map_err(|error| missing("rustc", &error))?;
    let said = String::from_utf8_lossy(&said.stdout);
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".to_owned())
}

/// The text of a crate: by the hash in its library's name, or of a program, whose name has none
/// where cargo has put it, the newest.
fn text(message: &Message, deps: &Path) -> Option<PathBuf> {
    let crate_name = message.target.name.replace('-', "_");
    let of_library = message.filenames.iter().find_map(|file| {
        let name = file.file_stem()?.to_str()?.strip_prefix("lib")?;
        Some(deps.join(name).with_extension("ll")).filter(|text| text.exists())
    });
    of_library.or_else(|| {
        let is_its = |path: &PathBuf| {
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            path.extension().is_some_and(|of| of == "ll")
                && stem.rsplit_once('-').is_some_and(|(name, _)| name == crate_name)
        };
        let written = |path: &PathBuf| path.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let files = std::fs::read_dir(deps).ok()?.flatten().map(|entry| entry.path());
        files.filter(is_its).max_by_key(written)
    })
}
