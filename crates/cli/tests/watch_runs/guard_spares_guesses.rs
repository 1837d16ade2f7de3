//! A guess kills nobody, and a ring of locks does.

use crate::guard_common;
use guard_common::{Dir, Guard, skipped};
use std::process::Command;

const SPINS: &str = r#"
#include <poll.h>
#include <unistd.h>
int main(void) {
    int ends[2];
    char x;
    if (pipe(ends)) return 1;
    for (int i = 0; i < 300; i++) {
        struct pollfd p = {ends[0], POLLIN, 0};
        if (fork() == 0) { usleep(10000); (void)!write(ends[1], "x", 1); _exit(0); }
        poll(&p, 1, -1);
        (void)!read(ends[0], &x, 1);
    }
    for (volatile unsigned long i = 0;; i++) {}
}
"#;

const RING: &str = r#"
#include <pthread.h>
#include <unistd.h>
int main(void) { static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER; sleep(1); pthread_mutex_lock(&a); pthread_mutex_lock(&a); }
"#;

fn built(dir: &Dir, name: &str, text: &str) -> String {
    let source = dir.file(&format!("{name}.c"), text);
    let program = dir.0.join(name);
    let status = Command::new("cc").args(["-O1", "-g", "-pthread", "-o"]).arg(&program).arg(source).status();
    assert!(status.expect("cc").success());
    program.to_str().expect("a path").to_owned()
}

#[test]
fn a_guess_kills_nobody_and_a_ring_does() {
    if skipped() {
        return;
    }
    let dir = Dir::new("spares");
    let options = ["--limit", "1s", "--on-hang", "kill"];
    let spins = built(&dir, "spins", SPINS);
    let mut guard = Guard::start(&dir, &options, &[&spins]);
    let hang = guard.next("hang");
    assert_eq!(hang["sure"], "guess", "{hang:#}");
    let pid = hang["pid"].as_i64().expect("a process");
    // A kill would follow the report at once.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    assert!(!stat.contains(") Z"), "{stat}");
    drop(guard);
    let ring = built(&dir, "ring", RING);
    let mut guard = Guard::start(&dir, &options, &[&ring]);
    assert_eq!(guard.next("hang")["sure"], "certain");
    let did = guard.next("action");
    assert!(did["did"].as_str().is_some_and(|did| did.contains("signal 9")), "{did}");
}
