//! Memory that main gets after the library is set up, at addresses that an orbit uses for memory of
//! its own.

use std::ffi::{c_long, c_void};

use orbit::{Area, Kind, Orbit, Outcome};
use orbit_linux::map::{self, Mapping};

const PAGE: usize = 4096;

/// What a task is asked.
#[repr(C)]
#[derive(Clone, Copy)]
struct Asked {
    at: usize,
    len: usize,
    want: u8,
}

impl Asked {
    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the tests' own struct, whose padding nobody reads.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), size_of::<Asked>()) }.to_vec()
    }
}

/// Counts bytes that are not as they should be. Maps memory of its own, and checks what it mapped
/// before.
unsafe extern "C" fn check(_: *mut c_void, args: *mut c_void) -> c_long {
    static OWN: std::sync::Mutex<Vec<Vec<u8>>> = std::sync::Mutex::new(Vec::new());
    // SAFETY: the tests pass this.
    let asked = unsafe { *args.cast::<Asked>() };
    let mut own = OWN.lock().expect("lock");
    let spoilt = own.iter().flatten().filter(|byte| **byte != 7).count();
    // From where the allocator maps them, and from the heap.
    own.extend([vec![7; 1 << 20], vec![7; 2000]]);
    // SAFETY: the area, which the call named.
    let bytes = unsafe { std::slice::from_raw_parts(asked.at as *const u8, asked.len) };
    (spoilt + bytes.iter().filter(|byte| **byte != asked.want).count()) as c_long
}

/// Takes the address that it is given for its own, where nothing is.
unsafe extern "C" fn occupy(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the test passes this.
    let asked = unsafe { *args.cast::<Asked>() };
    // SAFETY: maps anew; what main has here lies in main alone.
    let taken = unsafe { map::fixed_anonymous(asked.at, asked.len) };
    taken.is_ok().into()
}

#[test]
fn mapped_memory_has_its_place_in_orbits() {
    let orbit = Orbit::new("late", check).expect("orbit");
    assert!(orbit.call(&[], &Asked { at: PAGE, len: 0, want: 0 }.bytes()).is_ok());
    let mut keep = Vec::new();
    for round in 0..40u8 {
        let len = (1 + usize::from(round % 8) * 31) * PAGE;
        let memory = Mapping::anonymous(len, false).expect("memory");
        // SAFETY: the mapping lives as long as the test, and is used by bytes only.
        let area = unsafe { Area::adopt(memory.as_ptr(), len) }.expect("area");
        // SAFETY: as above.
        unsafe { memory.as_ptr().write_bytes(round, len) };
        let asked = Asked { at: memory.addr(), len, want: round };
        assert_eq!(orbit.call(&[&area], &asked.bytes()), Ok(Outcome::Returned(0)), "round {round}");
        keep.push((area, memory));
    }
    assert_eq!(orbit.stats().crashes, 0);
    // Let go of, and named again.
    let (area, memory) = &keep[3];
    let asked = Asked { at: memory.addr(), len: memory.len(), want: 3 };
    for _ in 0..3 {
        orbit.detach(area);
        assert_eq!(orbit.call(&[area], &asked.bytes()), Ok(Outcome::Returned(0)));
    }
}

#[test]
fn what_collides_is_reported_and_not_overwritten() {
    orbit::init().expect("init");
    // Mapped in nobody's process but main's, away from where the kernel puts memory.
    let at = 0x1234_5678_0000;
    let asked = Asked { at, len: 4 * PAGE, want: 9 };
    // SAFETY: nothing is there.
    unsafe { map::fixed_anonymous(at, asked.len) }.expect("memory");
    // SAFETY: just mapped, for this alone.
    unsafe { (at as *mut u8).write_bytes(9, asked.len) };
    // SAFETY: it stays mapped.
    let area = unsafe { Area::adopt(at as *mut u8, asked.len) }.expect("area");
    let orbit = Orbit::new("there", check).expect("orbit");
    let options = orbit::CallOptions::new().function(occupy);
    assert_eq!(orbit.call_with(&[], &asked.bytes(), &options), Ok(Outcome::Returned(1)));
    let outcome = orbit.call(&[&area], &asked.bytes()).expect("call").to_string();
    assert!(outcome.contains("memory of its own"), "{outcome}");
    assert_eq!(orbit.call(&[&area], &asked.bytes()), Ok(Outcome::Returned(0)), "the next process has it first");
}

#[test]
fn memory_of_the_heap_comes_too_late() {
    // SAFETY: asks where the heap ends, and makes it longer by whole pages, as any program may.
    let heap = unsafe {
        let end = libc::sbrk(0) as usize;
        libc::sbrk((end.next_multiple_of(PAGE) - end + 2 * PAGE) as isize);
        end.next_multiple_of(PAGE)
    };
    orbit::init().expect("init");
    // SAFETY: rejected.
    let error = unsafe { Area::adopt(heap as *mut u8, PAGE) }.map(drop).expect_err("refused");
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("before the library"), "{error}");
}
