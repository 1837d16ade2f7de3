//! What main counts is what others see, and only of programs that are there.

use super::*;

fn own() -> Vec<OrbitStatus> {
    find_process(std::process::id() as i32).map(|program| program.orbits).unwrap_or_default()
}

fn named(name: &str) -> Option<OrbitStatus> {
    own().into_iter().find(|orbit| orbit.name == name)
}

/// One page a process, as in a program: tests run side by side, and a search takes the first page
/// there is.
fn page() -> StatusPage {
    static PAGE: Mutex<Option<StatusPage>> = Mutex::new(None);
    let mut page = PAGE.lock().unwrap_or_else(PoisonError::into_inner);
    page.get_or_insert_with(|| StatusPage::create().expect("a page")).clone()
}

#[test]
fn what_is_counted_is_seen() {
    let slot = page().slot("counted");
    slot.started(4242);
    slot.set_state(State::Idle);
    for call in 0..100 {
        slot.call_submitted(1, call % 3);
        slot.call_done(if call < 98 { 5_000 } else { 1_000_000 });
    }
    slot.call_submitted(2, 7);
    slot.call_submitted(2, 7);
    let orbit = named("counted").expect("seen");
    assert_eq!((orbit.pid, orbit.state, orbit.calls, orbit.queue), (4242, State::Running, 102, 2));
    assert_eq!((orbit.pages_total, orbit.pages_last), (99 + 14, 7));
    assert_eq!(orbit.bytes_total, orbit.pages_total * map::page_size() as u64);
    assert!((4.4..5.7).contains(&orbit.p50_us()), "{}", orbit.p50_us());
    assert!((875.0..1125.0).contains(&orbit.p99_us()), "{}", orbit.p99_us());
    assert!(orbit.created_ns > 0);

    slot.crashed();
    slot.calls_lost(1);
    slot.timed_out();
    slot.restarted(4343);
    let orbit = named("counted").expect("seen");
    assert_eq!((orbit.crashes, orbit.restarts, orbit.timeouts, orbit.lost), (1, 1, 1, 2));
    assert_eq!((orbit.pid, orbit.queue, orbit.state), (4343, 0, State::Idle));
    for state in [State::Starting, State::Restarting, State::Down, State::Ended] {
        slot.set_state(state);
        assert_eq!(named("counted").map(|orbit| orbit.state), Some(state));
    }
    drop(slot);
    assert_eq!(named("counted"), None);
}

#[test]
fn a_slot_is_used_again_from_zero() {
    let page = page();
    let first = page.slot("again");
    first.call_submitted(1, 1);
    first.call_done(10);
    drop(first);
    let second = page.slot("again");
    let orbit = named("again").expect("seen");
    assert_eq!((orbit.calls, orbit.latency.calls(), orbit.pages_total), (0, 0, 0));
    drop(second);
}

#[test]
fn names_are_cut_and_cleaned() {
    let page = page();
    let _escape = page.slot("a\u{1b}[31mred");
    assert!(named("a?[31mred").is_some());
    let _turned = page.slot("a\u{202e}der\u{200b}\u{feff}é");
    assert!(named("a?der??é").is_some());
    let _long = page.slot(&"é".repeat(100));
    assert!(named(&"é".repeat(NAME_BYTES / 2)).is_some());
}

#[test]
fn more_orbits_than_slots_are_counted() {
    // A page of its own, in a child of its own: the others read the first page they find.
    let answer = in_child(|| {
        let Ok(page) = StatusPage::create() else { return 1 };
        let handles: Vec<SlotHandle> = (0..SLOTS + 3).map(|number| page.slot(&format!("{number}"))).collect();
        handles[SLOTS + 1].call_submitted(1, 1);
        handles[SLOTS + 1].call_done(1);
        let Some(program) = find_process(std::process::id() as i32) else { return 2 };
        if program.orbits.len() == SLOTS && program.unseen == 3 { 0 } else { 3 }
    });
    assert_eq!(answer, 0);
}

#[test]
fn counting_from_many_threads_in_turn_loses_nothing() {
    let slot = Mutex::new(page().slot("threads"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for call in 0..10_000 {
                    let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                    slot.call_submitted(1, 1);
                    slot.call_done(call);
                }
            });
        }
        // A reader meanwhile sees a slot that makes sense.
        scope.spawn(|| {
            for _ in 0..200 {
                let orbit = named("threads").expect("seen");
                assert!(orbit.calls <= 40_000 && orbit.pages_total <= 40_000);
            }
        });
    });
    let orbit = named("threads").expect("seen");
    assert_eq!((orbit.calls, orbit.latency.calls(), orbit.pages_total), (40_000, 40_000, 40_000));
}

#[test]
fn a_forked_child_is_not_listed_and_its_handles_do_nothing() {
    let page = page();
    let mut handle = Some(page.slot("forker"));
    if let Some(slot) = &handle {
        slot.call_submitted(1, 1);
    }
    let answer = in_child(|| {
        if let Some(slot) = handle.take() {
            slot.call_submitted(5, 5);
            slot.crashed();
        }
        drop(page.slot("child's"));
        if find_process(std::process::id() as i32).is_some() {
            return 1;
        }
        // Set up again, it is a program of its own.
        let Ok(page) = StatusPage::create() else { return 2 };
        let _own = page.slot("child's own");
        match find_process(std::process::id() as i32) {
            Some(program) if program.orbits.len() == 1 && program.orbits[0].name == "child's own" => {}
            _ => return 3,
        }
        0
    });
    assert_eq!(answer, 0);
    let orbit = named("forker").expect("the parent's slot is as it was");
    assert_eq!((orbit.calls, orbit.crashes, orbit.pages_total), (1, 0, 1));
}

#[test]
fn another_process_is_found_by_its_page() {
    let mut pipe = [0; 2];
    // SAFETY: fills two numbers.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child sets up a page, says so, waits for the end of the pipe, and ends by itself.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: descriptors of this process.
        unsafe {
            let Ok(page) = StatusPage::create() else { libc::_exit(1) };
            let slot = page.slot("elsewhere");
            slot.started(libc::getpid());
            libc::write(pipe[1], [1_u8].as_ptr().cast(), 1);
            libc::raise(libc::SIGSTOP);
            libc::_exit(0);
        }
    }
    let mut byte = [0_u8];
    // SAFETY: reads one byte, waits for the child made above to stop, lets it end, and closes the
    // pipe.
    let (found, status) = unsafe {
        let mut status = 0;
        assert_eq!(libc::read(pipe[0], byte.as_mut_ptr().cast(), 1), 1);
        assert_eq!(libc::waitpid(child, &raw mut status, libc::WUNTRACED), child);
        let found = find_all();
        libc::kill(child, libc::SIGCONT);
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
        (found, status)
    };
    assert_eq!(status, 0);
    let program = found.iter().find(|program| program.pid == child).expect("found");
    assert!(!program.comm.is_empty() && program.started_ns > 0);
    let orbit = &program.orbits[0];
    assert_eq!((orbit.name.as_str(), orbit.pid), ("elsewhere", child));
    assert!(orbit.memory > 0, "its memory is seen");
    assert!(find_process(child).is_none(), "gone with its process");
}

#[test]
fn buckets_cover_all_times_in_order() {
    assert!((0..BUCKETS).all(|number| number >= 252 || bucket(bucket_start(number)) == number));
    assert!((1..252).all(|number| bucket_start(number - 1) < bucket_start(number)));
    for shift in 0..64 {
        for ns in [1_u64 << shift, (1 << shift) - 1, (1 << shift) | 1] {
            let number = bucket(ns);
            assert!(number < BUCKETS && bucket_start(number) <= ns, "{ns}");
            assert!(bucket_start(number + 1) > ns || ns > u64::MAX / 8 * 7, "{ns}");
        }
    }
    assert!(bucket(u64::MAX) < BUCKETS);
}

#[test]
fn quantiles_of_an_interval() {
    let mut counts = Box::new([0; BUCKETS]);
    let earlier = Latency { counts: counts.clone() };
    assert_eq!(earlier.quantile_ns(0.5), None);
    counts[bucket(1000)] = 99;
    counts[bucket(64_000)] = 1;
    let first = Latency { counts: counts.clone() };
    counts[bucket(64_000)] = 101;
    let second = Latency { counts };
    assert!(first.quantile_ns(0.5).is_some_and(|ns| ns < 1200));
    assert!(second.since(&first).quantile_ns(0.01).is_some_and(|ns| ns > 60_000));
    assert_eq!(second.since(&first).calls(), 100);
}

/// Runs `body` in a child; returns what it answered.
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
