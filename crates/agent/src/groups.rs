//! Control groups as they are made: a service that starts is seen at once, not by the next scan.
//!
//! Owns: the watch on the trees of control groups. Promises: nothing here decides or blocks; the
//! processes of a group are listed [`LISTINGS`] times in its first 1.3 s, for they enter it after
//! it was made. Beyond [`MAX_GROUPS`] and [`MAX_FRESH`], and where the kernel gives no watch, it
//! lists less: scans, which need none of this, see every process.

use orbit_linux::inotify::{Change, Inotify};
use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Trees that may name a service: version 2 alone, or what is beside hierarchies of version 1.
const ROOTS: [&str; 4] =
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/memory"];
/// Groups that are watched: each costs the kernel about a kilobyte.
const MAX_GROUPS: usize = 8192;
/// New groups at a time.
const MAX_FRESH: usize = 64;
/// From when a group was made until its processes are listed first; each further time is twice as
/// long after it.
const FIRST_LISTING: Duration = Duration::from_millis(20);
/// How often the processes of a new group are listed.
const LISTINGS: u32 = 7;

#[derive(Debug)]
struct Fresh {
    path: PathBuf,
    made: Instant,
    listings: u32,
}

impl Fresh {
    fn due(&self) -> Instant {
        self.made + FIRST_LISTING * (1 << self.listings)
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Groups {
    inotify: Option<Inotify>,
    roots: Vec<PathBuf>,
    folders: HashMap<i32, PathBuf>,
    numbers: HashMap<PathBuf, i32>,
    fresh: Vec<Fresh>,
}

impl Groups {
    /// Watches this machine's groups.
    pub fn open() -> Groups {
        Groups::of(ROOTS.iter().map(PathBuf::from).collect())
    }

    fn of(mut roots: Vec<PathBuf>) -> Groups {
        roots.retain(|root| root.join("cgroup.procs").exists());
        let mut groups = Groups { inotify: Inotify::new().ok(), roots, ..Groups::default() };
        groups.enter_all();
        groups
    }

    /// Is readable when there is something to take.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// When [`Groups::processes`] has something to list next.
    pub fn due(&self) -> Option<Instant> {
        self.fresh.iter().map(Fresh::due).min()
    }

    /// The processes of new groups whose time has come.
    pub fn processes(&mut self) -> Vec<i32> {
        self.take();
        let now = Instant::now();
        let mut pids = Vec::new();
        for fresh in self.fresh.iter_mut().filter(|fresh| fresh.due() <= now) {
            // One that is gone has none.
            let list = fs::read_to_string(fresh.path.join("cgroup.procs")).unwrap_or_default();
            // 0 is one outside of this pid namespace.
            pids.extend(list.lines().filter_map(|line| line.parse().ok()).filter(|pid: &i32| *pid > 0));
            while fresh.listings < LISTINGS && fresh.due() <= now {
                fresh.listings += 1;
            }
        }
        self.fresh.retain(|fresh| fresh.listings < LISTINGS);
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn take(&mut self) {
        for change in self.inotify.as_ref().map(Inotify::take).unwrap_or_default() {
            match change {
                Change::Made(parent, name) => {
                    if let Some(path) = self.folders.get(&parent).map(|parent| parent.join(name)) {
                        self.enter(path, true);
                    }
                }
                Change::Removed(parent, name) => {
                    if let Some(path) = self.folders.get(&parent).map(|parent| parent.join(name)) {
                        self.leave(&path);
                    }
                }
                Change::Lost => self.enter_all(),
                Change::Closed(_) => {}
            }
        }
    }

    fn enter_all(&mut self) {
        for root in self.roots.clone() {
            self.enter(root, false);
        }
    }

    /// Watches a group and those below it. Watched first, then listed: none is missed between.
    fn enter(&mut self, path: PathBuf, is_new: bool) {
        let Some(inotify) = &self.inotify else { return };
        if !self.numbers.contains_key(&path) {
            if is_new && self.fresh.len() < MAX_FRESH {
                self.fresh.push(Fresh { path: path.clone(), made: Instant::now(), listings: 0 });
            }
            if self.numbers.len() >= MAX_GROUPS {
                return;
            }
            // Gone again, or the user's limit of watches.
            let Ok(number) = inotify.watch_folders(&path) else { return };
            self.folders.insert(number, path.clone());
            self.numbers.insert(path.clone(), number);
        }
        let below: Vec<PathBuf> =
            fs::read_dir(&path).into_iter().flatten().flatten().filter(is_folder).map(|e| e.path()).collect();
        for path in below {
            self.enter(path, is_new);
        }
    }

    fn leave(&mut self, path: &Path) {
        self.fresh.retain(|fresh| fresh.path != path);
        if let Some(number) = self.numbers.remove(path) {
            self.folders.remove(&number);
            // Ended with its group already, on some kernels.
            let _ = self.inotify.as_ref().map(|inotify| inotify.forget(number));
        }
    }
}

fn is_folder(entry: &fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree as the kernel's, with one group.
    fn tree(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("orbit-groups-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("old")).expect("made");
        fs::write(root.join("cgroup.procs"), "1\n").expect("written");
        fs::write(root.join("old/cgroup.procs"), "2\n").expect("written");
        root
    }

    fn listed(groups: &mut Groups) -> Vec<i32> {
        let start = Instant::now();
        loop {
            let pids = groups.processes();
            if !pids.is_empty() {
                return pids;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "never listed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn processes_that_enter_a_group_after_it_was_made_are_listed_and_old_ones_are_not() {
        let root = tree("late");
        let mut groups = Groups::of(vec![root.clone()]);
        assert_eq!((groups.processes(), groups.due()), (vec![], None));
        let path = root.join("old/a.service/inner");
        fs::create_dir_all(&path).expect("made");
        groups.processes();
        assert!(groups.due().is_some());
        // It is written before the last listing, which is 1.3 s later.
        fs::write(path.join("cgroup.procs"), "0\n7\n6\n").expect("written");
        assert_eq!(listed(&mut groups), [6, 7]);
        let start = Instant::now();
        while groups.due().is_some() {
            groups.processes();
            assert!(start.elapsed() < Duration::from_secs(60), "listed without end");
            std::thread::sleep(Duration::from_millis(5));
        }
        fs::remove_dir_all(root).expect("removed");
    }

    #[test]
    fn groups_that_are_gone_leave_nothing_and_come_again_as_new_ones() {
        let root = tree("again");
        let mut groups = Groups::of(vec![root.clone(), root.join("none")]);
        let path = root.join("b.service");
        for pid in 3..6 {
            fs::create_dir(&path).expect("made");
            fs::write(path.join("cgroup.procs"), pid.to_string()).expect("written");
            assert_eq!(listed(&mut groups), [pid]);
            assert_eq!(groups.numbers.len(), 3);
            fs::remove_dir_all(&path).expect("removed");
            groups.processes();
            assert_eq!((groups.numbers.len(), groups.folders.len(), groups.due()), (2, 2, None));
        }
        fs::remove_dir_all(root).expect("removed");
    }

    #[test]
    fn more_new_groups_than_are_followed_are_left_to_the_scans() {
        let root = tree("many");
        let mut groups = Groups::of(vec![root.clone()]);
        for n in 0..2 * MAX_FRESH {
            fs::create_dir(root.join(format!("{n}.scope"))).expect("made");
        }
        groups.processes();
        assert_eq!((groups.fresh.len(), groups.numbers.len()), (MAX_FRESH, 2 + 2 * MAX_FRESH));
        fs::remove_dir_all(root).expect("removed");
    }
}
