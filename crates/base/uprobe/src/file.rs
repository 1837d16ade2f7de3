//! A file whose code is probed.
//!
//! Owns: its descriptor, opened once, when a function is found in it. Promises: whatever comes to
//! stand under its name later, an upgrade or what a program makes there on purpose, is
//! neither probed nor opened. Refuses: what is no plain file, and another one than is mapped.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// A file whose code is probed.
#[derive(Debug)]
pub struct CodeFile {
    name: PathBuf,
    identity: (u64, u64),
    fd: OwnedFd,
}

impl CodeFile {
    /// Opens it by this name, if that leads to the file with this device and inode: those of the
    /// mapping that holds the code.
    ///
    /// # Errors
    /// Those of opening it; `InvalidInput` where it is another file, or no plain one.
    pub fn open(name: &Path, (dev, ino): (u64, u64)) -> io::Result<CodeFile> {
        // Nothing happens to what is opened so, be it a device.
        let file = File::options().read(true).custom_flags(libc::O_PATH).open(name)?;
        let is = file.metadata()?;
        // File systems that have no device of their own (btrfs, overlayfs) may say one here and
        // another in maps, where it may be that of the file system below.
        let same = is.ino() == ino && (is.dev() == dev || libc::major(is.dev()) == 0 || libc::major(dev) == 0);
        if !is.is_file() || !same && !is_mapping(name) {
            let why = format!("{} is no longer the file that is mapped", name.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(CodeFile { name: name.to_owned(), identity: (is.dev(), is.ino()), fd: file.into() })
    }

    /// The name it was opened by.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Tells it from others for as long as it is open.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// A name by which this process can open it now.
    pub(crate) fn here(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }
}

impl AsFd for CodeFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether a name is the kernel's for what is mapped: `/proc/PID/map_files/..`.
fn is_mapping(name: &Path) -> bool {
    let mut parts = name.components();
    parts.next() == Some(Component::RootDir)
        && parts.next().is_some_and(|p| p.as_os_str() == "proc")
        && parts.nth(1).is_some_and(|p| p.as_os_str() == "map_files")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_that_is_mapped() {
        let name = std::env::temp_dir().join(format!("orbit-code-file-{}", std::process::id()));
        std::fs::write(&name, b"code").expect("a file");
        let is = std::fs::metadata(&name).expect("it is there");
        let identity = (is.dev(), is.ino());
        let file = CodeFile::open(&name, identity).expect("the same file");
        let other = CodeFile::open(&name, (is.dev(), is.ino() + 1));
        std::fs::remove_file(&name).expect("it is there");
        assert_eq!(other.expect_err("another file").kind(), io::ErrorKind::InvalidInput);
        // What is under its name now is none of its business.
        std::fs::write(&name, b"other").expect("a file");
        assert_eq!(std::fs::read(file.here()).expect("its contents"), b"code");
        std::fs::remove_file(&name).expect("it is there");
        // Neither a device nor a directory, whatever they are said to be.
        for name in ["/dev/null", "/"] {
            let is = std::fs::metadata(name).expect("it is there");
            assert!(CodeFile::open(Path::new(name), (is.dev(), is.ino())).is_err(), "{name}");
        }
        assert!(is_mapping(Path::new("/proc/1/map_files/1000-2000")));
        assert!(!is_mapping(Path::new("/proc/1/cwd/map_files/1000-2000")));
    }
}
