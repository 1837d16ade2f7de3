//! A program that is slow because of the machine, or of a process that holds it, does not hang;
//! when it then hangs, it is reported.

use crate::common::{Dir, PATIENCE, Program, Watcher, cpu};
use orbit_ahd::{Config, Kind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Milliseconds of work the program does every 10.
const WORK: &str = "0.3";

/// Watches a healthy loop, lets `meanwhile` slow it down, and at last has it spin.
fn slowed(name: &str, meanwhile: impl FnOnce(&mut Watcher, &Program)) {
    let dir = Dir::new(name);
    let Some(fares) = dir.program() else { return };
    let p = Program::start(Command::new(&fares).args(["loop", WORK]));
    let config = Config { limit: Duration::from_secs(1), ..Config::default() };
    let mut w = Watcher::of(p.pid(), config);
    w.learns(p.pid());
    meanwhile(&mut w, &p);
    w.run(Duration::from_millis(500));
    w.quiet();
    // It was watched all the time: a real hang is found.
    p.signal(libc::SIGUSR1);
    assert_eq!(w.hang().kind, Kind::Busy);
}

/// A control group of this test's own, removed at the end.
struct Group(PathBuf);

impl Group {
    /// In the hierarchy that has this file, of version 1 or 2.
    fn with(controller: &str, file: [&str; 2], name: &str) -> Option<(Group, usize)> {
        let roots = [format!("/sys/fs/cgroup/{controller}"), "/sys/fs/cgroup".to_owned()];
        for (version, (root, file)) in roots.iter().zip(file).enumerate() {
            let dir = Path::new(root).join(format!("orbit-{name}-{}", std::process::id()));
            if std::fs::create_dir(&dir).is_ok() {
                let group = Group(dir);
                if group.0.join(file).exists() {
                    return Some((group, version));
                }
            }
        }
        println!("SKIP: needs a control group that may be written, with {} or {}", file[0], file[1]);
        None
    }

    fn set(&self, file: &str, text: &str) -> bool {
        std::fs::write(self.0.join(file), text).is_ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes leave it a moment after they were killed.
        let start = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn throttled_by_a_control_group() {
    let Some((group, version)) = Group::with("cpu", ["cpu.cfs_quota_us", "cpu.max"], "throttled") else { return };
    slowed("slow-throttled", |w, p| {
        // A hundredth of a CPU: each round of the loop takes some 400 ms.
        let set =
            if version == 0 { group.set("cpu.cfs_quota_us", "1000") } else { group.set("cpu.max", "1000 100000") };
        assert!(set && group.set("cgroup.procs", &p.pid().to_string()), "the group was made, but cannot be set");
        w.run(Duration::from_secs(4));
        let throttled = std::fs::read_to_string(group.0.join("cpu.stat")).expect("cpu.stat");
        let count = throttled.lines().find_map(|l| l.strip_prefix("nr_throttled ")?.parse::<u32>().ok());
        assert!(count.is_some_and(|n| n > 5), "it was not throttled: {throttled}");
        let set = if version == 0 { group.set("cpu.cfs_quota_us", "-1") } else { group.set("cpu.max", "max 100000") };
        assert!(set);
    });
}

#[test]
fn stopped_and_continued() {
    slowed("slow-stopped", |w, p| {
        for _ in 0..3 {
            p.signal(libc::SIGSTOP);
            w.run(Duration::from_millis(1500));
            p.signal(libc::SIGCONT);
            w.run(Duration::from_millis(200));
        }
    });
}

#[test]
fn held_by_a_debugger() {
    slowed("slow-debugger", |w, p| {
        let pid = p.pid();
        let (end, wait_end) = std::sync::mpsc::channel::<()>();
        // Stops it as at a breakpoint, lets it continue traced, and stops it again.
        let debugger = std::thread::spawn(move || {
            // SAFETY: plain calls with numbers; waitpid is given a valid place. The program is this
            // test's own.
            unsafe {
                if libc::ptrace(libc::PTRACE_SEIZE, pid, 0usize, 0usize) != 0 {
                    println!("SKIP: needs the right to trace");
                    return;
                }
                let mut status = 0;
                for _ in 0..3 {
                    libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0usize, 0usize);
                    libc::waitpid(pid, &raw mut status, libc::__WALL);
                    if wait_end.recv_timeout(Duration::from_millis(1200)).is_ok() {
                        break;
                    }
                    libc::ptrace(libc::PTRACE_CONT, pid, 0usize, 0usize);
                    let _ = wait_end.recv_timeout(Duration::from_millis(100));
                }
                libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0usize, 0usize);
                libc::waitpid(pid, &raw mut status, libc::__WALL);
                libc::ptrace(libc::PTRACE_DETACH, pid, 0usize, 0usize);
            }
        });
        w.run(Duration::from_secs(5));
        drop(end);
        debugger.join().expect("the debugger");
    });
}

struct Burners(Vec<Child>);

impl Drop for Burners {
    fn drop(&mut self) {
        for b in &mut self.0 {
            let _ = b.kill();
            let _ = b.wait();
        }
    }
}

#[test]
fn starved_of_cpu() {
    slowed("slow-starved", |w, p| {
        let nice = |n| {
            // SAFETY: plain call with numbers.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, p.pid() as libc::id_t, n) }
        };
        nice(19);
        let how_many = std::thread::available_parallelism().map_or(2, usize::from) * 2;
        let burner =
            || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("sh");
        let burners = Burners((0..how_many).map(|_| burner()).collect());
        w.run(Duration::from_secs(4));
        drop(burners);
        // An ordinary user cannot take it back: then the hang at the end is found only where
        // nothing else runs.
        nice(0);
    });
}

/// Keeps a process to the first CPU that this one may use, at some priority.
fn keep_to_one_cpu(pid: i32, nice: i32) {
    // SAFETY: an all-zero set is an empty one; both calls are given its size and outlive it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|&n| libc::CPU_ISSET(n, &set)).expect("a CPU");
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(first, &mut set);
        assert_eq!(libc::sched_setaffinity(pid, size_of_val(&set), &raw const set), 0);
        libc::setpriority(libc::PRIO_PROCESS, pid as libc::id_t, nice);
    }
}

#[test]
fn a_lock_that_is_held_for_short_whiles_of_cpu() {
    let dir = Dir::new("slow-holder");
    let Some(fares) = dir.program() else { return };
    // The shell is kept to its place before it starts the program, whose threads then are too.
    let p = Program::start(Command::new("sh").args(["-c", "sleep 0.3; exec \"$0\" holds-in-turns 800"]).arg(&fares));
    keep_to_one_cpu(p.pid(), 5);
    let burner = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("sh");
    keep_to_one_cpu(burner.id() as i32, 0);
    let _burners = Burners(vec![burner]);
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    // Each hold lasts longer than the limit, but gets less than it in CPU time.
    let start = Instant::now();
    let used = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", p.pid())).into_iter().flatten().flatten();
        tasks.filter_map(|t| t.file_name().to_str()?.parse().ok()).map(|tid| cpu(p.pid(), tid)).sum::<Duration>()
    };
    while used() < Duration::from_millis(3200) {
        assert!(start.elapsed() < 3 * PATIENCE, "it does not get on");
        w.scan();
    }
    println!("3.2 s of CPU in {:?}", start.elapsed());
    w.quiet();
}

/// Whether a file is nowhere but in memory.
fn in_memory(file: &std::fs::File) -> bool {
    const RAMFS: libc::__fsword_t = 0x8584_58f6;
    // SAFETY: plain data, for which zeros are valid.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor that is open, and a struct that outlives the call.
    let asked = unsafe { libc::fstatfs(std::os::fd::AsRawFd::as_raw_fd(file), &raw mut about) };
    asked == 0 && [RAMFS, libc::TMPFS_MAGIC].contains(&about.f_type)
}

/// Watches a program that touches its pages, of which a third fit, again and again: those of this
/// file, or of its own.
fn thrashes(group: &Group, version: usize, fares: &Path, file: &Path, size: usize) {
    let files = ["memory.limit_in_bytes", "memory.max"];
    assert!(group.set(files[version], &(size / 3).to_string()));
    // Starts inside the group, for pages are charged to whoever reads them first.
    let procs = group.0.join("cgroup.procs");
    let script = "echo $$ >$0 && exec $1 thrashes $2 $3";
    let p = Program::start(Command::new("sh").args(["-c", script]).args([&procs, fares, file]).arg(size.to_string()));
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    let faults = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", p.pid())).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|s| s.split(' ').nth(9)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) || faults() < 200 {
        assert!(start.elapsed() < PATIENCE, "no pages are read: {} faults", faults());
        w.scan();
    }
    println!("{} pages were read again", faults());
    w.quiet();
}

#[test]
fn short_of_memory() {
    let files = ["memory.limit_in_bytes", "memory.max"];
    let Some((group, version)) = Group::with("memory", files, "thrashes") else { return };
    let dir = Dir::new("slow-memory");
    let Some(fares) = dir.program() else { return };
    // Pages of a file that do not fit are read again and again, as those in swap are.
    let (file, size) = (dir.0.join("pages"), 48usize << 20);
    std::fs::write(&file, vec![1u8; size]).expect("a file");
    let on_disk = std::fs::File::open(&file).expect("the file");
    if in_memory(&on_disk) {
        println!("SKIP: needs a disk below {}", dir.0.display());
        return;
    }
    on_disk.sync_all().expect("on disk");
    // What is in memory now was charged to this test.
    // SAFETY: plain call with numbers.
    unsafe { libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&on_disk), 0, 0, libc::POSIX_FADV_DONTNEED) };
    thrashes(&group, version, &fares, &file, size);
    let swap = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swap.lines().count() < 2 {
        println!("SKIP: needs swap for pages that are no file's; those of a file were tried");
        return;
    }
    thrashes(&group, version, &fares, Path::new("-"), size);
}

#[test]
fn a_clock_that_jumps() {
    if std::env::var_os("ORBIT_VM").is_none() {
        println!("SKIP: needs a machine whose clock may be set: scripts/old-kernel.sh orbit-ahd");
        return;
    }
    slowed("slow-clock", |w, _| {
        for hours in [1, -30, 24 * 400, -24 * 371] {
            // SAFETY: both calls are given a time that outlives them.
            let set = unsafe {
                let mut now = std::mem::zeroed::<libc::timespec>();
                libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now);
                now.tv_sec += hours * 3600;
                libc::clock_settime(libc::CLOCK_REALTIME, &raw const now)
            };
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
            w.run(Duration::from_millis(700));
        }
    });
}

#[test]
fn long_jobs_that_take_memory() {
    let dir = Dir::new("slow-fills");
    let Some(fares) = dir.program() else { return };
    let p = Program::start(Command::new(&fares).args(["fills", "1.2"]));
    let mut w = Watcher::of(p.pid(), Config::default());
    let start = Instant::now();
    // Three jobs, with a second of the loop before each.
    while cpu(p.pid(), p.pid()) < Duration::from_millis(3600) {
        assert!(start.elapsed() < PATIENCE, "it does not get on");
        w.scan();
    }
    w.run(Duration::from_secs(1));
    w.quiet();
    p.signal(libc::SIGUSR1);
    assert_eq!(w.hang().kind, Kind::Busy);
}

#[test]
fn a_watcher_that_was_held_up_counts_two_periods() {
    let dir = Dir::new("slow-watcher");
    let Some(fares) = dir.program() else { return };
    let p = Program::start(Command::new(&fares).arg("holds"));
    let limit = Duration::from_secs(2);
    let mut w = Watcher::of(p.pid(), Config { limit, ..Config::default() });
    w.run(Duration::from_millis(500));
    // Suspended with the machine, stopped, or starved: it did not see the program meanwhile.
    std::thread::sleep(limit + Duration::from_secs(1));
    w.scan();
    w.quiet();
    // What it has seen itself counts, of whichever length.
    let h = w.hang();
    assert_eq!(h.kind, Kind::Blocked);
    assert!(Duration::from_nanos(h.progress) < limit * 2, "the gap was counted: {h:#?}");
}
