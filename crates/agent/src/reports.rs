//! Report files: one for each hang, in a folder of their own.
//!
//! Promises: the folder has mode 0700 and each file 0600, for reports hold names of functions and
//! files of other users' programs; a file appears whole; the oldest are removed beyond the bounds
//! of number and bytes, and only files that have the form of a report's name.

use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// See the module's head.
#[derive(Debug)]
pub struct Reports {
    folder: PathBuf,
    /// Reports written, so that two of one millisecond have two names.
    written: u64,
}

impl Reports {
    /// Makes the folder if there is none.
    ///
    /// # Errors
    /// It cannot be made, is no folder of this user's, or is open to others.
    pub fn open(folder: &Path) -> io::Result<Reports> {
        if !folder.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let metadata = fs::symlink_metadata(folder)?;
        let is_own = metadata.is_dir() && metadata.uid() == orbit_linux::host::user();
        if !is_own {
            return Err(io::Error::other("it is no folder of the agent's own user"));
        }
        if metadata.mode() & 0o077 != 0 {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        }
        Ok(Reports { folder: folder.to_owned(), written: 0 })
    }

    /// Writes a report, and removes the oldest beyond the bounds. Answers its file.
    ///
    /// # Errors
    /// Those of writing it; nothing of it is left then.
    pub fn write(&mut self, at: &str, pid: i32, report: &Value, most: (usize, u64)) -> io::Result<PathBuf> {
        self.written += 1;
        let time: String = at.chars().filter(char::is_ascii_alphanumeric).collect();
        let path = self.folder.join(format!("hang-{time}-{pid}-{}.json", self.written));
        let partial = path.with_extension("partial");
        let mut text = serde_json::to_vec(report)?;
        text.push(b'\n');
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&partial)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| fs::rename(&partial, &path));
        if let Err(e) = written {
            let _ = fs::remove_file(&partial);
            return Err(e);
        }
        self.remove_oldest(most)?;
        Ok(path)
    }

    fn remove_oldest(&self, (files, bytes): (usize, u64)) -> io::Result<()> {
        let is_report =
            |name: &str| name.starts_with("hang-") && [".json", ".partial"].iter().any(|end| name.ends_with(end));
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_file() && entry.file_name().to_str().is_some_and(is_report) {
                all.push((metadata.mtime(), metadata.mtime_nsec(), entry.path(), metadata.len()));
            }
        }
        all.sort();
        let mut total: u64 = all.iter().map(|(.., length)| length).sum();
        let mut count = all.len();
        for (.., path, length) in all {
            if count <= files && total <= bytes {
                break;
            }
            fs::remove_file(path)?;
            (count, total) = (count - 1, total - length);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn files_are_private_and_bounded() {
        let folder = std::env::temp_dir().join(format!("orbit-reports-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("made");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("set");
        fs::write(folder.join("notes.json"), "mine").expect("written");
        let mut reports = Reports::open(&folder).expect("a folder");
        assert_eq!(fs::metadata(&folder).expect("a folder").mode() & 0o777, 0o700);
        let mut write = |n: u64, most| {
            reports
                .write("2026-11-28T20:00:00.000Z", 7, &json!({ "n": n, "x": "y".repeat(1000) }), most)
                .expect("written")
        };
        let first = write(0, (3, 1 << 20));
        assert_eq!(fs::metadata(&first).expect("a file").mode() & 0o777, 0o600);
        assert!(first.ends_with("hang-20261128T200000000Z-7-1.json"), "{first:?}");
        let later: Vec<PathBuf> = (1..5).map(|n| write(n, (3, 1 << 20))).collect();
        assert_eq!([first.exists(), later[0].exists(), later[1].exists()], [false, false, true]);
        let last = write(5, (3, 2100));
        assert!(last.exists() && later[3].exists() && !later[2].exists(), "bounded in bytes");
        assert!(folder.join("notes.json").exists(), "what is no report stays");
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_file_is_no_folder() {
        let path = std::env::temp_dir().join(format!("orbit-reports-file-{}", std::process::id()));
        fs::write(&path, "").expect("written");
        assert!(Reports::open(&path).is_err());
        fs::remove_file(path).expect("removed");
    }
}
