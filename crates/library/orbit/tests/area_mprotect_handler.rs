//! The `mprotect` engine hands faults of others on to the handler that was there, and puts it back
//! in the end.

use orbit::area::track::Tracker;
use orbit::area::{Engine, PageRuns};
use orbit::units::{Address, Bytes, Page, Pages};
use orbit_linux::map::{Mapping, protect};
use std::sync::atomic::{AtomicUsize, Ordering};

static SEEN: AtomicUsize = AtomicUsize::new(0);

/// The program's own handler: makes its own page writable.
extern "C" fn own(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo; the page is this test's own.
    unsafe {
        let addr = (*info).si_addr() as usize & !4095;
        libc::mprotect(addr as *mut _, 4096, libc::PROT_READ | libc::PROT_WRITE);
    }
    SEEN.fetch_add(1, Ordering::Relaxed);
}

fn handler() -> usize {
    // SAFETY: only reads the present action.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut now), 0);
        now.sa_sigaction
    }
}

#[test]
fn other_faults_are_handed_on_and_the_handler_comes_back() {
    let own_address = own as *const () as usize;
    // SAFETY: installs a handler that does only what a handler may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = own_address;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()), 0);
    }
    let (memory, mine) = (Mapping::anonymous(16 * 4096, false).unwrap(), Mapping::anonymous(4096, false).unwrap());
    for turn in 1..=3 {
        let mut one = Tracker::new(Address::new(memory.addr()), Bytes::new(8 * 4096), Engine::Mprotect).unwrap();
        let mut two =
            Tracker::new(Address::new(memory.addr() + 8 * 4096), Bytes::new(8 * 4096), Engine::Mprotect).unwrap();
        assert_ne!(handler(), own_address);
        let mut runs = PageRuns::new();
        for tracker in [&mut one, &mut two] {
            tracker.grow(Pages::new(8)).unwrap();
            tracker.harvest(&mut runs).unwrap();
        }
        // SAFETY: pages of this test's own mappings; the faults are answered by the two handlers.
        unsafe {
            protect(mine.addr(), 4096, libc::PROT_READ).unwrap();
            mine.as_ptr().write_volatile(1);
            memory.as_ptr().add(3 * 4096).write_volatile(1);
            memory.as_ptr().add(11 * 4096).write_volatile(1);
        }
        assert_eq!(SEEN.load(Ordering::Relaxed), turn);
        for (tracker, page) in [(&mut one, 3), (&mut two, 3)] {
            let mut runs = PageRuns::new();
            tracker.harvest(&mut runs).unwrap();
            assert_eq!(runs.iter().collect::<Vec<_>>(), [(Page::new(page), Pages::ONE)]);
        }
        drop(one);
        assert_ne!(handler(), own_address, "the other area still needs it");
        drop(two);
        assert_eq!(handler(), own_address);
        // SAFETY: given up, the memory is writable again.
        unsafe { memory.as_ptr().write_volatile(2) };
    }
}
