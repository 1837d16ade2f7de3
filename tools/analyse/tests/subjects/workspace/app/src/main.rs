//! A task whose data are another crate's.

use model::{Locks, Waiter};

struct Spare {
    waiter: Box<Waiter>,
}

#[inline(never)]
fn task(locks: &Locks, spare: &Spare) -> u32 {
    locks.longest() + spare.waiter.id
}

fn main() {
    let spare = Box::new(Spare { waiter: Box::new(Waiter { id: 3, next: None }) }); /* SITE */
    let mut locks = Locks::default();
    let names: Vec<Box<[u8]>> = vec![b"a".to_vec().into_boxed_slice()]; /* OTHER */
    for id in 1..4 {
        locks.wait("a lock", id);
    }
    let longest = task(&locks, &spare);
    println!("{longest} {}", names.len());
}
