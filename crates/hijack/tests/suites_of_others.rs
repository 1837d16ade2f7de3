//! CPython's own test suites and stress-ng's verifying stressors come to the same results as natively. Minutes to an hour:
//! only with ORBIT_TEST_FULL=1.

mod common;
use common::{has, run_with};
use orbit_hijack::Options;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SUITES: [&str; 9] = [
    "test_fork1",
    "test_signal",
    "test_mmap",
    "test_posix",
    "test_os",
    "test_threading",
    "test_subprocess",
    "test_socket",
    "test_asyncio",
];
/// Stressors that use all that an executive could get wrong. Not `seccomp` (its filter judges the executive's calls), nor
/// `vm-segv` (it unmaps all of its address space): docs/limits.md.
const STRESSORS: &str = "access affinity aio alarm branch brk chdir chmod chown clock clone close context copy-file cpu \
    daemon dentry dir dirdeep dup dynlib env epoll eventfd exec fallocate fault fcntl fifo file-ioctl flock fork forkheavy \
    fstat full futex get getdent getrandom handle inode-flags itimer kill link loop madvise mincore mmap mmapfork mremap msg \
    munmap mutex nanosleep null open pipe poll procfs pthread ptrace rename schedpolicy sem shm sigabrt sigchld sigfd sigfpe \
    sigio signal signest sigpending sigpipe sigq sigrt sigsegv sigsuspend sigtrap sock sockpair splice stack switch symlink \
    timer timerfd tsc udp utime vfork wait xattr zombie";
const TRIES: usize = 3;

fn is_full() -> bool {
    let full = std::env::var_os("ORBIT_TEST_FULL").is_some_and(|full| full == "1");
    if !full {
        println!("SKIP: needs ORBIT_TEST_FULL=1");
    }
    full
}

fn place(name: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Of an earlier run.
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir(&place).expect("a folder");
    place
}

/// Outcomes by test.
fn suite(name: &str, is_guest: bool) -> BTreeMap<String, String> {
    let place = place(&format!("cpython-{name}-{is_guest}"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guests/suite.py");
    let results = place.join("results");
    let arguments = ["/usr/bin/python3.11", script, name, results.to_str().expect("a path")];
    if is_guest {
        run_with(&Options::default(), &arguments, |command| {
            command.current_dir(&place).stderr(Stdio::null());
        });
    } else {
        let mut command = Command::new(arguments[0]);
        command.args(&arguments[1..]).current_dir(&place).stdin(Stdio::null());
        assert!(command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("run").success());
    }
    let text = std::fs::read_to_string(&results).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(outcome, test)| (test.to_owned(), outcome.to_owned())).collect()
}

#[test]
fn cpythons_suites_have_the_same_results() {
    if !is_full() {
        return;
    }
    if !Path::new("/usr/lib/python3.11/test/test_signal.py").exists() {
        println!("SKIP: needs libpython3.11-testsuite");
        return;
    }
    for name in SUITES {
        // Tests that measure time fail now and then, natively too: what differs once must agree in another try.
        let mut differ: BTreeSet<String> = BTreeSet::new();
        for attempt in 0..TRIES {
            let (native, ours) = (suite(name, false), suite(name, true));
            assert!(native.len() > 3, "{name}: natively {} tests", native.len());
            let all = native.keys().chain(ours.keys()).filter(|test| native.get(*test) != ours.get(*test));
            let now: BTreeSet<String> = all.cloned().collect();
            differ = if attempt == 0 { now } else { differ.intersection(&now).cloned().collect() };
            println!("{name}: {} tests, {} differ", ours.len(), differ.len());
            if differ.is_empty() {
                break;
            }
        }
        assert!(differ.is_empty(), "{name}: {differ:?}");
    }
}

#[test]
fn stress_ngs_stressors_have_the_same_results() {
    if !is_full() || !has("stress-ng") {
        return;
    }
    let place = place("stress-ng");
    let mut differ = Vec::new();
    let mut tried = 0;
    for stressor in STRESSORS.split_whitespace() {
        let (name, path) = (format!("--{stressor}"), place.to_str().expect("a path"));
        let arguments = ["stress-ng", &name, "2", "-t", "2", "--verify", "--temp-path", path, "-q"];
        let native = || {
            let mut command = Command::new(arguments[0]);
            command.args(&arguments[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().expect("run").code()
        };
        let ours =
            || run_with(&Options::default(), &arguments, |command| _ = command.stderr(Stdio::null())).outcome.status;
        tried += 1;
        if !(0..TRIES).any(|_| native() == Some(ours())) {
            differ.push(stressor);
        }
    }
    println!("{tried} stressors, {} differ", differ.len());
    assert!(tried >= 65 && differ.is_empty(), "{differ:?}");
}
