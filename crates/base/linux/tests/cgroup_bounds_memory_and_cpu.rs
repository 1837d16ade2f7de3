//! A control group: a process that takes more memory than its group may is killed and counted;
//! processor time is held down; nothing of the group stays.

use orbit_linux::cgroup::{self, Group, Owner};
use orbit_linux::map::Mapping;
use orbit_linux::pidfd::{self, Ended};
use orbit_linux::process::raw_fork;
use orbit_linux::{sched, socket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn group(what: &str) -> Option<Group> {
    if let Some(why) = cgroup::probe().reason() {
        println!("SKIP: needs control groups: {why}");
        return None;
    }
    Some(Group::create(&format!("orbit-test-{}-{what}", std::process::id())).expect("create"))
}

/// A child that waits for a byte, then does `work`, and ends with its answer.
fn child(group: &Group, work: impl FnOnce() -> i32) -> (i32, OwnedFd) {
    let (ours, theirs) = socket::pair().expect("pair");
    // SAFETY: `work` makes system calls and touches memory it maps; nothing else.
    let Some(child) = unsafe { raw_fork(0) }.expect("fork") else {
        let _ = socket::receive(theirs.as_fd(), &mut [0; 1], &mut Vec::new(), false);
        let answer = work();
        // SAFETY: ends the child.
        unsafe { libc::_exit(answer) };
    };
    group.add(child.pid).expect("add");
    socket::send(ours.as_fd(), &[1], &[]).expect("go");
    (child.pid, child.pidfd.expect("pidfd"))
}

#[test]
fn too_much_memory_kills_and_is_counted() {
    let Some(group) = group("memory") else { return };
    if !group.has_memory() {
        println!("SKIP: needs the memory controller");
        return;
    }
    group.set_memory(16 << 20).expect("set_memory");
    assert_eq!(group.oom_kills(), 0);
    let (_, fd) = child(&group, || Mapping::anonymous(64 << 20, true).map_or(1, |_| 0));
    let end = pidfd::wait(fd.as_fd(), false).expect("wait").expect("ended");
    assert_eq!(end.signal(), Some(libc::SIGKILL), "{end:?}");
    // A group that ends together may count its victim twice.
    assert!(group.oom_kills() > 0);
    group.set_memory(128 << 20).expect("raise");
    let (_, fd) = child(&group, || Mapping::anonymous(64 << 20, true).map_or(1, |_| 0));
    let end = pidfd::wait(fd.as_fd(), false).expect("wait").expect("ended");
    assert_eq!(end, Ended { code: libc::CLD_EXITED, status: 0 }, "enough memory now");
    group.set_memory(8 << 20).expect("lower");
    let dirs = group.dirs();
    assert!(!dirs.is_empty() && dirs.iter().all(|d| d.is_dir()));
    group.remove().expect("remove");
    group.remove().expect("again");
    assert!(dirs.iter().all(|d| !d.exists()), "{dirs:?}");
}

#[test]
fn processor_time_is_held_down() {
    let Some(group) = group("cpu") else { return };
    if !group.has_cpu() {
        println!("SKIP: needs the cpu controller");
        return;
    }
    match group.set_cpu(10) {
        Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {
            println!("SKIP: needs cpu bandwidth control: {e}");
            return;
        }
        other => other.expect("set_cpu"),
    }
    let (pid, fd) = child(&group, || {
        loop {
            std::hint::spin_loop();
        }
    });
    let begun = Instant::now();
    std::thread::sleep(Duration::from_millis(1500));
    let ran = sched::schedstat(pid, pid).map(|s| s.run_ns);
    let passed = begun.elapsed().as_nanos() as u64;
    pidfd::send_signal(fd.as_fd(), libc::SIGKILL).expect("kill");
    pidfd::wait(fd.as_fd(), false).expect("wait");
    let ran = ran.expect("schedstat");
    assert!(ran < passed / 3, "ran {ran} of {passed} ns at 10 %");
}

/// Gives the calling process real-time priority, and answers with the error.
fn real_time() -> i32 {
    let least = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter outlives the call; the error's place is the thread's own.
    unsafe {
        if libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const least) == 0 { 0 } else { *libc::__errno_location() }
    }
}

#[test]
fn a_bound_on_memory_takes_no_real_time_priority_away() {
    let Some(group) = group("real-time") else { return };
    // SAFETY: the child makes one system call and ends.
    let Some(free) = unsafe { raw_fork(0) }.expect("fork") else {
        // SAFETY: ends the child.
        unsafe { libc::_exit(real_time()) }
    };
    let end = pidfd::wait(free.pidfd.expect("pidfd").as_fd(), false).expect("wait").expect("ended");
    if end.status != 0 || !group.has_memory() {
        println!("SKIP: needs real-time priority and the memory controller: {end:?}");
        return;
    }
    group.set_memory(64 << 20).expect("set_memory");
    let (_, fd) = child(&group, real_time);
    let end = pidfd::wait(fd.as_fd(), false).expect("wait").expect("ended");
    if group.dirs().len() == 1 && end.status == libc::EPERM {
        println!("SKIP: needs version 1, where memory and cpu are apart: {:?}", group.dirs());
        return;
    }
    assert_eq!(end, Ended { code: libc::CLD_EXITED, status: 0 });
}

#[test]
fn a_bound_on_time_set_later_holds_for_present_members() {
    let Some(group) = group("later") else { return };
    if !group.has_memory() || !group.has_cpu() {
        println!("SKIP: needs both controllers");
        return;
    }
    let (pid, fd) = child(&group, || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    let set = group.set_cpu(50);
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its groups");
    pidfd::send_signal(fd.as_fd(), libc::SIGKILL).expect("kill");
    pidfd::wait(fd.as_fd(), false).expect("wait");
    match set {
        Err(e) if e.kind() == std::io::ErrorKind::Unsupported => println!("SKIP: needs cpu bandwidth control: {e}"),
        set => {
            set.expect("set_cpu");
            let is_in = |line: &&str| line.ends_with("-later");
            assert_eq!(groups.lines().filter(is_in).count(), group.dirs().len(), "{groups}");
        }
    }
}

#[test]
fn a_dropped_group_is_gone() {
    let Some(group) = group("dropped") else { return };
    let dirs = group.dirs();
    drop(group);
    assert!(dirs.iter().all(|d| !d.exists()), "{dirs:?}");
}

/// Whether `/proc` shows this process' PID namespace, and not one further out.
fn proc_is_own() -> bool {
    let is_own = std::fs::read_link("/proc/self").is_ok_and(|own| own.as_os_str() == &*std::process::id().to_string());
    if !is_own {
        println!("SKIP: needs /proc to be of this PID namespace");
    }
    is_own
}

/// A process that has ended, and was reaped.
fn ended() -> i32 {
    // SAFETY: the child only ends.
    let Some(dead) = unsafe { raw_fork(0) }.expect("fork") else {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) }
    };
    pidfd::wait(dead.pidfd.expect("pidfd").as_fd(), false).expect("wait");
    dead.pid
}

/// Makes a group for this owner, as if the program then had been killed before it could remove it.
fn left_by(owner: &Owner, prefix: &str) -> Vec<PathBuf> {
    let group = Group::create(&format!("{}-3", owner.group_name(prefix))).expect("create");
    let dirs = group.dirs();
    std::mem::forget(group);
    dirs
}

fn remove(dirs: &[PathBuf]) {
    for dir in dirs {
        let _ = std::fs::remove_dir(dir);
    }
}

#[test]
fn sweeping_takes_groups_of_dead_programs_only() {
    if group("sweep-probe").is_none() || !proc_is_own() {
        return;
    }
    let prefix = format!("orbit-sweep{}", std::process::id());
    let me = Owner::current();
    let dead = left_by(&Owner { pid: ended(), ..me }, &prefix);
    let living = left_by(&me, &prefix);
    // An earlier process of this number: since then, another one was started.
    let earlier = left_by(&Owner { since: 1, ..me }, &prefix);
    let swept = cgroup::sweep(&prefix);
    let is_there = [&dead, &living, &earlier].map(|dirs| dirs.iter().filter(|dir| dir.exists()).count());
    let known = (cgroup::groups_of(&prefix, &me), cgroup::groups_of(&prefix, &Owner { since: 1, ..me }));
    [dead.clone(), living.clone(), earlier.clone()].iter().for_each(|dirs| remove(dirs));
    assert_eq!(swept, dead.len() + earlier.len());
    assert_eq!(is_there, [0, living.len(), 0]);
    assert_eq!(known, (living, vec![]));
}

#[test]
fn sweeping_leaves_groups_of_other_namespaces_alone_unless_those_are_gone() {
    if group("sweep-probe").is_none() || !proc_is_own() {
        return;
    }
    let other = Command::new("unshare").args(["--pid", "--fork", "sleep", "60"]).stderr(Stdio::null()).spawn();
    let Ok(mut other) = other else {
        println!("SKIP: needs unshare");
        return;
    };
    let namespace = namespace_made_by(&mut other);
    let prefix = format!("orbit-elsewhere{}", std::process::id());
    let me = Owner::current();
    let pid = ended();
    // Numbers that are nobody's here say nothing of a namespace elsewhere. No namespace has the
    // inode 1.
    let living = namespace.map(|namespace| left_by(&Owner { pid, namespace, ..me }, &prefix)).unwrap_or_default();
    let unknown = left_by(&Owner { pid, namespace: 0, ..me }, &prefix);
    let gone = left_by(&Owner { pid, namespace: 1, ..me }, &prefix);
    cgroup::sweep(&prefix);
    let is_there = [&living, &unknown, &gone].map(|dirs| dirs.iter().filter(|dir| dir.exists()).count());
    [&living, &unknown, &gone].iter().for_each(|dirs| remove(dirs));
    end_all(&mut other);
    if namespace.is_none() {
        println!("SKIP: needs the right to a PID namespace");
    }
    assert_eq!(is_there[..2], [living.len(), unknown.len()]);
    // SAFETY: asks for a number.
    if me.namespace == 0xEFFF_FFFC && unsafe { libc::geteuid() } == 0 {
        assert_eq!(is_there[2], 0, "all processes can be seen, and none is in it");
    } else {
        println!("SKIP: needs root in the first PID namespace, to see that another one is gone");
        assert_eq!(is_there[2], gone.len());
    }
}

/// The only child of a process.
fn child_of(pid: u32) -> Option<String> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Some(children.split_whitespace().next()?.to_owned())
}

/// The PID namespace that `unshare` makes for its child; `None` if it may not.
fn namespace_made_by(unshare: &mut Child) -> Option<u64> {
    while unshare.try_wait().expect("wait").is_none() {
        let of = |process: &str| std::fs::metadata(format!("/proc/{process}/ns/pid")).ok().map(|file| file.ino());
        if let Some(made) = child_of(unshare.id()).and_then(|child| of(&child)).filter(|made| Some(*made) != of("self"))
        {
            return Some(made);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Ends `unshare` and its child, which is process 1 of its namespace.
fn end_all(unshare: &mut Child) {
    if let Some(child) = child_of(unshare.id()).and_then(|child| child.parse().ok()) {
        // SAFETY: a process that this test started, and whose parent has not reaped it.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
    let _ = unshare.kill();
    let _ = unshare.wait();
}

#[test]
fn bad_names_are_refused() {
    for name in ["", ".", "..", "a/b", "../x"] {
        let e = Group::create(name).expect_err("must be refused");
        assert_eq!(e.kind(), std::io::ErrorKind::InvalidInput, "{name:?}: {e}");
    }
}
