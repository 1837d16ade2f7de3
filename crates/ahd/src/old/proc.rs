//! The small files of a watched process, and no more of them than needed.
//!
//! Owns: descriptors of files that are read again and again, kept open. Promises: all paths go through a descriptor of the process'
//! own directory, so a process id that is given to another process reads as "gone". Refuses: any judgement.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

/// Bytes of a small file that are read at most.
const MOST: usize = 16 << 10;
/// Of nearly all of them no more are there: they are read by one call then.
const USUAL: usize = 4 << 10;

/// What the scheduler has counted for a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sched {
    /// CPU time, ns.
    pub(crate) run: u64,
    /// Time it could have run but got no CPU, ns.
    pub(crate) wait: u64,
    /// Times it was put on a CPU.
    pub(crate) slices: u64,
}

/// The parts of `status` that a suspicion needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// The scheduler's letter.
    pub(crate) state: u8,
    /// Process that traces it, 0 if none.
    pub(crate) tracer: i32,
    /// Times it gave up its CPU of itself, by waiting for something.
    pub(crate) waits: u64,
    /// Signals it catches, bit n-1 for signal n.
    pub(crate) caught: u64,
}

/// A process' directory in `/proc`.
#[derive(Debug)]
pub(crate) struct Dir {
    dir: File,
}

impl Dir {
    pub(crate) fn open(pid: i32) -> io::Result<Dir> {
        Ok(Dir { dir: File::open(format!("/proc/{pid}"))? })
    }

    fn path(rest: std::fmt::Arguments<'_>) -> io::Result<CString> {
        CString::new(rest.to_string()).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    pub(crate) fn file(&self, rest: std::fmt::Arguments<'_>) -> io::Result<File> {
        let path = Dir::path(rest)?;
        // From the directory on: by `/proc/self/fd` each file would cost the way there too.
        // SAFETY: the path outlives the call.
        let fd = unsafe { libc::openat(self.dir.as_raw_fd(), path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        Ok(unsafe { File::from_raw_fd(fd) })
    }

    /// A small file's text, at most [`MOST`] bytes of it.
    pub(crate) fn text(&self, rest: std::fmt::Arguments<'_>) -> io::Result<String> {
        text(&self.file(rest)?)
    }

    /// Where a link leads.
    fn link(&self, rest: std::fmt::Arguments<'_>) -> Option<OsString> {
        let path = Dir::path(rest).ok()?;
        // No link of `/proc` is longer.
        let mut to = [0u8; libc::PATH_MAX as usize];
        // SAFETY: path and buffer outlive the call, and the buffer is as long as said.
        let n = unsafe { libc::readlinkat(self.dir.as_raw_fd(), path.as_ptr(), to.as_mut_ptr().cast(), to.len()) };
        Some(OsStr::from_bytes(&to[..usize::try_from(n).ok()?]).to_owned())
    }

    /// Number of threads; nothing once the process is gone.
    pub(crate) fn count(&self) -> Option<usize> {
        // SAFETY: all-zero bytes are a valid stat.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: path and `stat` outlive the call.
        let done = unsafe { libc::fstatat(self.dir.as_raw_fd(), c"task".as_ptr(), &raw mut stat, 0) };
        let links = (done == 0).then_some(stat.st_nlink)?;
        usize::try_from(links).ok()?.checked_sub(2)
    }

    /// Thread ids, sorted.
    pub(crate) fn tids(&self) -> io::Result<Vec<i32>> {
        let dir = std::fs::read_dir(format!("/proc/self/fd/{}/task", self.dir.as_raw_fd()))?;
        let mut v: Vec<i32> = dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
        v.sort_unstable();
        Ok(v)
    }

    /// The thread's name.
    pub(crate) fn comm(&self, tid: i32) -> String {
        self.text(format_args!("task/{tid}/comm")).unwrap_or_default().trim_end().to_owned()
    }

    /// What the process runs; changes with exec, not when the file is removed.
    pub(crate) fn exe(&self) -> Option<std::path::PathBuf> {
        let link = self.link(format_args!("exe"))?;
        Some(match link.as_bytes().strip_suffix(b" (deleted)") {
            Some(name) => OsStr::from_bytes(name).into(),
            None => link.into(),
        })
    }

    pub(crate) fn status(&self, tid: i32) -> Option<Status> {
        self.status_again(tid, &mut Kept::default())
    }

    /// The same through a descriptor that may be kept.
    pub(crate) fn status_again(&self, tid: i32, kept: &mut Kept) -> Option<Status> {
        status(&kept.text(self, format_args!("task/{tid}/status")).ok()?)
    }

    /// Page faults of one thread so far; 0 if it is gone.
    pub(crate) fn faults(&self, tid: i32) -> u64 {
        let text = self.text(format_args!("task/{tid}/stat")).unwrap_or_default();
        // Behind the name: state, six numbers, flags, minor faults, those of children, major faults.
        stat(&text, 7) + stat(&text, 9)
    }

    /// Where the code and the first stack begin: exec puts them elsewhere, also where the file stays the same. Nothing if they may
    /// not be seen.
    pub(crate) fn image(&self, pid: i32, kept: &mut Kept) -> Option<(u64, u64)> {
        // The first thread's file: the process' own would be summed up over all threads.
        let text = kept.text(self, format_args!("task/{pid}/stat")).ok()?;
        Some((stat(&text, 23), stat(&text, 25))).filter(|&(_, stack)| stack != 0)
    }

    /// Children of one thread, where the kernel lists them.
    pub(crate) fn children(&self, tid: i32, kept: &mut Kept) -> Vec<i32> {
        let text = kept.text(self, format_args!("task/{tid}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|p| p.parse().ok()).collect()
    }

    /// The call a thread sleeps in: its number, arguments and where the program goes on. Nothing if it runs; an error
    /// if it cannot be seen.
    pub(crate) fn call(&self, tid: i32) -> io::Result<Option<Call>> {
        Ok(call(&self.text(format_args!("task/{tid}/syscall"))?))
    }

    /// What a descriptor of the process is a link to.
    pub(crate) fn fd(&self, fd: u64) -> Option<String> {
        Some(self.link(format_args!("fd/{fd}"))?.to_string_lossy().into_owned())
    }
}

/// A place for the descriptor of one small file that is read again and again, which spares the way to it. While more than [`KEPT`] are kept it
/// stays empty, and the file is opened each time.
#[derive(Debug, Default)]
pub(crate) struct Kept(Option<File>);

/// Descriptors kept by all [`Kept`] together, at most: no more than programs of some dozens of threads need.
const KEPT: usize = 128;
static ALL_KEPT: AtomicUsize = AtomicUsize::new(0);

impl Kept {
    /// The file's text now. `rest` names the same file each time.
    fn text(&mut self, dir: &Dir, rest: std::fmt::Arguments<'_>) -> io::Result<String> {
        if let Some(file) = &self.0 {
            return text(file);
        }
        let file = dir.file(rest)?;
        let read = text(&file)?;
        if ALL_KEPT.fetch_add(1, Ordering::Relaxed) < KEPT {
            self.0 = Some(file);
        } else {
            ALL_KEPT.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(read)
    }

    /// Closes it until it is read again.
    pub(crate) fn let_go(&mut self) {
        if self.0.take().is_some() {
            ALL_KEPT.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// A small file from its start, at most [`MOST`] bytes.
fn text(file: &File) -> io::Result<String> {
    let mut buf = [0u8; USUAL];
    let mut all = Vec::new();
    loop {
        let n = file.read_at(&mut buf, all.len() as u64)?;
        all.extend_from_slice(&buf[..n]);
        // The kernel stops short of the end only where the next line does not fit into its page.
        if n < USUAL / 2 || all.len() >= MOST {
            break;
        }
    }
    all.truncate(MOST);
    Ok(String::from_utf8(all).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// A system call that a thread sleeps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) nr: i64,
    pub(crate) args: [u64; 6],
    pub(crate) pc: u64,
}

impl Call {
    /// Whether it is the call of this number that is made from this place. One with a time limit that a stop interrupted goes on under a number of
    /// its own, all else the same.
    pub(crate) fn is(&self, nr: i64, pc: u64) -> bool {
        self.pc == pc && (self.nr == nr || self.nr == libc::SYS_restart_syscall)
    }

    /// Whether both are one and the same call, as far as can be told: what it waits for is among its first three arguments, and registers behind the
    /// last one may hold anything, another thing where a signal came in between.
    pub(crate) fn same(&self, other: &Call) -> bool {
        self.args[..3] == other.args[..3] && (self.is(other.nr, other.pc) || other.is(self.nr, self.pc))
    }
}

/// The counters of the thread that reads them.
#[derive(Debug, Default)]
pub(crate) struct Own(Option<(ThreadId, File)>);

impl Own {
    /// They are kept open for the thread that read them last.
    pub(crate) fn sched(&mut self) -> Option<Sched> {
        let this = std::thread::current().id();
        if self.0.as_ref().is_none_or(|(of, _)| *of != this) {
            self.0 = Some((this, File::open("/proc/thread-self/schedstat").ok()?));
        }
        sched(&self.0.as_ref()?.1)
    }
}

/// Reads `schedstat` through an open descriptor.
pub(crate) fn sched(file: &File) -> Option<Sched> {
    let mut buf = [0u8; 96];
    let n = file.read_at(&mut buf, 0).ok()?;
    let mut f = buf[..n].split(|b| b.is_ascii_whitespace()).map(number);
    Some(Sched { run: f.next()??, wait: f.next()??, slices: f.next()?? })
}

/// Whether the error says that the process or thread has ended: its files are gone, or read as nobody's.
pub(crate) fn gone(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |n, &d| {
        let d = d.checked_sub(b'0').filter(|&d| d < 10)?;
        n.checked_mul(10)?.checked_add(u64::from(d))
    })
}

/// The nth number behind the name in a line of `stat`; 0 if it is not there.
fn stat(line: &str, nth: usize) -> u64 {
    let rest = line.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.split(' ').nth(nth).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn status(text: &str) -> Option<Status> {
    let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    Some(Status {
        state: *field("State")?.as_bytes().first()?,
        tracer: field("TracerPid")?.parse().ok()?,
        waits: field("voluntary_ctxt_switches")?.parse().ok()?,
        caught: u64::from_str_radix(field("SigCgt")?, 16).ok()?,
    })
}

fn call(line: &str) -> Option<Call> {
    let mut f = line.split_whitespace();
    let nr: i64 = f.next()?.parse().ok().filter(|&n| n >= 0)?;
    let mut hex = || u64::from_str_radix(f.next()?.strip_prefix("0x")?, 16).ok();
    let mut args = [0; 6];
    for a in &mut args {
        *a = hex()?;
    }
    let _stack = hex()?;
    Some(Call { nr, args, pc: hex()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_has_ended_is_no_trouble() {
        let dir = Dir::open(std::process::id() as i32).unwrap();
        // SAFETY: a plain call.
        let tid = std::thread::spawn(|| unsafe { libc::gettid() }).join().unwrap();
        // It may be seen for a moment longer than it is waited for.
        let ended = (0..10_000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            dir.call(tid).err()
        });
        assert!(ended.as_ref().is_some_and(gone), "{ended:?}");
        assert!(Dir::open(-1).is_err_and(|e| gone(&e)));
        assert!(!gone(&io::ErrorKind::PermissionDenied.into()) && !gone(&io::Error::from_raw_os_error(libc::EACCES)));
    }

    #[test]
    fn kernel_lines_and_rubbish() {
        assert_eq!(call("running\n"), None);
        assert_eq!(call("-1 0x7ffd 0x7f00\n"), None);
        let c = call("232 0x3 0x10 0x20 0xffffffffffffffff 0x0 0x8 0x7ffd 0x7f00\n").unwrap();
        assert_eq!((c.nr, c.args[0], c.pc), (232, 3, 0x7f00));
        let anew = Call { nr: libc::SYS_restart_syscall, ..c };
        assert!(c.same(&c) && c.same(&anew) && anew.same(&c) && anew.is(c.nr, c.pc) && !c.is(anew.nr, c.pc));
        for other in [Call { nr: 1, ..c }, Call { pc: 1, ..anew }, Call { args: [0; 6], ..anew }] {
            assert!(!c.same(&other), "{other:?}");
        }
        let s = "Name:\tx\nState:\tS (sleeping)\nTracerPid:\t7\nSigCgt:\t0000000000000002\nvoluntary_ctxt_switches:\t12\n\
                 nonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(status(s), Some(Status { state: b'S', tracer: 7, waits: 12, caught: 2 }));
        assert_eq!(status("State:\n"), None);
        assert_eq!((stat("7 (a) b) S 1 2", 1), stat("7 (a) S 1 2", 9), stat("", 0)), (1, 0, 0));
        assert_eq!(number(b"18446744073709551616"), None);
        assert_eq!(number(b""), None);
    }
}
