//! A thread that was reported to spin has recovered when it is back in its main loop, not when
//! something else stopped it for a while.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Event, Kind};
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = r#"
#include <poll.h>
#include <unistd.h>
#include <signal.h>
static volatile int free_again;
static void on_signal(int s) { free_again = s; }
int main(void) {
    signal(SIGUSR1, on_signal);
    int ends[2];
    if (pipe(ends)) return 1;
    struct pollfd events = {.fd = ends[0], .events = POLLIN};
    for (int i = 0; i < 600; i++) poll(&events, 1, 5);
    while (!free_again) { }
    for (;;) poll(&events, 1, 5);
}
"#;

#[test]
fn a_stop_is_no_recovery() {
    let dir = Dir::new("recovered");
    let Some(program) = dir.build("spins", SOURCE) else {
        return;
    };
    let program = Program::start(&mut Command::new(&program));
    let mut watcher = Watcher::of(program.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    assert_eq!(watcher.hang().kind, Kind::Busy);
    let recovered = |all: &[Event]| all.iter().any(|e| matches!(e, Event::Recovered { .. }));
    for _ in 0..5 {
        program.signal(libc::SIGSTOP);
        watcher.run(Duration::from_millis(100));
        program.signal(libc::SIGCONT);
        watcher.run(Duration::from_millis(300));
    }
    assert!(!recovered(&watcher.events) && watcher.hangs().len() == 1, "{:?}", watcher.events);
    program.signal(libc::SIGUSR1);
    watcher.until("its recovery", recovered);
    assert_eq!(watcher.hangs().len(), 1, "{:?}", watcher.events);
}
