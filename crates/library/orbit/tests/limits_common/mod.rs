//! What the tests of limits share: whether a control group is available, of which version, and what
//! it says.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::Path;

use orbit::{Limits, Orbit};

unsafe extern "C" fn nothing(_: *mut std::ffi::c_void, _: *mut std::ffi::c_void) -> std::ffi::c_long {
    0
}

/// How limits on `what` ("memory" or "CPU") are held here if a control group holds them; else says
/// that the test is skipped, and why.
pub fn needs_group(what: &str) -> Option<String> {
    let limits = Limits::new().memory(256 << 20).cpu_percent(50);
    let orbit = Orbit::builder("asked").entry(nothing).limits(limits).build().expect("limits are no reason to fail");
    let held = orbit.limits_held();
    let by_group = held.split(", ").any(|part| part.starts_with(what) && part.contains("by control group"));
    if !by_group {
        println!("SKIP: needs a control group that bounds {what} ({held})");
    }
    by_group.then_some(held)
}

/// The arguments of a call.
pub fn bytes<const N: usize>(words: [i64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The first number of a text; 0 if there is none.
pub fn number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// A group's bound on memory, whichever version it is of.
pub fn memory_max(dir: &Path) -> Option<u64> {
    ["memory.max", "memory.limit_in_bytes"]
        .iter()
        .find_map(|f| std::fs::read_to_string(dir.join(f)).ok())
        .map(|t| number(&t))
}

/// What a group uses now.
pub fn memory_now(dir: &Path) -> u64 {
    let files = ["memory.current", "memory.usage_in_bytes"];
    files.iter().find_map(|f| std::fs::read_to_string(dir.join(f)).ok()).map_or(0, |text| number(&text))
}

/// How many processes the kernel has killed for a group's bound.
pub fn oom_kills(dir: &Path) -> u64 {
    let text = ["memory.events", "memory.oom_control"].iter().find_map(|f| std::fs::read_to_string(dir.join(f)).ok());
    let text = text.expect("the group counts");
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")).map_or(0, number)
}

/// Whether a group is of version 2.
pub fn is_unified(dir: &Path) -> bool {
    dir.join("cgroup.type").exists()
}
