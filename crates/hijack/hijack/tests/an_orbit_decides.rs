//! A rule asks an orbit: it sees the host's table as it is at each question, and its crash fails
//! one call, not the host.

mod common;
use common::run;
use orbit_hijack::rules::Rules;
use orbit_hijack::{Answer, Decider, Options};
use std::ffi::{c_long, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What main keeps, in an area: how many deletions are still allowed.
#[repr(C)]
struct Table {
    allowed: AtomicU64,
}

/// A question as the task gets it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Asked {
    table: *const Table,
    path: [u8; 64],
}

/// Runs in the orbit: 0 passes, an error is the call's result. A path that ends with "poison"
/// crashes it.
unsafe extern "C" fn judge(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the caller passes an `Asked`, whose table is in an area that the call names.
    let (asked, table) = unsafe { (&*args.cast::<Asked>(), &*(*args.cast::<Asked>()).table) };
    let end = asked.path.iter().position(|byte| *byte == 0).unwrap_or(asked.path.len());
    if asked.path[..end].ends_with(b"poison") {
        std::process::abort();
    }
    if table.allowed.load(Ordering::Relaxed) > 0 { 0 } else { -c_long::from(libc::EDQUOT) }
}

#[test]
fn an_orbit_decides_and_its_crash_fails_one_call() {
    let judge = orbit::Orbit::new("judge", judge).expect("an orbit");
    let area = orbit::Area::new(4096).expect("an area");
    let table = area.place(Table { allowed: AtomicU64::new(2) }).expect("room").as_ptr() as usize;
    let decider = Decider::new(move |question| {
        let mut asked = Asked { table: table as *const Table, path: [0; 64] };
        let bytes = question.path.as_bytes();
        let length = bytes.len().min(63);
        asked.path[..length].copy_from_slice(&bytes[bytes.len() - length..]);
        // SAFETY: a plain structure of this function's, as bytes.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const asked).cast::<u8>(), size_of::<Asked>()) };
        match judge.call(&[&area], bytes).ok().and_then(|outcome| outcome.returned()) {
            Some(0) => {
                // SAFETY: the table lives in the area, which lives as long as this function.
                unsafe { &(*asked.table).allowed }.fetch_sub(1, Ordering::Relaxed);
                Answer::Pass
            }
            Some(error) => Answer::Result(error),
            // An orbit that does not answer allows nothing.
            None => Answer::Result(-i64::from(libc::EPERM)),
        }
    });
    let options = Options {
        rules: Rules::parse("unlink|unlinkat -> ask judge").expect("a rule"),
        decider: Some(decider),
        ask_limit: Some(Duration::from_secs(30)),
        ..Options::default()
    };
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("judged");
    // Of an earlier run.
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir(&place).expect("a folder");
    let line = "touch a poison b c; for f in a poison b c; do LC_ALL=C rm $f 2>&1; done; ls";
    let line = format!("cd {} && {line}", place.display());
    let run = run(&options, &["sh", "-c", &line]);
    let refused = |file: &str, why: &str| format!("rm: cannot remove '{file}': {why}\n");
    let expected = refused("poison", "Operation not permitted") + &refused("c", "Disk quota exceeded") + "c\npoison\n";
    assert_eq!(run.stdout, expected);
    assert_eq!((run.outcome.asked, run.outcome.unanswered), (4, 0));
}
