//! `orbit doctor` answers for every facility, to root, to an ordinary user, and inside a container.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use serde_json::Value;

const FACILITIES: [&str; 34] = [
    "mappings, futex, sockets",
    "clone with a pidfd",
    "pidfd",
    "memory files",
    "memory file seals",
    "protection keys",
    "userfaultfd WP_ASYNC",
    "PAGEMAP_SCAN",
    "moving page tables of files",
    "transparent huge pages",
    "control groups",
    "control group: memory",
    "control group: CPU",
    "rlimits",
    "affinity, nice, schedstat",
    "orbits are killed first",
    "memory.oom.group is 0",
    "systemd's OOMPolicy",
    "perf: task clock",
    "perf: instructions",
    "perf: breakpoints",
    "Syscall User Dispatch",
    "BPF programs",
    "BPF type information",
    "tracepoints by BPF",
    "kprobes",
    "uprobes",
    "ptrace",
    "process_vm_readv",
    "more than one CPU",
    "free of a seccomp filter",
    "outside a container",
    "/proc shows all",
    "seccomp filters",
];

fn doctor() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    command.arg("doctor").current_dir("/");
    command
}

/// Runs it with --json and checks that every row makes sense.
fn checked(mut command: Command) -> Value {
    let output: Output = command.arg("--json").output().expect("orbit runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(report["orbit"]["works"], output.status.success(), "{}", report["orbit"]);
    let rows = report["facilities"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    for name in &FACILITIES {
        assert!(names.contains(name), "{name} is not in {names:?}");
    }
    for row in rows {
        let text = |field: &str| row[field].as_str().unwrap_or_else(|| panic!("{field} of {row}")).to_owned();
        assert!(!text("used_for").is_empty() && !text("instead").is_empty(), "{row}");
        if row["there"] == false {
            assert!(!text("why").is_empty() && !text("to_do").is_empty(), "says why not, and the way out: {row}");
        }
    }
    report
}

fn is_root() -> bool {
    // SAFETY: reads a number.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn as_this_user() {
    let report = checked(doctor());
    assert_eq!(report["orbit"]["works"], true, "{}", report["orbit"]);
    let output = doctor().output().expect("orbit runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(FACILITIES.iter().all(|name| text.contains(name)), "{text}");
    assert!(!text.contains('\x1b'), "no colours into a pipe: {text:?}");
}

/// A program that the kernel kills first itself learns it.
#[test]
fn at_the_highest_oom_score() {
    let mut command = Command::new("sh");
    let orbit = env!("CARGO_BIN_EXE_orbit");
    command.args(["-c", &format!("echo 1000 > /proc/self/oom_score_adj; exec '{orbit}' doctor \"$@\""), "doctor"]);
    command.current_dir("/");
    let report = checked(command);
    let rows = report["facilities"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["name"] == "orbits are killed first").expect("its row");
    assert!(row["there"] == false && row["why"].as_str().is_some_and(|why| why.contains("1000")), "{row}");
}

#[test]
fn as_an_ordinary_user() {
    if !is_root() {
        println!("SKIP: needs root, to become another user");
        return;
    }
    let mut command = doctor();
    command.uid(65534).gid(65534);
    if let Err(error) = command.output() {
        println!("SKIP: needs a build directory that an ordinary user may read ({error})");
        return;
    }
    let report = checked(command);
    assert_eq!(report["user"], 65534);
    assert_eq!(report["orbit"]["works"], true, "orbits work without rights: {}", report["orbit"]);
}

#[test]
fn under_the_filter_of_a_container() {
    let mut command = doctor();
    if is_root() {
        // Root has /dev/userfaultfd besides, which no container shows.
        command.uid(65534).gid(65534);
    }
    // SAFETY: the filter is installed in the child alone, between fork and exec; it is a list of
    // numbers.
    unsafe { command.pre_exec(orbit_linux::seccomp::install_docker_like) };
    if let Err(error) = command.output() {
        println!("SKIP: needs seccomp filters, and a build directory that an ordinary user may read ({error})");
        return;
    }
    let report = checked(command);
    assert_eq!(report["orbit"]["works"], true, "orbits work in a container: {}", report["orbit"]);
    assert_eq!(report["orbit"]["engine"], "compare", "what replaces userfaultfd is reported");
    let rows = report["facilities"].as_array().expect("rows");
    let filter = rows.iter().find(|row| row["name"] == "free of a seccomp filter").expect("its row");
    assert_eq!(filter["there"], false);
}
