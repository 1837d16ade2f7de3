//! What the kernel ignores of a number or an argument decides nothing, and a program that cannot
//! have its rules does not run.

mod common;
use common::{guest, has, run};
use orbit_hijack::Options;
use orbit_hijack::rules::Rules;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn denies_unlink() -> Options {
    Options { rules: Rules::parse("unlink* -> EPERM").expect("a rule"), ..Options::default() }
}

fn victim(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, "x").expect("written");
    path
}

#[test]
fn bits_above_the_kernels_are_no_way_round() {
    let (program, victim) = (guest("numbers", &[]), victim("numbers-victim"));
    let run = run(&denies_unlink(), &[program.to_str().expect("a path"), victim.to_str().expect("a path")]);
    let expected = [
        "unlink -1",
        "unlink above -1",
        "unlink x32 -38",
        "dispatch off above -22",
        "gs above -1",
        "unlink after all -1",
        "kill above 0",
        "rm 1",
    ];
    assert_eq!(run.stdout.lines().collect::<Vec<_>>(), expected);
    assert!(victim.exists());
}

#[test]
fn outside_the_ipc_namespace_nothing_runs_without_rules() {
    let available = std::process::Command::new("unshare").args(["-i", "true"]).output();
    if !has("unshare") || !available.is_ok_and(|done| done.status.success()) {
        println!("SKIP: needs the right to make an IPC namespace");
        return;
    }
    let victim = victim("namespace-victim");
    let words = ["unshare", "-i", "rm", "-f", victim.to_str().expect("a path")];
    assert_eq!(run(&denies_unlink(), &words).outcome.status, 120);
    assert!(victim.exists());
    assert_eq!(run(&Options { fail_open: true, ..denies_unlink() }, &words).outcome.status, 0);
    assert!(!victim.exists(), "with fail_open it ran, without rules");
}

#[test]
fn memory_of_a_process_is_not_opened_for_writing_by_another_name() {
    let namespace = || std::process::Command::new("unshare").args(["-rm", "true"]).output();
    if !has("unshare") || !namespace().is_ok_and(|done| done.status.success()) {
        println!("SKIP: needs the right to make user and mount namespaces");
        return;
    }
    let place = victim("memory-by-another-name");
    let script = "mount --bind /proc/$$/mem $0 && echo mounted && exec 3<>$0 && echo read-write";
    let run = run(&Options::default(), &["unshare", "-rm", "sh", "-c", script, place.to_str().expect("a path")]);
    assert_eq!(run.stdout, "mounted\n");
    assert!(run.outcome.refused > 0);
}

#[test]
fn the_kernel_gets_what_was_judged() {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("judged-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a folder");
    std::fs::write(place.join("denied"), "x").expect("written");
    let name = |name: &str| place.join(name).to_str().expect("a path").to_owned();
    let _listener = std::os::unix::net::UnixListener::bind(place.join("socket")).expect("a socket");
    let rules = "openat(path=\"*/denied\") -> EACCES; openat(path=\"*/absent\") -> delay 400ms;
        connect(path=\"*/socket\") -> EPERM; connect(path=\"*/nobody\") -> delay 400ms";
    let options = Options { rules: Rules::parse(rules).expect("rules"), ..Options::default() };
    let words = [guest("swaps", &[]).to_str().expect("a path").to_owned(), name("denied"), name("absent")];
    let words = [&words[..], &[name("socket"), name("nobody")]].concat();
    let run = run(&options, &words.iter().map(String::as_str).collect::<Vec<_>>());
    let absent = "No such file or directory";
    assert_eq!(run.stdout, format!("open 1 {absent}\nconnect 1 {absent}\n"));
    assert_eq!(run.outcome.rules.iter().map(|(_, _, acted)| *acted).collect::<Vec<_>>(), [0, 1, 0, 1]);
    std::fs::remove_dir_all(&place).expect("removed");
}

#[test]
fn paths_of_unix_sockets_are_judged() {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sockets-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a folder");
    let _listener = std::os::unix::net::UnixListener::bind(place.join("bus")).expect("a socket");
    let script = format!(
        "import socket\nfor name in ('{0}/bus', '{0}/none', '\\0orbit-none'):\n  try: \
         print(socket.socket(socket.AF_UNIX).connect(name))\n  except OSError as e: print(e.errno)",
        place.display()
    );
    let rules = "connect(path=\"*/bus\") -> EACCES; connect(path=\"@orbit-*\") -> EPERM";
    let options = Options { rules: Rules::parse(rules).expect("rules"), ..Options::default() };
    if has("python3") {
        assert_eq!(run(&options, &["python3", "-c", &script]).stdout, "13\n2\n1\n");
    }
    std::fs::remove_dir_all(&place).expect("removed");
}

/// Bits of a type of the kernel's, by its name in a prototype.
fn kind(of: &str) -> char {
    let of = of.trim_start_matches("const ").trim();
    match of {
        _ if of.contains(['*', '[']) => 'l',
        "umode_t" => 'h',
        "int" | "pid_t" | "clockid_t" | "mqd_t" | "timer_t" | "key_t" | "key_serial_t" | "__s32" | "rwf_t" => 'i',
        "unsigned int" | "unsigned" | "u32" | "__u32" | "uid_t" | "gid_t" | "qid_t" => 'u',
        _ if of.starts_with("enum ") => 'u',
        _ => 'l',
    }
}

#[test]
fn the_table_of_widths_is_the_kernels() {
    let folder = Path::new("/sys/kernel/tracing/events/syscalls");
    let Ok(entries) = std::fs::read_dir(folder) else {
        println!("SKIP: needs tracefs with the events of system calls");
        return;
    };
    let lines = include_str!("../data/widths.tsv").lines().filter(|line| !line.starts_with('#'));
    let table: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once('\t')?.1.split_once('\t')).collect();
    let mut compared = 0;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(call) = name.strip_prefix("sys_enter_") else { continue };
        let call = match call {
            "newstat" => "stat",
            "newfstat" => "fstat",
            "newlstat" => "lstat",
            "newuname" => "uname",
            "sendfile64" => "sendfile",
            "umount" => "umount2",
            // The kernel has a long there, and takes 32 bits as a descriptor.
            "mmap" => continue,
            call => call,
        };
        if orbit_hijack::calls::by_name(call).is_none() {
            continue;
        }
        let text = std::fs::read_to_string(entry.path().join("format")).expect("a format");
        let fields = text.lines().filter_map(|line| line.trim().strip_prefix("field:")?.split_once(';'));
        let arguments = fields.skip(5).filter_map(|(field, _)| Some(kind(field.rsplit_once(' ')?.0)));
        let expected: String = arguments.collect();
        let known = table.get(call).map_or_else(|| "l".repeat(expected.len()), |known| (*known).to_owned());
        assert_eq!(known, expected, "{call}: {text}");
        compared += 1;
    }
    assert!(compared > 300, "{compared}");
}
