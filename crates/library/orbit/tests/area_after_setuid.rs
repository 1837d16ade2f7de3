//! After `setuid` the kernel closes `/proc/self/pagemap`: areas made before continue being tracked,
//! new ones are compared and say why, and `PR_SET_DUMPABLE` opens the way again.

mod area_common;
use area_common::{Image, PAGE, can_have, write};
use orbit::Kind;
use orbit::area::{Area, Engine};

const PAGES: usize = 64;

fn follow(area: &Area) {
    let object = area.alloc(60 * PAGE, 16).unwrap().addr().get();
    let orbit = area.attach().unwrap();
    let mut image = Image::new(area.base(), PAGES * PAGE);
    for turn in 0..20 {
        write(object, turn * 3 % 60 * PAGE, turn as u64 + 1);
        image.update_from(area, &orbit);
        assert_eq!(image.wrong_page(area.used_pages().get()), None);
    }
}

/// Runs as another user from here on.
fn child() {
    let make = |engine| Area::builder("user's").limit(PAGES * PAGE).engine(engine).build();
    let before = make(Engine::Track).unwrap();
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
    follow(&before);
    drop(before);

    let after = make(Engine::Auto).unwrap();
    follow(&after);
    assert_eq!(after.engine(), Engine::Compare);
    let note = after.engine_note().unwrap();
    assert!(note.contains("/proc/self/pagemap") && note.contains("PR_SET_DUMPABLE"), "{note}");
    let refused = make(Engine::Track).unwrap_err();
    assert!(refused.kind() == Kind::Unsupported && refused.to_string().contains("PR_SET_DUMPABLE"), "{refused}");

    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) }, 0);
    let again = make(Engine::Auto).unwrap();
    follow(&again);
    assert_eq!(again.engine(), Engine::Track);
}

#[test]
fn tracking_survives_setuid() {
    if !can_have(Engine::Track) {
        return;
    }
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root, to become another user");
        return;
    }
    area_common::in_child(child);
}
