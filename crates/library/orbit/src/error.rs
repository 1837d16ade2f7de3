//! The library's errors: a kind to decide on, and a sentence for people that names the thing, the
//! value, the limit and the way out.
//!
//! Every kind has one `errno` value, the same everywhere; the C face returns it negated.

use std::fmt;

use orbit_linux::map::{Mapping, page_size};
use orbit_linux::rlimit::{self, Resource};

use crate::own::Lost;

/// A result of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of error this is: what a program may decide on.
///
/// | to do | kinds |
/// |---|---|
/// | fix the program | `Invalid`, `Foreign`, `DoubleFree`, `TooLarge`, `NotFound`, `WrongSide`, `Forked`, `Gone` |
/// | try again later, or do without | `Full`, `Down`, `TimedOut`, `Cancelled` |
/// | change a limit, a right or an option | `Limit`, `Denied`, `Unsupported`, `System` |
/// | fix the task | `Failed` |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An argument makes no sense: null, misaligned, out of range. Nothing was done.
    Invalid,
    /// An address that belongs to no area, or not to the one named. Nothing was done.
    Foreign,
    /// An object that is free already. The area is unharmed.
    DoubleFree,
    /// An area, a log or a queue has no room left: free objects, wait for calls to end, or make it
    /// larger.
    Full,
    /// More bytes than this call takes; the sentence names the limit. Put large data into an area.
    TooLarge,
    /// A name or number that nothing answers to.
    NotFound,
    /// This machine, user or build cannot do it; the sentence names what is missing. `orbit doctor`
    /// shows all of it.
    Unsupported,
    /// The orbit, or the area, was destroyed, the orbit is down for good, or the library was shut
    /// down.
    Gone,
    /// The library was set up by the parent of this process: it does not reach across `fork`. Make
    /// orbits and areas here.
    Forked,
    /// A limit of descriptors, processes or memory was reached; the sentence names it and its
    /// value.
    Limit,
    /// The orbit lacks the privilege for it: an update that it may not make, which main did not
    /// apply.
    Denied,
    /// The time given has run out: of the call, which was ended, or of the wait for it, which
    /// leaves it to run.
    TimedOut,
    /// The call was cancelled before it began: on request, or since its orbit came to an end.
    Cancelled,
    /// The orbit is not running just now, and was not for as long as the call may wait. It is about
    /// to be started again.
    Down,
    /// Only an orbit may do this, or only main may.
    WrongSide,
    /// A task did not return: it crashed, was killed or stuck, left, or ran out of memory. The
    /// sentence says which, and where; its orbit is started again as its policy says.
    Failed,
    /// The kernel said no, with this `errno`.
    System(i32),
}

impl Kind {
    /// The `errno` value for this kind (positive).
    pub fn errno(self) -> i32 {
        match self {
            Kind::Invalid => libc::EINVAL,
            Kind::Foreign => libc::EFAULT,
            Kind::DoubleFree => libc::EALREADY,
            Kind::Full => libc::ENOSPC,
            Kind::TooLarge => libc::E2BIG,
            Kind::NotFound => libc::ENOENT,
            Kind::Unsupported => libc::EOPNOTSUPP,
            Kind::Gone => libc::ENODEV,
            Kind::Forked => libc::ECHILD,
            Kind::Limit => libc::EAGAIN,
            Kind::Denied => libc::EACCES,
            Kind::TimedOut => libc::ETIMEDOUT,
            Kind::Cancelled => libc::ECANCELED,
            Kind::Down => libc::EHOSTDOWN,
            Kind::WrongSide => libc::EPERM,
            Kind::Failed => libc::EREMOTEIO,
            Kind::System(errno) => errno,
        }
    }
}

/// An error: its kind and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    message: String,
}

impl Error {
    /// An error of this kind with this sentence.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// The error of a system call: what was being done, and the kernel's answer. Running out of
    /// descriptors, processes or memory becomes [`Kind::Limit`], a call that is known to be missing
    /// [`Kind::Unsupported`], a descriptor of the library's that the program has closed
    /// [`Kind::Gone`].
    pub fn system(doing: impl fmt::Display, error: std::io::Error) -> Error {
        if error.raw_os_error().is_none() && error.kind() == std::io::ErrorKind::Unsupported {
            return Error { kind: Kind::Unsupported, message: format!("{doing}: {error}") };
        }
        if error.get_ref().is_some_and(|inner| inner.is::<Lost>()) {
            return Error { kind: Kind::Gone, message: format!("{doing}: {error}") };
        }
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        let (kind, way_out) = match errno {
            libc::EMFILE => (Kind::Limit, descriptors()),
            libc::ENFILE => (Kind::Limit, "; the system's table of open files is full (fs.file-max)".to_owned()),
            libc::EAGAIN => (Kind::Limit, locked().unwrap_or_else(processes)),
            libc::ENOMEM => (Kind::Limit, memory()),
            libc::EFBIG => (Kind::Limit, file_size()),
            libc::EPERM | libc::ENOSYS => (Kind::System(errno), denied()),
            other => (Kind::System(other), String::new()),
        };
        Error { kind, message: format!("{doing}: {error}{way_out}") }
    }

    /// What kind of error this is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The `errno` value (positive).
    pub fn errno(&self) -> i32 {
        self.kind.errno()
    }
}

/// The system calls that a filter denies this process, if that is why one failed.
fn denied() -> String {
    let denied = orbit_linux::needed::denied();
    if denied.is_empty() {
        return String::new();
    }
    let calls = if denied.len() == 1 { "system call" } else { "system calls" };
    format!(
        "; a filter denies this process the {calls} {}, which the library needs (docs/adopting.md has the list): \
         allow it",
        denied.join(", ")
    )
}

/// The limit of descriptors, and how many are needed: as counted in `/proc/self/fd`.
fn descriptors() -> String {
    let allowed = rlimit::get(0, Resource::Files).map_or(0, |(soft, _)| soft);
    format!(
        "; {allowed} descriptors are allowed (ulimit -n): the library takes 4, each area up to 2, each orbit 5 and 1 \
         for \
         each area that it sees, and making one takes 4 for a moment; raise the limit"
    )
}

fn processes() -> String {
    let allowed = match rlimit::get(0, Resource::Processes) {
        Ok((rlimit::INFINITE, _)) | Err(_) => "no limit".to_owned(),
        Ok((soft, _)) => soft.to_string(),
    };
    format!("; the limit of processes is reached: raise it (ulimit -u, now {allowed}; pids.max of the control group)")
}

/// None if the kernel does not lock what is mapped (`mlockall(MCL_FUTURE)`), which it reports by
/// rejecting more than may be locked.
fn locked() -> Option<String> {
    let (allowed, _) = rlimit::get(0, Resource::Locked).ok().filter(|(soft, _)| *soft != rlimit::INFINITE)?;
    let more = usize::try_from(allowed).ok()?.checked_add(page_size())?;
    let refused = Mapping::reserve(more).err()?.raw_os_error() == Some(libc::EAGAIN);
    refused.then(|| {
        format!(
            "; {} KiB may be locked in memory (ulimit -l), and after mlockall(MCL_FUTURE) all that is mapped counts, \
             reserved \
             address space too: raise the limit to unlimited, or lock without MCL_FUTURE",
            allowed >> 10
        )
    })
}

/// Shared memory is a file to the kernel.
fn file_size() -> String {
    let allowed = rlimit::get(0, Resource::FileSize).map_or(0, |(soft, _)| soft);
    format!(
        "; files of {} KiB are allowed (ulimit -f), which bounds shared memory as well: raise the limit, or make \
         areas with \
         lower limits and orbits with smaller logs",
        allowed >> 10
    )
}

fn memory() -> String {
    let address_space = rlimit::address_space().map(|(limit, used)| {
        format!("{} KiB of address space are allowed (ulimit -v), {} in use", limit >> 10, used >> 10)
    });
    let data = rlimit::get(0, Resource::Data).ok().filter(|(soft, _)| *soft != rlimit::INFINITE);
    let data = data.map(|(soft, _)| format!("{} KiB of private writable memory are allowed (ulimit -d)", soft >> 10));
    let limits: Vec<String> = address_space.into_iter().chain(data).collect();
    if limits.is_empty() {
        return "; free memory, or let more be promised (vm.overcommit_memory, vm.max_map_count)".to_owned();
    }
    format!("; {}: raise the limit, or give areas lower limits", limits.join(", and "))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
