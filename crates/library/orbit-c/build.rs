//! Gives the shared library its soname, and lays the names that C programs link by beside cargo's:
//! `liborbit.so`, `liborbit.so.0` and `liborbit.a` in the profile's directory point to what cargo
//! makes of this package (in `deps`, where it is fresh after `cargo test` too).

use std::os::unix::fs::symlink;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liborbit.so.0");
    // Its thread and its handlers stay for as long as the process: dlclose must not take their code
    // away.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    // OUT_DIR is PROFILE/build/PACKAGE-HASH/out.
    let Some(profile) = Path::new(&out).ancestors().nth(3) else { return };
    for (name, target) in [
        ("liborbit.so", "deps/liborbit_c.so"),
        ("liborbit.so.0", "deps/liborbit_c.so"),
        ("liborbit.a", "deps/liborbit_c.a"),
    ] {
        let link = profile.join(name);
        // Without the link only the name is missing; whoever needs it says so.
        let _ = std::fs::remove_file(&link);
        if let Err(error) = symlink(target, &link) {
            println!("cargo::warning={} -> {target}: {error}", link.display());
        }
    }
}
