//! A descriptor of the orbit's own in a process whose task may close any number and open other files under it: it is used, and
//! closed, only as long as its number still names the file that it named at first.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

pub(crate) struct Own {
    /// None only while it is dropped.
    fd: Option<OwnedFd>,
    file: File,
}

/// Which file a descriptor names: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File(libc::dev_t, libc::ino_t);

impl Own {
    pub fn new(fd: OwnedFd) -> io::Result<Own> {
        let (file, _) = file_of(fd.as_raw_fd())?;
        Ok(Own { fd: Some(fd), file })
    }

    /// The descriptor. Costs an `fstat`.
    ///
    /// # Errors
    /// Its number names nothing any more, or another file.
    pub fn get(&self) -> io::Result<BorrowedFd<'_>> {
        let Some(fd) = &self.fd else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        let is_own = file_of(fd.as_raw_fd()).is_ok_and(|(file, _)| file == self.file);
        is_own.then(|| fd.as_fd()).ok_or_else(|| {
            io::Error::other(format!("descriptor {}, which is the orbit's own, was closed by the task", fd.as_raw_fd()))
        })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.get().is_err() {
            // Closed already; what has its number now is the task's.
            std::mem::forget(self.fd.take());
        }
    }
}

/// The file of this number, and the bytes of memory that it has. Async-signal-safe.
pub(crate) fn file_of(fd: RawFd) -> io::Result<(File, usize)> {
    // SAFETY: an all-zero stat is valid, and fstat writes nothing else.
    let (stat, status) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let status = libc::fstat(fd, &mut stat);
        (stat, status)
    };
    match status {
        0 => Ok((File(stat.st_dev, stat.st_ino), stat.st_blocks as usize * 512)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_names_another_file_is_not_its_own() {
        let (mine, other) = (std::fs::File::open("/proc/self/stat"), std::fs::File::open("/proc/self/maps"));
        let (own, other) = (Own::new(mine.expect("open").into()).expect("own"), other.expect("open"));
        let number = own.get().expect("still its own").as_raw_fd();
        // SAFETY: the number is known to this test alone.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        let told = own.get().expect_err("another file").to_string();
        assert!(told.contains(&number.to_string()), "{told}");
        drop(own);
        // SAFETY: asks for a flag, and closes what the number names, which is this test's.
        assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0 && unsafe { libc::close(number) } == 0, "left open");
    }
}
