//! What explains a hang of a kept program, at the time when it is found: stacks of its threads and
//! its keeper's, the words that both share, the last events.

use orbit_inspect::stacks::Unwinder;
use orbit_linux::{maps, remote};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Events that are shown.
const LAST_EVENTS: usize = 12;
const PAGE: usize = 4096;

/// Words of the shared memory (`side/side.h`): name, offset, bytes.
const WORDS: [(&str, usize, usize); 20] = [
    ("orders.ask", 28, 4),
    ("orders.replay", 36, 4),
    ("orders.oldest", 40, 8),
    ("orders.drop_at", 48, 8),
    ("orders.known_ip", 56, 8),
    ("orders.environment", 96, 4),
    ("news.busy", PAGE + 8, 4),
    ("news.parked", PAGE + 12, 4),
    ("news.serving", PAGE + 24, 4),
    ("news.dying_tid", PAGE + 28, 4),
    ("news.dying_sp", PAGE + 32, 8),
    ("news.log_lost", PAGE + 40, 4),
    ("both.mode", 2 * PAGE, 4),
    ("both.head", 2 * PAGE + 8, 8),
    ("both.cursor", 2 * PAGE + 16, 8),
    ("both.last_input", 2 * PAGE + 24, 8),
    ("both.tail_at", 2 * PAGE + 32, 8),
    ("both.tail_end", 2 * PAGE + 40, 8),
    ("crash.state", 2 * PAGE + 48, 4),
    ("crash.signal", 2 * PAGE + 52, 4),
];
/// `orders.keeper_pid`.
const KEEPER: usize = 68;

/// The report, as text.
pub fn record(pid: i32, events: &Path) -> String {
    let mut text = format!("what explains the hang of process {pid}:\n");
    threads(&mut text, "the program", pid);
    if let Some(words) = shared(pid) {
        let number = |at: usize, bytes: usize| {
            words[at..at + bytes].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        for (name, at, bytes) in WORDS {
            let _ = write!(text, "{name} {:#x}  ", number(at, bytes));
        }
        text.push('\n');
        threads(&mut text, "its keeper", number(KEEPER, 4) as i32);
    }
    let all = fs::read_to_string(events).unwrap_or_default();
    let lines: Vec<&str> = all.lines().collect();
    for line in &lines[lines.len().saturating_sub(LAST_EVENTS)..] {
        let _ = writeln!(text, "  {line}");
    }
    text
}

/// The three pages that the program shares with its keeper.
fn shared(pid: i32) -> Option<Vec<u8>> {
    let all = maps::of(pid).ok()?;
    let entry = all.iter().find(|entry| entry.name.starts_with("/memfd:orbit-keep") && entry.offset == 0)?;
    let mut words = vec![0; 3 * PAGE];
    (remote::read(pid, entry.start, &mut words).ok()? == words.len()).then_some(words)
}

fn threads(text: &mut String, whose: &str, pid: i32) {
    let _ = writeln!(text, "threads of {whose} ({pid}):");
    let tids = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let tids: Vec<i32> = tids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for tid in &tids {
        let word = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}")).unwrap_or_default();
        let status = word("status");
        let status = ["State", "SigPnd", "ShdPnd", "SigBlk"]
            .map(|key| status.lines().find(|line| line.starts_with(key)).unwrap_or_default().replace('\t', " "));
        let _ = writeln!(
            text,
            " thread {tid} {}: {}; call {}",
            word("comm").trim(),
            status.join(", "),
            word("syscall").trim()
        );
    }
    let Ok(mut unwinder) = Unwinder::new(pid) else { return };
    for stack in unwinder.capture(&tids) {
        let _ = writeln!(text, " stack of {} {}", stack.tid, stack.comm);
        for frame in &stack.frames {
            let _ = writeln!(text, "   {frame}");
        }
    }
}
