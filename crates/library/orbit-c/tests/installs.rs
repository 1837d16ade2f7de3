//! `make install` into a directory, of what is up to date, and programs built against that by
//! pkg-config alone, shared and static: one with orbits, one with sections, one with both.

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
    // Of what is installed only the orbit command is not this package's: a stand-in, which is stale
    // until a stand-in for cargo builds it, so that this test builds nothing.
    let target = scratch.0.join("target");
    let built = target.join("release");
    std::fs::create_dir_all(&built).expect("a directory");
    std::fs::write(built.join("orbit"), "stale").expect("a file");
    let tools = scratch.0.join("tools");
    std::fs::create_dir_all(&tools).expect("a directory");
    let cargo = tools.join("cargo");
    // The stand-in of the command makes its pages, as the command does.
    let script = r#"#!/bin/sh
cat >"$CARGO_TARGET_DIR/release/orbit" <<END
#!/bin/sh
# $*
mkdir -p "\$3/bash" "\$3/zsh" "\$3/fish"
touch "\$3/orbit.1" "\$3/bash/orbit" "\$3/zsh/_orbit" "\$3/fish/orbit.fish"
END
chmod 755 "$CARGO_TARGET_DIR/release/orbit"
"#;
    std::fs::write(&cargo, script).expect("a file");
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    for name in ["so", "a"] {
        for (of, to) in [("liborbit_c", "liborbit"), ("librmk_section", "librmk_section")] {
            let from = profile().join(format!("deps/{of}.{name}"));
            std::os::unix::fs::symlink(from, built.join(format!("{to}.{name}"))).expect("a link");
        }
    }
    let root = package().join("../../..");
    let prefix = scratch.0.join("prefix");
    let text = must(
        Command::new("make")
            .args(["-s", "install"])
            .arg(format!("PREFIX={}", prefix.display()))
            .current_dir(&root)
            .env("CARGO_TARGET_DIR", &target)
            .env("PATH", path)
            .env("PKG_CONFIG_LIBDIR", &tools)
            .env_remove("SUDO_USER")
            .env_remove("MAKEFLAGS"),
        LIMIT,
    );
    let hint = format!("PKG_CONFIG_PATH={}/lib/pkgconfig", prefix.display());
    assert!(text.contains(&hint), "{text}");
    for name in [
        "include/orbit.h",
        "include/orbit.hpp",
        "include/orbit_paper.h",
        "include/rmk.h",
        "include/rmk_functions.h",
        "share/orbit/clang/Makefile",
        "share/orbit/clang/rmk_sections.cpp",
        "lib/liborbit.a",
        "lib/librmk_section.a",
        "lib/pkgconfig/orbit.pc",
        "lib/pkgconfig/rmk_section.pc",
        "lib/liborbit.so.0",
        "lib/librmk_section.so.0",
    ] {
        let file = prefix.join(name);
        assert!(file.is_file(), "{name} is there");
        assert!(text.contains(&*file.to_string_lossy()), "{name} is named in:\n{text}");
    }
    let command = std::fs::read_to_string(prefix.join("bin/orbit")).expect("the orbit command");
    assert!(command.contains("# build --release --workspace\n"), "what is installed was built first: {command}");
    let flags = |arguments: &[&str], of: &[&str]| {
        let text = must(
            Command::new("pkg-config").args(arguments).args(of).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
            LIMIT,
        );
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let marked = scratch.0.join("marked.c");
    std::fs::write(&marked, MARKED).expect("a file");
    let both = scratch.0.join("both.c");
    std::fs::write(&both, BOTH).expect("a file");
    let (orbits, sections) = (package().join("tests/c/updates.c"), "rmk_section");
    for (source, of) in [(&orbits, &["orbit"][..]), (&marked, &[sections]), (&both, &["orbit", sections])] {
        for name in of {
            assert_eq!(flags(&["--modversion"], &[name]), [env!("CARGO_PKG_VERSION")]);
        }
        let shared = scratch.0.join("shared");
        let mut compiler = Command::new("cc");
        compiler.arg(source).args(flags(&["--cflags", "--libs"], of));
        must(compiler.arg("-o").arg(&shared), LIMIT);
        must(Command::new(&shared).env("LD_LIBRARY_PATH", prefix.join("lib")), LIMIT);
        let needed = must(Command::new("readelf").arg("-d").arg(&shared), LIMIT);
        for name in of {
            assert!(needed.contains(&format!("lib{name}.so.0")), "the soname is what programs ask for:\n{needed}");
        }

        let fixed = scratch.0.join("static");
        let mut compiler = Command::new("cc");
        compiler.arg(source).args(flags(&["--cflags"], of));
        compiler.args(of.iter().map(|name| prefix.join(format!("lib/lib{name}.a"))));
        // As `--static --libs` says, with the archives in place of -l.
        let archives: Vec<String> = of.iter().map(|name| format!("-l{name}")).collect();
        compiler.args(flags(&["--static", "--libs"], of).into_iter().filter(|flag| !archives.contains(flag)));
        must(compiler.arg("-o").arg(&fixed), LIMIT);
        must(&mut Command::new(&fixed), LIMIT);

        // Without any shared library.
        let whole = scratch.0.join("whole");
        let mut compiler = Command::new("cc");
        compiler.arg("-static").arg(source).args(flags(&["--static", "--cflags", "--libs"], of));
        must(compiler.arg("-o").arg(&whole), LIMIT);
        must(&mut Command::new(&whole), LIMIT);
    }
}

/// A program with a section.
const MARKED: &str = r#"#include <rmk.h>
int main(void)
{
    int request = rmk_section("request");
    if (request < 0 || rmk_section_enter(request) != 1 || rmk_section_enter(request) != 0)
        return 1;
    rmk_section_leave(request, 0);
    return rmk_section_enter(request) != 1;
}
"#;

/// A program with a section that its orbit is in.
const BOTH: &str = r#"#include <orbit.h>
#include <rmk.h>
static long task(void *store, void *args)
{
    (void)store;
    (void)args;
    return rmk_section_enter(rmk_section("check"));
}
int main(void)
{
    struct orbit *orbit = orbit_create("both", task, 0);
    struct orbit_outcome end;
    if (!orbit || orbit_call(orbit, 0, 0, 0, 0, 0, &end) != 0 || end.value != 1)
        return 1;
    return orbit_destroy(orbit);
}
"#;
