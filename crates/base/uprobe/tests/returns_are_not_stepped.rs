//! However a compiler lets a function be left, each execution is seen to end, once, and the kernel
//! steps no instruction for it.

mod common;
use common::{Program, duty, tell_callers, until};
use orbit_uprobe::Behind;
use orbit_uprobe::code::{Place, Return};

/// Ways to leave it, beside those from another caller.
const WAYS: u32 = 10;
const EACH: u64 = 50;

#[test]
fn by_whatever_compilers_make_of_it() {
    let protected = ["-O2", "-fstack-protector-all"];
    let framed = ["-O2", "-fno-omit-frame-pointer", "-fno-stack-protector"];
    let plain = ["-O2", "-fno-stack-protector", "-fcf-protection=none"];
    let ways: [&[&str]; 8] = [&["-O0"], &["-O1"], &["-Og"], &["-Os"], &["-O3"], &protected, &framed, &plain];
    let mut behind_calls = 0;
    for flags in ways {
        let Some(mut duty) = duty(None) else { return };
        let mut program = Program::built("ways-out", "ways_out.c", flags);
        let target = orbit_uprobe::Target { callers: true, ..program.target() };
        assert!(target.shape.whole, "{flags:?}: {:?}", target.shape);
        let stepped = target.shape.stepped();
        behind_calls += u32::from(stepped);
        let id = duty.watch(target);
        until("no probes", || duty.tally(id).is_some_and(|t| t.attached));
        // Its callers are seen, and then where it returns to them.
        program.run(3, 1);
        program.run(103, 1);
        if stepped {
            tell_callers(&mut duty, id, &program, 3);
        }
        let before = duty.record(id, program.pid()).expect("a record");
        let calls_before = before.entries;
        let ended_before: u64 = before.exits.iter().sum();
        for how in (0..WAYS).chain(100..100 + WAYS) {
            program.run(how, EACH);
            let record = duty.record(id, program.pid()).expect("a record");
            assert_eq!(record.sp, 0, "{flags:?}, way {how}: it is not seen to end: {record:?}");
        }
        let record = duty.record(id, program.pid()).expect("a record");
        let (calls, ended) = (record.entries - calls_before, record.exits.iter().sum::<u64>() - ended_before);
        let all = u64::from(WAYS) * EACH * 3;
        assert_eq!((calls, ended), (all, all), "{flags:?}: {record:?}");
        until("hits are not shown", || duty.tally(id).is_some_and(|t| t.hits.entries == all + 3));
        let hits = duty.tally(id).expect("an account").hits;
        assert_eq!(hits.stepped, 0, "{flags:?}: {hits:?}");
        println!("{flags:?}: returns behind calls: {stepped}, {hits:?}");
        // Where a caller continues by nothing cheap only that one's executions cost more.
        if stepped {
            program.run(203, 1);
            tell_callers(&mut duty, id, &program, 1);
            program.run(203, EACH);
            program.run(3, EACH);
            until("one caller is not stepped", || duty.tally(id).is_some_and(|t| t.hits.stepped == EACH));
            let after = duty.record(id, program.pid()).expect("a record");
            assert_eq!((after.entries - record.entries, after.sp), (2 * EACH + 1, 0), "{flags:?}: {after:?}");
        }
    }
    assert!(behind_calls > 0, "no compiler's way leaves it by a return behind a call");
}

#[test]
fn a_caller_that_cannot_be_probed_has_it_stepped() {
    let Some(mut duty) = duty(None) else { return };
    let mut program = Program::built("ways-out-stepped", "ways_out.c", &["-O1"]);
    let target = orbit_uprobe::Target { callers: true, ..program.target() };
    assert!(target.shape.stepped(), "{:?}", target.shape);
    let id = duty.watch(target);
    until("no probes", || duty.tally(id).is_some_and(|t| t.attached));
    program.run(3, 1);
    until("no caller is seen", || duty.tally(id).is_some_and(|t| !t.callers.is_empty()));
    for back in duty.tally(id).expect("an account").callers {
        duty.returned(id, back, None);
    }
    until("it is not stepped", || {
        program.run(3, 1);
        duty.tally(id).is_some_and(|t| t.hits.stepped > 0)
    });
    assert!(duty.tally(id).is_some_and(|t| t.callers.is_empty()), "callers are asked for all the same");
    let before = duty.record(id, program.pid()).expect("a record");
    program.run(3, 100);
    let after = duty.record(id, program.pid()).expect("a record");
    assert_eq!(after.entries - before.entries, 100);
    assert_eq!(after.exits.iter().sum::<u64>() - before.exits.iter().sum::<u64>(), 100);
}

/// Where the kernel rejects the place behind the call, once there is a next window.
#[test]
fn a_caller_that_is_refused_has_it_stepped() {
    let Some(mut duty) = duty(Some(0.02)) else { return };
    let mut program = Program::built("ways-out-refused", "ways_out.c", &["-O1"]);
    let target = orbit_uprobe::Target { callers: true, ..program.target() };
    let id = duty.watch(target);
    until("no probes", || duty.tally(id).is_some_and(|t| t.attached));
    program.run(3, 20_000);
    // Its window is over; with credit for another one the place is missed.
    until("the window does not end", || duty.tally(id).is_some_and(|t| !t.attached && !t.callers.is_empty()));
    let own = Place { offset: 1 << 40, emulated: true, ..Place::default() };
    for back in duty.tally(id).expect("an account").callers {
        let places = Return { own: Some(own), shared: None };
        duty.returned(id, back, Some(Behind { file: program.code_file(), places }));
    }
    duty.used(id, 100_000_000_000);
    until("it is not probed again", || duty.tally(id).is_some_and(|t| t.windows == 2 && t.attached));
    program.run(3, 100);
    let record = duty.record(id, program.pid()).expect("a record");
    assert_eq!((record.entries, record.sp, record.exits.iter().sum::<u64>()), (100, 0, 100), "{record:?}");
}

/// Where it is called now and then, in a hot loop, the cheap place behind the call would cost more
/// than the stepped one.
#[test]
fn a_place_where_many_come_by_is_let_go() {
    crowded("ways-out-crowded", 303);
}

/// Nor is the very first instruction behind the call of use where the loop continues there without
/// it.
#[test]
fn so_it_is_right_behind_the_call() {
    crowded("ways-out-at-once", 403);
}

fn crowded(name: &str, how: u32) {
    let Some(mut duty) = duty(Some(0.02)) else { return };
    let mut program = Program::built(name, "ways_out.c", &["-O1", "-fno-stack-protector"]);
    let target = orbit_uprobe::Target { callers: true, ..program.target() };
    assert!(target.shape.stepped(), "{:?}", target.shape);
    let id = duty.watch(target);
    until("no probes", || duty.tally(id).is_some_and(|t| t.attached));
    program.run(how, 1);
    assert_eq!(tell_callers(&mut duty, id, &program, 1), 1, "nobody else comes by behind the call");
    let (mut entries, mut cpu) = (0, 0);
    until("it is never probed for long", || {
        // Of it the bound would pay for a hit at each turn of the loop, ns: what closes a window is
        // that many come by, not that nothing is left to pay with.
        cpu += 200_000_000_000;
        duty.used(id, cpu);
        program.run(how, 1);
        let tally = duty.tally(id).expect("an account");
        entries = duty.record(id, program.pid()).map_or(0, |r| r.entries);
        tally.windows >= 2 && entries >= 20
    });
    let record = duty.record(id, program.pid()).expect("a record");
    assert_eq!((record.sp, record.exits.iter().sum::<u64>()), (0, entries), "{record:?}");
    let tally = duty.tally(id).expect("an account");
    println!("{:?}", tally.hits);
    // Half of what comes by in one run, of ten or more: what lets go may be delayed for some time.
    assert!(tally.hits.all() < 1_500_000, "{:?}", tally.hits);
}
