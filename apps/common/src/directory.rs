//! A directory of a server's own.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new directory among the temporary ones, removed with its contents when dropped.
pub struct Directory(PathBuf);

impl Directory {
    /// One named for this port; it belongs to `owner` (uid, gid) where that is given.
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn new(port: &str, owner: Option<(u32, u32)>) -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("orbit-{port}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("a directory");
        if let Some((uid, gid)) = owner {
            chown(&directory, Some(uid), Some(gid)).expect("root may give a directory away");
        }
        Directory(directory)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What a file in it contains; empty if there is none.
    pub fn read(&self, file: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.0.join(file)).unwrap_or_default()).into_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether this process is root.
pub fn is_root() -> bool {
    orbit_linux::host::user() == 0
}

/// Uid and gid under which servers run where this process is root: those of `name`, or of nobody.
/// `None` for other users.
pub fn user_of_servers(name: &str) -> Option<(u32, u32)> {
    if !is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = passwd.lines().find(|line| line.starts_with(&format!("{name}:")));
    let number = |at: usize| line.and_then(|line| line.split(':').nth(at)?.parse().ok()).unwrap_or(65534);
    Some((number(2), number(3)))
}
