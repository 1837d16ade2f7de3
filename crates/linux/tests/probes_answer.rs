//! Every facility that a kernel of the oldest supported kind has must probe as usable; the others must give a reason.

use orbit_linux::*;

#[test]
fn the_basic_facilities_are_there() {
    for (name, support) in [
        ("map", map::probe()),
        ("memfd", memfd::probe()),
        ("futex", futex::probe()),
        ("process", process::probe()),
        ("pidfd", pidfd::probe()),
        ("socket", socket::probe()),
        ("eventfd", eventfd::probe()),
        ("poll", poll::probe()),
    ] {
        assert_eq!(support, Support::Yes, "{name}");
    }
}

#[test]
fn the_others_say_why_not() {
    for support in [uffd::probe(), pagemap::probe()] {
        println!("{support:?}");
        if let Support::No(why) = support {
            assert!(why.contains(": "), "{why:?} names neither the facility nor the error");
        }
    }
}
