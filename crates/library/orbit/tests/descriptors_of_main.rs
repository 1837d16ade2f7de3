//! Main's descriptors are of no use in an orbit, and their numbers are nothing else's; those that
//! are passed on are main's own.

use std::ffi::{c_long, c_void};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};

use orbit::{CallOptions, Kind, Orbit, Outcome};

/// Writes a byte to the descriptor of this number; the errno if that fails.
unsafe extern "C" fn write_to(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes an i32; a byte of this function's own is written.
    match unsafe { libc::write(*args.cast::<i32>(), b"t".as_ptr().cast(), 1) } {
        1 => 0,
        _ => c_long::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(-1)),
    }
}

/// The lowest number that a file opened here is given.
unsafe extern "C" fn open_one(_: *mut c_void, _: *mut c_void) -> c_long {
    // SAFETY: a path that ends with a zero byte.
    c_long::from(unsafe { libc::open(c"/dev/zero".as_ptr(), libc::O_RDWR) })
}

#[test]
fn numbers_of_main_are_closed_and_passed_ones_are_mains() {
    // SAFETY: a name that ends with a zero byte; the descriptor is new.
    let file = || unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"main".as_ptr(), libc::MFD_CLOEXEC)) };
    let before = file();
    let orbit = Orbit::new("plain", write_to).expect("orbit");
    let call = |orbit: &Orbit, fd: i32| orbit.call(&[], &fd.to_ne_bytes()).expect("call");
    let is_closed = Outcome::Returned(i64::from(libc::EBADF));
    assert_eq!(call(&orbit, before.as_raw_fd()), is_closed);
    let opened = orbit.call_with(&[], &[], &CallOptions::new().function(open_one)).expect("call");
    let after: Vec<_> = (0..30).map(|_| file()).collect();
    for file in &after {
        assert!(opened != Outcome::Returned(i64::from(file.as_raw_fd())), "{opened}");
        assert_eq!(call(&orbit, file.as_raw_fd()), is_closed);
    }

    let passed = [before.as_fd(), after[7].as_fd()];
    let logs = Orbit::builder("logs").entry(write_to).pass_fds(&passed).build().expect("orbit");
    for mut file in [&before, &after[7]] {
        assert_eq!(call(&logs, file.as_raw_fd()), Outcome::Returned(0));
        file.write_all(b"m").expect("write");
        file.rewind().expect("seek");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("text");
        assert_eq!(text, "tm", "one file with one offset");
    }
    assert_eq!(call(&logs, after[8].as_raw_fd()), is_closed);
    let many = vec![before.as_fd(); 1025];
    let refused = Orbit::builder("many").entry(write_to).pass_fds(&many).build().expect_err("too many");
    assert_eq!(refused.kind(), Kind::TooLarge);
}
