//! What the campaigns share: sizes, random numbers, and a count of what a process holds.
#![allow(dead_code, reason = "each test file uses a part")]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_long, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The short form's number, or the full form's with `ORBIT_TEST_FULL=1`, or what `ORBIT_CAMPAIGN_N`
/// says.
pub fn campaign(short: usize, full: usize) -> usize {
    if let Some(n) = std::env::var("ORBIT_CAMPAIGN_N").ok().and_then(|n| n.parse().ok()) {
        return n;
    }
    if std::env::var_os("ORBIT_TEST_FULL").is_some() { full } else { short }
}

/// The seed of a random test: `ORBIT_SEED`, or the time; printed, so that a failure can be
/// replayed.
pub fn seed() -> u64 {
    let seed = std::env::var("ORBIT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64)
    });
    println!("ORBIT_SEED={seed}");
    seed
}

/// A small random generator (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// What this process holds that a leak would add to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holdings {
    pub descriptors: usize,
    pub mappings: usize,
    pub processes: usize,
    pub groups: usize,
}

/// Counts descriptors, mappings, processes descended from this one, and control groups named after
/// it.
pub fn holdings() -> Holdings {
    Holdings {
        descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, |d| d.count()),
        mappings: std::fs::read_to_string("/proc/self/maps").map_or(0, |m| m.lines().count()),
        processes: marked_processes(&format!("ORBIT_TEST_OF={}", std::process::id())).len(),
        groups: groups_of(std::process::id()).len(),
    }
}

/// Processes that have this word in their environment.
pub fn marked_processes(mark: &str) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|env| env.split(|b| *b == 0).any(|word| word == mark.as_bytes()))
        })
        .collect()
}

/// Control groups of orbits of this process.
pub fn groups_of(pid: u32) -> Vec<PathBuf> {
    let prefix = format!("orbit-{pid}-");
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    let mut depth = 0;
    while !folders.is_empty() && depth < 5 {
        let mut deeper = Vec::new();
        for dir in folders {
            let Ok(entries) = std::fs::read_dir(&dir) else { continue };
            for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
                if entry.file_name().to_string_lossy().starts_with(&prefix) {
                    found.push(entry.path());
                }
                deeper.push(entry.path());
            }
        }
        folders = deeper;
        depth += 1;
    }
    found
}

/// A file that is not there until main makes it: calls of [`begun_then_held`] with its arguments
/// run until then.
pub struct Gate(PathBuf);

impl Gate {
    pub fn closed(name: &str) -> Gate {
        let gate = Gate(std::env::temp_dir().join(format!("orbit-gate-{name}-{}", std::process::id())));
        let _ = std::fs::remove_file(&gate.0);
        gate
    }

    pub fn args(&self) -> Vec<u8> {
        CString::new(self.0.clone().into_os_string().into_vec()).expect("no zeros").into_bytes_with_nul()
    }

    pub fn open(&self) {
        std::fs::write(&self.0, "").expect("a file");
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Pushes "begun", then runs until its [`Gate`] is open; gives 1, or 0 if that never is.
pub unsafe extern "C" fn begun_then_held(_: *mut c_void, args: *mut c_void) -> c_long {
    orbit::push(orbit::Update::new().data(b"begun")).expect("push");
    // SAFETY: main passes a gate's arguments, a name that ends with a zero.
    let gate = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(args.cast()) }.to_bytes()));
    c_long::from(eventually(|| gate.exists()))
}

/// Waits until a condition holds; false if it does not within 30 s.
pub fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(30);
    while Instant::now() < until {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Stops a process that is the caller's own, and waits until it stands still.
pub fn hold_up(pid: i32) {
    // SAFETY: signals only.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let stopped = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
    assert!(eventually(stopped), "process {pid} stands still");
}

/// The value below which this part of the numbers lies.
pub fn quantile(numbers: &mut [f64], part: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(((numbers.len() as f64 - 1.0) * part).round() as usize).copied().unwrap_or(0.0)
}

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A function of a library that was not loaded before; an orbit may have it as its entry, and is
/// never called by it.
pub fn function_loaded_now() -> orbit::Entry {
    let library = c"libresolv.so.2".as_ptr();
    // SAFETY: a library of the C library's own, loaded for good; the address is only passed on,
    // never called.
    unsafe {
        assert!(dlopen(library, libc::RTLD_NOW | libc::RTLD_NOLOAD).is_null(), "not loaded yet");
        let found = dlopen(library, libc::RTLD_NOW);
        assert!(!found.is_null());
        let found = dlsym(found, c"ns_get16".as_ptr());
        assert!(!found.is_null());
        std::mem::transmute::<*mut c_void, orbit::Entry>(found)
    }
}

/// The parent of a process.
pub fn parent(pid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.and_then(|pid| pid.trim().parse().ok()).unwrap_or(0)
}
