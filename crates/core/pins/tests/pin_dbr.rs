//! P_DBR raises an event when a watched word of another process is written, and none after it was
//! cleared.

mod common;
use common::{Forked, event, take_all};
use orbit_rmk::{Access, Command, Filter, Kind, Reply};
use std::sync::atomic::{AtomicU64, Ordering};

static WORD: AtomicU64 = AtomicU64::new(0);

#[test]
fn a_write_to_a_watched_word_is_seen() {
    let core = orbit_pins::core().expect("a core");
    let module = core.client("watch");
    if let Err(error) = module.use_pin("P_DBR") {
        println!("SKIP: needs hardware breakpoints ({error})");
        return;
    }
    let address = WORD.as_ptr() as u64;
    // SAFETY: the child writes its own copy of the word and sleeps.
    let guest = Forked::new(|| unsafe {
        loop {
            WORD.fetch_add(1, Ordering::SeqCst);
            libc::usleep(2000);
        }
    });
    module.subscr_event("P_DBR", Kind::Breakpoint, Filter::everyone()).expect("a subscription");
    let pid = guest.pid();
    let set = Command::BreakpointSet { pid, address, length: 8, access: Access::Write };
    let id = match module.issue_cmd("P_DBR", &set).expect("set") {
        Reply::Id { id } => id,
        other => panic!("{other:?}"),
    };
    let seen = event(&module, "the write", |_| true);
    assert_eq!((seen.tid, seen.values[0], seen.values[1]), (pid, id, address));
    module.issue_cmd("P_DBR", &Command::BreakpointClear { id }).expect("cleared");
    take_all(&module);
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert!(take_all(&module).is_empty(), "cleared");
    let crooked = Command::BreakpointSet { pid, address: address + 1, length: 8, access: Access::Write };
    let error = module.issue_cmd("P_DBR", &crooked).expect_err("not aligned").to_string();
    assert!(error.contains("aligned"), "{error}");
}
