//! A folder of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new, empty folder, removed with its contents when dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// One among the temporary ones; its name has `orbit-`, this name, the process and a number.
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn new(name: &str) -> Folder {
        Folder::within(&std::env::temp_dir(), name)
    }

    /// One in this folder, for programs that have to lie on the disk (`CARGO_TARGET_TMPDIR`).
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn within(parent: &Path, name: &str) -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("orbit-{name}-{}-{number}", std::process::id()));
        // What a process of this number left that was killed.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        Folder(folder)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in it.
    pub fn join(&self, file: impl AsRef<Path>) -> PathBuf {
        self.0.join(file)
    }

    /// What a file in it contains; empty if there is none.
    pub fn read(&self, file: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.0.join(file)).unwrap_or_default()).into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::Folder;

    #[test]
    fn two_folders_of_one_name_are_two_and_are_removed_with_their_files() {
        let (one, two) = (Folder::new("testing"), Folder::new("testing"));
        assert_ne!(one.path(), two.path());
        std::fs::write(one.join("file"), "text").expect("written");
        assert_eq!((one.read("file"), two.read("file")), ("text".to_owned(), String::new()));
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && two.path().exists());
    }
}
