//! P_MEM reads and writes another process' memory, finds the pages it wrote (compared and tracked),
//! and sets properties of pages.

mod common;
use common::{Forked, Gate, event, until};
use orbit_rmk::{Client, Command, Core, Filter, Kind, PageProperty, Range, Reply};
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;

/// Eight pages at the same address in the test and in a child made after it.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Pages {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), 8 * PAGE, 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let pages = Pages(at.cast());
        (0..8).for_each(|n| pages.word(n).store(n as u64, Ordering::SeqCst));
        pages
    }
    fn word(&self, page: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping, aligned, alive as long as `self`.
        unsafe { &*self.0.add(page * PAGE).cast::<AtomicU64>() }
    }
    fn at(&self, page: usize) -> u64 {
        self.0 as u64 + (page * PAGE) as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.0.cast(), 8 * PAGE) };
    }
}

fn module(core: &Core) -> Client {
    let module = core.client("memory");
    module.use_pin("P_MEM").expect("P_MEM");
    module
}

fn core() -> Core {
    orbit_pins::builder().kernel_programs(false).build().expect("a core")
}

/// Watches the pages of a child that writes pages 2, 3 and 6 on request; returns what was found and
/// how.
fn watch(child: &Forked, pages: &Pages, gate: &Gate) -> String {
    let core = core();
    let module = module(&core);
    module.subscr_event("P_MEM", Kind::PagesWritten, Filter::everyone()).expect("a subscription");
    let watch = Command::PagesWatch { pid: child.pid(), start: pages.at(0), end: pages.at(8) };
    let (id, method) = match module.issue_cmd("P_MEM", &watch).expect("watched") {
        Reply::Watch { id, method } => (id, method),
        other => panic!("{other:?}"),
    };
    let collect = || match module.issue_cmd("P_MEM", &Command::PagesCollect { id }).expect("collected") {
        Reply::Ranges { ranges } => ranges,
        other => panic!("{other:?}"),
    };
    assert_eq!(collect(), [], "nothing yet");
    gate.open();
    let (mut found, mut all) = (Vec::new(), 0);
    until("three pages", || {
        found.extend(collect());
        all = found.iter().map(|range| range.end - range.start).sum::<u64>();
        all >= 3 * PAGE as u64
    });
    assert!(all == 3 * PAGE as u64 && found.contains(&Range { start: pages.at(6), end: pages.at(7) }), "{found:x?}");
    let seen = event(&module, "pages written", |event| event.values[1] == pages.at(6));
    assert_eq!((seen.pid, seen.values[0], seen.values[2]), (child.pid(), id, pages.at(7)));
    assert_eq!(collect(), [], "each is found once");
    method
}

fn write_three(pages: &Pages) {
    for n in [2, 3, 6] {
        pages.word(n).store(99, Ordering::SeqCst);
    }
}

#[test]
fn written_pages_of_any_program_are_found() {
    let (pages, gate) = (Pages::new(), Gate::new());
    let child = Forked::new(|| {
        gate.pass();
        write_three(&pages);
        gate.pass();
    });
    let method = watch(&child, &pages, &gate);
    assert!(["compared", "soft-dirty"].contains(&method.as_str()), "{method}");
}

#[test]
fn written_pages_of_a_program_that_tracks_them_are_found_by_its_page_map() {
    if !orbit_linux::uffd::probe().is_yes() || !orbit_linux::pagemap::probe().is_yes() {
        println!("SKIP: needs userfaultfd write protection and PAGEMAP_SCAN");
        return;
    }
    let (pages, gate, ready) = (Pages::new(), Gate::new(), Gate::new());
    let child = Forked::new(|| {
        let tracker = orbit_linux::uffd::Uffd::open_wp_async();
        if tracker.as_ref().is_ok_and(|tracker| tracker.register_wp(pages.at(0) as usize, 8 * PAGE).is_ok()) {
            ready.open();
        }
        gate.pass();
        write_three(&pages);
        gate.pass();
    });
    ready.pass();
    assert_eq!(watch(&child, &pages, &gate), "tracked");
}

#[test]
fn memory_is_read_and_written() {
    let pages = Pages::new();
    // SAFETY: no pointers are passed.
    let child = Forked::new(|| unsafe {
        while pages.word(1).load(Ordering::SeqCst) == 1 {
            libc::usleep(500);
        }
        libc::_exit(if pages.word(1).load(Ordering::SeqCst) == 7 { 7 } else { 1 });
    });
    let core = core();
    let module = module(&core);
    let (pid, address) = (child.pid(), pages.at(1));
    let read = Command::MemoryRead { pid, address, length: 8 };
    assert_eq!(module.issue_cmd("P_MEM", &read).expect("read"), Reply::Bytes { bytes: 1u64.to_ne_bytes().to_vec() });
    match module.issue_cmd("P_MEM", &Command::MemoryMap { pid }).expect("map") {
        Reply::Regions { regions } => {
            assert!(regions.iter().any(|region| region.start <= address && address < region.end))
        }
        other => panic!("{other:?}"),
    }
    let error = module
        .issue_cmd("P_MEM", &Command::MemoryRead { pid, address: 8, length: 8 })
        .expect_err("nothing there")
        .to_string();
    assert!(error.contains("0x8") && error.contains("P_MEM"), "{error}");
    let write = Command::MemoryWrite { pid, address, bytes: 7u64.to_ne_bytes().to_vec() };
    module.issue_cmd("P_MEM", &write).expect("written");
    assert_eq!(child.wait() >> 8, 7, "the child saw it");
}

#[test]
fn a_page_set_read_only_faults_at_the_next_write() {
    let pages = Pages::new();
    let child = Forked::new(|| {
        loop {
            pages.word(4).fetch_add(1, Ordering::SeqCst);
            // SAFETY: no pointers are passed.
            unsafe { libc::usleep(500) };
        }
    });
    let core = core();
    let module = module(&core);
    let set = |property: PageProperty| {
        let command = Command::PagesSet { pid: child.pid(), start: pages.at(4), length: PAGE as u64, property };
        module.issue_cmd("P_MEM", &command)
    };
    // Another page first: the child must not notice that it was stopped, again and again.
    for _ in 0..50 {
        for property in [PageProperty::ReadOnly, PageProperty::ReadWrite] {
            let command = Command::PagesSet { pid: child.pid(), start: pages.at(5), length: PAGE as u64, property };
            if let Err(error) = module.issue_cmd("P_MEM", &command) {
                println!("SKIP: needs the right to trace a child ({error})");
                return;
            }
        }
    }
    set(PageProperty::Cold).expect("cold");
    set(PageProperty::ReadOnly).expect("read only");
    assert_eq!(child.wait() & 0x7f, libc::SIGSEGV, "its next write faulted");
}

#[test]
fn a_range_that_is_too_large_to_watch_is_refused() {
    let pages = Pages::new();
    let core = core();
    let module = module(&core);
    let watch =
        |start: u64, end: u64| module.issue_cmd("P_MEM", &Command::PagesWatch { pid: std::process::id(), start, end });
    for end in [0x7fff_ffff_ffff_f000, 0x1000 + (4 << 30) + PAGE as u64] {
        let error = watch(0x1000, end).expect_err("too large").to_string();
        assert!(error.contains("4294967296") && error.contains(&(end - 0x1000).to_string()), "{error}");
    }
    watch(pages.at(0), pages.at(8)).expect("small enough");
    let error = watch(0x1000, 0x1000 + (4 << 30)).expect_err("too much together").to_string();
    assert!(error.contains("32768"), "{error}");
}

#[test]
fn watches_beyond_the_limit_are_refused_until_one_is_forgotten() {
    let pages = Pages::new();
    let core = core();
    let module = module(&core);
    let watch = || {
        let command = Command::PagesWatch { pid: std::process::id(), start: pages.at(0), end: pages.at(1) };
        module.issue_cmd("P_MEM", &command)
    };
    let mut last = None;
    for n in 0..64 {
        last = Some(watch().unwrap_or_else(|error| panic!("watch {n}: {error}")));
    }
    let error = watch().expect_err("one too many").to_string();
    assert!(error.contains("64 at most: forget one"), "{error}");
    let Some(Reply::Watch { id, .. }) = last else { panic!("{last:?}") };
    module.issue_cmd("P_MEM", &Command::PagesForget { id }).expect("forgotten");
    watch().expect("there is room again");
}

#[test]
fn the_core_s_own_memory_is_not_written() {
    let core = orbit_pins::core().expect("a core");
    let module = core.client("writer");
    module.use_pin("P_MEM").expect("P_MEM");
    let word = std::sync::atomic::AtomicU64::new(1);
    // SAFETY: takes no arguments.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    for pid in [std::process::id(), thread] {
        let bytes = 7u64.to_ne_bytes().to_vec();
        let write = Command::MemoryWrite { pid, address: word.as_ptr() as u64, bytes };
        let why = module.issue_cmd("P_MEM", &write).expect_err("refused").to_string();
        assert!(why.contains("the core's own"), "{why}");
    }
    assert_eq!(word.load(std::sync::atomic::Ordering::SeqCst), 1);
}
