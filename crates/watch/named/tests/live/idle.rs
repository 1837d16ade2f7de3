//! A server that nobody has asked for anything yet waits for events inside a section by name: that
//! is no hang.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::Config;
use orbit_modules::hangs::Settings;
use orbit_named::Named;
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = r#"
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

__attribute__((noinline)) int serve_events(int events) {
    struct epoll_event event;
    return epoll_wait(events, &event, 1, -1) + event.events;
}

int main(void) {
    int timer = timerfd_create(CLOCK_MONOTONIC, 0), events = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(events, EPOLL_CTL_ADD, timer, &event))
        return 1;
    for (;;)
        serve_events(events);
}
"#;

#[test]
fn from_its_start() {
    let dir = Dir::new("named-idle");
    let Some(path) = dir.build("idle", SOURCE) else { return };
    let program = Program::start(&mut Command::new(path));
    let section = Named { name: "loop".into(), function: "serve_events".parse().expect("a function") };
    let config = Settings {
        config: Config { limit: Duration::from_secs(2), ..Config::default() },
        sections: vec![section],
        ..Settings::default()
    };
    let mut watcher = Watcher::of(program.pid(), config);
    watcher.run(Duration::from_secs(7));
    watcher.quiet();
}
