//! Compiles the kernel half (`bpf/uprobe.bpf.c`); the library embeds the object.

fn main() {
    orbit_bpf::compile("uprobe", "sections by name");
}
