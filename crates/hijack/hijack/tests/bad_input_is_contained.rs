//! Guests that do what no program should: each part comes to the same end as natively, and nothing
//! is left behind.

mod common;
use common::{Run, guest, run};
use orbit_hijack::Options;
use std::process::Command;

/// The part under the executive; it writes the same as natively.
fn as_natively(part: &str, options: &Options) -> Run {
    let program = guest("bad", &[]);
    let native = Command::new(&program).arg(part).output().expect("run");
    let run = run(options, &[program.to_str().expect("a path"), part]);
    let ours = (run.outcome.status, run.stdout.as_str());
    assert_eq!(ours, (native.status.code().unwrap_or(-1), &*String::from_utf8_lossy(&native.stdout)), "{part}");
    run
}

#[test]
fn sites_with_no_room_nearby_stay_as_they_are() {
    let run = as_natively("room", &Options::default());
    assert_eq!(run.stdout, "wrong 0\n");
    assert!(run.outcome.traps > 4000, "none of the 500 sites could be rewritten: {:?}", run.outcome);
}

#[test]
fn sigsys_is_ignored_blocked_and_handled_by_the_guest() {
    assert_eq!(as_natively("sigsys", &Options::default()).stdout, format!("handled 1 default {}\n", libc::SIGSYS));
}

#[test]
fn a_filter_of_the_guest_sends_sigsys_to_its_own_handler() {
    assert_eq!(as_natively("own-trap", &Options::default()).stdout, "trapped 1\n");
}

#[test]
fn handlers_within_handlers() {
    for options in [Options::default(), Options { trace: true, ..Options::default() }] {
        assert_eq!(as_natively("nested", &options).stdout, "deepest 8 unlike 0\n");
    }
}

#[test]
fn overflowed_stacks_and_jumps_into_the_executive_end_their_process_only() {
    assert_eq!(as_natively("jumps", &Options::default()).stdout, "overflow 11 before 11 data 11 nowhere 11\n");
}

#[test]
fn the_vsyscall_page_does_what_it_does_natively() {
    as_natively("vsyscall", &Options::default());
}

#[test]
fn a_thousand_forks_of_forks_end_as_natively() {
    let run = as_natively("bomb", &Options { trace: true, ..Options::default() });
    assert_eq!(run.outcome.lost, 0);
}

#[test]
fn a_setuid_program_runs_without_its_rights() {
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root, to make a setuid program");
        return;
    }
    let program = guest("bad", &["-DSETUID"]);
    let copy = program.with_extension("setuid");
    orbit_testing::copy_of_program(&program, &copy);
    std::os::unix::fs::chown(&copy, Some(65534), None).expect("given to nobody");
    std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).expect("setuid");
    let native = Command::new(&copy).arg("rights").output().expect("run");
    let run = run(&Options::default(), &[copy.to_str().expect("a path"), "rights"]);
    std::fs::remove_file(&copy).expect("removed");
    if native.stdout != b"65534\n" {
        println!("SKIP: needs a file system that honours setuid");
        return;
    }
    assert_eq!(run.stdout, "0\n", "it keeps the rights of its parent");
    assert_eq!(run.outcome.setuid, 1, "and that is reported");
}

#[test]
fn nothing_is_left_behind() {
    // Descriptors of other tests come and go, those of sessions have their names.
    let own = |pid: u32| {
        let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let names = links.filter_map(|link| std::fs::read_link(link.path()).ok());
        names.filter(|name| name.to_string_lossy().starts_with("/memfd:hijack")).count()
    };
    let mut session =
        orbit_hijack::Session::start(&Options::default(), &["sleep".into(), "60".into()]).expect("it starts");
    let pid = session.pid();
    assert_eq!(own(pid), 2, "its memory and the executive");
    orbit_linux::signals::send(pid as i32, libc::SIGTERM).expect("sent");
    session.follow(|_| Ok(())).expect("followed");
    drop(session);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it was reaped");
}
