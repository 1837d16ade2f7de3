//! Entering and leaving leave the traces that the layout promises, in each thread, and cost next to
//! nothing.

use orbit_section::layout::{CELLS_AT, Cell, Header, MAGIC, SLOTS_AT, Slot};
use orbit_section::{Section, enter, enter_number, leave_number, register, section};
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;

static A: Section = section!("a");
static B: Section = section!("b");

/// The record, found as a guard finds it.
fn record() -> *const u8 {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let line = maps.lines().find(|l| l.contains("/memfd:rmk-sections")).expect("the mapping");
    usize::from_str_radix(line.split('-').next().expect("a start"), 16).expect("an address") as *const u8
}

fn slot() -> &'static Slot {
    // SAFETY: takes no arguments.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    // SAFETY: the record begins with a header, has so many slots, and stays for ever.
    let header = unsafe { &*record().cast::<Header>() };
    assert_eq!(header.magic.load(Relaxed), MAGIC);
    let slots = header.slots.load(Relaxed) as usize;
    // SAFETY: as above.
    let at = |i: usize| unsafe { &*record().add(SLOTS_AT + i * size_of::<Slot>()).cast::<Slot>() };
    (0..slots).map(at).find(|s| s.tid.load(Relaxed) == tid).expect("this thread's slot")
}

#[test]
fn marks_of_threads() {
    let (a, b) = (register(b"a").expect("room") as usize, register(b"b").expect("room") as usize);
    assert_ne!(a, b);
    assert_eq!(register(b"a"), Some(a as u32), "the same each time");
    let work = move || {
        let inside = enter(&A);
        let seq = |s: usize| slot().cells[s].seq.load(Relaxed);
        let exits = |s: usize, e: usize| slot().cells[s].exits[e].load(Relaxed);
        let (sa, sb, ea) = (seq(a), seq(b), exits(a, 2));
        assert_eq!(sa & 1, 1);
        let again = enter(&A);
        assert_eq!(seq(a), sa, "an inner mark does nothing");
        drop(again);
        assert_eq!(seq(a), sa);
        let overlapping = enter(&B);
        inside.leave(2);
        assert_eq!((seq(a), seq(b) & 1, exits(a, 2)), (sa + 1, 1, ea + 1));
        drop(overlapping);
        assert_eq!((seq(b), seq(b) & 1), (sb + 2, 0));
        leave_number(a as u32, 1);
        assert_eq!(seq(a), sa + 1, "leaving twice does nothing");
        assert!(enter_number(a as u32));
        leave_number(a as u32, 1000);
        assert_eq!(exits(a, 6), 1.max(exits(a, 6)), "high exits count as the last");
    };
    work();
    let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(work)).collect();
    threads.into_iter().for_each(|t| t.join().expect("marks"));
    assert!(!enter_number(u32::MAX) && !enter_number(126), "no such section");
    for section in [a, 125, a] {
        assert!(enter_number(section as u32));
        assert_eq!(slot().last.load(Relaxed) as usize, CELLS_AT + section * size_of::<Cell>());
        leave_number(section as u32, 0);
    }

    // A forked child has its own record.
    let before = slot().cells[a].seq.load(Relaxed);
    // SAFETY: the child only stores, reads memory and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let entered = enter_number(a as u32);
        leave_number(a as u32, 0);
        // SAFETY: ends the child without running anything else.
        unsafe { libc::_exit(i32::from(!entered)) };
    }
    let mut status = 0;
    // SAFETY: a valid place for the answer.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(slot().cells[a].seq.load(Relaxed), before, "the child's marks are its own");
}

const PAIRS: u32 = 2_000_000;
/// Far more than a pair takes, ns, and less than one would with a system call.
const BOUND: f64 = 50.0;
/// The same where threads that run at once mark, and for a lock that they want.
const TOGETHER: f64 = 15.0;

/// CPU time of the calling thread, ns: what other programs do meanwhile does not count.
fn cpu_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// CPU time of a pair of enter and leave, ns.
fn pair() -> f64 {
    let start = cpu_ns();
    for _ in 0..PAIRS {
        let inside = enter(std::hint::black_box(&B));
        drop(std::hint::black_box(inside));
    }
    (cpu_ns() - start) / f64::from(PAIRS)
}

/// Prints median, least and most; the least must be below the bound, but for what no compiler has
/// made fast and in an emulated machine.
fn judge(what: &str, bound: f64, mut ns: Vec<f64>) {
    ns.sort_by(f64::total_cmp);
    let (median, least, most) = (ns[ns.len() / 2], ns[0], ns[ns.len() - 1]);
    println!("{what}: {median:.2} ns a pair of enter and leave ({least:.2} to {most:.2}; n={})", ns.len());
    if !cfg!(debug_assertions) && std::env::var_os("ORBIT_VM").is_none() {
        assert!(least < bound, "{what}: {least:.2} ns a pair: a lock or a system call?");
    }
}

#[test]
fn cost_of_a_pair() {
    judge("Rust", BOUND, (0..5).map(|_| pair()).collect());
}

#[test]
fn cost_of_a_pair_beside_other_threads() {
    const THREADS: usize = 4;
    let round = || {
        let together = Barrier::new(THREADS);
        let one = || {
            drop(enter(&B));
            together.wait();
            pair()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|t| t.join().expect("marks")).sum::<f64>() / THREADS as f64
        })
    };
    judge("Rust, four threads at once", TOGETHER, (0..5).map(|_| round()).collect());
}

const IN_C: &str = r#"
#include <rmk.h>
#include <stdio.h>
#include <time.h>
static double ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
int main(void)
{
    int section = rmk_section("cost"), pairs = 2000000;
    rmk_section_enter(section);
    rmk_section_leave(section, 0);
    for (int run = 0; run < 5; run++) {
        double start = ns();
        for (int i = 0; i < pairs; i++) {
            rmk_section_enter(section);
            rmk_section_leave(section, 0);
        }
        printf("%f\n", (ns() - start) / pairs);
    }
    return section < 0;
}
"#;

#[test]
fn cost_of_a_pair_in_c() {
    let folder = std::env::current_exe().expect("the test");
    let folder = folder.parent().expect("its folder");
    let library = folder.join("librmk_section.so");
    if !library.exists() || Command::new("cc").arg("--version").output().is_err() {
        println!("SKIP: needs cc, and {}", library.display());
        return;
    }
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("section-cost-{}", std::process::id()));
    std::fs::create_dir(&scratch).expect("a directory");
    let (source, program) = (scratch.join("cost.c"), scratch.join("cost"));
    std::fs::write(&source, IN_C).expect("a file");
    // Its soname, by which the program asks for it.
    std::os::unix::fs::symlink(&library, scratch.join("librmk_section.so.0")).expect("a link");
    let built = Command::new("cc")
        .args(["-O2", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .args([&source, &library])
        .arg("-o")
        .arg(&program)
        .status();
    assert!(built.expect("cc").success());
    let output = Command::new(&program).env("LD_LIBRARY_PATH", &scratch).output().expect("the program");
    let _ = std::fs::remove_dir_all(&scratch);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    judge("C", BOUND, text.lines().map(|line| line.parse().expect("a number")).collect());
}

#[test]
fn a_cached_slot_is_forgotten_when_its_thread_ends() {
    let (place, slot) = std::thread::spawn(|| {
        drop(enter(&B));
        let place: *mut *const Slot = Box::leak(Box::new(std::ptr::null()));
        // SAFETY: memory that stays.
        let slot = unsafe { orbit_section::slot_cached(place) };
        // SAFETY: as above; the slot stays too.
        unsafe { assert!(*place == slot && (*slot).tid.load(Relaxed) != 0, "it is this thread's") };
        (place.expose_provenance(), slot as usize)
    })
    .join()
    .expect("marks");
    // SAFETY: memory that stays, of a thread that has ended.
    let left = unsafe { *std::ptr::with_exposed_provenance::<*const Slot>(place) };
    assert!(left as usize != slot && !left.is_null(), "the slot may be another thread's now");
}

/// Ends a forked child: 0 if all of these hold, else 1 plus the number of the first that does not.
fn end_child(checks: &[bool]) -> ! {
    let code = checks.iter().position(|ok| !ok).map_or(0, |n| n as i32 + 1);
    // SAFETY: ends the child without running anything else.
    unsafe { libc::_exit(code) }
}

#[test]
fn a_forked_child_is_in_no_section_until_it_enters_one() {
    static C: Section = section!("c");
    let c = register(b"c").expect("room") as usize;
    let inside = enter(&C);
    let cell = &slot().cells[c];
    let seq = || cell.seq.load(Relaxed);
    let exits = || cell.exits.iter().map(|e| e.load(Relaxed)).sum::<u32>();
    let (before, left) = (seq(), exits());
    // SAFETY: the child only stores, reads memory and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes no arguments.
        let own = unsafe { libc::syscall(libc::SYS_gettid) } as u32 == slot().tid.load(Relaxed);
        let outside = seq() & 1 == 0 && exits() == left;
        let own_one = enter(&C);
        let entered = seq() & 1 == 1;
        own_one.leave(1);
        let counted = exits() == left + 1;
        let now = seq();
        drop(inside);
        end_child(&[own, outside, entered, counted, seq() == now && exits() == left + 1]);
    }
    let mut status = 0;
    // SAFETY: a valid place for the answer.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "what does not hold in the child, counted from 1: {}", status >> 8);
    assert_eq!((seq(), exits()), (before, left), "the parent is inside as it was");
    drop(inside);
    assert_eq!((seq(), exits()), (before + 1, left + 1));
}
