//! Compiles the kernel half (`bpf/rmk.bpf.c`); the library embeds the object.

fn main() {
    orbit_bpf::compile("rmk", "the pins' kernel programs");
}
