//! A hang is told once: taking its stacks does not make it look like a thread that got on.

use orbit_ahd::{Ahd, Config, Event};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_deadlock_is_told_once() {
    let dir = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let program = dir.join(format!("told-once-{}", std::process::id()));
    let source = "#include <pthread.h>\nint main(void){pthread_mutex_t m=PTHREAD_MUTEX_INITIALIZER;\
                  pthread_mutex_lock(&m);pthread_mutex_lock(&m);return 0;}\n";
    let file = program.with_extension("c");
    std::fs::write(&file, source).expect("a file");
    let built = Command::new("cc").args(["-pthread", "-o"]).arg(&program).arg(&file).stderr(Stdio::null()).status();
    if !built.is_ok_and(|s| s.success()) {
        println!("SKIP: needs cc");
        return;
    }
    let mut child = Command::new(&program).spawn().expect("the program");
    let mut ahd = Ahd::new(Config::default());
    ahd.add(child.id() as i32).expect("the program");
    let (mut hangs, mut recovered, mut first) = (0, 0, None);
    let start = Instant::now();
    while first.is_none_or(|f: Instant| f.elapsed() < Duration::from_secs(2))
        && start.elapsed() < Duration::from_secs(60)
    {
        std::thread::sleep(ahd.pause());
        for event in ahd.tick() {
            match event {
                Event::Hang(_) => {
                    hangs += 1;
                    first.get_or_insert(Instant::now());
                }
                Event::Recovered { .. } => recovered += 1,
                _ => {}
            }
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    let _ = std::fs::remove_file(&program);
    let _ = std::fs::remove_file(&file);
    assert_eq!((hangs, recovered), (1, 0));
}
