//! Areas of the engine `share` beside what else acts on memory: devices, locks of pages, advice to
//! the kernel, limits, futexes. What would lose something is rejected, the rest is as documented.

mod common;
mod shared_common;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use common::eventually;
use orbit::{Kind, Orbit, Outcome};
use shared_common::{ALONE, PAGE, Range, area, build, bytes, in_own_process, quiet, sum_then_spoil, word};

fn read(base: *mut u64, page: usize) -> u64 {
    // SAFETY: a page of the test's own object.
    unsafe { word(base, page).read_volatile() }
}

fn write(base: *mut u64, page: usize, value: u64) {
    // SAFETY: as above.
    unsafe { word(base, page).write_volatile(value) }
}

/// An orbit that sums, and what it is to answer for these values.
fn orbit_of(base: *mut u64, pages: usize) -> (Orbit, Range) {
    (Orbit::new("sums", sum_then_spoil).expect("orbit"), Range { base: base as usize, pages })
}

fn sum(base: *mut u64, pages: usize) -> Outcome {
    Outcome::Returned(((0..pages).map(|page| read(base, page)).sum::<u64>() >> 1) as i64)
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// An io_uring, if there are any here.
fn ring() -> Option<i32> {
    let mut parameters = [0u64; 15];
    // SAFETY: the kernel fills the 120 bytes of its parameters.
    let ring = unsafe { libc::syscall(425, 4, parameters.as_mut_ptr()) } as i32;
    (ring >= 0).then_some(ring)
}

/// Registers a page with an io_uring, or takes the registration back.
fn register(ring: i32, page: Option<*mut u64>) -> bool {
    let buffer = page.map(|page| libc::iovec { iov_base: page.cast(), iov_len: PAGE });
    let (what, at) = buffer.as_ref().map_or((1, std::ptr::null()), |buffer| (0, &raw const *buffer));
    // SAFETY: the kernel reads one iovec, or none.
    unsafe { libc::syscall(427, ring, what, at, u32::from(page.is_some())) == 0 }
}

#[test]
fn registered_buffers_in_the_area_are_rejected() {
    if !in_own_process("registered_buffers_in_the_area_are_rejected", "buffers") {
        return;
    }
    let Some((area, base)) = area(64) else { return };
    let Some(ring) = ring() else { return println!("SKIP: needs io_uring_setup") };
    let (orbit, range) = orbit_of(base, 64);
    write(base, 3, 8);
    assert!(register(ring, Some(word(base, 3))), "registered");
    let rejected = orbit.call_with(&[&area], bytes(&range), &quiet()).expect_err("no snapshot");
    assert!(rejected.kind() == Kind::Unsupported && rejected.to_string().contains("io_uring"), "{rejected}");
    assert_eq!(read(base, 3), 8);
    assert!(register(ring, None), "taken back");
    assert_eq!(orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call"), sum(base, 64));
    // While a call is in flight: what was written stays main's, and is not merged.
    let before = sum(base, 64);
    let running = orbit.call_async_with(&[&area], bytes(&range), &quiet()).expect("call");
    write(base, 3, 20);
    assert!(register(ring, Some(word(base, 3))), "registered");
    assert_eq!(running.wait().expect("wait"), before);
    // SAFETY: this thread alone writes.
    assert!(eventually(|| !matches!(unsafe { area.merge() }, Ok(false))));
    // SAFETY: as above.
    assert!(unsafe { area.merge() }.is_err(), "the page is the device's");
    assert_eq!(orbit.call_with(&[&area], bytes(&range), &quiet()).expect("sent"), sum(base, 64));
    assert!(register(ring, None), "taken back");
    // Elsewhere they hurt nobody.
    let elsewhere = orbit_linux::map::Mapping::anonymous(PAGE, false).expect("memory");
    assert!(register(ring, Some(elsewhere.as_ptr().cast())), "registered");
    for value in 0..3 {
        write(base, 5, value * 2);
        assert_eq!(orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call"), sum(base, 64));
        // SAFETY: as above.
        assert!(unsafe { area.merge() }.expect("merged"));
    }
}

/// Advice does not give memory back: pages read as before, or as at the last snapshot.
#[test]
fn advice_to_the_kernel_zeroes_nothing() {
    const FREE: i32 = 8;
    let Some((area, base)) = area(64) else { return };
    let (orbit, range) = orbit_of(base, 64);
    let advise = |page: usize, advice: i32| {
        // SAFETY: a page of the object, whose content may change.
        unsafe { libc::madvise(word(base, page).cast(), PAGE, advice) }
    };
    write(base, 1, 6);
    assert_eq!((advise(1, libc::MADV_DONTNEED), read(base, 1)), (0, 6));
    assert_eq!((advise(1, libc::MADV_REMOVE), errno(), read(base, 1)), (-1, libc::EPERM, 6));
    assert_eq!((advise(1, FREE), errno(), read(base, 1)), (-1, libc::EINVAL, 6));
    let before = sum(base, 64);
    let running = orbit.call_async_with(&[&area], bytes(&range), &quiet()).expect("call");
    write(base, 1, 40);
    assert_eq!((advise(1, libc::MADV_REMOVE), errno(), read(base, 1)), (-1, libc::EACCES, 40));
    assert_eq!((advise(1, FREE), errno(), read(base, 1)), (-1, libc::EINVAL, 40));
    assert_eq!((advise(1, libc::MADV_DONTNEED), read(base, 1)), (0, 6), "as at the snapshot");
    assert_eq!(running.wait().expect("wait"), before);
    write(base, 2, 12);
    assert_eq!(orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call"), sum(base, 64));
}

/// `mlock` does not hold across calls; it does no harm.
#[test]
fn locked_pages_are_as_other_pages() {
    if !in_own_process("locked_pages_are_as_other_pages", "locked") {
        return;
    }
    let Some((area, base)) = area(64) else { return };
    let (orbit, range) = orbit_of(base, 64);
    let whole = (area.base() as *mut u64, area.limit());
    let check = |what: &str, value: u64| {
        write(base, 4, value);
        // A part of the area that is locked is a mapping of its own, which older kernels do not
        // move with the others: the call fails then, and main has what it had.
        match orbit.call_with(&[&area], bytes(&range), &quiet()) {
            Ok(seen) => assert_eq!(seen, sum(base, 64), "{what}"),
            Err(e) => assert!(matches!(e.kind(), Kind::System(_) | Kind::Limit), "{what}: {e}"),
        }
        assert_eq!(read(base, 4), value, "{what}");
    };
    for (what, (at, len)) in [("whole", whole), ("a part", (word(base, 8), 8 * PAGE))] {
        // SAFETY: changes no content.
        if unsafe { libc::mlock(at.cast(), len) } != 0 {
            return println!("SKIP: needs the right to lock memory");
        }
        (1..5).for_each(|round| check(what, round * 2));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munlock(whole.0.cast(), whole.1) }, 0);
        write(base, 4, 100);
        assert_eq!(orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call"), sum(base, 64), "{what}");
    }
    // SAFETY: as above.
    assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
    (1..5).for_each(|round| check("all from now on", round * 4));
}

/// A limit of file sizes rejects the area when it is made, and a later one does not end main.
#[test]
fn a_limit_of_file_sizes_ends_nobody() {
    let limit = |bytes: u64| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a live structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    };
    if !in_own_process("a_limit_of_file_sizes_ends_nobody", "file-size") {
        return;
    }
    let Some((area, base)) = area(64) else { return };
    let (orbit, range) = orbit_of(base, 64);
    assert_eq!(orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call"), sum(base, 64));
    limit(64 << 10);
    assert_eq!(build("rejected", 1 << 20).expect_err("rejected").kind(), Kind::Unsupported);
    for round in 1..6 {
        // SAFETY: the child leaves at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: the child just made.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        write(base, 7, round * 2);
        // Another memory in the place of the child's cannot be made: pages are sent.
        assert_eq!(orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call"), sum(base, 64));
    }
    limit(libc::RLIM_INFINITY);
    // SAFETY: this thread alone writes.
    assert!(eventually(|| unsafe { area.merge() }.expect("merge")));
    assert_eq!(orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call"), sum(base, 64));
}

/// Where the system promises no more memory than it has, private mappings take memory by
/// themselves.
#[test]
fn without_overcommitment_it_is_rejected() {
    if std::env::var(ALONE).is_err() && area(1).is_none() {
        return;
    }
    if !in_own_process("without_overcommitment_it_is_rejected", "overcommit") {
        return;
    }
    let file = std::env::temp_dir().join(format!("orbit-overcommit-{}", std::process::id()));
    std::fs::write(&file, "2\n").expect("a file");
    let from = std::ffi::CString::new(file.to_str().expect("a path")).expect("no zeros");
    // SAFETY: mounts in a namespace that this process alone is in.
    let mounted = unsafe {
        let (none, flags) = (std::ptr::null::<c_void>(), libc::MS_REC | libc::MS_PRIVATE);
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), flags, none) == 0
            && libc::mount(
                from.as_ptr(),
                c"/proc/sys/vm/overcommit_memory".as_ptr(),
                std::ptr::null(),
                libc::MS_BIND,
                none,
            ) == 0
    };
    let made = mounted.then(|| build("rejected", 1 << 20));
    std::fs::remove_file(&file).expect("removed");
    match made {
        None => println!("SKIP: needs the right to mount"),
        Some(made) => {
            let error = made.expect_err("rejected");
            assert!(error.kind() == Kind::Unsupported && error.to_string().contains("overcommit"), "{error}");
        }
    }
}

/// A thread that waits for a word of the area, as the locks of a process do, is woken whatever
/// calls do meanwhile. Only futexes that processes share are not.
#[test]
fn locks_of_the_process_work_across_calls() {
    let Some((area, base)) = area(64) else { return };
    let (orbit, range) = orbit_of(base, 64);
    // SAFETY: a word of the object that is used as an atomic alone from here on.
    let word = unsafe { AtomicU32::from_ptr(word(base, 9).cast()) };
    let waits = AtomicU32::new(0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for turn in 0..200 {
                while word.load(Ordering::SeqCst) <= turn {
                    waits.store(turn + 1, Ordering::SeqCst);
                    // SAFETY: waits while the word is `turn`.
                    unsafe {
                        let private = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                        libc::syscall(libc::SYS_futex, word.as_ptr(), private, turn, std::ptr::null::<c_void>());
                    }
                }
            }
        });
        for turn in 0..200 {
            assert!(eventually(|| waits.load(Ordering::SeqCst) == turn + 1));
            let running = orbit.call_async_with(&[&area], bytes(&range), &quiet()).expect("call");
            word.store(turn + 1, Ordering::SeqCst);
            // SAFETY: wakes what waits for the word.
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
            assert!(matches!(running.wait(), Ok(Outcome::Returned(_))));
        }
    });
}
