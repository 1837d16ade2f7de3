//! Files that the commands make for what a program reads, writes or is called with are for their
//! owner alone, whatever the mask of new files.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The files of a folder with their permissions, after a command ran in it.
fn made_by(arguments: &str, number: usize) -> Vec<(String, u32)> {
    let folder = std::env::temp_dir().join(format!("orbit-private-{}-{number}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let orbit = env!("CARGO_BIN_EXE_orbit");
    let done = Command::new("sh")
        .args(["-c", &format!("umask 022; exec {orbit} {arguments}")])
        .current_dir(&folder)
        .output()
        .expect("run");
    assert!(done.status.success(), "{arguments}: {}", String::from_utf8_lossy(&done.stderr));
    let made = files(&folder);
    std::fs::remove_dir_all(&folder).expect("removed");
    made
}

fn files(folder: &Path) -> Vec<(String, u32)> {
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    let entries = folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry"));
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), mode(&entry.path()))).collect()
}

#[test]
fn files_are_for_their_owner() {
    let cases = [
        ("hijack --trace -o trace -- true", "trace"),
        ("hijack --record-inputs inputs -- true", "inputs"),
        ("watch --events events -- true", "events"),
        ("watch --record facts -- sleep 0.2", "facts"),
        ("keep -q --events events -- true", "events"),
    ];
    for (number, (arguments, name)) in cases.into_iter().enumerate() {
        let made = made_by(arguments, number);
        assert_eq!(made, [(name.to_owned(), 0o600)], "orbit {arguments}");
    }
}
