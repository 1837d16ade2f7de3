//! What the tests of areas of the engine `share` have in common.
#![allow(dead_code, reason = "each test uses its own part")]

use std::ffi::{c_long, c_void};
use std::process::Command;

use orbit::{Area, CallOptions, Engine, Kind};

pub const PAGE: usize = 4096;
/// Names what a test's process of its own is for.
pub const ALONE: &str = "ORBIT_TEST_ALONE";

pub fn build(name: &str, bytes: usize) -> Result<Area, orbit::Error> {
    Area::builder(name).size(bytes).limit(bytes).engine(Engine::Share).build()
}

/// An area of so many pages, and its first word.
pub fn area(pages: usize) -> Option<(Area, *mut u64)> {
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
pub fn in_own_process(test: &str, what: &str) -> bool {
    if std::env::var(ALONE).is_ok_and(|is| is == what) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["--exact", test, "--nocapture"]);
    let out = command.env(ALONE, what).output().expect("run");
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().filter(|line| line.contains("SKIP:")).for_each(|line| println!("{line}"));
    assert!(out.status.success(), "{what}: {text}{}", String::from_utf8_lossy(&out.stderr));
    false
}

/// Options of a call in a moment in which nothing writes.
pub fn quiet() -> CallOptions {
    // SAFETY: each test writes to its area from the thread that calls.
    unsafe { CallOptions::new().quiet() }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Range {
    pub base: usize,
    pub pages: usize,
}

pub fn bytes(range: &Range) -> &[u8] {
    // SAFETY: two words.
    unsafe { std::slice::from_raw_parts((range as *const Range).cast(), size_of::<Range>()) }
}

pub fn word(base: *mut u64, page: usize) -> *mut u64 {
    base.wrapping_add(page * PAGE / 8)
}

/// The sum of the first word of each page, twice: it stays the same while the task runs. Then
/// writes over all of them, which nobody else is to see.
pub unsafe extern "C" fn sum_then_spoil(_: *mut c_void, args: *mut c_void) -> c_long {
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
