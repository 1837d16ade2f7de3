//! Marks the module as one that stays mapped after `MODULE UNLOAD`: what Orbit has registered to
//! run at a fork is its code.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
