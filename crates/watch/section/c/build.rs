//! Gives the shared library its soname.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librmk_section.so.0");
    // Threads give their slots back when they end: dlclose must not take that code away.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
