//! Marks the module as one that stays mapped after `MODULE UNLOAD`: Orbit's supervisor thread runs its code.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
