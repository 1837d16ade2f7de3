//! Every exported symbol is declared in the header, and every declared one exported; C11 and C++17
//! without warnings.

mod common;

use std::process::Command;
use std::time::Duration;

use common::{Scratch, must, needs, package, profile, sources};

#[test]
fn the_header_matches_the_library() {
    if !sources() || !needs("nm") {
        return;
    }
    let scratch = Scratch::new();
    let release = scratch.0.join("release");
    std::fs::create_dir(&release).expect("a directory");
    std::os::unix::fs::symlink(profile().join("deps/liborbit_c.so"), release.join("liborbit.so")).expect("a link");
    must(
        Command::new(package().join("../../../scripts/check-header.sh")).env("CARGO_TARGET_DIR", &scratch.0),
        Duration::from_secs(120),
    );
}
