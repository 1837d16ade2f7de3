//! `orbit ps` and `orbit top --once` show the orbits of a running program, and nothing of them when
//! they are gone.

use std::ffi::{c_long, c_void};
use std::process::Command;
use std::time::{Duration, Instant};

use orbit::{Area, Orbit, Restart};
use serde_json::Value;

unsafe extern "C" fn first_byte(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the test passes the address of an i64 in the area; 0 is there to crash.
    unsafe { **args.cast::<*const i64>() as c_long }
}

fn command(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_orbit")).args(args).output().expect("orbit runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{args:?}: {text} {}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The orbits of this process as a command shows them.
fn seen(args: &[&str]) -> Vec<Value> {
    let pid = std::process::id().to_string();
    let text = command(&[args, &["--json", "--pid", &pid]].concat());
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let programs = report["programs"].as_array().expect("programs");
    assert!(programs.len() <= 1 && programs.iter().all(|p| p["pid"] == std::process::id()), "{text}");
    programs.first().map(|p| p["orbits"].as_array().expect("orbits").clone()).unwrap_or_default()
}

#[test]
fn shows_what_there_is_and_nothing_afterwards() {
    let area = Area::new(64 << 10).expect("area");
    let number = area.place(5i64).expect("room").as_ptr();
    let steady = Orbit::new("steady", first_byte).expect("orbit");
    let shaky = Orbit::builder("shaky").entry(first_byte).restart(Restart::Always).build().expect("orbit");
    for call in 0..100 {
        // SAFETY: an object of the area, used by this thread only.
        unsafe { *number = call };
        let outcome = steady.call(&[&area], &(number as usize).to_ne_bytes()).expect("call");
        assert_eq!(outcome.returned(), Some(call));
    }
    assert!(shaky.call(&[], &0usize.to_ne_bytes()).expect("call").is_failure());
    let began = Instant::now();
    while shaky.stats().restarts == 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "it is started again");
        std::thread::sleep(Duration::from_millis(1));
    }
    for args in [&["ps"][..], &["ps", "--interval", "0"], &["top", "--once", "--interval", "50"]] {
        let orbits = seen(args);
        let find =
            |name: &str| orbits.iter().find(|o| o["name"] == name).unwrap_or_else(|| panic!("{name} in {orbits:?}"));
        let (one, two) = (find("steady"), find("shaky"));
        assert_eq!(one["calls"], 100, "{one}");
        assert_eq!(one["pid"], steady.pid(), "{one}");
        assert_eq!((&one["state"], &one["queue"]), (&"idle".into(), &0.into()), "{one}");
        assert!(one["pages_per_call"].as_f64().is_some_and(|pages| pages >= 1.0), "{one}");
        assert!(one["bytes_per_call"].as_f64().is_some_and(|bytes| bytes >= 4096.0), "{one}");
        let (p50, p99) = (one["p50_us"].as_f64().expect("p50"), one["p99_us"].as_f64().expect("p99"));
        assert!(p50 > 0.0 && p99 >= p50, "{one}");
        assert_eq!((&two["crashes"], &two["restarts"]), (&1.into(), &1.into()), "{two}");
    }
    // A call that has ended, and that nobody has asked for.
    let forgotten = steady.call_async(&[&area], &(number as usize).to_ne_bytes()).expect("call");
    let began = Instant::now();
    loop {
        let orbits = seen(&["ps", "--interval", "0"]);
        let one = orbits.iter().find(|o| o["name"] == "steady").expect("steady");
        if one["state"] == "idle" && one["queue"] == 0 && one["calls"] == 101 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{one}");
    }
    drop(forgotten);
    let text = command(&["ps"]);
    assert!(text.contains("steady") && text.contains("shaky") && text.contains("CALLS/S"), "{text}");
    steady.destroy().expect("destroy");
    shaky.destroy().expect("destroy");
    drop((steady, shaky));
    assert!(seen(&["ps"]).is_empty(), "nothing is shown of orbits that are gone");
}
