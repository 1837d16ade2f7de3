//! A call that is kept over the end of its orbit's process runs on the snapshot of its submission,
//! or ends as cancelled.

mod common;

use std::ffi::{c_long, c_void};

use std::time::Duration;

use orbit::{Area, CallOptions, Engine, Future, Orbit, Outcome, Pending, Restart};

const PAGES: usize = 16 * 1024;

/// Counts the pages at `args[0]` that do not begin with `args[1]`.
unsafe extern "C" fn wrong_pages(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of PAGES pages of an area, and a number.
    unsafe {
        let [base, wanted] = *args.cast::<[u64; 2]>();
        (0..PAGES).filter(|page| ((base as usize + page * 4096) as *const u64).read() != wanted).count() as c_long
    }
}

unsafe extern "C" fn wait_for_the_end(_: *mut c_void, _: *mut c_void) -> c_long {
    loop {
        // SAFETY: sleeps.
        unsafe { libc::pause() };
    }
}

fn keeping(name: &str) -> Orbit {
    Orbit::builder(name).entry(wrong_pages).restart(Restart::Always).pending(Pending::Keep).build().expect("orbit")
}

#[test]
fn a_call_behind_a_copier_that_was_cut_off_sees_no_torn_snapshot() {
    let orbit = keeping("torn");
    let bytes = (PAGES + 16) * 4096;
    let area = Area::builder("large").size(bytes).limit(bytes).engine(Engine::Fork).build().expect("area");
    let base = area.alloc(PAGES * 4096, 4096).expect("room").as_ptr();
    for round in 1..=6u64 {
        for page in 0..PAGES {
            // SAFETY: an object of the area.
            unsafe { base.add(page * 4096).cast::<u64>().write(round) };
        }
        assert!(common::eventually(|| orbit.pid() != 0), "it has a process again");
        let waits = CallOptions::new().function(wait_for_the_end);
        let held = orbit.call_async_with(&[&area], &[], &waits).expect("call");
        let args: Vec<u8> = [base as u64, round].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let behind = orbit.call_async(&[], &args).expect("call");
        orbit.kill().expect("kill");
        assert_eq!(held.wait().expect("wait"), Outcome::Killed(libc::SIGKILL));
        let outcome = behind.wait().expect("wait");
        assert!(matches!(outcome, Outcome::Returned(0) | Outcome::Cancelled), "round {round}: {outcome:?}");
    }
}

/// Writes over the replicas through their descriptors, then crashes.
unsafe extern "C" fn vandal(_: *mut c_void, _: *mut c_void) -> c_long {
    let junk = [0xa5u8; 4096];
    for fd in 3..256 {
        if std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|name| name.to_string_lossy().contains("orbit-replica"))
        {
            for page in 0..16 {
                // SAFETY: writes from a local; the descriptor is this process' own.
                unsafe { libc::pwrite(fd, junk.as_ptr().cast(), junk.len(), page * 4096) };
            }
        }
    }
    // SAFETY: ends this process only.
    unsafe { libc::abort() }
}

unsafe extern "C" fn read_number(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of an i64 in an area it names.
    unsafe { **args.cast::<*const i64>() as c_long }
}

/// An orbit and an area of two numbers, each in a page of its own, which the orbit has up to date.
struct Numbers {
    orbit: Orbit,
    area: Area,
    at: [*mut i64; 2],
}

impl Numbers {
    fn new(engine: Engine) -> Numbers {
        let area = Area::builder("numbers").size(64 << 10).limit(64 << 10).engine(engine).build().expect("area");
        let at = [(); 2].map(|()| area.alloc(4096, 4096).expect("room").as_ptr().cast::<i64>());
        let numbers = Numbers { orbit: keeping("numbers"), area, at };
        numbers.set(0, 10);
        numbers.set(1, 20);
        numbers.are([10, 20]);
        numbers
    }

    fn set(&self, which: usize, value: i64) {
        // SAFETY: an object of the area, used by this thread only.
        unsafe { *self.at[which] = value };
    }

    fn read(&self, which: usize) -> Future {
        let options = CallOptions::new().function(read_number);
        self.orbit.call_async_with(&[&self.area], &(self.at[which] as usize).to_ne_bytes(), &options).expect("call")
    }

    fn are(&self, values: [i64; 2]) {
        for (which, value) in values.into_iter().enumerate() {
            assert_eq!(self.read(which).wait().expect("wait"), Outcome::Returned(value));
        }
    }

    /// What is called in `f` waits behind the vandal's call and is there when that one crashes.
    fn behind_the_vandal<T>(&self, f: impl FnOnce() -> T) -> T {
        self.orbit.wait_ready(Duration::from_secs(20)).expect("up");
        let pid = self.orbit.pid();
        common::hold_up(pid);
        let crash = self.orbit.call_async_with(&[], &[], &CallOptions::new().function(vandal)).expect("call");
        let result = f();
        // SAFETY: the orbit's own process, which lives until it is continued.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        assert!(matches!(crash.wait().expect("wait"), Outcome::Crashed(_)));
        result
    }
}

const ENGINES: [Engine; 3] = [Engine::Compare, Engine::Auto, Engine::Copy];

fn ends(future: &Future) -> Outcome {
    future.wait().expect("wait")
}

/// Engine `compare` brings the pages that changed and no other, so what can be kept is known; other
/// engines may bring more, and report more as changed.
fn ends_as(engine: Engine, future: &Future, kept: bool, value: i64) {
    let outcome = ends(future);
    if engine == Engine::Compare {
        assert_eq!(outcome, if kept { Outcome::Returned(value) } else { Outcome::Cancelled });
    } else {
        assert!([Outcome::Returned(value), Outcome::Cancelled].contains(&outcome), "{engine:?}: {outcome:?}");
    }
}

#[test]
fn what_the_process_before_wrote_to_its_replicas_is_gone() {
    for engine in ENGINES {
        let numbers = Numbers::new(engine);
        for round in 0..3 {
            // The second number is in no waiting call's part of the log.
            numbers.are([if round == 0 { 10 } else { 99 + round }, 20]);
            let (old, new) = numbers.behind_the_vandal(|| {
                numbers.set(0, 100 + round);
                (numbers.read(1), numbers.read(0))
            });
            ends_as(engine, &old, true, 20);
            ends_as(engine, &new, true, 100 + round);
            numbers.are([100 + round, 20]);
        }
    }
}

#[test]
fn a_call_whose_snapshot_is_nowhere_any_more_ends_as_cancelled() {
    for engine in ENGINES {
        let numbers = Numbers::new(engine);
        // The first page that a later call brings was overwritten in main when that call was made.
        let (lost, kept) = numbers.behind_the_vandal(|| {
            numbers.set(0, 11);
            let lost = numbers.read(0);
            numbers.set(1, 21);
            (lost, [numbers.read(0), numbers.read(1)])
        });
        ends_as(engine, &lost, false, 11);
        ends_as(engine, &kept[0], true, 11);
        ends_as(engine, &kept[1], true, 21);
        numbers.are([11, 21]);
        // Main wrote after the last of the calls, to a page that none of them brings; and to one
        // that they bring.
        let lost = numbers.behind_the_vandal(|| {
            numbers.set(0, 12);
            let lost = numbers.read(0);
            numbers.set(1, 22);
            lost
        });
        ends_as(engine, &lost, false, 12);
        numbers.are([12, 22]);
        let kept = numbers.behind_the_vandal(|| {
            numbers.set(0, 13);
            let kept = numbers.read(0);
            numbers.set(0, 14);
            kept
        });
        ends_as(engine, &kept, true, 13);
        numbers.are([14, 22]);
    }
}

#[test]
fn an_area_first_named_later_costs_no_call_its_snapshot() {
    let numbers = Numbers::new(Engine::Compare);
    let other = Area::builder("other").size(64 << 10).build().expect("area");
    let far = other.place(7i64).expect("room").as_ptr();
    let options = CallOptions::new().function(read_number);
    let (before, after) = numbers.behind_the_vandal(|| {
        let before = numbers.read(0);
        (before, numbers.orbit.call_async_with(&[&other], &(far as usize).to_ne_bytes(), &options).expect("call"))
    });
    assert_eq!([ends(&before), ends(&after)], [10, 7].map(Outcome::Returned));
}

#[test]
fn a_call_that_may_name_an_area_let_go_of_meanwhile_ends_as_cancelled() {
    let numbers = Numbers::new(Engine::Compare);
    let waiting = numbers.behind_the_vandal(|| {
        let waiting = numbers.read(0);
        numbers.orbit.detach(&numbers.area);
        waiting
    });
    assert_eq!(ends(&waiting), Outcome::Cancelled);
    numbers.are([10, 20]);
}

#[test]
fn a_kept_call_ends_as_cancelled_when_an_area_is_let_go_of_while_the_orbit_is_down() {
    let pause = Duration::from_secs(3600);
    let orbit = Orbit::builder("down")
        .entry(vandal)
        .restart(Restart::OnFailure { first_pause: pause, longest_pause: pause, give_up: 0 })
        .pending(Pending::Keep)
        .build()
        .expect("orbit");
    for _ in 0..4 {
        assert!(orbit.call(&[], &[]).expect("call").is_failure());
    }
    assert!(common::eventually(|| orbit.pid() == 0), "it is down");
    let area = Area::builder("numbers").size(64 << 10).build().expect("area");
    let waiting = orbit.call_async(&[&area], &[]).expect("call");
    orbit.detach(&area);
    assert_eq!(ends(&waiting), Outcome::Cancelled);
    area.destroy().expect("nobody uses it");
}
