//! Limits are checked, held one way or the other, and lifted again; nothing is left behind.

use super::*;

fn dirs_of(applied: &Applied) -> Vec<PathBuf> {
    applied.group.as_ref().map(Group::dirs).unwrap_or_default()
}

#[test]
fn nonsense_is_named() {
    let cases = [
        (Limits::new().memory(5), "memory limit of 5 bytes"),
        (Limits::new().cpu_percent(0), "CPU limit of 0 percent"),
        (Limits::new().cpu_percent(1_000_000), "CPU limit of 1000000 percent"),
        (Limits::new().nice(20), "nice value 20"),
        (Limits::new().cpus([MAX_CPUS]), "CPU number 1024"),
        (Limits::new().cpus([]), "none of the CPUs []"),
    ];
    for (limits, what) in cases {
        let error = limits.check().expect_err("nonsense");
        assert!(error.kind() == Kind::Invalid && error.to_string().contains(what), "{error}");
    }
}

#[test]
fn shares_become_weights() {
    assert_eq!(nice_for_share(100), None);
    assert_eq!(nice_for_share(50), Some(0));
    assert_eq!(nice_for_share(1), Some(19));
    let values: Vec<i32> = (1..100).filter_map(nice_for_share).collect();
    assert!(values.is_sorted_by(|a, b| a >= b), "less share, more nice");
}

#[test]
fn group_names_name_program_and_orbit() {
    let name = group_name("dead/lock ..\u{e9}");
    assert!(name.starts_with(&format!("orbit-{}-", std::process::id())) && name.ends_with("-dead_lock____"));
    assert_ne!(group_name("a"), group_name("a"));
}

#[test]
fn limits_change_while_the_orbit_runs() {
    // SAFETY: the child waits for its end, which is below.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        loop {
            // SAFETY: waits for signals.
            unsafe { libc::pause() };
        }
    }
    let main_cpus = sched::affinity(0).expect("CPUs");
    let mut applied = Applied::create(&Limits::new(), "changed").expect("none");
    assert!(dirs_of(&applied).is_empty() && applied.how() == "no limits");
    let change =
        applied.change(&Limits::new().memory(64 << 20).nice(nicer(3)).cpus([main_cpus[0]]), "changed", Some(child));
    let held = (sched::nice(child).ok(), sched::affinity(child).unwrap_or_default());
    let limited = (dirs_of(&applied).len(), rlimit::get(child, Resource::Data).map_or(0, |(soft, _)| soft));
    let lifted = applied.change(&Limits::new(), "changed", Some(child));
    let free = (sched::affinity(child).unwrap_or_default(), rlimit::get(child, Resource::Data).ok());
    // SAFETY: ends the child made above and waits for it.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    change.expect("changed");
    lifted.expect("lifted");
    assert_eq!(held, (Some(nicer(3)), vec![main_cpus[0]]));
    assert!(limited.0 > 0 || limited.1 < rlimit::INFINITE, "held by a group or by RLIMIT_DATA");
    assert_eq!(free, (main_cpus, rlimit::get(0, Resource::Data).ok()));
    let dirs = dirs_of(&applied);
    drop(applied);
    assert!(dirs.iter().all(|dir| !dir.exists()));
}

/// So many steps above the test's own niceness.
fn nicer(steps: i32) -> i32 {
    (sched::nice(0).expect("niceness") + steps).min(19)
}

/// Applies limits in a child; returns what the child answered.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs the body and ends by itself.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let answer = body();
        // SAFETY: ends the child.
        unsafe { libc::_exit(answer) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "status {status:#x}");
    libc::WEXITSTATUS(status)
}

fn try_map(bytes: usize) -> bool {
    // SAFETY: a fresh mapping, anywhere, that the child keeps.
    let at = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    at != libc::MAP_FAILED
}

#[test]
fn memory_is_held_inside_and_areas_do_not_count() {
    let wire = LimitsWire { memory: 16 << 20, ..LimitsWire::default() };
    let answer = in_child(|| {
        if apply_inside(&wire, 64 << 20).is_err() {
            return 1;
        }
        // 64 MiB of replicas and 8 of the task's own fit; 32 more do not, until there is room for
        // another replica.
        if !try_map(64 << 20) || !try_map(8 << 20) {
            return 2;
        }
        if try_map(32 << 20) {
            return 3;
        }
        if make_room(&wire, 32 << 20).is_err() || !try_map(32 << 20) {
            return 4;
        }
        0
    });
    assert_eq!(answer, 0);
}

#[test]
fn an_ordinary_user_whose_program_is_nice_gets_a_share_and_a_list_of_what_is_missing() {
    // An ordinary user's niceness never becomes less: where the test's own is more, that.
    let niceness = sched::nice(0).expect("niceness").max(12);
    let answer = in_child(|| {
        // SAFETY: numbers only; the child gives up root, if it has it.
        unsafe {
            libc::setpriority(libc::PRIO_PROCESS, 0, niceness);
            libc::setuid(65534);
        }
        let mut applied = Applied::create(&Limits::new().cpu_percent(50), "share").expect("a share");
        (applied.cpu_in_group, applied.group) = (false, None);
        let refused = Limits::new().nice(3).check();
        if applied.wire().nice != niceness || apply_inside(&applied.wire(), 0).is_err() {
            return 1;
        }
        if refused.is_err_and(|e| e.to_string().contains("nice value 3")) { 0 } else { 2 }
    });
    assert_eq!(answer, 0);
}

#[test]
fn nice_and_cpus_are_held_inside() {
    let cpu = sched::affinity(0).expect("CPUs")[0];
    let applied = Applied::create(&Limits::new().nice(nicer(7)).cpus([cpu]), "nice").expect("limits");
    assert_eq!(applied.how(), format!("nice {}, CPUs [{cpu}]", nicer(7)));
    let wire = applied.wire();
    let answer = in_child(|| {
        if apply_inside(&wire, 0).is_err() {
            return 1;
        }
        let held =
            sched::nice(0).is_ok_and(|nice| nice == wire.nice) && sched::affinity(0).is_ok_and(|cpus| cpus == [cpu]);
        if held { 0 } else { 2 }
    });
    assert_eq!(answer, 0);
}

#[test]
fn group_or_stand_in_and_nothing_left_behind() {
    let applied = Applied::create(&Limits::new().memory(64 << 20).cpu_percent(25), "held").expect("limits");
    let dirs = dirs_of(&applied);
    let wire = applied.wire();
    assert_eq!(wire.memory != 0, !applied.memory_in_group);
    assert_eq!(wire.has_nice != 0, !applied.cpu_in_group);
    assert!(applied.how().contains("CPU 25 %"), "{}", applied.how());
    if dirs.is_empty() {
        println!("SKIP: needs control groups ({})", applied.how());
        return;
    }
    assert!(dirs.iter().all(|dir| dir.is_dir()));
    drop(applied);
    assert!(dirs.iter().all(|dir| !dir.exists()));
}

#[test]
fn memory_kill_in_a_group_is_seen() {
    let mut applied = Applied::create(&Limits::new().memory(16 << 20), "greedy").expect("limits");
    if !applied.memory_in_group {
        println!("SKIP: needs a control group with memory ({})", applied.how());
        return;
    }
    // SAFETY: the child waits for the word, then writes to memory of its own until it is killed.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: a mapping of its own; the writes stay inside.
        unsafe {
            libc::raise(libc::SIGSTOP);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let bytes = 256 << 20;
            let at = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if at == libc::MAP_FAILED {
                libc::_exit(1);
            }
            libc::memset(at, 1, bytes);
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, lets it continue, and waits for its end.
    unsafe {
        assert_eq!(libc::waitpid(child, &raw mut status, libc::WUNTRACED), child);
        assert!(!applied.oom_killed());
        let added = applied.add(child);
        libc::kill(child, libc::SIGCONT);
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        added.expect("in the group");
    }
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "status {status:#x}");
    assert!(applied.oom_killed(), "the kill is reported");
    assert!(!applied.oom_killed(), "once");
    let dirs = dirs_of(&applied);
    remove_dirs(&dirs);
    assert!(dirs.iter().all(|dir| !dir.exists()));
}

#[test]
fn a_name_that_is_taken_is_passed_over() {
    let me = owner(std::process::id() as i32);
    let number = NUMBER.load(Ordering::Relaxed);
    let taken: Vec<Group> = (number..number + 20)
        .filter_map(|n| Group::create(&format!("{}-{n}-taken", me.group_name(GROUP_PREFIX))).ok())
        .collect();
    if taken.is_empty() {
        println!("SKIP: needs control groups");
        return;
    }
    let applied = Applied::create(&Limits::new().memory(64 << 20).cpu_percent(50), "taken").expect("limits");
    assert!(applied.group.is_some() && applied.no_group.is_none(), "{}", applied.how());
    assert!(taken.iter().all(|group| group.dirs() != dirs_of(&applied)));
}

/// Limits in a group that somebody has removed; `None`: there is no group available.
fn robbed(limits: &Limits, name: &str) -> Option<(Applied, Vec<PathBuf>)> {
    let applied = Applied::create(limits, name).expect("limits");
    let dirs = dirs_of(&applied);
    if dirs.is_empty() {
        println!("SKIP: needs control groups ({})", applied.how());
        return None;
    }
    for dir in &dirs {
        std::fs::remove_dir(dir).expect("it is empty");
    }
    Some((applied, dirs))
}

/// The first number that one of these files of the group has.
fn bound(applied: &Applied, files: [&str; 2]) -> Option<u64> {
    let paths = dirs_of(applied).into_iter().flat_map(|dir| files.map(|file| dir.join(file)));
    let texts = paths.filter_map(|path| std::fs::read_to_string(path).ok());
    texts.filter_map(|text| text.split_whitespace().next()?.parse().ok()).next()
}

/// The bound on memory of the group, whichever version it is of.
fn memory_bound(applied: &Applied) -> Option<u64> {
    bound(applied, ["memory.max", "memory.limit_in_bytes"])
}

#[test]
fn a_group_that_was_removed_is_made_again_for_other_limits() {
    let share = |percent| Limits::new().cpu_percent(percent);
    for (before, after) in [(share(50), share(25)), (share(50).memory(64 << 20), share(25).memory(32 << 20))] {
        let Some((mut applied, dirs)) = robbed(&before, "robbed") else { return };
        let held = (applied.memory_in_group, applied.cpu_in_group);
        applied.change(&after, "robbed", None).expect("changed");
        assert_eq!((applied.memory_in_group, applied.cpu_in_group), held, "{}", applied.how());
        assert!(dirs.iter().all(|dir| dir.is_dir()), "{}", applied.how());
        if held.0 {
            assert_eq!(memory_bound(&applied), after.memory);
        }
        if held.1 {
            assert_eq!(bound(&applied, ["cpu.max", "cpu.cfs_quota_us"]), Some(25_000));
        }
        drop(applied);
        assert!(dirs.iter().all(|dir| !dir.exists()));
    }
}

#[test]
fn a_group_that_cannot_be_made_again_is_reported_and_replaced() {
    let Ok(above) = Group::create(&group_name("above")) else {
        println!("SKIP: needs control groups");
        return;
    };
    if above.set_memory(1 << 30).and_then(|()| above.set_cpu(100)).is_err() || above.dirs().len() < 2 {
        println!("SKIP: needs version 1 with both controllers, where a group with processes has others below it");
        return;
    }
    let own = above.dirs().into_iter().map(|dir| dir.parent().expect("a group's own parent").to_path_buf());
    let own: Vec<PathBuf> = own.collect();
    let answer = in_child(|| {
        let pid = std::process::id() as i32;
        if above.add(pid).is_err() {
            return 1;
        }
        let limits = Limits::new().memory(64 << 20).cpu_percent(50);
        let Ok(mut applied) = Applied::create(&limits, "below") else { return 2 };
        for dir in
            dirs_of(&applied).iter().filter(|dir| dir.parent().is_some_and(|at| above.dirs().contains(&at.into())))
        {
            let _ = std::fs::remove_dir(dir);
        }
        for dir in &own {
            let _ = std::fs::write(dir.join("cgroup.procs"), pid.to_string());
        }
        if above.remove().is_err() || applied.add(pid).is_err() {
            return 3;
        }
        let wire = applied.wire();
        let is_reported =
            applied.how().contains("by RLIMIT_DATA") && applied.how().contains("(no control group: it was removed");
        i32::from(!is_reported || wire.memory != 64 << 20 || wire.has_nice != 1) * 4
    });
    assert_eq!(answer, 0);
}

#[test]
fn a_group_that_was_removed_is_made_again_for_the_next_process() {
    let limits = Limits::new().memory(64 << 20).cpu_percent(50);
    let Some((mut applied, dirs)) = robbed(&limits, "robbed_next") else { return };
    if !(applied.memory_in_group && applied.cpu_in_group) {
        println!("SKIP: needs control groups for memory and CPU ({})", applied.how());
        return;
    }
    applied.oom_kills = AtomicU64::new(7);
    // SAFETY: the child waits for its end, which is below.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        loop {
            // SAFETY: waits for signals.
            unsafe { libc::pause() };
        }
    }
    let added = applied.add(child);
    let groups = std::fs::read_to_string(format!("/proc/{child}/cgroup")).expect("its groups");
    let memory = memory_bound(&applied);
    // SAFETY: ends the child made above and waits for it.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    added.expect("in the group");
    assert_eq!(memory, Some(64 << 20));
    assert_eq!(groups.lines().filter(|line| line.ends_with("-robbed_next")).count(), dirs.len(), "{groups}");
    assert_eq!(applied.oom_kills.load(Ordering::Relaxed), 0, "the new group counts from the beginning");
}

#[test]
fn a_process_that_has_ended_is_no_reason_to_fail() {
    let limits = Limits::new().memory(64 << 20).cpu_percent(50).nice(nicer(3));
    for (reaped, in_group) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut applied = Applied::create(&limits, "ended").expect("limits");
        if !in_group {
            (applied.memory_in_group, applied.cpu_in_group, applied.group) = (false, false, None);
        }
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let wait = |options: i32| {
            // SAFETY: waits for the child made above; nothing else does. An all-zero record is one
            // of an earlier end.
            unsafe {
                let mut info = std::mem::zeroed::<libc::siginfo_t>();
                libc::waitid(libc::P_PID, child as libc::id_t, &raw mut info, options)
            }
        };
        assert_eq!(wait(libc::WEXITED | if reaped { 0 } else { libc::WNOWAIT }), 0);
        let changed = applied.change(&limits.clone().memory(32 << 20).nice(nicer(4)), "ended", Some(child));
        if !reaped {
            wait(libc::WEXITED);
        }
        changed.expect("holds for the next one");
        if applied.memory_in_group {
            assert_eq!(memory_bound(&applied), Some(32 << 20));
        } else {
            assert_eq!(applied.wire().memory, 32 << 20);
        }
        assert_eq!(applied.wire().nice, nicer(4));
    }
}
