//! `make install` into a directory, of what is up to date, and a program built against that by pkg-config alone, shared and
//! static.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use common::{Scratch, must, needs, package, profile, sources};

const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn a_program_builds_against_what_make_install_made() {
    if !sources() || !needs("pkg-config") || !needs("make") {
        return;
    }
    let scratch = Scratch::new();
    // Of what is installed only the orbit command is not this package's: a stand-in, which is stale until a stand-in for cargo
    // builds it, so that this test builds nothing.
    let target = scratch.0.join("target");
    let built = target.join("release");
    std::fs::create_dir_all(&built).expect("a directory");
    std::fs::write(built.join("orbit"), "stale").expect("a file");
    let tools = scratch.0.join("tools");
    std::fs::create_dir_all(&tools).expect("a directory");
    let cargo = tools.join("cargo");
    let script = "#!/bin/sh\necho \"$*\" >\"$CARGO_TARGET_DIR/release/orbit\"\n";
    std::fs::write(&cargo, script).expect("a file");
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    for name in ["so", "a"] {
        let from = profile().join(format!("deps/liborbit_c.{name}"));
        std::os::unix::fs::symlink(from, built.join(format!("liborbit.{name}"))).expect("a link");
    }
    let root = package().join("../..");
    let prefix = scratch.0.join("prefix");
    let text = must(
        Command::new("make")
            .args(["-s", "install"])
            .arg(format!("PREFIX={}", prefix.display()))
            .current_dir(&root)
            .env("CARGO_TARGET_DIR", &target)
            .env("PATH", path)
            .env_remove("SUDO_USER")
            .env_remove("MAKEFLAGS"),
        LIMIT,
    );
    for name in
        ["include/orbit.h", "include/orbit.hpp", "lib/liborbit.a", "lib/pkgconfig/orbit.pc", "lib/liborbit.so.0"]
    {
        let file = prefix.join(name);
        assert!(file.is_file(), "{name} is there");
        assert!(text.contains(&*file.to_string_lossy()), "{name} is told of:\n{text}");
    }
    let command = std::fs::read_to_string(prefix.join("bin/orbit")).expect("the orbit command");
    assert_eq!(command, "build --release --workspace\n", "what is installed was built first");
    let flags = |arguments: &[&str]| {
        let text = must(
            Command::new("pkg-config")
                .args(arguments)
                .arg("orbit")
                .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
            LIMIT,
        );
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(flags(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let source = package().join("tests/c/updates.c");

    let shared = scratch.0.join("shared");
    must(Command::new("cc").arg(&source).args(flags(&["--cflags", "--libs"])).arg("-o").arg(&shared), LIMIT);
    must(Command::new(&shared).env("LD_LIBRARY_PATH", prefix.join("lib")), LIMIT);
    let needed = must(Command::new("readelf").arg("-d").arg(&shared), LIMIT);
    assert!(needed.contains("liborbit.so.0"), "the soname is what programs ask for:\n{needed}");

    let fixed = scratch.0.join("static");
    let mut compiler = Command::new("cc");
    compiler.arg(&source).args(flags(&["--cflags"])).arg(prefix.join("lib/liborbit.a"));
    // As `--static --libs` says, with the archive in place of -lorbit.
    compiler.args(flags(&["--static", "--libs"]).into_iter().filter(|flag| flag != "-lorbit"));
    must(compiler.arg("-o").arg(&fixed), LIMIT);
    must(&mut Command::new(&fixed), LIMIT);

    // Without any shared library.
    let whole = scratch.0.join("whole");
    let mut compiler = Command::new("cc");
    compiler.arg("-static").arg(&source).args(flags(&["--static", "--cflags", "--libs"]));
    must(compiler.arg("-o").arg(&whole), LIMIT);
    must(&mut Command::new(&whole), LIMIT);
}
