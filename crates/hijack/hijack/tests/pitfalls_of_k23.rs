//! What a 2025 study (K23, ACM Middleware) found that every earlier interposer gets wrong, one test
//! each.

mod common;
use common::{Run, guest, run, run_with};
use orbit_hijack::reader::What;
use orbit_hijack::rules::Rules;
use orbit_hijack::{Options, Speed, calls};

/// A rule shows whether calls are seen.
fn seen() -> Options {
    Options { rules: Rules::parse("getppid -> 4242").expect("a rule"), ..Options::default() }
}

fn part(name: &str, flags: &[&str], options: &Options) -> Run {
    let run = run(options, &[guest("k23", flags).to_str().expect("a path"), name]);
    assert_eq!((run.outcome.status, run.stdout.as_str()), (0, "right\n"), "{name}");
    run
}

#[test]
fn calls_before_a_library_is_loaded() {
    let run = run(&Options { trace: true, ..Options::default() }, &["/bin/true"]);
    let all: Vec<_> = run
        .events
        .iter()
        .filter_map(|event| if let What::Call(call) = &event.what { Some(call) } else { None })
        .collect();
    let name = |number| calls::by_number(number).map_or("", |call| call.name);
    let is_libc = |bytes: &[u8]| bytes.windows(6).any(|part| part == b"libc.s");
    let library = all.iter().position(|call| call.blobs.iter().any(|blob| is_libc(&blob.bytes))).expect("a C library");
    let before: Vec<&str> = all[..library].iter().map(|call| name(call.number)).collect();
    // The loader's first calls.
    assert!(before.contains(&"brk") && before.contains(&"mmap"), "{before:?}");
    // A static program loads none, and is seen from its first call too.
    assert!(part("seen", &["-static"], &seen()).outcome.calls["getppid"] > 0);
}

#[test]
fn exec_with_an_emptied_environment() {
    part("emptied-environment", &[], &seen());
    let program = guest("k23", &[]);
    let run = run_with(&seen(), &[program.to_str().expect("a path"), "seen"], |command| {
        command.env_clear();
    });
    assert_eq!(run.stdout, "right\n");
}

#[test]
fn the_guests_own_prctl_that_turns_dispatch_off() {
    assert!(part("own-prctl", &[], &seen()).outcome.refused >= 2);
}

#[test]
fn calls_of_the_vdso() {
    // What the vdso cannot answer from its page it asks the kernel, from its own code: seen.
    assert!(part("vdso", &[], &Options::default()).outcome.calls["clock_gettime"] >= 20);
    // Where clocks are virtual, no call is answered from the page.
    let options = Options { speed: Speed::times(2.0), trace: true, ..Options::default() };
    let run = run(&options, &["date", "+%s"]);
    let times = run.outcome.calls.get("clock_gettime").or(run.outcome.calls.get("time"));
    assert!(times.is_some_and(|count| *count >= 1), "{:?}", run.outcome.calls);
}

#[test]
fn bytes_that_are_data_or_part_of_another_instruction() {
    part("parts-of-others", &[], &Options::default());
}

#[test]
fn code_and_data_are_not_corrupted_by_patching() {
    let run = part("corrupted", &[], &Options::default());
    assert!(run.outcome.rewritten > 0, "{:?}", run.outcome);
}

#[test]
fn null_pages_still_fault() {
    part("null-pages", &[], &Options::default());
}

#[test]
fn patching_while_other_threads_run_the_same_bytes() {
    // Most of its 400 sites are rewritten while four threads run them.
    let run = part("other-threads", &[], &Options::default());
    assert!(run.outcome.rewritten > 300, "{:?}", run.outcome);
}

#[test]
fn protection_of_pages_is_restored() {
    part("protection", &[], &Options::default());
}
