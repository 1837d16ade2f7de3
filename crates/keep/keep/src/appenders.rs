//! Whether other processes have appended to a file that the program has open for appending: such a
//! file is not cut, or their lines would be lost.
//!
//! There are three signs of it. The file's end is not where the program's own last write left it;
//! another process has it open for writing now; one has closed it after writing since the
//! checkpoint (inotify, from the first checkpoint that has the file on). Where a sign cannot be
//! read, it counts as given: lines of the program that are there twice are less than lines of
//! others that are lost.

use crate::files::FileState;
use crate::open_state::Detail;
use orbit_linux::inotify::{Change, Inotify};
use orbit_linux::procfs;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Device and inode.
pub(crate) type Id = (u64, u64);

/// Files that one program has open for appending, and who else writes to them.
#[derive(Default)]
pub(crate) struct Appenders(Mutex<Watched>);

#[derive(Default)]
struct Watched {
    /// Made with the first file.
    inotify: Option<Inotify>,
    /// Numbers of the files that are watched.
    numbers: BTreeMap<Id, i32>,
    /// When a writer was last seen to have closed a file; read some time after it did.
    closed: BTreeMap<i32, Instant>,
    /// When events were lost.
    lost: Option<Instant>,
}

impl Appenders {
    /// For each checkpoint, before the lengths of its files are read: what is closed from here on
    /// counts as closed after it.
    pub fn begin(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Has the files of a checkpoint watched, also those that are: a file may have the number of
    /// one that is gone.
    pub fn watch(&self, pid: i32, files: &[FileState]) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for file in files.iter().filter(|file| matches!(file.detail, Detail::Regular { length: Some(_), .. })) {
            if watched.inotify.is_none() {
                watched.inotify = Inotify::new().ok();
            }
            let path = format!("/proc/{pid}/fd/{}", file.fd);
            if let Some(Ok(number)) = watched.inotify.as_ref().map(|inotify| inotify.watch_writers(&path)) {
                watched.numbers.insert(file.id(), number);
            }
        }
    }

    /// Watches no others than these any more: those that a checkpoint has.
    pub fn watch_only(&self, ids: &BTreeSet<Id>) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Watched { inotify, numbers, closed, .. } = &mut *watched;
        numbers.retain(|id, number| {
            let is_kept = ids.contains(id);
            if !is_kept {
                // Fails for a file that is gone, whose watch has ended with it.
                let _ = inotify.as_ref().map(|inotify| inotify.forget(*number));
                closed.remove(number);
            }
            is_kept
        });
    }

    /// How many files are watched.
    pub fn watched(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).numbers.len()
    }

    /// Whether another process has written, or may have, since `since`: to a file that is `length`
    /// bytes long and to which the program has written last at `offset`.
    pub fn have_written(&self, pid: i32, file: &FileState, offset: u64, length: u64, since: Instant) -> bool {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watched.take();
        offset != length || watched.is_closed_since(file.id(), since) || is_open_elsewhere(pid, file.id())
    }
}

impl Watched {
    fn take(&mut self) {
        let now = Instant::now();
        for event in self.inotify.iter().flat_map(Inotify::take) {
            match event {
                Change::Closed(number) => drop(self.closed.insert(number, now)),
                Change::Lost => self.lost = Some(now),
                Change::Made(..) | Change::Removed(..) => {}
            }
        }
    }

    fn is_closed_since(&self, id: Id, since: Instant) -> bool {
        let Some(number) = self.numbers.get(&id) else { return true };
        self.closed.get(number).max(self.lost.as_ref()).is_some_and(|closed| *closed >= since)
    }
}

/// Whether a process other than this program and its keeper has the file open for writing.
/// Unreadable processes are assumed not to have it open.
fn is_open_elsewhere(program: i32, id: Id) -> bool {
    let own = std::process::id() as i32;
    let writes = |pid: i32, fd: i32| {
        let info = procfs::text(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
        flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
    };
    let is_it = |pid: i32, fd: i32| {
        fs::metadata(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|file| file.is_file() && (file.dev(), file.ino()) == id)
    };
    procfs::ids("/proc")
        .into_iter()
        .filter(|pid| *pid != program && *pid != own)
        .any(|pid| procfs::ids(format!("/proc/{pid}/fd")).into_iter().any(|fd| is_it(pid, fd) && writes(pid, fd)))
}
