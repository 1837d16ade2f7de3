//! What a healthy program may do as without the executive: hints for mmap, many sites, limits of
//! memory, contexts of many threads.

mod common;
use common::{Run, guest, has, run};
use orbit_hijack::Options;

/// Address space, and locked memory, that a guest of one thread may have more than without the
/// executive.
const MORE_KIB: u64 = 2 << 10;

fn run_guest(name: &str, words: &[&str]) -> Run {
    let program = guest(name, &[concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include")]);
    let run = run(&Options::default(), &[&[program.to_str().expect("a path")], words].concat());
    assert_eq!(run.outcome.status, 0, "{}", run.stdout);
    run
}

#[test]
fn a_hint_in_the_executives_range_is_as_one_that_is_occupied() {
    let run = run_guest("hints", &[]);
    assert_eq!(run.stdout, "bad 0 occupied 33 fixed 33\n");
    assert_eq!(run.outcome.refused, 33, "fixed mappings are counted, hints are not");
}

#[test]
fn sites_of_unmapped_code_are_free_again() {
    let run = run_guest("sites", &[]);
    assert_eq!((run.stdout.as_str(), run.outcome.crowded), ("9000 right\n", 0));
}

#[test]
fn sites_beyond_the_table_trap_and_are_counted() {
    let run = run_guest("sites", &["kept"]);
    assert_eq!(run.stdout, "9000 right\n");
    assert!(run.outcome.crowded > 500, "{:?}", run.outcome);
}

#[test]
fn a_program_with_a_leak_check_passes_it() {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let probe = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("sanitizer-probe");
    let mut compile = std::process::Command::new(compiler);
    compile.args(["-fsanitize=address", "-x", "c", "-o"]).arg(&probe).arg("-");
    let source = std::process::Stdio::from(
        std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guests/plain.c")).expect("a source"),
    );
    if !compile.stdin(source).output().is_ok_and(|done| done.status.success()) {
        println!("SKIP: needs a compiler with AddressSanitizer");
        return;
    }
    let path = probe.to_str().expect("a path");
    let native = std::process::Command::new(path).output().expect("it runs");
    let run = run(&Options::default(), &[path]);
    assert_eq!((run.outcome.status, run.stdout.as_bytes()), (0, &native.stdout[..]));
    assert!(run.outcome.calls.contains_key("ptrace"), "the check was made: {:?}", run.outcome.calls);
}

#[test]
fn a_program_that_translates_code_is_left_as_it_is() {
    if has("valgrind") {
        let program = guest("plain", &[]);
        let run = run(&Options::default(), &["valgrind", "-q", program.to_str().expect("a path")]);
        assert_eq!(run.outcome.status, 0, "{}", run.stdout);
    }
}

#[test]
fn a_script_by_a_descriptor_is_found_as_natively() {
    let script = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("by-descriptor.sh");
    std::fs::write(&script, "#!/bin/sh\necho ran\n").expect("written");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    let (program, script) = (guest("descriptor", &[]), script.to_str().expect("a path"));
    for flag in ["kept", "closed"] {
        let native = std::process::Command::new(&program).args([script, flag]).output().expect("it runs");
        let run = run(&Options::default(), &[program.to_str().expect("a path"), script, flag]);
        assert_eq!(run.stdout, String::from_utf8_lossy(&native.stdout), "{flag}");
    }
}

#[test]
fn arguments_and_environment_in_proc_are_the_programs() {
    let script = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("shows-itself.sh");
    std::fs::write(&script, "#!/bin/sh -e\ncat /proc/$$/cmdline /proc/$$/environ\n").expect("written");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    let script = script.to_str().expect("a path");
    for words in [&["cat", "/proc/self/cmdline", "/proc/self/environ"][..], &[script, "a b", ""], &["sh", script, "x"]]
    {
        let configure = |command: &mut std::process::Command| {
            command.env_clear().env("PATH", "/usr/bin:/bin").env("OF", "the program");
        };
        let mut native = std::process::Command::new(words[0]);
        configure(native.args(&words[1..]));
        let native = native.output().expect("it runs");
        let arguments: Vec<std::ffi::OsString> = words.iter().map(std::ffi::OsString::from).collect();
        let mut session = orbit_hijack::Session::start_with(&Options::default(), &arguments, |command| {
            configure(command.stdout(std::process::Stdio::piped()));
        })
        .expect("it starts");
        let mut seen = Vec::new();
        let mut pipe = session.stdout().expect("a pipe");
        std::io::Read::read_to_end(&mut pipe, &mut seen).expect("read");
        session.follow(|_| Ok(())).expect("followed");
        assert_eq!(String::from_utf8_lossy(&seen), String::from_utf8_lossy(&native.stdout), "{words:?}");
    }
}

fn size_kib(status: &str) -> u64 {
    let number = status.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("VmSize: {status:?}"))
}

#[test]
fn a_guest_of_one_thread_is_small() {
    let words = ["VmSize", "/proc/self/status"];
    let native = std::process::Command::new("grep").args(words).output().expect("grep");
    let own = size_kib(&String::from_utf8_lossy(&native.stdout));
    let guests = size_kib(&run(&Options::default(), &[&["grep"], &words[..]].concat()).stdout);
    assert!(guests < own + MORE_KIB, "{guests} KiB, {own} without the executive");
}

/// The kernel puts it behind the executive, at random: where it is the executive's memory is not.
#[test]
fn the_heap_is_the_programs() {
    for _ in 0..20 {
        let text = run(&Options::default(), &["grep", "heap", "/proc/self/maps"]).stdout;
        let begin = text.split('-').next().and_then(|begin| u64::from_str_radix(begin, 16).ok()).expect("a heap");
        assert!(begin >= 0x1f40_0000_0000, "{text}");
    }
}

#[test]
fn a_guest_that_locks_its_memory_locks_little_more() {
    let program = guest("locked", &[]);
    let native = std::process::Command::new(&program).output().expect("it runs");
    let own = size_kib(&String::from_utf8_lossy(&native.stdout));
    if own == 0 {
        println!("SKIP: needs the right to lock memory");
        return;
    }
    let locked = size_kib(&run_guest("locked", &[]).stdout);
    assert!(locked < own + MORE_KIB, "{locked} KiB, {own} without the executive");
}

#[test]
fn limits_of_address_space_and_data_leave_room_for_the_executive() {
    if has("prlimit") {
        for limit in ["--as=100000000", "--data=20000000"] {
            assert_eq!(run(&Options::default(), &["prlimit", limit, "ls", "/"]).outcome.status, 0, "{limit}");
        }
    }
}

#[test]
fn contexts_are_freed_with_their_thread_and_start_level_with_the_others() {
    // Contexts are charged by the time stamp: a race in which other programs had the CPU says
    // nothing, and is run again. One that starves the first context is never level.
    let race = || {
        let run = run_guest("contexts", &[]);
        let (made, percent) = run.stdout.split_once(" made, ").expect("two numbers");
        assert_eq!(made, "12");
        percent.trim_end().trim_end_matches(" percent").parse::<i64>().expect("a number")
    };
    let mut races = Vec::new();
    while !races.last().is_some_and(|percent| (35..=65).contains(percent)) {
        assert!(races.len() < 20, "percents of equal shares that the second context got: {races:?}");
        races.push(race());
    }
}
