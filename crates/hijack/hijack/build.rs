//! Compiles the executive: a static, freestanding program at a fixed address, without any library.

use std::path::Path;
use std::process::Command;

const FLAGS: &[&str] = &[
    "-O2",
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fcf-protection=none",
    // Vector registers hold the guest's values, and the red zone of its stack is not ours.
    "-mgeneral-regs-only",
    "-mno-red-zone",
    "-fPIE",
    "-fno-asynchronous-unwind-tables",
    "-fno-tree-loop-distribute-patterns",
    "-nostdlib",
    "-static",
    "-no-pie",
    "-Iexecutive",
    "-Wl,--build-id=none",
    "-Wl,-z,noexecstack",
];

/// As `include/orbit_hijack.h` says that policy objects are compiled.
const OBJECT_FLAGS: &[&str] = &[
    "-O2",
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-ffreestanding",
    "-fPIC",
    "-shared",
    "-nostdlib",
    "-mgeneral-regs-only",
    "-fno-stack-protector",
    "-fcf-protection=none",
    "-Iinclude",
];

fn main() {
    println!("cargo::rerun-if-changed=executive");
    println!("cargo::rerun-if-changed=data/widths.tsv");
    println!("cargo::rerun-if-changed=objects");
    println!("cargo::rerun-if-changed=include");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let inputs = Path::new(&out).join("inputs.so");
    let image = Path::new(&out).join("executive");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        // The crate builds everywhere; `Session::start` says what is missing.
        std::fs::write(&image, []).expect("OUT_DIR can be written");
        std::fs::write(&inputs, []).expect("OUT_DIR can be written");
        return;
    }
    let mut sources: Vec<_> = std::fs::read_dir("executive")
        .expect("the executive's sources")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|kind| kind == "c" || kind == "S"))
        .collect();
    sources.sort();
    let widths = Path::new(&out).join("widths.c");
    std::fs::write(&widths, widths_source()).expect("OUT_DIR can be written");
    sources.push(widths);
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command.args(FLAGS).args(&sources).arg("-Wl,-T,executive/link.ld").arg("-o").arg(&image);
    compile(&compiler, &mut command);
    let mut command = Command::new(&compiler);
    command.args(OBJECT_FLAGS).arg("objects/inputs.c").arg("-o").arg(&inputs);
    compile(&compiler, &mut command);
}

/// The table of `data/widths.tsv` for the executive.
fn widths_source() -> String {
    let table = std::fs::read_to_string("data/widths.tsv").expect("the table of widths");
    let rows = table.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let words: Vec<&str> = line.split('\t').collect();
        let [number, _, letters] = words[..] else { panic!("not number, name and letters: {line}") };
        let bits = |kinds: &str| {
            letters.bytes().enumerate().map(|(nth, kind)| u8::from(kinds.as_bytes().contains(&kind)) << nth).sum::<u8>()
        };
        format!("    [{number}] = {{{}, {}, {}}},\n", bits("iu"), bits("h"), bits("pa"))
    });
    let rows: String = rows.collect();
    format!("#include \"block.h\"\nconst struct width call_widths[MAX_CALLS] = {{\n{rows}}};\n")
}

/// Runs the compiler; what it says becomes cargo's warnings and errors.
fn compile(compiler: &str, command: &mut Command) {
    match command.output() {
        Ok(done) if done.status.success() => {
            for line in String::from_utf8_lossy(&done.stderr).lines().filter(|line| line.contains("warning:")) {
                println!("cargo::warning={line}");
            }
        }
        Ok(done) => {
            println!("cargo::error={compiler} cannot compile the executive:");
            for line in String::from_utf8_lossy(&done.stderr).lines().take(40) {
                println!("cargo::error={line}");
            }
        }
        Err(error) => println!(
            "cargo::error=cannot run {compiler}: {error}; install a C compiler (apt-get install gcc) or set CC to one"
        ),
    }
}
