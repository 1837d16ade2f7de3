//! Where every thread that is left waits for another one this is reported soon after the last of
//! the others has ended, and only those are named.

use crate::common::{Dir, Program, Watcher, at_once};
use orbit_ahd::{Config, Kind};
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = r#"
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

static sem_t first, second;

static void *waits(void *s) {
    sem_wait(s);
    return s;
}

static void *naps(void *s) {
    usleep(2500000);
    return s;
}

int main(int argc, char **argv) {
    pthread_t t;
    (void)argv;
    sem_init(&first, 0, 0);
    sem_init(&second, 0, 0);
    pthread_create(&t, NULL, waits, &first);
    if (argc > 1) {
        pthread_create(&t, NULL, naps, NULL);
        waits(&second);
    }
    pthread_create(&t, NULL, waits, &second);
    usleep(1500000);
    pthread_exit(NULL);
}
"#;

#[test]
fn and_those_left_wait_for_each_other() {
    // Long after a second: that it is reported at all shows that it was not left for the limit.
    let config = Config { limit: Duration::from_secs(600), ..Config::default() };
    at_once([false, true], |other_thread| {
        let dir = Dir::new("first-ended");
        let Some(path) = dir.build("left", SOURCE) else { return };
        let program = Program::start(Command::new(path).args(other_thread.then_some("other")));
        let mut watcher = Watcher::of(program.pid(), config.clone());
        let hang = watcher.hang();
        assert_eq!((hang.kind, hang.threads.len()), (Kind::Blocked, 2), "{hang:#?}");
        assert!(hang.why.contains("only these could wake each other"), "{}", hang.why);
        assert!(hang.threads.iter().all(|t| t.does.contains("semaphore")), "{hang:#?}");
    });
}
