//! A directory of a server's own.

use orbit_testing::{Folder, is_root};
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

/// A new directory among the temporary ones, removed with its contents when dropped.
pub struct Directory(Folder);

impl Directory {
    /// One named for this port; it belongs to `owner` (uid, gid) where that is given.
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn new(port: &str, owner: Option<(u32, u32)>) -> Directory {
        let folder = Folder::new(port);
        if let Some((uid, gid)) = owner {
            chown(folder.path(), Some(uid), Some(gid)).expect("root may give a directory away");
        }
        Directory(folder)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// What a file in it contains; empty if there is none.
    pub fn read(&self, file: &str) -> String {
        self.0.read(file)
    }
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
