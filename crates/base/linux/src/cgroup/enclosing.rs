//! The control groups a process is in that have a limit of memory, and the memory left in each.

use std::fs;
use std::path::{Path, PathBuf};

use super::Bases;

/// A limit from here on is none (version 1 writes the largest whole page).
const NO_LIMIT: u64 = 1 << 60;

/// A control group with a limit of memory which the calling process is in, itself or by a group
/// below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enclosing {
    dir: PathBuf,
    unified: bool,
}

impl Enclosing {
    /// Those there are now, the innermost first. Empty where no control groups can be seen.
    pub fn all() -> Vec<Enclosing> {
        let (bases, _) = Bases::find();
        let unified = bases.unified.first().map(|dir| (dir, true));
        let chains = unified.into_iter().chain(bases.memory.as_ref().map(|dir| (dir, false)));
        let groups = chains.flat_map(|(dir, unified)| {
            let above = dir.ancestors().take_while(|dir| dir.join("cgroup.procs").exists());
            above.map(move |dir| Enclosing { dir: dir.to_path_buf(), unified })
        });
        groups.filter(|group| group.limit().is_some()).collect()
    }

    /// The group's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the kernel kills all processes of the group together when it is out of memory.
    pub fn is_killed_as_a_whole(&self) -> bool {
        self.unified && self.number("memory.oom.group") == Some(1)
    }

    /// Its limit in bytes; `None` if it has none now.
    pub fn limit(&self) -> Option<u64> {
        let file = if self.unified { "memory.max" } else { "memory.limit_in_bytes" };
        self.number(file).filter(|limit| *limit < NO_LIMIT)
    }

    /// Bytes that may still be used: what pages of files take is given back when it is needed.
    /// `None` where that cannot be read.
    pub fn room(&self) -> Option<u64> {
        let limit = self.limit()?;
        let used = self.number(if self.unified { "memory.current" } else { "memory.usage_in_bytes" })?;
        let stat = fs::read_to_string(self.dir.join("memory.stat")).ok()?;
        let prefix = if self.unified { "" } else { "total_" };
        let of_files: u64 = stat
            .lines()
            .filter_map(|line| line.strip_prefix(prefix)?.split_once(' '))
            .filter(|(name, _)| matches!(*name, "inactive_file" | "active_file"))
            .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
            .sum();
        Some(limit.saturating_sub(used.saturating_sub(of_files)))
    }

    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.dir.join(file)).ok()?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_files_count_as_room() {
        let dir = std::env::temp_dir().join(format!("orbit-room-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let put = |file: &str, text: &str| fs::write(dir.join(file), text).expect("a file");
        put("memory.max", "1000\n");
        put("memory.current", "900\n");
        put("memory.stat", "anon 500\ninactive_file 150\nactive_file 200\n");
        put("memory.oom.group", "1\n");
        let new = Enclosing { dir: dir.clone(), unified: true };
        let of_new = (new.limit(), new.room(), new.is_killed_as_a_whole());
        put("memory.limit_in_bytes", "1000\n");
        put("memory.usage_in_bytes", "900\n");
        put("memory.stat", "inactive_file 5\ntotal_inactive_file 150\ntotal_active_file 200\n");
        let old = Enclosing { dir: dir.clone(), unified: false };
        let of_old = (old.limit(), old.room(), old.is_killed_as_a_whole());
        put("memory.limit_in_bytes", "9223372036854771712\n");
        let unlimited = (old.limit(), old.room());
        let _ = fs::remove_dir_all(&dir);
        assert_eq!(of_new, (Some(1000), Some(450), true));
        assert_eq!(of_old, (Some(1000), Some(450), false));
        assert_eq!(unlimited, (None, None));
    }
}
