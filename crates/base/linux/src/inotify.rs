//! Files that the kernel reports as closed after writing, and folders made in folders.
//!
//! Owns the descriptor. Promises: nothing here blocks; a queue that has overflowed is reported as
//! such, never as silence.

use crate::{Support, check_int};
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Of an event: four words, and a name whose length is the last of them.
const HEAD: usize = 16;
const ROOM: usize = 16 << 10;

/// Watched files and folders. May be used from several threads.
#[derive(Debug)]
pub struct Inotify(OwnedFd);

/// Something that was reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A writer closed the file with this number, as [`Inotify::watch_writers`] gave it.
    Closed(i32),
    /// A folder of this name was made in the one with this number, as
    /// [`Inotify::watch_folders`] gave it, or moved there.
    Made(i32, OsString),
    /// A folder of this name was removed from the one with this number, or moved away. The kernel
    /// does not say it of the folder itself where it is a control group.
    Removed(i32, OsString),
    /// Events were lost: anything may have happened.
    Lost,
}

impl Inotify {
    /// One that watches nothing yet.
    ///
    /// # Errors
    /// `EMFILE`: the user has as many as `fs.inotify.max_user_instances` allows.
    pub fn new() -> io::Result<Inotify> {
        // SAFETY: an integer.
        let fd = check_int(unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) })?;
        // SAFETY: the kernel just made this descriptor for us.
        Ok(Inotify(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches a file, which a symbolic link of `/proc` may name; gives its number, that of before
    /// if it is watched already.
    ///
    /// # Errors
    /// `ENOENT`, `EACCES`; `ENOSPC`: the user watches as many as `fs.inotify.max_user_watches`
    /// allows; `EINVAL`: the path has a zero byte.
    pub fn watch_writers(&self, path: &str) -> io::Result<i32> {
        self.watch(path.as_ref(), libc::IN_CLOSE_WRITE)
    }

    /// Watches a folder for folders that are made in it or removed; gives its number, that of
    /// before if it is watched already.
    ///
    /// # Errors
    /// As [`Inotify::watch_writers`]; `ENOTDIR`.
    pub fn watch_folders(&self, path: &Path) -> io::Result<i32> {
        let changes = libc::IN_CREATE | libc::IN_MOVED_TO | libc::IN_DELETE | libc::IN_MOVED_FROM;
        self.watch(path, changes | libc::IN_ONLYDIR)
    }

    fn watch(&self, path: &Path, mask: u32) -> io::Result<i32> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: a string that lives through the call.
        check_int(unsafe { libc::inotify_add_watch(self.0.as_raw_fd(), path.as_ptr(), mask) })
    }

    /// Watches the file or folder with this number no more.
    ///
    /// # Errors
    /// `EINVAL`: it is not watched, or is gone.
    pub fn forget(&self, number: i32) -> io::Result<()> {
        // SAFETY: integers.
        check_int(unsafe { libc::inotify_rm_watch(self.0.as_raw_fd(), number) }).map(|_| ())
    }

    /// Takes what has been reported since the last time.
    pub fn take(&self) -> Vec<Change> {
        let (mut all, mut room) = (Vec::new(), [0u8; ROOM]);
        loop {
            // SAFETY: room for as many bytes as are asked for.
            let n = unsafe { libc::read(self.0.as_raw_fd(), room.as_mut_ptr().cast(), ROOM) };
            let Some(mut left) = usize::try_from(n).ok().filter(|n| *n > 0).and_then(|n| room.get(..n)) else {
                return all;
            };
            while left.len() >= HEAD {
                let word = |at: usize| u32::from_ne_bytes(left[at..at + 4].try_into().unwrap_or_default());
                let (number, mask, end) = (word(0) as i32, word(4), HEAD + word(12) as usize);
                // Filled up with zeros.
                let name = left.get(HEAD..end).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
                let name = || OsStr::from_bytes(name).to_owned();
                let has = |bits: u32| mask & bits != 0;
                match mask & libc::IN_ISDIR != 0 {
                    _ if has(libc::IN_Q_OVERFLOW) => all.push(Change::Lost),
                    _ if has(libc::IN_CLOSE_WRITE) => all.push(Change::Closed(number)),
                    true if has(libc::IN_CREATE | libc::IN_MOVED_TO) => all.push(Change::Made(number, name())),
                    true if has(libc::IN_DELETE | libc::IN_MOVED_FROM) => all.push(Change::Removed(number, name())),
                    _ => {}
                }
                left = left.get(end..).unwrap_or_default();
            }
        }
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes one.
pub fn probe() -> Support {
    Support::from_result("inotify", Inotify::new().map(drop), |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_closes_is_reported_and_a_reader_is_not() {
        let path = std::env::temp_dir().join(format!("orbit-inotify-{}", std::process::id()));
        std::fs::write(&path, "x").expect("written");
        let inotify = Inotify::new().expect("an instance");
        let number = inotify.watch_writers(path.to_str().expect("a name")).expect("watched");
        std::fs::read(&path).expect("read");
        assert_eq!(inotify.take(), []);
        std::fs::OpenOptions::new().append(true).open(&path).expect("opened");
        assert_eq!(inotify.take(), [Change::Closed(number)]);
        assert_eq!(inotify.take(), []);
        inotify.forget(number).expect("it was watched");
        std::fs::OpenOptions::new().append(true).open(&path).expect("opened");
        assert_eq!(inotify.take(), []);
        std::fs::remove_file(path).expect("removed");
    }
    #[test]
    fn folders_that_are_made_and_removed_are_reported_and_files_are_not() {
        let path = std::env::temp_dir().join(format!("orbit-inotify-folders-{}", std::process::id()));
        std::fs::create_dir(&path).expect("made");
        let inotify = Inotify::new().expect("an instance");
        let number = inotify.watch_folders(&path).expect("watched");
        std::fs::write(path.join("file"), "x").expect("written");
        assert_eq!(inotify.take(), []);
        let (inner, moved) = (path.join("inner"), path.join("moved"));
        std::fs::create_dir(&inner).expect("made");
        assert_eq!(inotify.take(), [Change::Made(number, "inner".into())]);
        std::fs::rename(&inner, &moved).expect("moved");
        std::fs::remove_dir(&moved).expect("removed");
        let moved = || "moved".into();
        let all =
            [Change::Removed(number, "inner".into()), Change::Made(number, moved()), Change::Removed(number, moved())];
        assert_eq!(inotify.take(), all);
        assert!(inotify.watch_folders(&path.join("file")).is_err());
        std::fs::remove_dir_all(path).expect("removed");
    }
}
