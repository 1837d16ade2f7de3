//! Programs built for a test.

use std::path::Path;
use std::process::Command;

/// Compiles one source into a program (or an object, with such flags). `compiler` is its command:
/// `cc`, `c++`, `clang`.
///
/// # Panics
/// With what the compiler said, where it fails.
pub fn compile(compiler: &str, source: &Path, program: &Path, flags: &[&str]) {
    let mut command = Command::new(compiler);
    command.args(flags).arg("-o").arg(program).arg(source);
    // A linker takes libraries after what needs them.
    command.args(flags.iter().filter(|flag| flag.starts_with("-l")));
    let done = command.output().unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(done.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&done.stderr));
}
