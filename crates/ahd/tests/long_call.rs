//! A thread inside one long system call is told as just that, and looking does not cut the call short.

mod common;
use common::{Dir, Program, Watcher, functions};
use orbit_ahd::{Config, Kind};
use orbit_inspect::Sure;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_call_that_takes_seconds() {
    let dir = Dir::new("long-call");
    let Some(fares) = dir.program() else { return };
    let mut p = Program::start(Command::new(fares).arg("long-call"));
    let mut w = Watcher::of(p.pid(), Config::default());
    w.run(Duration::from_secs(4));
    w.quiet();
    p.signal(libc::SIGUSR1);
    let status = loop {
        w.look();
        if let Some(status) = p.0.try_wait().expect("the program") {
            break status;
        }
    };
    assert_eq!(status.code(), Some(7), "the call was cut short");
    if w.hangs().is_empty() {
        println!("SKIP: needs a slower machine: the call ended before anything was told");
    }
    for hang in w.hangs() {
        assert_eq!((hang.kind, hang.sure), (Kind::Busy, Sure::Guess), "{hang:#?}");
        if hang.threads[0].does == "is busy" {
            println!("SKIP: needs a machine that is less crowded, to say where it is");
            continue;
        }
        assert!(hang.why.contains("is inside ") && !hang.why.contains("spins"), "{hang:#?}");
        assert_eq!(hang.threads[0].does, "is inside the kernel");
        if let Some(note) = &hang.threads[0].note {
            println!("SKIP: needs the stack of a thread inside the kernel: {note}");
        } else {
            assert!(functions(hang).contains(&"one_long_call"), "{hang:#?}");
        }
    }
}

/// Its loop is saturated, and between two times round it is inside the kernel for milliseconds, in one call after the other. With an argument it does not come
/// round again: it makes short calls for ever.
const COPIES: &str = r#"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#define MANY (64 << 20)
static volatile sig_atomic_t saturated;
static void begin(int signal) { (void)signal; saturated = 1; }
int main(int argc, char **argv)
{
    (void)argv;
    int zero = open("/dev/zero", O_RDONLY), ends[2];
    char *copy = malloc(MANY), one = 1;
    signal(SIGUSR1, begin);
    if (pipe(ends) || read(zero, copy, MANY) != MANY)
        return 1;
    for (;;) {
        struct pollfd in = { ends[0], POLLIN, 0 };
        if (poll(&in, 1, saturated ? -1 : 20) == 1)
            (void)!read(ends[0], &one, 1);
        if (!saturated)
            continue;
        if (argc > 1 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0)
            for (;;)
                (void)!read(ends[0], &one, 1);
        for (int i = 0; i < 4; i++)
            (void)!read(zero, copy, MANY / 4);
        (void)!write(ends[1], &one, 1);
    }
}
"#;

#[test]
fn a_saturated_loop_that_is_nearly_always_inside_the_kernel_is_no_hang() {
    let dir = Dir::new("copies");
    let Some(copies) = dir.build("copies", COPIES) else { return };
    let mut p = Program::start(&mut Command::new(copies));
    let mut w = Watcher::of(p.pid(), Config::default());
    w.run(Duration::from_secs(3));
    p.signal(libc::SIGUSR1);
    w.run(Duration::from_secs(6));
    assert!(p.0.try_wait().expect("the program").is_none(), "it goes on");
    w.quiet();
}

/// Beside so much that neither the thread nor who looks at it has a CPU when it wants one.
#[test]
fn calls_for_ever_are_seen_to_be_made_on_a_crowded_machine() {
    let dir = Dir::new("calls");
    let Some(copies) = dir.build("copies", COPIES) else { return };
    let crowd = || Program::start(Command::new("sh").args(["-c", "while :; do /bin/true; done"]));
    let p = Program::start(Command::new(copies).arg("for ever"));
    let mut w = Watcher::of(p.pid(), Config::default());
    w.run(Duration::from_secs(2));
    let _crowd: Vec<Program> = (0..8).map(|_| crowd()).collect();
    p.signal(libc::SIGUSR1);
    let hang = w.hang();
    assert_eq!(hang.kind, Kind::Busy, "{hang:#?}");
    assert!(!hang.why.contains("it made no system call"), "{hang:#?}");
}
