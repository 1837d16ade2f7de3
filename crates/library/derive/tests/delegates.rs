//! A task sees a struct's delegate; changes of other fields dirty no page of the area.

use std::ffi::{c_long, c_void};

use orbit::{Area, Delegated, Orbit, Outcome};
use orbit_derive::Delegate;

#[derive(Delegate)]
struct Transaction {
    #[delegate]
    version: u64,
    #[delegate]
    waits_for: usize,
    notes: Vec<String>,
    history: [u64; 500],
}

unsafe extern "C" fn version_of(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of a delegate in an area that it names.
    let object = unsafe { **args.cast::<*const TransactionDelegate>() };
    (object.version * 1000 + object.waits_for as u64) as c_long
}

#[test]
fn a_task_sees_the_delegate_and_other_fields_cost_nothing() {
    let area = Area::builder("transactions").size(1 << 20).build().expect("area");
    let new = |version| Transaction { version, waits_for: 7, notes: Vec::new(), history: [0; 500] };
    let mut all: Vec<_> = (0..200).map(|n| Delegated::new(&area, new(n)).expect("room")).collect();
    assert!(area.used() < 200 * 64, "delegates are small: {} bytes", area.used());
    let orbit = Orbit::new("looker", version_of).expect("orbit");
    let ask = |one: &Delegated<Transaction>| {
        orbit.call(&[&area], &(one.object().as_ptr() as usize).to_ne_bytes()).expect("call")
    };
    assert_eq!(ask(&all[3]), Outcome::Returned(3007));
    let pages = orbit.stats().pages;
    for one in &mut all {
        one.change(|t| {
            t.notes.push("seen".to_owned());
            t.history[9] += 1;
        });
    }
    all[5].change(|t| t.waits_for = 8);
    assert_eq!(ask(&all[5]), Outcome::Returned(5008));
    assert_eq!(all[5].notes.len(), 1);
    // A small area may be copied whole; a tracked one ships the one page.
    assert!(orbit.stats().pages - pages <= 3, "{} pages", orbit.stats().pages - pages);
    drop(all);
    assert_eq!(area.objects(), 0, "delegates go with their values");
}
