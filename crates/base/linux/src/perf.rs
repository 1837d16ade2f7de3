//! Counters and hardware breakpoints of `perf_event_open`, on one thread or one processor.
//!
//! A [`Counter`] counts from the moment it is opened. With a period ([`Counter::set_period`]) every
//! so many events leave a [`Sample`] in a ring and make its descriptor readable, or raise a signal
//! ([`Counter::signal_on_overflow`]).
//!
//! Instructions need a performance unit, which virtual machines mostly lack: opening one then fails
//! with `Unsupported` and says so; the time a thread has run ([`Kind::TaskClock`]) always counts.
//! [`Ticks`] say where a running thread is, an [`Alarm`] sends it a signal. Breakpoints use the
//! processor's debug registers: four a thread, and often available in virtual machines too.
//! Ordinary users see user space only; with `kernel.perf_event_paranoid` at 3 (Debian) or under
//! Docker's profile they may open nothing.

use crate::map::{Mapping, page_size};
use crate::{Support, check, check_int};
use std::ffi::CStr;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

mod alarms;
mod plain;
mod ticks;
pub use alarms::Alarm;
pub use plain::{Place, Plain};
pub use ticks::{Tick, Ticks};

// From <linux/perf_event.h>.
const PERF_TYPE_HARDWARE: u32 = 0;
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_TYPE_BREAKPOINT: u32 = 5;
const PERF_COUNT_HW_INSTRUCTIONS: u64 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_COUNT_SW_TASK_CLOCK: u64 = 1;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_FORMAT_TOTAL_TIMES: u64 = 3;
const PERF_SAMPLE_IP_TID_TIME_ADDR: u64 = 1 | 2 | 4 | 8;
const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
const PERF_EVENT_IOC_DISABLE: libc::c_ulong = 0x2401;
const PERF_EVENT_IOC_RESET: libc::c_ulong = 0x2403;
const PERF_EVENT_IOC_PERIOD: libc::c_ulong = 0x4008_2404;
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_SAMPLE: u32 = 9;
const ATTR_EXCLUDE_KERNEL: u64 = 1 << 5;
const ATTR_EXCLUDE_HV: u64 = 1 << 6;
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// Pages of the ring after its control page: a power of two. 32 KiB hold some 600 samples.
const RING_PAGES: usize = 8;
// Offsets in the control page (struct perf_event_mmap_page).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// `struct perf_event_attr` as of Linux 4.1 (PERF_ATTR_SIZE_VER5), which every later kernel takes.
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
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
    bp_len: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const _: () = assert!(size_of::<Attr>() == 112);

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Instructions in user space. Needs a performance unit.
    Instructions,
    /// Nanoseconds the thread has run.
    TaskClock,
    /// Nanoseconds that passed on the processor.
    CpuClock,
    /// Accesses to `[addr, addr + len)` in user space; `len` is 1, 2, 4 or 8 and `addr` a multiple
    /// of it. For [`Access::Execute`] `addr` is an instruction's first byte, and `len` is
    /// ignored.
    Breakpoint {
        /// Address in the watched process.
        addr: usize,
        /// Bytes watched.
        len: usize,
        /// Which accesses count.
        access: Access,
    },
}

/// The accesses a breakpoint counts. x86 cannot watch reads alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The instruction there is about to run.
    Execute,
    /// Writes.
    Write,
    /// Reads and writes.
    ReadWrite,
}

/// One overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Address of the instruction.
    pub ip: u64,
    /// Process.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// Nanoseconds of the scheduler's clock, which differs between processors by little.
    pub time_ns: u64,
    /// The address accessed, for breakpoints on data.
    pub addr: u64,
}

/// An open counter; closed on drop. Reading needs no exclusive access; samples are taken by one
/// thread at a time.
#[derive(Debug)]
pub struct Counter {
    fd: OwnedFd,
    ring: Option<Mapping>,
    target: (i32, i32),
    kind: Kind,
    lost: u64,
}

impl Counter {
    /// Counts for one thread, on whatever processor it runs (0: the calling thread).
    ///
    /// # Errors
    /// `Unsupported` where the hardware has no such counter; `PermissionDenied` with the way out;
    /// `ESRCH`; `ENOSPC` when the debug registers are used up; `EINVAL` for a breakpoint that is
    /// not aligned.
    pub fn open_thread(tid: i32, kind: Kind) -> io::Result<Counter> {
        Counter::open((tid, -1), kind)
    }

    /// Counts on one processor, whatever runs there. Needs CAP_PERFMON or root.
    ///
    /// # Errors
    /// As [`Counter::open_thread`]; `ENODEV` when there is no such processor.
    pub fn open_cpu(cpu: usize, kind: Kind) -> io::Result<Counter> {
        let cpu = i32::try_from(cpu).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
        Counter::open((-1, cpu), kind)
    }

    fn open(target: (i32, i32), kind: Kind) -> io::Result<Counter> {
        Ok(Counter { fd: open_event(target, kind, 0)?, ring: None, target, kind, lost: 0 })
    }

    /// The count since opening or the last [`Counter::reset`]. Where the hardware's counters are
    /// shared in turns, the estimate for the whole time. Stays readable when the thread has ended.
    pub fn read(&self) -> u64 {
        let mut v = [0u64; 3];
        // SAFETY: the array has room for value, time enabled and time running, which is the format
        // asked for.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), v.as_mut_ptr().cast(), 24) };
        let [value, enabled, running] = v;
        if n != 24 {
            0
        } else if running == 0 || running >= enabled {
            value
        } else {
            (u128::from(value) * u128::from(enabled) / u128::from(running)) as u64
        }
    }

    /// From now on every `period` events leave a sample and make the descriptor readable. The first
    /// time the counter is opened anew for it, and counts from 0 again.
    ///
    /// # Errors
    /// `InvalidInput` for 0; those of opening; `EPERM` when too much memory of the user is locked
    /// by rings (`kernel.perf_event_mlock_kb`).
    pub fn set_period(&mut self, period: u64) -> io::Result<()> {
        if period == 0 {
            return Err(crate::invalid("a period of 0 events: 1 is the least".into()));
        }
        if self.ring.is_some() {
            // SAFETY: PERF_EVENT_IOC_PERIOD reads one u64.
            let r = unsafe { libc::ioctl(self.fd.as_raw_fd(), PERF_EVENT_IOC_PERIOD, &raw const period) };
            return check_int(r).map(|_| ());
        }
        let fd = open_event(self.target, self.kind, period)?;
        self.ring = Some(Mapping::shared(fd.as_fd(), page_size() * (1 + RING_PAGES), true, false)?);
        self.fd = fd;
        Ok(())
    }

    /// Also raises `sig` in a thread of the calling process at every overflow. Call after
    /// [`Counter::set_period`].
    ///
    /// # Errors
    /// `EINVAL` for a number that is no signal, `ESRCH` for a thread that is not there.
    pub fn signal_on_overflow(&self, tid: i32, sig: i32) -> io::Result<()> {
        let owner: [i32; 2] = [F_OWNER_TID, tid];
        let fd = self.fd.as_raw_fd();
        // SAFETY: struct f_owner_ex is two integers; the other commands take one.
        unsafe {
            check_int(libc::fcntl(fd, F_SETOWN_EX, owner.as_ptr()))?;
            check_int(libc::fcntl(fd, F_SETSIG, sig))?;
            let flags = check_int(libc::fcntl(fd, libc::F_GETFL))?;
            check_int(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_ASYNC))?;
        }
        Ok(())
    }

    /// The next sample, if there is one. Never blocks: poll the descriptor to wait.
    pub fn next_sample(&mut self) -> Option<Sample> {
        let lost = &mut self.lost;
        next_record(self.ring.as_ref()?, |kind, word| match kind as u32 {
            PERF_RECORD_SAMPLE => Some(Sample {
                ip: word(1),
                pid: word(2) as i32,
                tid: (word(2) >> 32) as i32,
                time_ns: word(3),
                addr: word(4),
            }),
            PERF_RECORD_LOST => {
                *lost += word(2);
                None
            }
            _ => None,
        })
    }

    /// Samples the kernel had no room for, as far as [`Counter::next_sample`] has come.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Goes on counting.
    ///
    /// # Errors
    /// None in practice.
    pub fn enable(&self) -> io::Result<()> {
        self.control(PERF_EVENT_IOC_ENABLE)
    }

    /// Stops counting; the count stays.
    ///
    /// # Errors
    /// None in practice.
    pub fn disable(&self) -> io::Result<()> {
        self.control(PERF_EVENT_IOC_DISABLE)
    }

    /// Sets the count to 0.
    ///
    /// # Errors
    /// None in practice.
    pub fn reset(&self) -> io::Result<()> {
        self.control(PERF_EVENT_IOC_RESET)
    }

    fn control(&self, what: libc::c_ulong) -> io::Result<()> {
        // SAFETY: these three take no argument.
        check_int(unsafe { libc::ioctl(self.fd.as_raw_fd(), what, 0) }).map(|_| ())
    }
}

impl AsFd for Counter {
    /// Readable after an overflow. Changes with the first [`Counter::set_period`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open_event((pid, cpu): (i32, i32), kind: Kind, period: u64) -> io::Result<OwnedFd> {
    let mut attr = Attr { size: size_of::<Attr>() as u32, read_format: PERF_FORMAT_TOTAL_TIMES, ..Attr::default() };
    match kind {
        Kind::Instructions => (attr.kind, attr.config) = (PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS),
        Kind::TaskClock => (attr.kind, attr.config) = (PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK),
        Kind::CpuClock => (attr.kind, attr.config) = (PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK),
        Kind::Breakpoint { addr, len, access } => {
            attr.kind = PERF_TYPE_BREAKPOINT;
            attr.bp_addr = addr as u64;
            (attr.bp_type, attr.bp_len) = match access {
                Access::Execute => (4, size_of::<libc::c_long>() as u64),
                Access::Write => (2, len as u64),
                Access::ReadWrite => (3, len as u64),
            };
        }
    }
    if period != 0 {
        attr.sample_period = period;
        attr.sample_type = PERF_SAMPLE_IP_TID_TIME_ADDR;
        attr.wakeup_events = 1;
    }
    // Clocks pass in the kernel too: left out only where the user may not see it.
    let clock = matches!(kind, Kind::TaskClock | Kind::CpuClock);
    attr.flags = if clock { 0 } else { ATTR_EXCLUDE_KERNEL | ATTR_EXCLUDE_HV };
    loop {
        match open_attr(&attr, pid, cpu) {
            Ok(fd) => return Ok(fd),
            Err(e) if e.raw_os_error() == Some(libc::EACCES) && attr.flags == 0 => attr.flags = ATTR_EXCLUDE_KERNEL,
            Err(e) => return Err(explain(e, kind)),
        }
    }
}

fn open_attr(attr: &Attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    // SAFETY: the struct is a perf_event_attr of the size it says, and outlives the call.
    let r = unsafe { libc::syscall(libc::SYS_perf_event_open, attr, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC) };
    // SAFETY: the kernel just made this descriptor for us.
    check(r).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A uprobe at an offset of a file, in one process, by the number that [`crate::uprobes::kind`]
/// says. Async-signal-safe.
pub(crate) fn open_uprobe(kind: u32, file: &CStr, offset: u64, pid: i32) -> io::Result<OwnedFd> {
    // The two fields of breakpoints are the file's name and the offset of such probes.
    let (bp_addr, bp_len) = (file.as_ptr() as u64, offset);
    let attr = Attr { kind, size: size_of::<Attr>() as u32, bp_addr, bp_len, ..Attr::default() };
    open_attr(&attr, pid, -1)
}

/// Opens a probe of the kernel (kprobe: a function's name and an offset in it) or of a file
/// (uprobe: its path and an offset), for the calling thread, not started. `kind` is the number in
/// `/sys/bus/event_source/devices/KIND/type`.
///
/// # Errors
/// `ENOENT` for a name that is not there, `EACCES`, `EPERM`, `EINVAL` for what cannot be probed.
pub fn open_stopped_probe(kind: u32, name: &CStr, offset: u64) -> io::Result<OwnedFd> {
    const ATTR_DISABLED: u64 = 1;
    let (bp_addr, bp_len) = (name.as_ptr() as u64, offset);
    let attr = Attr { kind, size: size_of::<Attr>() as u32, flags: ATTR_DISABLED, bp_addr, bp_len, ..Attr::default() };
    open_attr(&attr, 0, -1)
}

/// Takes records out of a ring until `read` makes something of one. It gets the first word, the
/// record's header, and a way to the others.
fn next_record<T>(ring: &Mapping, mut read: impl FnMut(u64, &dyn Fn(u64) -> u64) -> Option<T>) -> Option<T> {
    let page = page_size();
    let size = (ring.len() - page) as u64;
    // SAFETY: both words lie inside the control page, are aligned, and are shared with the kernel
    // as atomics.
    let (head, tail) = unsafe {
        (&*ring.as_ptr().add(DATA_HEAD).cast::<AtomicU64>(), &*ring.as_ptr().add(DATA_TAIL).cast::<AtomicU64>())
    };
    loop {
        let at = tail.load(Ordering::Relaxed);
        // Acquire: the records below `head` are seen as the kernel wrote them.
        if at == head.load(Ordering::Acquire) {
            return None;
        }
        let word = |i: u64| {
            let offset = ((at + i * 8) % size) as usize;
            // SAFETY: an aligned word inside the ring's data pages: records are multiples of 8
            // bytes and `offset` is below their size.
            unsafe { ring.as_ptr().add(page + offset).cast::<u64>().read_volatile() }
        };
        let header = word(0);
        let made = read(header, &word);
        // Release: the record has been read before the kernel may write over it.
        tail.store(at + (header >> 48).max(8), Ordering::Release);
        if made.is_some() {
            return made;
        }
    }
}

/// Where errno alone would mislead, a sentence; the kind of the error distinguishes the cases.
fn explain(e: io::Error, kind: Kind) -> io::Error {
    let name = crate::describe(&e);
    match (e.raw_os_error(), kind) {
        (Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV), Kind::Instructions) => {
            let why = format!(
                "no performance unit counts instructions here ({name}), as on most virtual machines: count task clock"
            );
            io::Error::new(ErrorKind::Unsupported, why)
        }
        (Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV), Kind::Breakpoint { .. }) => {
            io::Error::new(ErrorKind::Unsupported, format!("no hardware breakpoints here ({name})"))
        }
        (Some(libc::ENOSYS), _) => io::Error::new(
            ErrorKind::Unsupported,
            "perf_event_open is not there (ENOSYS): kernel without it, or seccomp",
        ),
        (Some(libc::EPERM | libc::EACCES), _) => {
            let why = format!(
                "perf_event_open: {name}: lower kernel.perf_event_paranoid, or grant CAP_PERFMON and a seccomp \
                 profile that allows it"
            );
            io::Error::new(ErrorKind::PermissionDenied, why)
        }
        _ => e,
    }
}

/// Whether the calling thread can count the time it runs.
pub fn probe() -> Support {
    support("perf counters", Counter::open_thread(0, Kind::TaskClock))
}

/// Whether the calling thread can count its instructions.
pub fn probe_instructions() -> Support {
    support("instruction counter", Counter::open_thread(0, Kind::Instructions))
}

/// Whether the calling thread can watch a word of its memory: writes it and sees the count.
pub fn probe_breakpoint() -> Support {
    let word = Box::new(AtomicU64::new(0));
    let addr = word.as_ptr() as usize;
    let tried = Counter::open_thread(0, Kind::Breakpoint { addr, len: 8, access: Access::Write }).and_then(|c| {
        word.store(1, Ordering::SeqCst);
        if c.read() == 1 { Ok(()) } else { Err(io::Error::other("a watched write was not counted")) }
    });
    support("hardware breakpoints", tried)
}

fn support<T>(what: &str, tried: io::Result<T>) -> Support {
    Support::from_result(what, tried, |_| String::new())
}
