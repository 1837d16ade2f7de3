//! CPython's own test suites and stress-ng's verifying stressors come to the same results as
//! natively. Minutes to an hour: only with ORBIT_TEST_FULL=1. ORBIT_TEST_SUITES names the suites of
//! CPython that run (`test_os test_signal`); else all do.

mod common;
use common::{has, run_with};
use orbit_hijack::{Options, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
/// Stressors that use all that an executive could get wrong. Not `seccomp` (its filter judges the
/// executive's calls), nor `vm-segv` (it unmaps all of its address space): docs/limits.md.
const STRESSORS: &str = "access affinity aio alarm branch brk chdir chmod chown clock clone close context copy-file \
    cpu \
    daemon dentry dir dirdeep dup dynlib env epoll eventfd exec fallocate fault fcntl fifo file-ioctl flock fork \
    forkheavy \
    fstat full futex get getdent getrandom handle inode-flags itimer kill link loop madvise mincore mmap mmapfork \
    mremap msg \
    munmap mutex nanosleep null open pipe poll procfs pthread ptrace rename schedpolicy sem shm sigabrt sigchld sigfd \
    sigfpe \
    sigio signal signest sigpending sigpipe sigq sigrt sigsegv sigsuspend sigtrap sock sockpair splice stack switch \
    symlink \
    timer timerfd tsc udp utime vfork wait xattr zombie";
const TRIES: usize = 3;
/// A test that takes longer hangs: the slowest of them take half a minute.
const STUCK: Duration = Duration::from_secs(120);
/// A suite that took longer, with its hung tests, is not run once more.
const LONGEST: Duration = Duration::from_secs(1800);

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

/// A process of a suite: native, or a guest.
enum Running {
    Native(Child),
    Guest(Box<Session>),
}

impl Running {
    fn start(arguments: &[String], place: &Path, is_guest: bool) -> Running {
        let quiet = |command: &mut Command| {
            command.current_dir(place).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // Its own group: whatever a hung test left is killed with it.
            command.process_group(0);
        };
        if is_guest {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            let session = Session::start_with(&Options::default(), &arguments, quiet).expect("a guest");
            return Running::Guest(Box::new(session));
        }
        let mut command = Command::new(&arguments[0]);
        quiet(command.args(&arguments[1..]));
        Running::Native(command.spawn().expect("python"))
    }

    fn has_ended(&mut self) -> bool {
        match self {
            Running::Native(child) => child.try_wait().expect("own child").is_some(),
            Running::Guest(session) => session.wait_for(Duration::ZERO).expect("own child"),
        }
    }

    fn kill(mut self) {
        let pid = match &self {
            Running::Native(child) => child.id(),
            Running::Guest(session) => session.pid(),
        };
        // SAFETY: the group of an own child that has not been reaped.
        unsafe { libc::kill(-(pid as i32), libc::SIGKILL) };
        while !self.has_ended() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Outcomes by test. A test that makes no progress for `STUCK` is killed with its suite, has the
/// outcome `hangs`, and is left out of the suite's next run.
fn suite(name: &str, is_guest: bool, left_out: &[String]) -> BTreeMap<String, String> {
    let place = place(&format!("cpython-{name}-{is_guest}"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guests/suite.py");
    let results = place.join("results");
    let mut outcomes: BTreeMap<String, String> =
        left_out.iter().map(|test| (test.clone(), "hangs".to_owned())).collect();
    let began = Instant::now();
    loop {
        let hangs = outcomes.iter().filter(|(_, outcome)| *outcome == "hangs").map(|(test, _)| test.clone());
        let mut arguments: Vec<String> =
            ["/usr/bin/python3.11", script, name, results.to_str().expect("a path")].map(str::to_owned).into();
        arguments.extend(hangs);
        let mut running = Running::start(&arguments, &place, is_guest);
        let (mut seen, mut since) = (0, Instant::now());
        let is_stuck = loop {
            if running.has_ended() {
                break false;
            }
            let length = std::fs::metadata(&results).map_or(0, |about| about.len());
            if length != seen {
                (seen, since) = (length, Instant::now());
            }
            if since.elapsed() > STUCK {
                running.kill();
                break true;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let text = std::fs::read_to_string(&results).unwrap_or_default();
        for (outcome, test) in text.lines().filter_map(|line| line.split_once(' ')) {
            outcomes.insert(test.to_owned(), outcome.to_owned());
        }
        let last = outcomes.iter().find(|(_, outcome)| *outcome == "running").map(|(test, _)| test.clone());
        match last {
            // A suite that ends in the middle of a test has not ended well: the test's outcome
            // stays `running`.
            Some(test) if is_stuck && began.elapsed() < LONGEST => {
                println!("{name}: {test} hangs {}", if is_guest { "as a guest" } else { "natively" });
                outcomes.insert(test, "hangs".to_owned());
            }
            _ => return outcomes,
        }
    }
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
    let only = std::env::var("ORBIT_TEST_SUITES").ok();
    for name in SUITES.into_iter().filter(|name| only.as_ref().is_none_or(|only| only.split(' ').any(|o| o == *name))) {
        // Tests that measure time fail now and then, natively too: what differs once must agree in
        // another try.
        let mut differ: BTreeSet<String> = BTreeSet::new();
        let mut left_out: Vec<String> = Vec::new();
        for attempt in 0..TRIES {
            let native = suite(name, false, &left_out);
            left_out = native.iter().filter(|(_, outcome)| *outcome == "hangs").map(|(test, _)| test.clone()).collect();
            let ours = suite(name, true, &left_out);
            assert!(native.len() > 3, "{name}: natively {} tests", native.len());
            let all = native.keys().chain(ours.keys()).filter(|test| native.get(*test) != ours.get(*test));
            let now: BTreeSet<String> = all.cloned().collect();
            differ = if attempt == 0 { now } else { differ.intersection(&now).cloned().collect() };
            let (tests, hang) = (ours.len() - 1 - left_out.len(), left_out.len());
            println!("{name}: {tests} tests, {hang} hang natively and are left out, {} differ", differ.len());
            for test in &differ {
                println!("    {test}: natively {:?}, as a guest {:?}", native.get(test), ours.get(test));
            }
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
