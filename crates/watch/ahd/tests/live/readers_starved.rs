//! A reader that never gets a lock which goes from writer to writer is no hang: writers sleep at
//! another word of it than readers, and whoever unlocks wakes them first.
//!
//! The test starts itself again as the program.

use crate::common::{Program, Watcher};
use orbit_ahd::Config;
use std::path::Path;
use std::process::Command;
use std::sync::RwLock;
use std::time::Duration;

const WAY: &str = "ORBIT_AHD_TEST_READERS_STARVED";
const LIMIT: Duration = Duration::from_secs(3);

#[test]
fn the_program() {
    if std::env::var(WAY).is_err() {
        return;
    }
    static LOCK: RwLock<u64> = RwLock::new(0);
    for _ in 0..8 {
        std::thread::spawn(|| {
            loop {
                let mut times = LOCK.write().expect("a lock");
                *times += 1;
                // Long enough for the others to fall asleep at it.
                std::thread::sleep(Duration::from_millis(5));
            }
        });
    }
    // The first times it may find the lock free.
    loop {
        drop(LOCK.read().expect("a lock"));
    }
}

/// How often the thread that reads was put on a CPU.
fn turns(pid: i32) -> Option<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let read = |dir: &Path, name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    let mut reader = tasks.flatten().map(|t| t.path()).filter(|dir| read(dir, "comm").trim() == "readers_starved");
    read(&reader.next()?, "schedstat").split_whitespace().nth(2)?.parse().ok()
}

#[test]
fn a_lock_that_goes_from_writer_to_writer() {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let program = Program::start(command.args(["readers_starved::the_program", "--exact"]).env(WAY, "1"));
    let mut watcher = Watcher::of(program.pid(), Config { limit: LIMIT, ..Config::default() });
    watcher.run(LIMIT);
    // On a loaded machine the reader may find the lock free: then it is not starved, and the test
    // tries again. It is put on a CPU where its stack is taken.
    let is_starved = |watcher: &mut Watcher| {
        let before = turns(program.pid()).expect("the reader");
        watcher.run(LIMIT * 2);
        turns(program.pid()).expect("the reader") - before < 50
    };
    assert!((0..10).any(|_| is_starved(&mut watcher)), "the reader gets the lock");
    assert!(watcher.hangs().is_empty(), "nobody hangs: {:#?}", watcher.hangs());
}
