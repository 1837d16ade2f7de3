//! Each way to hang is found, of the right kind, with the right threads and places.

use crate::guard_common::{Dir, Guard, build, functions, skipped};
use serde_json::Value;

fn hang(dir: &Dir, options: &[&str], way: &str) -> Option<Value> {
    if skipped() {
        return None;
    }
    let program = build(dir, "hangs.c");
    let mut guard = Guard::start(dir, options, &[program.to_str().expect("a path"), way]);
    if way == "spin" {
        guard.leave_loop();
    }
    let hang = guard.next("hang");
    println!("{way}: {}", hang["why"]);
    Some(hang)
}

#[test]
fn a_thread_that_spins() {
    let dir = Dir::new("spin");
    let Some(h) = hang(&dir, &[], "spin") else { return };
    assert_eq!(h["kind"], "busy");
    assert!(functions(&h).iter().any(|f| f == "spin_here"), "{h:#}");
    let place = &h["stacks"][0]["frames"][0];
    assert!(place["file"].as_str().is_some_and(|f| f.ends_with("hangs.c")) && place["line"].is_number(), "{place}");
    assert!(h["progress"].as_u64() >= h["check_value"].as_u64(), "{h:#}");
    assert!(h["usual"].is_number() && h["unit"] == "wait_ns");
}

#[test]
fn a_thread_that_waits_for_itself() {
    let dir = Dir::new("self");
    let Some(h) = hang(&dir, &[], "self") else { return };
    assert_eq!(h["kind"], "blocked");
    assert_eq!(h["cycle"].as_array().map(Vec::len), Some(1));
    assert_eq!(h["cycle"][0]["tid"], h["cycle"][0]["held_by"]);
}

fn is_ring(h: &Value, members: usize) {
    assert_eq!(h["kind"], "blocked");
    let cycle = h["cycle"].as_array().expect("a cycle");
    assert_eq!(cycle.len(), members, "{h:#}");
    for (i, edge) in cycle.iter().enumerate() {
        assert_eq!(edge["held_by"], cycle[(i + 1) % members]["tid"]);
        assert!(edge["waits_for"].as_str().is_some_and(|w| w.starts_with("mutex 0x")), "{edge}");
    }
    let stacks = h["stacks"].as_array().expect("stacks");
    assert_eq!(stacks.len(), members, "the stack of each");
    assert!(stacks.iter().all(|s| s["frames"].as_array().is_some_and(|f| f.len() > 2)), "{h:#}");
}

#[test]
fn rings_of_threads() {
    let dir = Dir::new("rings");
    for (way, members) in [("ring2", 2), ("ring5", 5)] {
        let Some(h) = hang(&dir, &[], way) else { return };
        is_ring(&h, members);
        assert!(functions(&h).iter().any(|f| f == "member"), "{h:#}");
    }
}

#[test]
fn a_ring_across_processes() {
    let dir = Dir::new("processes");
    let Some(h) = hang(&dir, &[], "processes") else { return };
    is_ring(&h, 2);
    assert_ne!(h["cycle"][0]["pid"], h["cycle"][1]["pid"]);
}

#[test]
fn a_pipe_without_another_end() {
    let dir = Dir::new("pipe");
    let Some(h) = hang(&dir, &[], "pipe") else { return };
    assert_eq!(h["kind"], "blocked");
    assert!(h["why"].as_str().is_some_and(|w| w.contains("nobody else can end that")), "{h:#}");
    assert!(h["stacks"][0]["does"].as_str().is_some_and(|does| does.contains("pipe")), "{h:#}");
    assert!(functions(&h).iter().any(|f| f == "dead_peer" || f == "main"), "{h:#}");
}

#[test]
fn a_wakeup_that_was_lost() {
    let dir = Dir::new("lost");
    let Some(h) = hang(&dir, &[], "lost") else { return };
    assert_eq!(h["kind"], "blocked");
    let does: Vec<&str> = h["stacks"].as_array().expect("stacks").iter().filter_map(|s| s["does"].as_str()).collect();
    assert!(does.iter().any(|d| d.contains("condition variable")), "{does:?}");
}

#[test]
fn a_lock_that_is_held_for_too_long() {
    let dir = Dir::new("hold");
    let config = dir.file("guard.toml", "limit_ms = 1000\n");
    let Some(h) = hang(&dir, &["--config", config.to_str().expect("a path")], "hold") else { return };
    assert_eq!(h["kind"], "blocked");
    let stacks = h["stacks"].as_array().expect("stacks");
    assert_eq!(stacks.len(), 2, "waiter and holder: {h:#}");
    assert!(h["why"].as_str().is_some_and(|w| w.contains("held by thread") && w.contains("in nap")), "{h:#}");
}

#[test]
fn a_thread_that_continues_is_reported_too() {
    if skipped() {
        return;
    }
    let dir = Dir::new("recovers");
    let program = build(&dir, "hangs.c");
    let report = dir.0.join("report");
    let paths = [&program, &report].map(|path| path.to_str().expect("a path"));
    let mut guard = Guard::start(&dir, &[], &[paths[0], "recovers", paths[1]]);
    guard.leave_loop();
    let hang = guard.next("hang");
    dir.file("report", "");
    let recovered = guard.next("recovered");
    assert_eq!((&recovered["tid"], &recovered["kind"]), (&hang["tid"], &hang["kind"]));
    assert_eq!(guard.finish().status.code(), Some(0));
}
