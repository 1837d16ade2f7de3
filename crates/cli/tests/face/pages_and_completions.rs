//! Each command that `orbit --help` lists has a manual page and completions, and formatters and
//! shells accept them.

use orbit_testing::{Folder, is_installed, runs};
use std::process::Command;

fn orbit(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_orbit")).args(arguments).output().expect("orbit runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Names below `Commands:` in the help.
fn commands() -> Vec<String> {
    let help = orbit(&["--help"]);
    let list = help.split("Commands:\n").nth(1).expect("a list of commands");
    let lines = list.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    let names = lines.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn each_command_has_a_page_that_formatters_accept() {
    let folder = Folder::new("pages");
    orbit(&["generate", "man", folder.path().to_str().expect("a path")]);
    let names = commands();
    assert!(names.len() >= 10 && names.contains(&"watch".to_owned()), "{names:?}");
    for name in &names {
        let page = folder.read(&format!("orbit-{name}.1"));
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "orbit-{name}.1: {page:?}");
    }
    assert!(folder.join("orbit-service-run.1").exists(), "commands below commands have pages too");
    assert!(folder.read("orbit.1").contains(".SH \"EXIT STATUS\""));
    let linter: &[&str] = if is_installed("mandoc") {
        &["mandoc", "-T", "lint", "-W", "error"]
    } else if runs("man", "--version") {
        &["man", "--warnings", "-l", "-Tutf8"]
    } else {
        println!("SKIP: needs mandoc or man, for the part that formats the pages");
        return;
    };
    for entry in std::fs::read_dir(folder.path()).expect("a folder") {
        let page = entry.expect("a page").path();
        let done = Command::new(linter[0]).args(&linter[1..]).arg(&page).env("MANPAGER", "cat").output();
        let done = done.expect("a formatter");
        assert!(done.status.success() && done.stderr.is_empty(), "{}: {done:?}", page.display());
    }
}

#[test]
fn shells_take_the_completions() {
    let folder = Folder::new("completions");
    orbit(&["generate", "completions", folder.path().to_str().expect("a path")]);
    let script = "source \"$0/bash/orbit\"; COMP_WORDS=(orbit wat) COMP_CWORD=1; _orbit orbit wat orbit; echo \"${COMPREPLY[@]}\"";
    let done = Command::new("bash").args(["-c", script]).arg(folder.path()).output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "watch\n", "{}", String::from_utf8_lossy(&done.stderr));
    for name in commands() {
        for file in ["bash/orbit", "zsh/_orbit", "fish/orbit.fish"] {
            assert!(folder.read(file).contains(&name), "{file} does not know {name}");
        }
    }
    // zsh would take the colon of a value's name for the end of the name, and run the rest.
    assert!(!folder.read("zsh/_orbit").contains("ADDRESS:PORT"));
    for (shell, file) in [("zsh", "zsh/_orbit"), ("fish", "fish/orbit.fish")] {
        if runs(shell, "--version") {
            let done = Command::new(shell).arg("-n").arg(folder.join(file)).output().expect("a shell");
            assert!(done.status.success(), "{done:?}");
        }
    }
}
