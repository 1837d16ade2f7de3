//! An orbit of a template that was made beside living orbits (code loaded later, the first template
//! dead, a forked child) shares memory with main alone by its own channel: it finds nothing of the
//! other orbits' to write.

mod common;

use std::ffi::{c_long, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use common::{function_loaded_now, parent};
use orbit::{Area, CallOptions, Coalesce, Orbit, Outcome, Restart};

unsafe extern "C" fn read_number(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of an i64 in an area it names.
    unsafe { **args.cast::<*const i64>() as c_long }
}

/// A file; calls of [`wait_for_go`] last until it is there. Set before the first template is made.
static GO: OnceLock<PathBuf> = OnceLock::new();

unsafe extern "C" fn wait_for_go(_: *mut c_void, _: *mut c_void) -> c_long {
    c_long::from(GO.get().is_some_and(|go| common::eventually(|| go.exists())))
}

/// Overwrites whatever is shared and writable, but for this orbit's own answers, and says how many
/// mappings it found: of `orbit-up` there is one that is its own, and it is the only one where a
/// process that shares nothing else has one.
unsafe extern "C" fn overwrite(_: *mut c_void, _: *mut c_void) -> c_long {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return -1 };
    let shared =
        maps.lines().filter(|line| line.split_ascii_whitespace().nth(1).is_some_and(|m| m.starts_with("rw-s")));
    let shared: Vec<&str> = shared.collect();
    if shared.len() == 1 && shared[0].contains("orbit-up") {
        return 0;
    }
    for line in shared.iter().filter(|line| !line.contains("orbit-up")) {
        let Some((start, rest)) = line.split_once('-') else { return -1 };
        let end = rest.split_ascii_whitespace().next().unwrap_or_default();
        let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)) else {
            return -1;
        };
        for at in (start..end).step_by(8) {
            // SAFETY: none: writing where nothing good comes of it is the point, in the orbit's
            // process.
            unsafe { (at as *mut u64).write_volatile(666) };
        }
    }
    shared.len() as c_long
}

/// An orbit with an area, which must see what main wrote there.
struct Reader {
    orbit: Orbit,
    area: Area,
    number: *mut i64,
}

impl Reader {
    fn new(name: &str) -> Reader {
        let orbit = Orbit::builder(name).entry(read_number).restart(Restart::Always).build().expect("orbit");
        let area = Area::new(1 << 20).expect("area");
        let number = area.place(0i64).expect("room").as_ptr();
        let reader = Reader { orbit, area, number };
        reader.sees(40);
        reader.sees(41);
        reader.still_sees();
        reader
    }

    /// Whether it sees what main writes now.
    fn sees(&self, value: i64) {
        // SAFETY: an object of the area, used by this thread only.
        unsafe { *self.number = value };
        self.still_sees();
    }

    /// Whether it sees what main wrote last: nothing is sent again, so a page overwritten by
    /// another orbit shows.
    fn still_sees(&self) {
        // SAFETY: as above.
        let value = unsafe { *self.number };
        let seen = self.orbit.call(&[&self.area], &(self.number as usize).to_ne_bytes()).expect("call");
        assert_eq!(seen, Outcome::Returned(value as c_long));
    }

    /// Runs `meanwhile` while a call with long arguments waits in the queue; a call with the same
    /// is still known for one.
    fn with_a_call_waiting(&self, go: &Path, meanwhile: impl FnOnce()) {
        let args = vec![1u8; 60_000];
        let long = CallOptions::new().function(wait_for_go);
        let running = self.orbit.call_async_with(&[], b"first", &long).expect("call");
        let waiting = self.orbit.call_async_with(&[], &args, &long).expect("call");
        meanwhile();
        let calls = self.orbit.stats().calls;
        let same = CallOptions::new().function(wait_for_go).coalesce(Coalesce::SkipIfSame);
        let third = self.orbit.call_async_with(&[], &args, &same).expect("call");
        assert_eq!(self.orbit.stats().calls, calls, "the call that waits was taken for it");
        std::fs::write(go, "").expect("a file");
        for future in [running, waiting, third] {
            assert_eq!(future.wait().expect("wait"), Outcome::Returned(1));
        }
    }
}

fn finds_nothing(other: &Orbit) {
    let found = other.call_with(&[], &[], &CallOptions::new().function(overwrite)).expect("call");
    assert_eq!(found, Outcome::Returned(0), "shared and writable, besides its own");
}

/// One test, since it forks: no other test's threads must hold locks then.
#[test]
fn an_orbit_of_a_later_template_cannot_write_what_others_share_with_main() {
    let go = GO.get_or_init(|| std::env::temp_dir().join(format!("orbit-later-templates-{}", std::process::id())));
    let first = Reader::new("first");
    first.with_a_call_waiting(go, || {
        let other = Orbit::builder("overwriter").entry(function_loaded_now()).build().expect("orbit");
        assert_ne!(parent(other.pid()), parent(first.orbit.pid()), "a template of its own");
        finds_nothing(&other);
    });
    let _ = std::fs::remove_file(go);
    first.still_sees();
    first.sees(42);

    // Orbits of a template that was made since the other one died.
    let pid = first.orbit.pid();
    let template = parent(pid);
    // SAFETY: the template of this test's own orbit, which has it for its parent.
    assert_eq!(unsafe { libc::kill(template, libc::SIGKILL) }, 0);
    assert!(common::eventually(|| ![0, pid].contains(&first.orbit.pid())), "the orbit was started again");
    let second = Reader::new("second");
    finds_nothing(&first.orbit);
    finds_nothing(&second.orbit);
    first.still_sees();
    second.still_sees();

    // SAFETY: the child makes an orbit, checks, and exits by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let found = Orbit::new("childs", read_number)
            .and_then(|orbit| orbit.call_with(&[], &[], &CallOptions::new().function(overwrite)));
        if found != Ok(Outcome::Returned(0)) {
            println!("the child's orbit: {found:?}");
        }
        // SAFETY: ends the child without running what main's exit would.
        unsafe { libc::_exit(if found == Ok(Outcome::Returned(0)) { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child saw what it must");
    for reader in [&first, &second] {
        reader.still_sees();
        reader.sees(43);
    }
}
