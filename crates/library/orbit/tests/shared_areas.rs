//! Areas of the engine `share`, whose memory main and orbits have in common: nothing is sent, each
//! call sees its moment, no write of main is lost whichever step fails, and what the engine cannot
//! do is rejected. Where the kernel has not what it needs the tests are skipped.

mod common;

use std::ffi::{c_long, c_void};
use std::process::Command;

use common::{Random, function_loaded_now, parent, seed};
use orbit::area::fault;
use orbit::{Area, CallOptions, Engine, Kind, Orbit, Outcome, Restart};

const PAGE: usize = 4096;

fn build(name: &str, bytes: usize) -> Result<Area, orbit::Error> {
    Area::builder(name).size(bytes).limit(bytes).engine(Engine::Share).build()
}

/// An area of so many pages, and its first word.
fn area(pages: usize) -> Option<(Area, *mut u64)> {
    match build("shared", (pages + 16) * PAGE) {
        Ok(area) => {
            assert_eq!(area.engine(), Engine::Share);
            let base = area.alloc_zeroed(pages * PAGE, PAGE).expect("room").as_ptr().cast();
            Some((area, base))
        }
        Err(e) if e.kind() == Kind::Unsupported => {
            println!("SKIP: needs mremap with MREMAP_DONTUNMAP of files: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Whether this is the process of a test for `what`, of its own; else makes one and checks its end.
fn in_own_process(test: &str, what: &str) -> bool {
    const NAME: &str = "ORBIT_TEST_ALONE";
    if std::env::var(NAME).is_ok_and(|is| is == what) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["--exact", test, "--nocapture"]);
    let out = command.env(NAME, what).output().expect("run");
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().filter(|line| line.contains("SKIP:")).for_each(|line| println!("{line}"));
    assert!(out.status.success(), "{what}: {text}{}", String::from_utf8_lossy(&out.stderr));
    false
}

/// Options of a call in a moment in which nothing writes.
fn quiet() -> CallOptions {
    // SAFETY: each test writes to its area from the thread that calls.
    unsafe { CallOptions::new().quiet() }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    base: usize,
    pages: usize,
}

fn bytes(range: &Range) -> &[u8] {
    // SAFETY: two words.
    unsafe { std::slice::from_raw_parts((range as *const Range).cast(), size_of::<Range>()) }
}

fn word(base: *mut u64, page: usize) -> *mut u64 {
    base.wrapping_add(page * PAGE / 8)
}

/// The sum of the first word of each page, twice: it stays the same while the task runs. Then
/// writes over all of them, which nobody else is to see.
unsafe extern "C" fn sum_then_spoil(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes a range of an area that it names.
    unsafe {
        let range = *args.cast::<Range>();
        let base = range.base as *mut u64;
        let sum = || (0..range.pages).map(|page| word(base, page).read_volatile()).fold(0, u64::wrapping_add);
        let (first, second) = (sum(), sum());
        (0..range.pages).for_each(|page| word(base, page).write_volatile(u64::MAX / 3));
        if first == second { (first >> 1) as c_long } else { -1 }
    }
}

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
fn no_write_is_lost_whichever_step_fails() {
    const PAGES: usize = 64;
    let Some((area, base)) = area(PAGES) else { return };
    let range = Range { base: base as usize, pages: PAGES };
    let orbit = Orbit::new("sums", sum_then_spoil).expect("orbit");
    let (mut truth, mut value, mut failed, mut clean) = (vec![0u64; PAGES], 0, 0, 0);
    let mut write = |truth: &mut [u64], every: usize| {
        for page in (0..PAGES).step_by(every) {
            value += 7;
            truth[page] = value;
            // SAFETY: inside the object, which this thread alone writes.
            unsafe { word(base, page).write_volatile(value) };
        }
    };
    let expected = |truth: &[u64]| Outcome::Returned((truth.iter().sum::<u64>() >> 1) as i64);
    // Until no step is left to fail, from each state.
    for step in 0.. {
        let mut passed = 0;
        for state in 0..3 {
            if state == 1 {
                // One that waits: the memory stands still meanwhile.
                let before = expected(&truth);
                let running = orbit.call_async_with(&[&area], bytes(&range), &quiet()).expect("call");
                write(&mut truth, 3);
                assert_eq!(running.wait().expect("wait"), before);
            }
            if state == 2 {
                // A child may have the memory mapped: another one takes its place.
                // SAFETY: the child exits at once.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: as above.
                    unsafe { libc::_exit(0) };
                }
                // SAFETY: the child just made.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            }
            write(&mut truth, 2);
            fault::fail_after(step);
            let made = orbit.call_async_with(&[&area], bytes(&range), &quiet());
            passed += usize::from(fault::disarm());
            let at_the_call = expected(&truth);
            write(&mut truth, 5);
            match made {
                Ok(future) => assert_eq!(future.wait().expect("wait"), at_the_call, "step {step}, state {state}"),
                Err(e) => {
                    assert_eq!(e.kind(), Kind::System(libc::EIO), "{e}");
                    failed += 1;
                }
            }
            for (page, value) in truth.iter().enumerate() {
                // SAFETY: as above.
                assert_eq!(unsafe { word(base, page).read_volatile() }, *value, "step {step}, state {state}");
            }
            let again = orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call");
            assert_eq!(again, expected(&truth), "step {step}, state {state}: the next call");
        }
        if passed == 3 {
            clean = step;
            break;
        }
    }
    assert!(failed >= 3 && clean >= 3, "{failed} calls failed, {clean} steps");
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

/// Whether each page holds what it should, and writes of the child's own stay.
fn is_frozen(base: *mut u64, truth: &[u64], own: u64) -> bool {
    // SAFETY: the child's copy of the object, which this thread alone uses.
    let read = |page: usize| unsafe { word(base, page).read_volatile() };
    // SAFETY: as above.
    unsafe { word(base, 0).write_volatile(own) };
    (1..truth.len()).all(|page| read(page) == truth[page]) && read(0) == own
}

/// Children that live on, without a descriptor, while main writes, calls and merges: each has what
/// main had at its fork, and what it writes itself.
#[test]
fn forked_children_have_what_main_had() {
    const PAGES: usize = 256;
    let Some((area, base)) = area(PAGES) else { return };
    let range = Range { base: base as usize, pages: PAGES };
    let orbit = Orbit::new("sums", sum_then_spoil).expect("orbit");
    // SAFETY: a new mapping, shared with the children, zeroed.
    let flags = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        std::slice::from_raw_parts(page.cast::<std::sync::atomic::AtomicU32>(), 64)
    };
    let mut random = Random(seed());
    let mut truth = vec![0u64; PAGES];
    let mut children = Vec::new();
    for round in 0..30u64 {
        let in_flight = (round % 3 == 1).then(|| {
            let sum = truth.iter().copied().fold(0, u64::wrapping_add) >> 1;
            let future = orbit.call_async_with(&[&area], bytes(&range), &quiet()).expect("call");
            (future, Outcome::Returned(sum as i64))
        });
        for _ in 0..40 {
            let page = random.below(PAGES);
            truth[page] = random.next();
            // SAFETY: inside the object, which this thread alone writes.
            unsafe { word(base, page).write_volatile(truth[page]) };
        }
        if round % 2 == 0 {
            // SAFETY: the child reads and writes memory, closes, sleeps and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                use std::sync::atomic::Ordering::SeqCst;
                // SAFETY: as above.
                unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
                let mut fine = is_frozen(base, &truth, round);
                flags[1].fetch_add(1, SeqCst);
                while flags[0].load(SeqCst) == 0 {
                    fine &= is_frozen(base, &truth, round);
                    // SAFETY: as above.
                    unsafe { libc::usleep(2000) };
                }
                // SAFETY: as above.
                unsafe { libc::_exit(i32::from(!fine)) };
            }
            children.push(child);
        }
        if let Some((future, expected)) = in_flight {
            assert_eq!(future.wait().expect("wait"), expected, "round {round}");
        }
        let sum = truth.iter().copied().fold(0, u64::wrapping_add) >> 1;
        for _ in 0..2 {
            let seen = orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call");
            assert_eq!(seen, Outcome::Returned(sum as i64), "round {round}");
        }
        for (page, value) in truth.iter().enumerate() {
            // SAFETY: as above.
            assert_eq!(unsafe { word(base, page).read_volatile() }, *value, "round {round}: main's page {page}");
        }
    }
    let all = children.len() as u32;
    assert!(common::eventually(|| flags[1].load(std::sync::atomic::Ordering::SeqCst) == all));
    flags[0].store(1, std::sync::atomic::Ordering::SeqCst);
    for child in children {
        let mut status = 0;
        // SAFETY: a child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0, "child {child}");
    }
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
    if let Ok(what) = std::env::var("ORBIT_TEST_ALONE") {
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
