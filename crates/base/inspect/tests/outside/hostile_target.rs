//! A program whose stacks and structures are rubbish made to do harm neither crashes nor hangs nor
//! bloats the reader.

use crate::common;
use common::{Dir, Running, until};
use orbit_inspect::python;
use orbit_inspect::stacks::{End, MAX_FRAMES, MAX_NAME, Unwinder};
use std::path::Path;

#[test]
fn stacks_full_of_rubbish() {
    let dir = Dir::new("hostile-stacks");
    let program = dir.build("deep.c", &["-O2", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"]);
    for mode in ["cyclic", "random"] {
        let p = Running::program(&program, &["64", mode]);
        let mut u = Unwinder::new(p.pid()).unwrap();
        let mut early = 0;
        for round in 0..20 {
            for s in u.capture(&[]) {
                assert!(s.frames.len() <= MAX_FRAMES * 65, "{}", s.frames.len());
                early += u32::from(s.end != End::Complete && round > 0);
                for f in &s.frames {
                    assert!(f.function.as_ref().is_none_or(|n| n.len() <= MAX_NAME));
                }
            }
        }
        println!("{mode}: {early} stacks ended early");
        assert!(early > 0, "none of these stacks is whole");
        u.gentle(true);
        u.capture(&[]);
    }
}

/// All the reader does with such a process; the answers do not matter, only that they come and are
/// small. The number of frames.
fn inspect(program: &Path, args: &[&str]) -> usize {
    let p = Running::program(program, args);
    match python::find(p.pid()) {
        Ok(Some(python)) => {
            let threads = python.stacks();
            assert!(threads.len() <= python::MAX_THREADS);
            assert!(threads.iter().all(|t| t.frames.len() <= python::MAX_FRAMES));
            let text: usize = threads.iter().flat_map(|t| &t.frames).map(|f| f.function.len() + f.file.len()).sum();
            assert!(text <= python::MAX_BYTES, "{text}");
            let _ = python.lock_holder();
            threads.iter().map(|t| t.frames.len()).sum()
        }
        Ok(None) => panic!("{args:?} was not taken for Python"),
        Err(e) => {
            println!("{args:?}: {e}");
            0
        }
    }
}

#[test]
fn python_structures_full_of_rubbish() {
    let dir = Dir::new("hostile-python");
    let built = dir.build("rubbish.c", &["-O1"]);
    let program = dir.0.join("python3");
    std::fs::rename(&built, &program).unwrap();
    let built = dir.build("rubbish.c", &["-O1", "-DOLD"]);
    let old = [dir.0.join("python3.9"), dir.0.join("python3.10")];
    for o in &old {
        orbit_testing::copy_of_program(&built, o);
    }
    // As many frames as there is room for, of those that cost most.
    let frames = inspect(&program, &["0x030c01f0", "large", "1"]);
    println!("large: {frames} frames");
    assert!((100..10_000).contains(&frames));
    let first: u64 = std::env::var("ORBIT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("ORBIT_SEED={first}");
    for seed in first..first + 6 {
        let seed = seed.to_string();
        for kind in ["random", "cycle"] {
            for version in ["0x030b07f0", "0x030c01f0", "0x030d00f0", "0x030e00f0", "0x020700f0"] {
                inspect(&program, &[version, kind, &seed]);
            }
            for table in ["wild", "small"] {
                inspect(&program, &["0x030d00f0", kind, &seed, table]);
            }
            for o in &old {
                inspect(o, &["0", kind, &seed]);
            }
        }
    }
}

#[test]
fn name_with_any_bytes() {
    let dir = Dir::new("hostile-name");
    let program = dir.build("deep.c", &["-O2"]);
    let odd = dir.0.join("a ) R 0 (x\n\u{1}");
    std::fs::rename(&program, &odd).unwrap();
    let p = Running::program(&odd, &["0"]);
    let mut w = orbit_inspect::waits::Watched::new(p.pid()).unwrap();
    let t = until("the thread", || w.scan().pop());
    assert!(t.comm.starts_with("a ) R 0 (x"), "{t:?}");
    let mut u = Unwinder::new(p.pid()).unwrap();
    until("the stack", || {
        let s = u.capture(&[]).pop()?;
        (s.end == End::Complete && s.frames.len() > 4).then_some(())
    });
}
