//! What this machine and this run offer.

use std::net::TcpListener;
use std::process::{Command, Stdio};

/// Whether this process is root.
pub fn is_root() -> bool {
    orbit_linux::host::user() == 0
}

/// Whether this process is root; else prints that the test is skipped.
pub fn needs_root() -> bool {
    let is_root = is_root();
    if !is_root {
        println!("SKIP: needs root");
    }
    is_root
}

/// Whether campaigns run in their whole length (`ORBIT_TEST_FULL`).
pub fn is_full() -> bool {
    std::env::var_os("ORBIT_TEST_FULL").is_some()
}

/// How many times a campaign does something: in its short form, or in its whole one.
pub fn times(short: usize, whole: usize) -> usize {
    if is_full() { whole } else { short }
}

/// Whether a program is in one of the folders of `PATH`.
pub fn is_installed(program: &str) -> bool {
    let places = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&places).any(|place| place.join(program).exists())
}

/// Whether a program is installed; else prints that the test is skipped.
pub fn has(program: &str) -> bool {
    let found = is_installed(program);
    if !found {
        println!("SKIP: needs {program}");
    }
    found
}

/// Whether a program runs with this argument and succeeds.
pub fn runs(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A port of loopback that nobody listened at just now.
///
/// # Panics
/// Where there is none.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}
