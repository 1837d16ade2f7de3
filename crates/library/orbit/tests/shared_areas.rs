//! Areas of the engine `share`, whose memory main and orbits have in common: nothing is sent, each
//! call sees its moment, and what the engine cannot do is rejected. Where the kernel has not what
//! it needs the tests are skipped.

mod common;
mod shared_common;

use std::ffi::{c_long, c_void};
use std::process::Command;

use common::{Random, function_loaded_now, parent, seed};
use orbit::{Area, Engine, Kind, Orbit, Outcome, Restart};
use shared_common::{ALONE, PAGE, Range, area, build, bytes, in_own_process, quiet, sum_then_spoil, word};

#[test]
fn nothing_is_sent_and_each_call_sees_its_moment() {
    const PAGES: usize = 4096;
    let Some((area, base)) = area(PAGES) else { return };
    let range = Range { base: base as usize, pages: PAGES };
    let orbits: Vec<Orbit> = (0..3).map(|_| Orbit::new("sums", sum_then_spoil).expect("orbit")).collect();
    let mut random = Random(seed());
    let mut truth = vec![0u64; PAGES];
    let mut sent_when_alone = 0;
    for round in 0..200 {
        let mut futures = Vec::new();
        for call in 0..1 + random.below(6) {
            for _ in 0..random.below(40) {
                let page = random.below(PAGES);
                truth[page] = random.next();
                // SAFETY: inside the object, which this thread alone writes.
                unsafe { word(base, page).write_volatile(truth[page]) };
            }
            let orbit = &orbits[random.below(3)];
            let before = orbit.stats().pages;
            let future = orbit.call_async_with(&[&area], bytes(&range), &quiet()).expect("call");
            if call == 0 {
                sent_when_alone += orbit.stats().pages - before;
            }
            let sum = truth.iter().copied().fold(0, u64::wrapping_add) >> 1;
            futures.push((future, Outcome::Returned(sum as i64)));
        }
        for (future, expected) in futures {
            assert_eq!(future.wait().expect("wait"), expected, "round {round}");
        }
        for (page, value) in truth.iter().enumerate() {
            // SAFETY: as above.
            assert_eq!(unsafe { word(base, page).read_volatile() }, *value, "round {round}: main's page {page}");
        }
    }
    assert_eq!(sent_when_alone, 0, "a call that finds none in flight sends no page");
}

#[test]
fn at_the_limit_of_mappings_a_call_fails_and_main_continues() {
    if !in_own_process("at_the_limit_of_mappings_a_call_fails_and_main_continues", "mappings") {
        return;
    }
    let Some((area, base)) = area(64) else { return };
    let range = Range { base: base as usize, pages: 64 };
    let orbit = Orbit::new("sums", sum_then_spoil).expect("orbit");
    assert_eq!(orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call"), Outcome::Returned(0));
    let mut filled = Vec::new();
    // Alternately accessible or not, so that the kernel joins none of them.
    while filled.len() < 1 << 20 {
        let access = if filled.len() % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping that nobody uses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            break;
        }
        filled.push(at);
    }
    // SAFETY: inside the object, which this thread alone writes.
    unsafe { base.write_volatile(8) };
    let failed = orbit.call_with(&[&area], bytes(&range), &quiet());
    // SAFETY: as above.
    let kept = unsafe { (base.read_volatile(), base.write_volatile(10), base.read_volatile()) };
    // SAFETY: the mappings made above.
    filled.iter().for_each(|at| assert_eq!(unsafe { libc::munmap(*at, PAGE) }, 0));
    assert_eq!((kept.0, kept.2), (8, 10), "main's memory is as it was");
    if filled.len() == 1 << 20 {
        return println!("SKIP: needs vm.max_map_count below 1,048,576");
    }
    // Where the step before could not be taken, the pages were sent.
    if let Ok(seen) = failed {
        assert_eq!(seen, Outcome::Returned(4));
    }
    assert_eq!(orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call"), Outcome::Returned(5));
}

/// Tries all that an orbit could do to the memory that it is shown; gives how often it succeeded.
unsafe extern "C" fn attacks(_: *mut c_void, _: *mut c_void) -> c_long {
    let mut done = 0;
    for number in 3..4096 {
        let link = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
        if !link.to_string_lossy().contains("orbit-area") {
            continue;
        }
        done += 1000;
        // SAFETY: system calls on a descriptor of the library's in this process: to do harm is the
        // point.
        unsafe {
            done += c_long::from(libc::pwrite(number, [66u8; 16].as_ptr().cast(), 16, 0) > 0);
            done += c_long::from(libc::ftruncate(number, 0) == 0);
            let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            done += c_long::from(libc::fallocate(number, hole, 0, PAGE as libc::off_t) == 0);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), PAGE, access, libc::MAP_SHARED, number, 0);
            done += c_long::from(at != libc::MAP_FAILED);
            let name = std::ffi::CString::new(format!("/proc/self/fd/{number}")).expect("no zeros");
            let again = libc::open(name.as_ptr(), libc::O_RDWR);
            done += c_long::from(again >= 0 && libc::pwrite(again, [66u8; 16].as_ptr().cast(), 16, 0) > 0);
        }
    }
    done
}

#[test]
fn an_orbit_cannot_change_the_memory() {
    let Some((area, base)) = area(16) else { return };
    // SAFETY: inside the object, which this thread alone writes.
    unsafe { base.write_volatile(77) };
    let orbit = Orbit::new("attacks", attacks).expect("orbit");
    assert_eq!(orbit.call_with(&[&area], &[], &quiet()).expect("call"), Outcome::Returned(1000));
    // SAFETY: as above.
    assert_eq!(unsafe { base.read_volatile() }, 77);
}

unsafe extern "C" fn first_word(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of memory in an area.
    unsafe { *(*args.cast::<*const c_long>()) }
}

#[test]
fn children_of_a_raw_fork_have_none_of_it_and_later_templates_show_it() {
    let Some((area, base)) = area(16) else { return };
    // SAFETY: inside the object, which this thread alone writes.
    unsafe { base.write_volatile(5) };
    let args = (base as usize).to_ne_bytes();
    let orbit = Orbit::builder("first").entry(first_word).restart(Restart::Always).build().expect("orbit");
    assert_eq!(orbit.call_with(&[&area], &args, &quiet()).expect("call"), Outcome::Returned(5));
    // SAFETY: a copy of this process, which writes one word and exits.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0usize, 0usize, 0usize, 0usize) } as i32;
    if child == 0 {
        // SAFETY: as above; it has no such memory.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            base.write_volatile(6);
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: the child just made.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
    assert!(Command::new("true").status().expect("a program").success());
    // SAFETY: as above.
    assert_eq!(unsafe { base.read_volatile() }, 5);
    // Code loaded since takes a new template, made beside the area.
    let later = Orbit::new("later", function_loaded_now()).expect("orbit");
    assert_ne!(parent(orbit.pid()), parent(later.pid()), "it has another template");
    for value in 6..60 {
        // SAFETY: as above.
        unsafe { base.write_volatile(value) };
        for orbit in [&orbit, &later] {
            let options = quiet().function(first_word);
            // The end of a process that was killed may come to be known only with this call.
            let sees = || match orbit.call_with(&[&area], &args, &options).expect("call") {
                Outcome::Killed(libc::SIGKILL) => false,
                seen => {
                    assert_eq!(seen, Outcome::Returned(value as i64));
                    true
                }
            };
            assert!(common::eventually(sees));
        }
        if value % 20 == 0 {
            orbit.kill().expect("killed");
        }
    }
}

#[test]
fn without_a_quiet_moment_pages_are_sent_until_they_are_too_many() {
    const PAGES: usize = 600;
    let Some((area, base)) = area(PAGES) else { return };
    let range = Range { base: base as usize, pages: PAGES };
    let orbit = Orbit::new("sums", sum_then_spoil).expect("orbit");
    // The thread that runs the tests is another one: this one is never alone.
    let mut sum = 0;
    let mut rejected = None;
    for page in 0..PAGES {
        // SAFETY: inside the object, which this thread alone writes.
        unsafe { word(base, page).write_volatile(2) };
        sum += 2;
        match orbit.call(&[&area], bytes(&range)) {
            Ok(seen) => assert_eq!(seen, Outcome::Returned(sum >> 1)),
            Err(e) => {
                rejected = Some(e);
                break;
            }
        }
    }
    let rejected = rejected.expect("the log holds 1 MiB");
    assert!(rejected.kind() == Kind::Full && rejected.to_string().contains("quiet"), "{rejected}");
    assert_eq!(orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call"), Outcome::Returned(sum >> 1));
    assert!(orbit.call(&[&area], bytes(&range)).is_ok(), "and begins anew");
}

/// What is rejected, in a process of its own each.
#[test]
fn what_it_cannot_do_is_rejected() {
    if let Ok(what) = std::env::var(ALONE) {
        let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        let limited = libc::rlimit { rlim_cur: 256 << 30, rlim_max: libc::RLIM_INFINITY };
        let limit = |to: &libc::rlimit| {
            // SAFETY: a live structure.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, to) }, 0);
        };
        match &*what {
            "limited" => limit(&limited),
            "locked" => {
                // SAFETY: no memory is given to the call.
                if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
                    return println!("SKIP: needs the right to lock memory");
                }
            }
            _ => {
                let (area, base) = area(16).expect("made without a limit");
                let orbit = Orbit::new("first", first_word).expect("orbit");
                limit(&limited);
                // SAFETY: inside the object, which this thread alone writes.
                unsafe { base.write_volatile(9) };
                let args = (base as usize).to_ne_bytes();
                assert!(orbit.call_with(&[&area], &args, &quiet()).is_err(), "no snapshot under a limit");
                // SAFETY: as above.
                assert_eq!(unsafe { base.read_volatile() }, 9);
                limit(&unlimited);
                let seen = orbit.call_with(&[&area], &args, &quiet()).expect("call");
                return assert_eq!(seen, Outcome::Returned(9));
            }
        }
        let error = build("rejected", 1 << 20).expect_err("rejected");
        // Where little memory may be locked, the reservation is rejected before the engine is.
        return assert!(matches!(error.kind(), Kind::Unsupported | Kind::Limit), "{error}");
    }
    if area(16).is_none() {
        return;
    }
    let region = orbit_linux::map::Mapping::anonymous(16 * PAGE, false).expect("memory");
    // SAFETY: memory of this test's, which stays mapped.
    let adopted = unsafe { Area::builder("adopted").engine(Engine::Share).adopt(region.as_ptr(), 16 * PAGE) };
    assert_eq!(adopted.expect_err("rejected").kind(), Kind::Unsupported);
    for what in ["limited", "locked", "limited-later"] {
        in_own_process("what_it_cannot_do_is_rejected", what);
    }
}
