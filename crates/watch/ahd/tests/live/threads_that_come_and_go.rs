//! A program that makes threads and joins them without a pause has nothing reported, a guess
//! neither: its main thread is found in a join at most scans, each time of another thread.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::Config;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(2);

const SOURCE: &str = r#"
#include <pthread.h>
#include <time.h>

static void *ends(void *a) { return a; }

int main(void) {
    struct timespec pause = { 0, 1000000 };
    for (;;) {
        pthread_t threads[8];
        int made = 0;
        while (made < 8 && !pthread_create(&threads[made], NULL, ends, NULL))
            made++;
        while (made > 0)
            pthread_join(threads[--made], NULL);
        nanosleep(&pause, NULL);
    }
}
"#;

#[test]
fn nothing_is_reported_of_threads_made_and_joined() {
    let dir = Dir::new("churn");
    let Some(program) = dir.build("churn", SOURCE) else { return };
    let program = Program::start(&mut Command::new(program));
    let mut watcher = Watcher::of(program.pid(), Config { limit: LIMIT, ..Config::default() });
    watcher.run(LIMIT * 6);
    assert!(watcher.hangs().is_empty(), "{:#?}", watcher.hangs());
}
