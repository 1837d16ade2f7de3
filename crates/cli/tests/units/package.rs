//! The Debian package under systemd: installed it is off, an upgrade restarts what runs and keeps a
//! changed configuration, removing it stops it, and purging leaves nothing.

use crate::guard_common::Dir;
use crate::{boot, boots, orbit};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes packages of this build in a folder of the test's own: one, and one of a later version.
fn packages(dir: &Dir) -> Option<(PathBuf, PathBuf)> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made = Command::new(project.join("scripts/deb.sh"))
        .env("ORBIT", orbit())
        .env("CARGO_TARGET_DIR", &dir.0)
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    if let Some(why) = text.lines().find(|line| line.starts_with("SKIP: needs")) {
        println!("{why}");
        return None;
    }
    assert!(made.status.success() && text.ends_with("PASS\n"), "{text}{}", String::from_utf8_lossy(&made.stderr));
    let folder = std::fs::read_dir(dir.0.join("deb")).expect("a folder");
    let package =
        folder.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "deb"));
    let package = package.expect("a package");
    let (tree, later) = (dir.0.join("tree"), dir.0.join("later.deb"));
    let run = |program: &str, arguments: &[&Path]| {
        assert!(Command::new(program).args(arguments).output().expect(program).status.success(), "{program}");
    };
    run("dpkg-deb", &[Path::new("-R"), &package, &tree]);
    let control = std::fs::read_to_string(tree.join("DEBIAN/control")).expect("a control file");
    std::fs::write(tree.join("DEBIAN/control"), control.replacen("\nArchitecture", "+later\nArchitecture", 1))
        .expect("written");
    let quick = ["-Zgzip", "-z1", "--root-owner-group", "--build"].map(Path::new);
    run("dpkg-deb", &[&quick[..], &[&tree, &later]].concat());
    Some((package, later))
}

#[test]
fn the_package_is_installed_upgraded_removed_and_purged() {
    if !boots() {
        return;
    }
    let dir = Dir::new("units-package");
    let Some((package, later)) = packages(&dir) else { return };
    let Some(text) = boot("package", &[package.as_ref(), later.as_ref()]) else { return };
    let expected = "installed: disabled inactive\nenabled: enabled active\nupgraded: enabled active\n\
                    the new build has taken over\n1\nanswers\n";
    assert!(text.starts_with(expected), "{text}");
    let (_, removed) = text.split_once("removed: ").expect("a line");
    // The unit is gone, and nothing is left of it: no process, no file, no failed unit.
    assert!(removed.ends_with("inactive\nwhole\n"), "{text}");
}
