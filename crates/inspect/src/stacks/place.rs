//! Whether a thread that runs is in its own code or inside the kernel, without stopping it: a stop ends some calls early.
//!
//! Owns: a clock of the thread's (`perf_event_open`) for one look, whose ticks say where they met it. Where there is none to be had, the
//! times that the kernel counts for the thread in either mode: coarse, and a guess at the ticks of the processor. Promises: the thread is not
//! disturbed beyond the clock's interrupts; ends once the thread had the CPU time asked for, and at the latest after 400 ms.

use super::stop::{Copied, copy};
use super::unwind::Regs;
use crate::waits::Seen;
use crate::{Maps, procfs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Wall time after which a thread that got too little CPU is given up.
pub(super) const PATIENCE: Duration = Duration::from_millis(400);
/// CPU time between two ticks of the clock, ns.
const PERIOD: u64 = 50_000;
/// CPU time after which a thread is inside the kernel that no tick met in its own code, where ticks inside the kernel are not shown.
const UNSEEN: Duration = Duration::from_millis(20);
/// A tick older than this, ns, says where the thread was, not where it is.
const FRESH: u64 = 20_000;
/// For so long ticks are waited for without sleeping, so that they are fresh.
const EAGER: Duration = Duration::from_millis(2);
/// Looks at a thread that entered another call while its stack was copied.
const TRIES: u32 = 3;
/// Where the kernel counts by its own ticks: so many of them (10 ms each) in one mode tell it from the other.
const OWN_TICKS: u64 = 2;
const KERNEL_TICKS: u64 = 3;

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In its own code, at this moment or some microseconds ago.
    Own,
    /// Inside the kernel, and not in its own code once in all the CPU time asked for.
    Kernel,
    /// It does not run, or has ended.
    Asleep,
    /// It got too little CPU to tell.
    Unknown,
}

/// Where a thread is that had so much CPU time since the call. Blocks until it had, 400 ms at most; where it is in its own code, for some
/// 100 us mostly. Whoever stops it then drops the clock afterwards: to take it away takes as long as the thread may need to enter a call.
pub fn place(tid: i32, cpu: Duration) -> (Place, Clock) {
    let mut clock = Clock::of(tid);
    (look(tid, cpu, &mut clock, |_| ()), clock)
}

/// The same, and registers and stack of a thread that is inside the kernel, as it entered there. Nothing where ticks inside the kernel are not
/// shown (without CAP_PERFMON, where `kernel.perf_event_paranoid` is 2 or more).
pub(crate) fn with_stack(pid: i32, tid: i32, cpu: Duration, maps: &Maps) -> (Place, Option<Copied>, Clock) {
    let mut clock = Clock::of(tid);
    let (mut place, mut copied, mut sure): (_, Option<Copied>, _) = (Place::Unknown, None, false);
    for _ in 0..TRIES {
        place = look(tid, cpu, &mut clock, |regs| {
            // The stack is that of these registers if they are the same before and after it was copied.
            if copied.as_ref().is_some_and(|c| c.regs == regs) {
                sure = true;
                return;
            }
            let (base, stack) = copy(pid, regs.sp(), maps);
            copied = Some(Copied { regs, base, stack, stopped: Duration::ZERO, vectors: None });
            sure = false;
        });
        if sure || copied.is_none() || place != Place::Kernel {
            break;
        }
    }
    (place, copied.filter(|_| sure && place == Place::Kernel), clock)
}

fn look(tid: i32, cpu: Duration, clock: &mut Clock, mut inside: impl FnMut(Regs)) -> Place {
    let start = Instant::now();
    let Some(before) = run(tid) else {
        return Place::Asleep;
    };
    let times = clock.0.is_none().then(|| times(tid)).flatten();
    let (mut met, mut own_at) = (false, Duration::ZERO);
    let mut looks = 0u32;
    while start.elapsed() < PATIENCE {
        let mut own = false;
        while let Some(tick) = clock.0.as_mut().and_then(Ring::tick) {
            if !tick.own {
                met = true;
                if let Some(regs) = tick.regs {
                    inside(regs);
                }
            } else if now().saturating_sub(tick.ns) < FRESH {
                return Place::Own;
            } else {
                own = true;
            }
        }
        looks += 1;
        let eager = clock.0.is_some() && start.elapsed() < EAGER;
        if eager && !own && !looks.is_multiple_of(64) {
            std::thread::yield_now();
            continue;
        }
        let Some(ran) = run(tid).map(|now| Duration::from_nanos(now.saturating_sub(before))) else {
            return Place::Asleep;
        };
        if own {
            (own_at, met) = (ran, false);
        }
        let since = ran.saturating_sub(own_at);
        if let Some((own, kernel)) = times {
            let Some(now) = self::times(tid) else {
                return Place::Asleep;
            };
            if now.0.saturating_sub(own) >= OWN_TICKS {
                return Place::Own;
            }
            if now.1.saturating_sub(kernel) >= KERNEL_TICKS && ran >= cpu {
                return Place::Kernel;
            }
        } else if since >= cpu && met || since >= cpu.max(UNSEEN) {
            return Place::Kernel;
        }
        let line = procfs::text(&format!("/proc/{tid}/task/{tid}/syscall"), 512).unwrap_or_default();
        if Seen::parse(line.as_bytes()).is_some_and(|s| s != Seen::Running) {
            return Place::Asleep;
        }
        if !eager {
            std::thread::sleep(Duration::from_nanos(PERIOD));
        }
    }
    Place::Unknown
}

/// The time by the clock of the ticks, ns.
fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CPU time of a thread, ns.
fn run(tid: i32) -> Option<u64> {
    procfs::text(&format!("/proc/{tid}/task/{tid}/schedstat"), 96).ok()?.split(' ').next()?.parse().ok()
}

/// CPU time of a thread in its own code and inside the kernel, in ticks.
fn times(tid: i32) -> Option<(u64, u64)> {
    let stat = procfs::text(&format!("/proc/{tid}/task/{tid}/stat"), 1024).ok()?;
    // Behind the name: state, ten numbers, and these two.
    let mut numbers = stat.rsplit_once(") ")?.1.split(' ').skip(11).map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// `struct perf_event_attr` as of Linux 4.1, as far as it is used here.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    others: [u64; 4],
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<Attr>() == 112);

// From <linux/perf_event.h> and <asm/perf_regs.h>.
const SOFTWARE: u32 = 1;
const TASK_CLOCK: u64 = 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_REGS_USER: u64 = 1 << 12;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const USE_CLOCKID: u64 = 1 << 25;
const RECORD_SAMPLE: u32 = 9;
const MODE: u64 = 7;
const MODE_USER: u64 = 2;
const ABI_64: u64 = 2;
/// ax bx cx dx si di bp sp ip, and r8 to r15.
const REGISTERS: u64 = 0x00ff_01ff;
const PAGE: usize = 4096;
// Offsets in the control page.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// What a tick met, and when.
struct Tick {
    ns: u64,
    own: bool,
    /// The registers that the thread has in its own code, if they are known.
    regs: Option<Regs>,
}

/// A clock that ticks while one thread runs, where there is one to be had.
#[derive(Debug)]
pub struct Clock(Option<Ring>);

impl Clock {
    fn of(tid: i32) -> Clock {
        Clock(Ring::of(tid, true).or_else(|| Ring::of(tid, false)))
    }
}

/// The ring in which the kernel writes what the ticks met.
#[derive(Debug)]
struct Ring {
    /// Keeps the clock going.
    _fd: OwnedFd,
    /// A control page and a page of records.
    ring: *mut u8,
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: what `of` has mapped, and nothing refers to it any more.
        unsafe { libc::munmap(self.ring.cast(), 2 * PAGE) };
    }
}

impl Ring {
    /// `kernel`: with the ticks inside the kernel, which not everybody may see.
    fn of(tid: i32, kernel: bool) -> Option<Ring> {
        let attr = Attr {
            kind: SOFTWARE,
            size: size_of::<Attr>() as u32,
            config: TASK_CLOCK,
            sample_period: PERIOD,
            sample_type: SAMPLE_TIME | SAMPLE_REGS_USER,
            flags: USE_CLOCKID | if kernel { 0 } else { EXCLUDE_KERNEL },
            sample_regs_user: REGISTERS,
            clockid: libc::CLOCK_MONOTONIC,
            ..Attr::default()
        };
        const CLOEXEC: libc::c_ulong = 8;
        // SAFETY: a perf_event_attr of the size it says, which outlives the call.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, tid, -1, -1, CLOEXEC) };
        let fd = i32::try_from(fd).ok().filter(|&fd| fd >= 0)?;
        // SAFETY: the kernel just made this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let ring =
            unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        (ring != libc::MAP_FAILED).then_some(Ring { _fd: fd, ring: ring.cast() })
    }

    /// The next tick, if there was one.
    fn tick(&mut self) -> Option<Tick> {
        // SAFETY: both words lie inside the control page, are aligned, and are shared with the kernel as atomics.
        let (head, tail) =
            unsafe { (&*self.ring.add(DATA_HEAD).cast::<AtomicU64>(), &*self.ring.add(DATA_TAIL).cast::<AtomicU64>()) };
        loop {
            let at = tail.load(Ordering::Relaxed);
            // Acquire: the records below `head` are seen as the kernel wrote them.
            if at == head.load(Ordering::Acquire) {
                return None;
            }
            let word = |i: usize| {
                let offset = (at as usize + 8 * i) % PAGE;
                // SAFETY: an aligned word inside the page of records.
                unsafe { self.ring.add(PAGE + offset).cast::<u64>().read_volatile() }
            };
            let header = word(0);
            let tick = (header as u32 == RECORD_SAMPLE).then(|| {
                // The order of the kernel's registers in that of DWARF.
                const ORDER: [usize; 17] = [0, 3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 8];
                let regs = (word(2) == ABI_64).then(|| Regs(ORDER.map(|i| Some(word(3 + i)))));
                Tick { ns: word(1), own: header >> 32 & MODE == MODE_USER, regs }
            });
            // Release: the record has been read before the kernel may write over it.
            tail.store(at + (header >> 48).max(8), Ordering::Release);
            if tick.is_some() {
                return tick;
            }
        }
    }
}
