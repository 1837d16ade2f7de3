//! A process may hold two copies of the section library, as with a plug-in that has one of its own:
//! sections of both are watched, also where the second comes later.
//!
//! The test starts itself again as the program. The second copy's record is made by hand, as the
//! library makes it.

use orbit_ahd::{Config, Event};
use orbit_section::layout::{Header, MAGIC, NAMES_AT, SIZE, SLOTS_AT, Slot};
use orbit_section::{Section, enter, section};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

static MAIN: Section = section!("main-work");

const WAY: &str = "ORBIT_AHD_TEST_WAY";

/// A second copy's record, whose only thread is the calling one and whose only section is
/// "plug-in".
fn plug_in() -> &'static Slot {
    // SAFETY: a mapping of a fresh file of the layout's size, which stays for ever.
    unsafe {
        let fd = libc::memfd_create(c"rmk-sections".as_ptr(), libc::MFD_CLOEXEC);
        assert_eq!(libc::ftruncate(fd, SIZE as libc::off_t), 0);
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let base = libc::mmap(std::ptr::null_mut(), SIZE, rw, libc::MAP_PRIVATE | libc::MAP_NORESERVE, fd, 0);
        assert_ne!(base, libc::MAP_FAILED);
        let base = base.cast::<u8>();
        std::ptr::copy_nonoverlapping(b"plug-in".as_ptr(), base.add(NAMES_AT), 7);
        let slot = &*base.add(SLOTS_AT).cast::<Slot>();
        slot.tid.store(libc::gettid() as u32, Relaxed);
        let header = &*base.cast::<Header>();
        header.slot_size.store(size_of::<Slot>() as u32, Relaxed);
        header.sections.store(1, Relaxed);
        header.slots.store(1, Relaxed);
        header.magic.store(MAGIC, Release);
        slot
    }
}

/// Never waits in a main loop, so only its sections tell.
fn program(way: &str) -> ! {
    let own = || drop(enter(&MAIN));
    own();
    if way != "main" {
        // The watcher has found the first record by then.
        std::thread::sleep(Duration::from_secs(2));
    }
    let slot = plug_in();
    let mark = || slot.cells[0].seq.fetch_add(1, Relaxed);
    for _ in 0..20 {
        own();
        mark();
        mark();
    }
    let _inside = (way == "main").then(|| enter(&MAIN));
    if way != "main" {
        mark();
    }
    std::thread::sleep(Duration::from_secs(3600));
    std::process::exit(0);
}

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The section that the program has to hang in.
fn hangs_in(way: &str) -> Option<String> {
    let itself = std::env::current_exe().expect("the test");
    let mut command = Command::new(itself);
    command.args(["sections_two_copies::the_program", "--exact", "--nocapture"]).env(WAY, way).stdout(Stdio::null());
    let program = Program(command.spawn().expect("itself"));
    let mut ahd = orbit_ahd::Watcher::new(Config { limit: Duration::from_secs(1), ..Config::default() });
    ahd.add(program.0.id() as i32).expect("the program");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(ahd.pause());
        for event in ahd.tick() {
            if let Event::Hang(hang) = event {
                println!("{way}: {}", hang.why);
                return hang.section;
            }
        }
    }
    panic!("{way}: no hang is reported");
}

#[test]
fn the_program() {
    if let Ok(way) = std::env::var(WAY) {
        program(&way);
    }
}

#[test]
fn in_the_first() {
    assert_eq!(hangs_in("main").as_deref(), Some("main-work"));
}

#[test]
fn in_one_that_comes_later() {
    assert_eq!(hangs_in("plug-in").as_deref(), Some("plug-in"));
}
