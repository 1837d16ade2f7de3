//! Services that come with the command, by name: wasm modules as any other, with the events,
//! handles and budget that they are made for.

use crate::protocol::{Class, Load};
use orbit_services::{Error, Kind, Result};
use std::path::{Path, PathBuf};

/// A ready service.
struct Ready {
    name: &'static str,
    module: &'static [u8],
    budget: &'static str,
    period_ns: u64,
    sources: &'static [&'static str],
    /// The class that it sets.
    class: &'static str,
}

const ALL: &[Ready] = &[Ready {
    name: "cache-by-pressure",
    // `services/native/memory.c`; `ready_modules_are_their_sources` says how it is built.
    module: include_bytes!("../ready/cache-by-pressure.wasm"),
    budget: "500us/100ms",
    period_ns: 1_000_000_000,
    sources: &["psi=memory:150ms/2s"],
    class: "memory:cache",
}];

fn find(name: &str) -> Result<&'static Ready> {
    ALL.iter().find(|ready| ready.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|ready| ready.name).collect();
        let text = format!("there is no ready service {name:?}: there is {}", names.join(", "));
        Error::new(Kind::NotFound, text)
    })
}

/// The module of the service with this name.
///
/// # Errors
/// `NotFound`, with the names that there are.
pub fn module(name: &Path) -> Result<&'static [u8]> {
    find(&name.to_string_lossy()).map(|ready| ready.module)
}

/// What is loaded for the service with this name: OWNER stands for its process. `range`: the least
/// and the largest value that it may set, where given.
///
/// # Errors
/// `NotFound`, with the names that there are.
pub fn load(name: &str, range: (Option<i64>, Option<i64>), dry_run: bool) -> Result<Load> {
    let ready = find(name)?;
    let bound = |word: &str, bound: Option<i64>| bound.map_or_else(String::new, |value| format!(",{word}={value}"));
    let (min, max) = (bound("min", range.0), bound("max", range.1));
    Ok(Load {
        file: PathBuf::from(ready.name),
        is_ready: true,
        dry_run,
        owner: 0,
        budget: ready.budget.to_owned(),
        memory: None,
        period_ns: Some(ready.period_ns),
        class: Class::Wasm,
        sources: ready.sources.iter().map(|source| (*source).to_owned()).collect(),
        grants: vec![format!("{}:set(pid=OWNER{min}{max})", ready.class)],
        arguments: String::new(),
        gives: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The version of clang that built the modules: others make other bytes.
    const BUILT_BY: &str = "clang version 14.";

    #[test]
    fn ready_modules_are_their_sources() {
        let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
        let version = Command::new(&clang).arg("--version").output().expect("clang").stdout;
        if !String::from_utf8_lossy(&version).contains(BUILT_BY) {
            return println!("SKIP: needs {BUILT_BY}x");
        }
        let services = Path::new(env!("CARGO_MANIFEST_DIR")).join("../services");
        let object = std::env::temp_dir().join(format!("orbit-ready-{}.wasm", std::process::id()));
        let done = Command::new(clang)
            .args(["--target=wasm32", "-O2", "-nostdlib", "-ffreestanding", "-Wl,--no-entry"])
            .args(["-Wl,--allow-undefined", "-Wl,-z,stack-size=16384", "-Wl,--strip-all", "-I"])
            .arg(services.join("include"))
            .arg("-o")
            .arg(&object)
            .arg(services.join("native/memory.c"))
            .output()
            .expect("clang");
        let said = String::from_utf8_lossy(&done.stderr);
        if said.contains("unable to execute") {
            return println!("SKIP: needs wasm-ld (package lld)");
        }
        assert!(done.status.success(), "{said}");
        let built = std::fs::read(&object).expect("the module");
        std::fs::remove_file(object).expect("own file");
        assert!(built == module(Path::new("cache-by-pressure")).expect("there"), "build it again");
    }

    #[test]
    fn a_range_becomes_that_of_the_handle() {
        let load = load("cache-by-pressure", (Some(8), None), true).expect("there");
        assert_eq!(load.grants, ["memory:cache:set(pid=OWNER,min=8)"]);
        assert!(load.dry_run && super::load("cache", (None, None), false).is_err());
    }
}
