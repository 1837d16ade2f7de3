//! Joining: the steps by which a process becomes a member of a region, or an agent of it.
//!
//! The steps are system calls and writes to memory, computed once: a program that is linked with
//! this crate does them itself ([`Local`]); in a running program whoever can make system calls in
//! it does ([`Steps`]).

use crate::error::{Error, Kind, Result};
use orbit_linux::map::Mapping;
use orbit_linux::status::Status;
use orbit_linux::{maps, procfs};
use orbit_sandbox_lib::{abi, entry, gate};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

const READ: usize = libc::PROT_READ as usize;
const WRITE: usize = libc::PROT_WRITE as usize;
const EXECUTE: usize = libc::PROT_EXEC as usize;
const SHARED: usize = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE) as usize;
const OWN: usize = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as usize;

/// Does what joining takes in one process.
pub trait Steps {
    /// Makes a system call there. Answers its result or `-errno`.
    ///
    /// # Errors
    /// When the process cannot be reached any more.
    fn call(&mut self, number: libc::c_long, arguments: [usize; 6]) -> std::io::Result<isize>;

    /// Writes memory there that was mapped for writing.
    ///
    /// # Errors
    /// As for `call`.
    fn write(&mut self, address: usize, bytes: &[u8]) -> std::io::Result<()>;

    /// Reads memory there that is mapped for reading.
    ///
    /// # Errors
    /// As for `call`.
    fn read(&mut self, address: usize, bytes: &mut [u8]) -> std::io::Result<()>;
}

/// The calling process.
#[derive(Debug)]
pub struct Local;

impl Steps for Local {
    fn call(&mut self, number: libc::c_long, a: [usize; 6]) -> std::io::Result<isize> {
        // SAFETY: the calls of `join` and `leave` map memory at addresses that were free, or change
        // what they mapped.
        Ok(unsafe { orbit_sandbox_lib::sys::call(number as usize, a) })
    }

    fn write(&mut self, address: usize, bytes: &[u8]) -> std::io::Result<()> {
        // SAFETY: `join` writes to the private part, which it has just mapped.
        unsafe { (address as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn read(&mut self, address: usize, bytes: &mut [u8]) -> std::io::Result<()> {
        // SAFETY: `leave` reads the private part, which a member has mapped.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(address as *const u8, bytes.len()) };
        Ok(())
    }
}

/// What a process becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Upcalls may happen in it.
    Member,
    /// It runs handlers in its own loop, and no signal starts an upcall.
    Agent,
}

/// Maps the region from these descriptors of the process and installs the signal handlers.
/// `directory`: the host's.
///
/// Async-signal-safe with [`Local`]. If it fails, what it mapped is unmapped.
///
/// # Errors
/// `Invalid` when the process has something at the region's addresses (it is a member already, or
/// uses them); `System`.
pub fn join(steps: &mut impl Steps, files: [RawFd; 3], directory: &abi::Directory, role: Role) -> Result<()> {
    let [public, protected, control] = files.map(|file| file as usize);
    let maps = [
        ([abi::PUBLIC, abi::PUBLIC_LEN, READ | EXECUTE, SHARED, public, 0], libc::SYS_mmap),
        ([abi::PROTECTED, abi::PROTECTED_LEN, 0, SHARED, protected, 0], libc::SYS_mmap),
        ([abi::CONTROL, abi::CONTROL_LEN, READ | WRITE, SHARED, control, 0], libc::SYS_mmap),
        ([abi::PRIVATE, abi::PRIVATE_LEN, READ | WRITE, OWN, usize::MAX, 0], libc::SYS_mmap),
        // The library's constants are needed before anything is open.
        ([abi::PROTECTED + abi::LIBRARY * abi::SLOT, abi::SLOT, READ, 0, 0, 0], libc::SYS_mprotect),
    ];
    for (nth, (arguments, number)) in maps.iter().enumerate() {
        let result = step(steps, *number, *arguments);
        // A kernel without MAP_FIXED_NOREPLACE takes the address for a hint.
        let elsewhere = *number == libc::SYS_mmap && matches!(result, Ok(at) if at as usize != arguments[0]);
        if result.is_err() || elsewhere {
            for (done, _) in &maps[..nth.min(4)] {
                let _ = step(steps, libc::SYS_munmap, [done[0], done[1], 0, 0, 0, 0]);
            }
            return Err(match result {
                Err(error) if error.kind() != Kind::System(libc::EEXIST) => error,
                _ => Error::new(
                    Kind::Invalid,
                    format!(
                        "the process has memory of its own at {:#x}, where the sandbox region belongs: it is a member \
                         of a \
                         region already, or cannot become one",
                        arguments[0]
                    ),
                ),
            });
        }
    }
    let joined = handlers(steps, directory, role);
    if joined.is_err() {
        let _ = step(steps, libc::SYS_munmap, [abi::BASE, abi::END - abi::BASE, 0, 0, 0, 0]);
    }
    joined
}

/// Installs the handlers, after noting what the process had for faults.
fn handlers(steps: &mut impl Steps, directory: &abi::Directory, role: Role) -> Result<()> {
    let field = |offset: usize| abi::PRIVATE + offset;
    let scratch = field(std::mem::offset_of!(abi::Private, scratch));
    let lost = |error: std::io::Error| Error::system("writing to the process", &error);
    for (nth, signal) in abi::FAULTS.into_iter().chain(signals(directory)).enumerate() {
        let before = field(std::mem::offset_of!(abi::Private, actions) + nth * 32);
        step(steps, libc::SYS_rt_sigaction, [signal as usize, 0, before, 8, 0, 0])?;
    }
    steps.write(field(std::mem::offset_of!(abi::Private, saved)), &1u64.to_ne_bytes()).map_err(lost)?;
    for (signal, action) in entry::actions(directory) {
        if role == Role::Agent && signal == directory.upcall_signal {
            continue;
        }
        let mut bytes = [0u8; 32];
        for (to, word) in bytes.chunks_exact_mut(8).zip(action) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        steps.write(scratch, &bytes).map_err(lost)?;
        step(steps, libc::SYS_rt_sigaction, [signal as usize, scratch, 0, 8, 0, 0])?;
    }
    Ok(())
}

/// The signals of a region: of upcalls and of budgets.
pub(crate) fn signals(directory: &abi::Directory) -> [i32; 2] {
    [directory.upcall_signal, directory.budget_signal]
}

/// Puts the handlers back that the process had, and unmaps the region. No thread of it may be in an
/// upcall.
///
/// # Errors
/// `System`.
pub fn leave(steps: &mut impl Steps, signals: [i32; 2]) -> Result<()> {
    let field = |offset: usize| abi::PRIVATE + offset;
    let scratch = field(std::mem::offset_of!(abi::Private, scratch));
    let mut saved = [0u8; 8];
    let read = steps.read(field(std::mem::offset_of!(abi::Private, saved)), &mut saved);
    read.map_err(|error| Error::system("reading the process", &error))?;
    if saved == [0; 8] {
        // Its join was cut short before it changed any handler.
        return unmap(steps);
    }
    // Ignored first: that discards an upcall that is waiting, which the program's own action must
    // not get.
    let mut ignore = [0u8; 32];
    ignore[..8].copy_from_slice(&libc::SIG_IGN.to_ne_bytes());
    steps.write(scratch, &ignore).map_err(|error| Error::system("writing to the process", &error))?;
    for signal in signals {
        step(steps, libc::SYS_rt_sigaction, [signal as usize, scratch, 0, 8, 0, 0])?;
    }
    for (nth, signal) in abi::FAULTS.into_iter().chain(signals).enumerate() {
        let before = field(std::mem::offset_of!(abi::Private, actions) + nth * 32);
        step(steps, libc::SYS_rt_sigaction, [signal as usize, before, 0, 8, 0, 0])?;
    }
    let mut gates = [0u8; 4 * abi::SLOTS];
    let read = steps.read(field(std::mem::offset_of!(abi::Private, gates)), &mut gates);
    read.map_err(|error| Error::system("reading the process", &error))?;
    unmap(steps)?;
    for gate in gates.chunks_exact(4) {
        let gate = u32::from_ne_bytes(gate.try_into().unwrap_or_default());
        if let Some(key) = gate::key_of(gate) {
            // A number that is no key of the process is one that the program wrote there itself.
            let _ = step(steps, libc::SYS_pkey_free, [key as usize, 0, 0, 0, 0, 0]);
        }
    }
    Ok(())
}

/// Unmaps the region, or the parts of it that are there.
fn unmap(steps: &mut impl Steps) -> Result<()> {
    step(steps, libc::SYS_munmap, [abi::BASE, abi::END - abi::BASE, 0, 0, 0, 0]).map(drop)
}

/// Takes a region out of a process whose host is gone: it would keep another host from being
/// joined. `own`: also one of this very host, of which the process is no member: a join or a leave
/// of it was cut short. Nothing else is changed: the region of another host, and other memory at
/// these addresses, stay.
///
/// # Errors
/// `System`.
pub(crate) fn leave_stale(
    steps: &mut impl Steps,
    process: i32,
    own: bool,
    read: impl FnOnce(usize, &mut [u8]) -> std::io::Result<()>,
) -> Result<()> {
    let mappings = maps::of(process).unwrap_or_default();
    if !crate::region::is_in(&mappings) {
        return Ok(());
    }
    let mut directory = Box::<abi::Directory>::new_uninit();
    // SAFETY: the allocation has this length; any bytes, as these zeros, are a directory.
    let mut directory = unsafe {
        directory.as_mut_ptr().cast::<u8>().write_bytes(0, size_of::<abi::Directory>());
        directory.assume_init()
    };
    let bytes = std::ptr::from_mut(&mut *directory).cast::<u8>();
    // SAFETY: the bytes of the directory, which nothing else uses meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts_mut(bytes, size_of::<abi::Directory>()) };
    read(abi::PUBLIC, bytes).map_err(|error| Error::system("reading the process' region", &error))?;
    let is_own = own && directory.host == std::process::id() as i32;
    if directory.magic != abi::MAGIC || crate::region::has_host(&directory) && !is_own {
        return Ok(());
    }
    if !mappings.iter().any(|mapping| mapping.start == abi::PRIVATE as u64) {
        // The join was cut short before all parts were mapped.
        return unmap(steps);
    }
    leave(steps, signals(&directory))
}

/// One call, with the kernel's refusal as an error.
fn step(steps: &mut impl Steps, number: libc::c_long, arguments: [usize; 6]) -> Result<isize> {
    let what = "joining the sandbox region";
    match steps.call(number, arguments).map_err(|error| Error::system(what, &error))? {
        error @ -4095..0 => Err(Error::system(what, &std::io::Error::from_raw_os_error(-error as i32))),
        result => Ok(result),
    }
}

/// Where a program finds a host's region: the value of [`Invitation::VARIABLE`] in its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The host.
    pub host: i32,
    /// Its descriptors.
    pub files: [RawFd; 3],
}

impl Invitation {
    /// The environment variable: `PID:FD:FD:FD`.
    pub const VARIABLE: &'static str = "ORBIT_SERVICES";

    /// Reads the variable's value.
    pub fn parse(text: &str) -> Option<Invitation> {
        let mut numbers = text.split(':').map(|word| word.parse::<i32>().ok().filter(|number| *number >= 0));
        let mut next = || numbers.next().flatten();
        let invitation = Invitation { host: next()?, files: [next()?, next()?, next()?] };
        numbers.next().is_none().then_some(invitation)
    }

    /// Lets the calling process join. It becomes a member once the host adds it.
    ///
    /// # Errors
    /// `System` when the host is gone or belongs to another user; as [`join`].
    pub fn accept(&self) -> Result<()> {
        let (files, first) = self.open()?;
        leave_stale(&mut Local, std::process::id() as i32, false, |at, to| {
            // SAFETY: the caller has found a region mapped there, readable and large enough for a
            // directory.
            unsafe { to.as_mut_ptr().copy_from_nonoverlapping(at as *const u8, to.len()) };
            Ok(())
        })?;
        join(&mut Local, files.each_ref().map(AsRawFd::as_raw_fd), first.directory(), Role::Member)
    }

    /// Opens the host's files, and maps the directory.
    pub(crate) fn open(&self) -> Result<([OwnedFd; 3], First)> {
        let open = |fd: RawFd, writable: bool| {
            let path = format!("/proc/{}/fd/{fd}", self.host);
            let file = fs::OpenOptions::new().read(true).write(writable).open(&path);
            file.map(OwnedFd::from).map_err(|error| Error::system(path, &error))
        };
        let files = [open(self.files[0], false)?, open(self.files[1], true)?, open(self.files[2], true)?];
        let first = Mapping::shared(files[0].as_fd(), abi::SLOT, false, false);
        let first = First(first.map_err(|error| Error::system("mapping the sandbox region", &error))?);
        if first.directory().magic != abi::MAGIC {
            return Err(Error::new(
                Kind::Invalid,
                format!("process {} is no host of services of this version of orbit", self.host),
            ));
        }
        Ok((files, first))
    }
}

/// The first slot of a region, mapped to be read.
pub(crate) struct First(Mapping);

impl First {
    /// The directory.
    pub(crate) fn directory(&self) -> &abi::Directory {
        // SAFETY: the mapping has a slot's length, which is enough for a directory; any bytes are
        // one.
        unsafe { &*self.0.as_ptr().cast::<abi::Directory>() }
    }
}

impl std::fmt::Display for Invitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c] = self.files;
        write!(f, "{}:{a}:{b}:{c}", self.host)
    }
}

/// Whether a process has joined: it has the region mapped and catches the upcall signal. An upcall
/// in one that does not would kill it.
///
/// # Errors
/// `NotFound` when the process is gone; `System`.
pub fn has_joined(process: i32, upcall_signal: i32) -> Result<bool> {
    let failed = |file: &str, error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::new(Kind::NotFound, format!("process {process} is gone")),
        _ => Error::system(format!("reading /proc/{process}/{file}"), &error),
    };
    let caught = Status::of(process).map_err(|error| failed("status", error))?.caught_signals().unwrap_or(0);
    let mappings = maps::of(process).map_err(|error| failed("maps", error))?;
    Ok(caught >> (upcall_signal - 1) & 1 == 1 && mappings.iter().any(|mapping| mapping.start == abi::PUBLIC as u64))
}

/// Seccomp filters that judge the calls of a thread (0: the calling one); 0: none.
pub(crate) fn filters(thread: i32) -> i32 {
    let status = if thread == 0 { Status::own() } else { Status::of(thread) };
    let Ok(status) = status else { return 0 };
    match (status.field("Seccomp"), status.field("Seccomp_filters")) {
        (None | Some("0"), _) => 0,
        // Linux before 5.11 does not say how many.
        (_, count) => count.and_then(|count| count.parse().ok()).unwrap_or(-1),
    }
}

/// Whether a thread of the process has a seccomp filter of its own: it may end the process for a
/// call that an upcall makes. Filters that the host has too, as in a container, let them pass.
pub(crate) fn has_own_filter(process: i32) -> bool {
    let own = filters(0);
    let is_filtered = |thread: i32| !matches!(filters(thread), count if count == 0 || count == own && own > 0);
    procfs::ids(format!("/proc/{process}/task")).into_iter().any(is_filtered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invitations_are_read_back() {
        let invitation = Invitation { host: 4711, files: [3, 4, 5] };
        assert_eq!(Invitation::parse(&invitation.to_string()), Some(invitation));
        for bad in ["", "1:2:3", "1:2:3:4:5", "1:2:3:-4", "a:b:c:d"] {
            assert_eq!(Invitation::parse(bad), None, "{bad:?}");
        }
    }
}
