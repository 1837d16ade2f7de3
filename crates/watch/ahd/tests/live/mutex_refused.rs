//! A wait for a priority-inheriting mutex that the kernel rejected is reported in words of its own:
//! which thread holds the mutex is not known.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Kind};
use orbit_inspect::Sure;
use std::process::Command;

/// Locks one that it has.
const TWICE: &str = "
#include <pthread.h>
int main(void)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_t m;
    pthread_mutex_init(&m, &kind);
    pthread_mutex_lock(&m);
    pthread_mutex_lock(&m);
}
";

#[test]
fn one_that_the_thread_holds_itself() {
    let dir = Dir::new("refused");
    let Some(program) = dir.build("twice", TWICE) else { return };
    let program = Program::start(&mut Command::new(program));
    let mut watcher = Watcher::of(program.pid(), Config::default());
    let hang = watcher.hang();
    assert_eq!((hang.kind, hang.sure), (Kind::Blocked, Sure::Likely), "{hang:#?}");
    assert_eq!(hang.tid, program.pid(), "{hang:#?}");
}
