//! What the kernel ignores of a number or an argument decides nothing, and a program that cannot
//! have its rules does not run.

mod common;
use common::{guest, has, run};
use orbit_hijack::Options;
use orbit_hijack::rules::Rules;
use orbit_linux::rlimit::{self, Resource};
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

/// Whether this succeeds without the executive; says so if not.
fn is_possible(words: &[&str], what: &str) -> bool {
    let done = std::process::Command::new(words[0]).args(&words[1..]).stdin(std::process::Stdio::null()).output();
    let is_possible = done.is_ok_and(|done| done.status.success());
    if !is_possible {
        println!("SKIP: needs {what}");
    }
    is_possible
}

/// A program that removes a file meets the rule: it fails, and the file is there.
fn is_denied(words: &[&str], victim: &Path) {
    let run = run(&denies_unlink(), words);
    // A sandbox removes files too.
    assert!(run.outcome.status == 1 && run.outcome.rules[0].2 > 0, "{words:?}: {:?}", run.outcome);
    assert!(victim.exists(), "{words:?}");
}

#[test]
fn rules_go_along_into_namespaces_other_users_and_roots() {
    let victim = victim("namespace-victim");
    let remove = ["rm", "-f", victim.to_str().expect("a path")];
    for (way, what) in [
        (&["unshare", "-i"][..], "the right to make an IPC namespace"),
        (&["unshare", "-rimnpuf"], "the right to make namespaces of all kinds"),
        (&["setpriv", "--reuid", "65534", "--clear-groups"], "the right to become another user"),
        (&["setpriv", "--reuid", "65534", "--clear-groups", "unshare", "-ri"], "namespaces of ordinary users"),
        (&["firejail", "--quiet", "--noprofile"], "a firejail that works"),
    ] {
        if is_possible(&[way, &["true"]].concat(), what) {
            is_denied(&[way, &remove].concat(), &victim);
        }
    }
}

#[test]
fn a_program_starts_by_the_kept_descriptor_whatever_proc_is() {
    let (root, program) = (victim("root-without-proc"), guest("kept", &["-static"]));
    std::fs::remove_file(&root).expect("removed");
    std::fs::create_dir_all(&root).expect("a folder");
    orbit_testing::copy_of_program(&program, &root.join("kept"));
    std::fs::write(root.join("victim"), "x").expect("written");
    let path = root.to_str().expect("a path");
    // Natively it removes a file that the test then makes again.
    let chroot = ["unshare", "-r", "chroot", path, "/kept", "unlink", "/victim"];
    if is_possible(&chroot, "the right to make a user namespace") {
        std::fs::write(root.join("victim"), "x").expect("written");
        is_denied(&chroot, &root.join("victim"));
    }
    let forged = "mount -t tmpfs none /proc && mkdir /proc/self && cp /bin/true /proc/self/exe && exec \"$@\"";
    let forged = ["unshare", "-rm", "sh", "-c", forged, "sh", program.to_str().expect("a path"), "unlink"];
    let victim = victim("forged-victim");
    let forged = [&forged[..], &[victim.to_str().expect("a path")]].concat();
    if is_possible(&forged, "the right to make a mount namespace") {
        std::fs::write(&victim, "x").expect("written");
        is_denied(&forged, &victim);
    }
    std::fs::remove_dir_all(&root).expect("removed");
}

#[test]
fn what_lost_its_session_by_force_does_not_run() {
    let (program, victim) = (guest("kept", &[]), victim("forced-victim"));
    let path = program.to_str().expect("a path");
    let words = |nth| [path, "away", nth, path, "unlink", victim.to_str().expect("a path")];
    let memory = run(&denies_unlink(), &words("0"));
    assert_eq!((memory.outcome.status, memory.stdout.as_str()), (120, "closed 0\n"));
    let image = run(&denies_unlink(), &words("1"));
    assert_eq!((image.outcome.status, image.stdout.as_str()), (9, "closed 0\nEACCES\n"));
    assert_eq!((image.outcome.refused, victim.exists()), (1, true));
    assert_eq!(run(&Options { fail_open: true, ..denies_unlink() }, &words("0")).outcome.status, 0);
    assert!(!victim.exists(), "with fail_open it ran, without rules");
}

#[test]
fn the_sessions_descriptors_are_numbers_that_are_not_open() {
    let program = guest("kept", &[]);
    let path = program.to_str().expect("a path");
    let (soft, hard) = rlimit::get(0, Resource::Files).expect("a limit");
    // The host puts them above its limit, or below where that is high or cannot be raised.
    for limit in [300, 1024, 5000] {
        rlimit::set(0, Resource::Files, hard.min(limit), hard).expect("a limit");
        let native = std::process::Command::new(path).arg("unseen").stdin(std::process::Stdio::null()).output();
        let native = native.expect("it runs");
        assert_eq!(run(&Options::default(), &[path, "unseen"]).stdout, String::from_utf8_lossy(&native.stdout));
    }
    rlimit::set(0, Resource::Files, soft, hard).expect("a limit");
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
        _ if of.contains(['*', '[']) => 'p',
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
        // What may be an address has the type of a number.
        let known = table.get(call).map_or_else(|| "l".repeat(expected.len()), |known| known.replace('a', "l"));
        assert_eq!(known, expected, "{call}: {text}");
        compared += 1;
    }
    assert!(compared > 300, "{compared}");
}
