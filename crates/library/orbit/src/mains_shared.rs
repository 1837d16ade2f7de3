//! Memory that main shares with other processes (`MAP_SHARED`), as orbits have it.
//!
//! A copy of main has such memory too, the same and not a copy: what a task wrote there, main and
//! all others would read. So a template takes the right to write away before it makes orbits, or
//! all access, as [`SharedMemory`] says. A task that writes there all the same crashes, and the
//! black box says at what. What main shares with orbits itself is not among it: see
//! [`crate::shared`].

use std::io;
use std::sync::OnceLock;

use orbit_linux::{map, maps, procfs};

/// What orbits have of the memory that main shares with other processes (`MAP_SHARED`: of a file,
/// of `/dev/shm`, anonymous, or of System V) when the library is set up, or a later template is
/// made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedMemory {
    /// They read it as it is at the moment, which is not the moment of the call. Writing is a crash
    /// ([`Outcome::Crashed`](crate::Outcome::Crashed)) with a message that says so; a system call
    /// that writes there fails with `EFAULT`. So a task cannot take a lock that lies there either.
    #[default]
    ReadOnly,
    /// They read and write it as main does: a task can damage what others rely on.
    Writable,
    /// They have none of it: reading is such a crash too.
    Absent,
}

/// Ranges `(start, end)` that this process has lost rights to, ascending.
static TAKEN: OnceLock<(SharedMemory, Vec<(usize, usize)>)> = OnceLock::new();

/// Ranges `(start, end)` of all memory that this process shares; none without `/proc`.
pub(crate) fn ranges() -> Vec<(usize, usize)> {
    let text = procfs::own_text("maps").unwrap_or_default();
    let all = maps::parse(&text).unwrap_or_default();
    all.into_iter().filter(|entry| entry.shared).map(|entry| (entry.start as usize, entry.end as usize)).collect()
}

/// Called in a template, once, after [`crate::shared::shut_out`]: takes what `allowed` does not
/// allow.
///
/// # Errors
/// A mapping could not be changed: some are writable yet. Without `/proc` nothing is known of
/// mappings, and nothing is taken.
///
/// # Safety
/// This process has one thread, which uses none of that memory.
pub(crate) unsafe fn take_away(allowed: SharedMemory) -> io::Result<()> {
    let Ok(text) = procfs::own_text("maps") else { return Ok(()) };
    let mut taken = Vec::new();
    let all = maps::parse(&text)?;
    for entry in all.into_iter().filter(|entry| entry.shared) {
        let (start, end) = (entry.start as usize, entry.end as usize);
        match allowed {
            SharedMemory::Writable => continue,
            SharedMemory::ReadOnly if entry.protection & libc::PROT_WRITE == 0 => continue,
            SharedMemory::ReadOnly => {
                let protection = entry.protection & !libc::PROT_WRITE;
                // SAFETY: the caller's word; nothing here refers to it.
                unsafe { map::protect(start, end - start, protection) }?;
            }
            // SAFETY: as above. The addresses stay reserved, so that nothing of the orbit's own
            // comes to lie there.
            SharedMemory::Absent => unsafe { map::fixed_none(start, end - start) }?,
        }
        taken.push((start, end));
    }
    let _ = TAKEN.set((allowed, taken));
    Ok(())
}

/// What to say of a fault at this address, if it lies in memory that was taken away.
/// Async-signal-safe.
pub(crate) fn what_of(address: usize) -> Option<&'static str> {
    let (allowed, taken) = TAKEN.get()?;
    taken.iter().find(|(start, end)| (*start..*end).contains(&address))?;
    Some(match allowed {
        SharedMemory::Absent => {
            "the task used memory that main shares with other processes (MAP_SHARED), which orbits of this program \
             do not have: put it \
             into an area, or set the library up with other shared_memory"
        }
        _ => {
            "the task wrote to memory that main shares with other processes (MAP_SHARED), which an orbit may only \
             read: push an update, \
             or set the library up with shared_memory writable"
        }
    })
}
