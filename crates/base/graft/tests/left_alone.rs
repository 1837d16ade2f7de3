//! A thread whose injected call does not return, and that nothing stops, is left alone: it
//! continues by itself, and what was to be undone is undone.

mod common;

use common::{Dir, may_trace, until};
use graft::{Error, Process, Protection, Source};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

#[test]
fn a_thread_that_does_not_come_back_from_a_call_continues_by_itself() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("stuck-call");
    let program = dir.build("cc", "stuck_call.c", &[]);
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    if line.contains("no userfaultfd") {
        child.wait().expect("own child");
        return println!("SKIP: needs userfaultfd with faults of the kernel");
    }
    let state = u64::from_str_radix(line.trim().strip_suffix(" ready").expect("ready"), 16).expect("an address");
    let process = Process::find(child.id() as i32).expect("a process");
    let word = |nth: u64| {
        let mut bytes = [0u8; 8];
        process.read(state + nth * 8, &mut bytes).expect("the program's state");
        u64::from_ne_bytes(bytes)
    };
    let pid = child.id();
    let files = || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("fd").count();
    let (page, files_before, maps_before) = (word(2), files(), process.mappings().expect("mappings").len());
    let result = process.while_stopped(|stopped| -> Result<(), Error> {
        stopped.map(None, 4096, Protection::READ_WRITE, Source::Bytes(&[1]))?;
        stopped.take_from(libc::SYS_eventfd2, [5, 0, 0, 0, 0, 0])?;
        stopped.call(libc::SYS_access, [page, 0, 0, 0, 0, 0]).map(drop)
    });
    assert!(matches!(result, Err(Error::NotReturned { .. })), "{result:?}");
    let rounds = word(0);
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(b"1").expect("written");
    until("its main thread computes", || child.try_wait().expect("own child").is_some() || word(0) > rounds + 10);
    assert_eq!((child.try_wait().expect("own child"), word(1)), (None, 0), "it lives, and computes what it did");
    assert_eq!((files(), process.mappings().expect("mappings").len()), (files_before, maps_before), "all is undone");
    process.while_stopped(|stopped| stopped.call(libc::SYS_getpid, [0; 6])).expect("it can be entered again");
    until("and again computes", || word(0) > rounds + 20);
    child.kill().expect("own child");
    child.wait().expect("own child");
}
