//! The proof of the pudding: makes an orbit, calls it with an area, and says how that went.

use orbit::{Area, Orbit};
use serde::Serialize;
use std::ffi::{c_long, c_void};
use std::time::Duration;

/// How a call went.
#[derive(Serialize)]
pub struct Trial {
    /// Whether the call saw what main wrote and its answer came back.
    pub works: bool,
    /// The engine that finds written pages of a larger area.
    pub engine: Option<String>,
    /// For people.
    pub sentence: String,
}

/// Reads a number at an address in an area.
unsafe extern "C" fn read(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: `attempt` passes the address of a number in the area that it names.
    unsafe { **args.cast::<*const i64>() as c_long }
}

/// Makes an orbit and calls it.
pub fn run() -> Trial {
    match attempt() {
        Ok((engine, note)) => {
            let note = note.map(|note| format!(" ({note})")).unwrap_or_default();
            let sentence = format!("Orbits work here: a call was made, with engine {engine}{note}.");
            Trial { works: true, engine: Some(engine), sentence }
        }
        Err(why) => Trial { works: false, engine: None, sentence: format!("Orbits do not work here: {why}") },
    }
}

fn attempt() -> Result<(String, Option<String>), String> {
    let text = |error: orbit::Error| error.to_string();
    let orbit = Orbit::new("orbit-doctor", read).map_err(text)?;
    let area = Area::builder("doctor").size(1 << 20).build().map_err(text)?;
    let room = area.alloc_zeroed(512 << 10, 16).map_err(text)?.cast::<i64>();
    for number in [17, 18] {
        // SAFETY: an object of 512 KiB that was just made and that nothing else knows.
        unsafe { room.write(number) };
        let args = (room.as_ptr().expose_provenance()).to_ne_bytes();
        let call = orbit.call_async(&[&area], &args).map_err(text)?;
        let outcome = call.wait_timeout(Duration::from_secs(20)).map_err(text)?;
        if outcome.returned() != Some(number) {
            return Err(format!("a call that should have returned {number}: {outcome}"));
        }
    }
    Ok((area.engine().to_string(), area.engine_note()))
}
