//! Wild handlers in the kernel, drawn at random: each is refused, or runs and harms nobody: a
//! member, a healthy service and the target of its handle are as they were, and no program, map or
//! descriptor is left. 1,000 with ORBIT_TEST_FULL=1.

mod common;

use common::{Killed, Member, bpf, host, is_root, native, spec, times, until};
use orbit_services::{Dispatch, GrantRequest, Host, Kernel, KernelSpec, Kind, objects};
use orbit_testing::Random;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

#[test]
#[ignore = "the program of members"]
fn member_program() {
    common::member_program();
}

/// The instruction that the template has where random ones go: `r0 = 0x5eed`.
const MARK: [u8; 8] = [0xb7, 0, 0, 0, 0xed, 0x5e, 0, 0];

fn instruction(code: u8, to: u8, from: u8, offset: i16, number: i32) -> [u8; 8] {
    let ([a, b], [c, d, e, f]) = (offset.to_le_bytes(), number.to_le_bytes());
    [code, from << 4 | to, a, b, c, d, e, f]
}

/// An instruction: mostly ones that the verifier accepts somewhere. `left`: how many follow.
fn draw(random: &mut Random, left: i16) -> [u8; 8] {
    const CALL: u8 = 0x85;
    let to = if random.below(8) == 0 { random.below(10) as u8 } else { random.of(&[0, 6, 8, 9]) };
    let from = if random.below(8) == 0 { random.below(11) as u8 } else { random.of(&[0, 6, 8, 9]) };
    let wide = random.of(&[0x04, 0x07]);
    match random.below(100) {
        // Arithmetic with a number, shifts and divisions among them, then with a register.
        0..40 => {
            let operation = random.of(&[0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x90, 0xa0, 0xb0, 0xc0]);
            let number = if random.below(10) == 0 { random.draw() as i32 } else { 1 + random.below(31) as i32 };
            instruction(operation | wide, to, 0, 0, number)
        }
        40..60 => {
            let operation = random.of(&[0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x90, 0xa0, 0xb0]);
            instruction(operation | wide | 0x08, to, from, 0, 0)
        }
        // The stack: written, and read where it was.
        60..68 => instruction(0x7b, 10, from, -8 * (1 + random.below(20) as i16), 0),
        68..72 => instruction(0x79, to, 10, -8 * (1 + random.below(66) as i16), 0),
        // Jumps onward, and rarely back.
        72..84 => {
            let jump = random.of(&[0x15, 0x25, 0x35, 0x55, 0x65, 0xa5, 0xb5]);
            instruction(jump, to, 0, random.below(left.clamp(1, 8) as u64) as i16, random.draw() as i32)
        }
        84..86 => instruction(random.of(&[0x05, 0x55]), to, 0, -1 - random.below(6) as i16, 0),
        // Calls without arguments that read something; then any.
        86..94 => instruction(CALL, 0, 0, 0, random.of(&[5, 7, 8, 14, 15, 118, 125, 160])),
        94..96 => instruction(CALL, 0, random.below(3) as u8, 0, random.below(220) as i32),
        // Memory by any register, the end, and any bytes at all.
        96..98 => instruction(random.of(&[0x79, 0x61, 0x7b, 0x63]), to, from, random.below(64) as i16, 0),
        98 => instruction(0x95, 0, 0, 0, 0),
        _ => random.draw().to_le_bytes(),
    }
}

/// Both tests count what their process has: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Programs and maps of the kernel that this process has by descriptors, and how many descriptors
/// it has.
fn held() -> (BTreeSet<String>, usize) {
    let files: Vec<_> = std::fs::read_dir("/proc/self/fdinfo").expect("own descriptors").flatten().collect();
    let about = files.iter().filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let ids = about.flat_map(|text| {
        let named = |line: &&str| line.starts_with("prog_id:") || line.starts_with("map_id:");
        text.lines().filter(named).map(|line| line.replace('\t', " ")).collect::<Vec<_>>()
    });
    (ids.collect(), files.len())
}

fn wild(host: &mut Host, target: i32) -> KernelSpec {
    let request: GrantRequest = format!("cpu:nice:set(pid={target},min=5,max=9)").parse().expect("a grant");
    let grants = host.grant(std::process::id() as i32, &[request]).expect("granted");
    let (name, period) = ("random".into(), Duration::from_millis(1));
    KernelSpec { name, period, arguments: vec![], grants, cpu: common::cpu(), priority: 0 }
}

#[test]
fn random_instructions_are_refused_or_harm_nobody() {
    if !is_root() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let template = bpf("random");
    let at = template.windows(8).position(|bytes| bytes == MARK).expect("the marks");
    let length = template[at..].chunks_exact(8).take_while(|bytes| **bytes == MARK).count();
    let mut host = host();
    let target = Killed::sleeper();
    let nice = || orbit_linux::sched::nice(target.pid()).expect("its niceness");
    let before = nice();
    let mut member = Member::start(&mut host, "member_program");
    let healthy = host.load(&spec("count", Dispatch::Agent, vec![]), &native("count")).expect("loaded");
    let first = wild(&mut host, target.pid());
    match Kernel::load(first.clone(), &template) {
        Err(error) if error.kind() == Kind::Unsupported => return println!("SKIP: needs BPF: {error}"),
        loaded => drop(loaded.expect("the template itself")),
    }
    host.release(&first.grants);
    let (held_before, files_before) = held();
    let (mut refused_here, mut refused_there, mut ran, mut asked, mut seen) = (0, 0, 0, 0, BTreeSet::new());
    for seed in 1..=times(60, 1000) as u64 {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut object = template.clone();
        let count = 2 + random.below(length as u64 - 2) as usize;
        for nth in 0..count {
            let drawn = draw(&mut random, (length - nth - 1) as i16);
            object[at + nth * 8..at + nth * 8 + 8].copy_from_slice(&drawn);
        }
        let spec = wild(&mut host, target.pid());
        let grants = spec.grants.clone();
        match Kernel::load(spec, &object) {
            Err(error) if error.to_string().contains("of the kernel, which services may not") => refused_here += 1,
            Err(_) => refused_there += 1,
            Ok(kernel) => {
                until("it has run", || kernel.account().runs >= 2);
                seen.extend(held().0);
                let account = kernel.account();
                asked += u64::from(account.clamped + account.refused > 0);
                ran += 1;
                let now = nice();
                assert!(now == before || (5..=9).contains(&now), "seed {seed}: the guard let {now} pass");
            }
        }
        host.release(&grants);
        assert_eq!(nice(), before, "seed {seed}: what it set is put back");
        assert!(member.is_alive(), "seed {seed}: the member");
        let runs = host.status(healthy).expect("loaded").account.runs;
        if seed % 20 == 0 {
            until("the healthy service runs on", || host.status(healthy).expect("loaded").account.runs > runs);
            assert!(host.tend().is_empty(), "seed {seed}: no agent died");
        }
        assert_eq!(held().0, held_before, "seed {seed}: programs and maps");
    }
    println!(
        "{refused_here} refused for what they call, {refused_there} by loader or verifier; {ran} ran, {asked} asked \
         for values"
    );
    assert_eq!(held().1, files_before, "descriptors");
    assert!(refused_there > 0 && ran > 0 && asked > 0);
    // The kernel frees programs and maps some time after the last descriptor is closed.
    let ours: BTreeSet<String> = seen.difference(&held_before).cloned().collect();
    until("the kernel has none of their programs and maps", || {
        let programs = aya_ids(true);
        let maps = aya_ids(false);
        ours.is_disjoint(&programs) && ours.is_disjoint(&maps)
    });
    assert_eq!(host.status(healthy).expect("loaded").account.aborts(), 0);
}

/// All programs of the kernel, or all maps, as in `fdinfo`.
fn aya_ids(programs: bool) -> BTreeSet<String> {
    if programs {
        aya::programs::loaded_programs().flatten().map(|program| format!("prog_id: {}", program.id())).collect()
    } else {
        aya::maps::loaded_maps().flatten().map(|map| format!("map_id: {}", map.id())).collect()
    }
}

#[test]
fn objects_that_were_changed_at_random_are_refused_or_harm_nobody() {
    if !is_root() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut random, mut refused) = (Random::new(1), 0);
    let rounds = times(30, 1000);
    let before = held().0;
    for round in 0..rounds {
        let mut object = objects::CPU_KERNEL.to_vec();
        for _ in 0..8 {
            let drawn = random.draw();
            let at = drawn as usize % object.len();
            object[at] = (drawn >> 32) as u8;
        }
        let spec = KernelSpec {
            name: "random".into(),
            period: Duration::from_millis(1),
            arguments: vec![],
            grants: vec![],
            cpu: common::cpu(),
            priority: 0,
        };
        match Kernel::load(spec, &object) {
            Ok(kernel) => drop(kernel),
            Err(_) => refused += 1,
        }
        assert_eq!(held().0, before, "round {round}: programs and maps");
    }
    println!("{refused} of {rounds} were refused");
}
