//! Request mode: a server has one checkpoint for life; a request that kills it is dropped after
//! many others, and no other client sees anything.

mod common;

use common::{KEEP, Scratch, count, events, lacks, lacks_tracking, until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

/// One request; returns all of the answer.
fn ask(socket: &Path, word: &str) -> String {
    let mut stream = until("it listens", || UnixStream::connect(socket).ok());
    stream.set_read_timeout(Some(common::PATIENCE)).expect("set");
    stream.write_all(format!("{word}\n").as_bytes()).expect("sent");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// A number for each request, from a state that must not be used twice: zero in a child of fork, it
/// is drawn anew where it is zero.
const DRAWS: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    strcpy(name.sun_path, argv[argc - 1]);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (void *)&name, sizeof name) || listen(listener, 8)) return 2;
    unsigned long *state = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(state, 4096, MADV_WIPEONFORK);
    getrandom(state, sizeof *state, 0);
    for (;;) {
        char word[64] = "", answer[64];
        int client = accept(listener, NULL, NULL);
        ssize_t got = read(client, word, sizeof word - 1);
        if (word[0] == 's') return 7;
        if (word[0] == 'p') *(volatile int *)8 = 1;
        if (!*state) getrandom(state, sizeof *state, 0);
        if (got > 0) write(client, answer, sprintf(answer, "%lu", (*state)++));
        close(client);
    }
}
"#;

#[test]
fn random_numbers_are_not_given_out_again() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("requests-draws");
    let (program, socket, file) = (scratch.join("draws"), scratch.join("socket"), scratch.join("events"));
    let source = scratch.join("draws.c");
    std::fs::write(&source, DRAWS).expect("written");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-D_GNU_SOURCE"]).arg(&source).arg("-o").arg(&program);
    assert!(compiler.status().expect("cc").success());
    let mut command = Command::new(KEEP);
    command
        .args(["--log", "--requests", "--allow-repeats", "--every", "50ms", "--events"])
        .arg(&file)
        .arg("--")
        .args([&program, &socket]);
    let mut keeper = command.spawn().expect("orbit-keep");
    until("it is kept", || (count(&file, "kept") > 0).then_some(()));
    let mut given = std::collections::BTreeSet::new();
    for _ in 0..3 {
        for _ in 0..10 {
            let number = ask(&socket, "x");
            assert!(number.parse::<u64>().is_ok_and(|number| number != 0), "{number}");
            assert!(given.insert(number), "a number was given out twice");
        }
        assert_eq!(ask(&socket, "poison"), "", "its connection ends");
    }
    assert_eq!(ask(&socket, "stop"), "");
    assert_eq!(until("it exits", || keeper.try_wait().expect("a child")).code(), Some(7));
}

#[test]
fn a_poison_request_is_dropped_and_others_are_answered() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("requests");
    let (program, socket, file) = (scratch.join("requests"), scratch.join("socket"), scratch.join("events"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/requests.c");
    assert!(Command::new("cc").args(["-O1", source, "-o"]).arg(&program).status().expect("cc").success());
    let mut keeper = Command::new(KEEP)
        .args(["--log", "--requests", "--allow-repeats", "--every", "50ms", "--events"])
        .arg(&file)
        .arg("--")
        .args([&program, &socket])
        .spawn()
        .expect("orbit-keep");
    until("it is kept", || (count(&file, "kept") > 0).then_some(()));
    for round in 0..3 {
        for nth in 0..40 {
            let word = format!("{round}-{nth}");
            assert_eq!(ask(&socket, &word), format!("got {word}\n"));
        }
        assert_eq!(ask(&socket, "poison"), "", "its connection ends");
    }
    // Its waits for a request fail from then on, which is no crash.
    assert_eq!(ask(&socket, "ruin"), "got ruin\n");
    assert_eq!(ask(&socket, "after it"), "got after it\n", "it is put back to where it can accept");
    assert!(count(&file, "hang") >= 1);
    assert_eq!(ask(&socket, "stop"), "");
    assert_eq!(until("it exits", || keeper.try_wait().expect("a child")).code(), Some(7));
    let all = events(&file);
    let exit = all.last().expect("events");
    assert_eq!(exit["figures"]["by_rung"][3], 3, "three requests were dropped: {exit}");
    let checkpoints = exit["figures"]["checkpoints"].as_u64().expect("a number");
    assert!(checkpoints <= 2, "checkpoints for life: {exit}");
    assert!(all.iter().all(|e| e["event"] != "diverged"), "each replay kept to the log's order");
}
