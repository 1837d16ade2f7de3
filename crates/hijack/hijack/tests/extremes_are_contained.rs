//! Guests that fork without end, are killed anywhere, take all address space, use other ways in, or
//! pass bad pointers.

mod common;
use common::{Run, guest, run};
use orbit_hijack::Options;

fn extreme(part: &str, options: &Options) -> Run {
    let run = run(options, &[guest("extremes", &[]).to_str().expect("a path"), part]);
    assert_eq!(run.outcome.status, 0, "{part}");
    run
}

#[test]
fn ten_gigabytes_of_address_space() {
    extreme("space", &Options::default());
}

#[test]
fn a_tree_of_processes_is_traced_without_loss() {
    let run = extreme("tree", &Options { trace: true, ..Options::default() });
    assert_eq!(run.outcome.lost, 0);
    // glibc's fork is a clone. The 8-bit status of 255 processes is their number.
    let made = ["clone", "clone3", "fork", "vfork"].iter().map(|name| run.calls(name).len()).sum::<usize>();
    assert_eq!(made, 254);
}

#[test]
fn children_killed_in_stubs_and_in_the_executive() {
    extreme("killed", &Options::default());
    extreme("killed", &Options { save_all: true, ..Options::default() });
    extreme("killed", &Options { trace: true, ..Options::default() });
}

#[test]
fn the_32_bit_way_in_is_refused_and_counted() {
    assert_eq!(extreme("compat", &Options::default()).outcome.compat_calls, 1);
}

#[test]
fn a_filter_of_the_guest_works() {
    extreme("filter", &Options::default());
}

#[test]
fn bad_pointers_fail_as_natively() {
    extreme("pointers", &Options::default());
    extreme("pointers", &Options { trace: true, ..Options::default() });
}
