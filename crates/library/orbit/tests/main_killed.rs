//! Main is killed with -9 at a random moment: no process, no control group stays behind.
//! Short form 25 times; `ORBIT_TEST_FULL=1` makes 1,000.

mod common;

use std::ffi::{c_long, c_void};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Random, campaign, eventually, groups_of, marked_processes, seed};
use orbit::{Area, Limits, Orbit, Restart};

unsafe extern "C" fn task(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes one u64.
    let n = unsafe { *args.cast::<u64>() };
    match n % 16 {
        // SAFETY: ends the orbit.
        3 => unsafe { libc::abort() },
        // SAFETY: leaves a process behind that the template has to find; the child makes system
        // calls only.
        5 => unsafe {
            if libc::fork() == 0 {
                libc::sleep(600);
                libc::_exit(0);
            }
        },
        7 => std::thread::sleep(Duration::from_millis(3)),
        _ => {}
    }
    0
}

/// The life of the main that will be killed.
fn live() -> ! {
    let area = Area::new(1 << 20).expect("area");
    let at = area.alloc(600_000, 16).expect("room").as_ptr();
    let orbits: Vec<Orbit> = (0..3)
        .map(|n| {
            let limits = if n == 0 { Limits::new().memory(64 << 20) } else { Limits::new() };
            Orbit::builder("victim").entry(task).restart(Restart::Always).limits(limits).build().expect("orbit")
        })
        .collect();
    println!("up");
    for n in 0u64.. {
        // SAFETY: inside the object.
        unsafe { at.add((n as usize * 4096) % 600_000).write(n as u8) };
        let _ = orbits[(n % 3) as usize].call_async(&[&area], &n.to_ne_bytes());
    }
    unreachable!()
}

#[test]
fn nothing_stays_behind_when_main_is_killed() {
    if std::env::var_os("ORBIT_TEST_LIVE").is_some() {
        live();
    }
    let mut random = Random(seed());
    let me = std::env::current_exe().expect("own path");
    for round in 0..campaign(25, 1_000) {
        let mark = format!("ORBIT_TEST_MARK={}-{round}", std::process::id());
        let (key, value) = mark.split_once('=').expect("a mark");
        let mut main = Command::new(&me)
            .args(["--exact", "nothing_stays_behind_when_main_is_killed", "--nocapture"])
            .env("ORBIT_TEST_LIVE", "1")
            .env(key, value)
            .stdout(Stdio::piped())
            .spawn()
            .expect("start");
        if random.below(4) > 0 {
            let mut seen = Vec::new();
            let mut out = main.stdout.take().expect("piped");
            let mut byte = [0];
            while !seen.ends_with(b"up\n") && out.read(&mut byte).expect("read") == 1 {
                seen.push(byte[0]);
            }
        }
        std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
        let pid = main.id();
        main.kill().expect("kill");
        main.wait().expect("wait");
        let mut left = Vec::new();
        let gone = eventually(|| {
            left = marked_processes(&mark);
            left.is_empty() && groups_of(pid).is_empty()
        });
        assert!(gone, "round {round}: processes {left:?}, control groups {:?} stayed behind", groups_of(pid));
    }
}
