//! An orbit that misuses every descriptor it has (cuts it short, writes to it, closes it) harms
//! only itself.

mod common;

use std::ffi::{CString, c_char, c_long, c_void};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use orbit::{Area, CallOptions, Orbit, Outcome, Restart};

/// One more than the highest number that an orbit's own descriptors have.
const HIGHEST: i32 = 1400;

/// `args`: what to do to each descriptor.
unsafe extern "C" fn misuse(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes a u64; descriptors above 2 are this orbit's own.
    unsafe {
        let how = *args.cast::<u64>();
        for fd in 3..HIGHEST {
            match how {
                0 => {
                    libc::ftruncate(fd, 0);
                }
                1 => {
                    libc::ftruncate(fd, 1 << 40);
                }
                2 => {
                    let junk = [0xa5u8; 4096];
                    libc::write(fd, junk.as_ptr().cast(), junk.len());
                    libc::pwrite(fd, junk.as_ptr().cast(), junk.len(), 0);
                }
                3 => {
                    let page = libc::mmap(
                        std::ptr::null_mut(),
                        4096,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_SHARED,
                        fd,
                        0,
                    );
                    if page != libc::MAP_FAILED {
                        page.cast::<[u8; 4096]>().write_volatile([0x5a; 4096]);
                    }
                }
                _ => {
                    libc::close(fd);
                }
            }
        }
        how as c_long
    }
}

unsafe extern "C" fn read_number(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of an i64 in an area it names.
    unsafe { **args.cast::<*const i64>() as c_long }
}

#[test]
fn main_is_unharmed() {
    let orbit = Orbit::builder("misuser")
        .entry(misuse)
        .restart(Restart::Always)
        .deadline(Duration::from_millis(500))
        .build()
        .expect("orbit");
    let area = Area::builder("numbers").size(64 << 10).build().expect("area");
    let number = area.place(0i64).expect("room").as_ptr();
    // Written once and never again: what a misused replica holds of it must not reach the next
    // process.
    let still = area.alloc(4096, 4096).expect("room").as_ptr().cast::<i64>();
    // SAFETY: an object of the area.
    unsafe { *still = 77 };
    for round in 0..40i64 {
        // SAFETY: an object of the area, used by this thread only.
        unsafe { *number = round };
        if let Ok(future) = orbit.call_async(&[&area], &(round as u64 % 5).to_ne_bytes()) {
            future.wait().expect("a call ends with an outcome");
        }
        // What a misused replica shows its own orbit is that orbit's affair: a fresh process sees
        // the truth.
        let _ = orbit.kill();
        let options = CallOptions::new().function(read_number);
        let fine = common::eventually(|| {
            let outcome = orbit.call_with(&[&area], &(number as usize).to_ne_bytes(), &options);
            let unchanged = orbit.call_with(&[&area], &(still as usize).to_ne_bytes(), &options);
            let fine = outcome == Ok(Outcome::Returned(round)) && unchanged == Ok(Outcome::Returned(77));
            if !fine {
                let _ = orbit.kill();
            }
            fine
        });
        assert!(fine, "round {round}");
        // SAFETY: as above.
        assert_eq!(unsafe { *number }, round);
    }
}

/// Closes every descriptor and has a file under their numbers, as a daemon that begins anew.
/// `args`: the file's name.
unsafe extern "C" fn begin_anew(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes a name that ends with a zero byte.
    unsafe {
        for fd in 3..HIGHEST {
            libc::close(fd);
        }
        let file = libc::open(args.cast::<c_char>(), libc::O_RDWR);
        (3..HIGHEST).filter(|fd| libc::dup2(file, *fd) == *fd).count() as c_long
    }
}

unsafe extern "C" fn sleep(_: *mut c_void, _: *mut c_void) -> c_long {
    std::thread::sleep(Duration::from_millis(100));
    0
}

#[test]
fn a_file_under_the_number_of_a_replica_is_left_alone() {
    let path = std::env::temp_dir().join(format!("orbit-test-{}-task.log", std::process::id()));
    std::fs::write(&path, "the task's own").expect("file");
    let name = CString::new(path.as_os_str().as_bytes()).expect("name");
    let area = Area::builder("numbers").size(64 << 10).build().expect("area");
    let number = area.place(0i64).expect("room").as_ptr();
    let args = (number as usize).to_ne_bytes();
    let orbit = Orbit::builder("anew").entry(read_number).restart(Restart::Always).build().expect("orbit");
    let (anew, sleep) = (CallOptions::new().function(begin_anew), CallOptions::new().function(sleep));
    let mut reported = 0;
    for round in 0..20i64 {
        let first = common::eventually(|| orbit.call(&[&area], &args) == Ok(Outcome::Returned(round * 2)));
        assert!(first, "round {round}");
        let future = orbit.call_async_with(&[], name.as_bytes_with_nul(), &anew).expect("call");
        if round == 0 {
            let mut poll = libc::pollfd { fd: future.fd().expect("fd").as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd that lives through the call.
            assert_eq!(unsafe { libc::poll(&mut poll, 1, 60_000) }, 1, "a descriptor that the orbit cannot signal");
        }
        assert!(matches!(future.wait().expect("wait"), Outcome::Returned(files) if files >= 60));
        // The snapshot goes through the log if the orbit is busy yet.
        let busy = orbit.call_async_with(&[], &[], &sleep);
        // SAFETY: an object of the area, used by this thread only.
        unsafe { *number = round * 2 + 1 };
        match orbit.call(&[&area], &args) {
            Ok(Outcome::Crashed(crash)) => {
                let message = crash.message.unwrap_or_default();
                assert!(message.contains("closed by the task"), "{message}");
                reported += 1;
            }
            // The orbit ended before it got there.
            Err(_) | Ok(Outcome::Cancelled) => {}
            other => assert_eq!(other, Ok(Outcome::Returned(round * 2 + 1)), "round {round}"),
        }
        drop(busy);
        assert_eq!(std::fs::read(&path).expect("file"), b"the task's own");
        // SAFETY: as above.
        unsafe { *number = round * 2 + 2 };
    }
    let _ = std::fs::remove_file(&path);
    assert!(reported > 0, "no call went through the log");
}
