//! Compiles the kernel half (`bpf/shd.bpf.c`); the library embeds the object.

fn main() {
    orbit_bpf::compile("shd", "the kernel programs of system hang detection");
}
