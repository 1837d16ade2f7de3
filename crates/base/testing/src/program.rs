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

/// Copies a program that is then executed. Another process writes it: a descriptor for writing of
/// this one would live on for a moment in each child that another thread forks meanwhile, and
/// `execve` would fail with `ETXTBSY` (<https://github.com/golang/go/issues/22315>).
///
/// # Panics
/// With what `cp` said, where it fails.
pub fn copy_of_program(program: &Path, copy: &Path) {
    let done = Command::new("cp").arg("--").args([program, copy]).output().expect("cp");
    assert!(done.status.success(), "{}: {}", copy.display(), String::from_utf8_lossy(&done.stderr));
}
