//! Owners of services that a configuration names: by number, by the file that has it, or by the
//! control group that they are in, as a unit of systemd is. Asked again and again, since programs
//! start late, exit and are started anew.

use orbit_linux::stat::Stat;
use std::path::{Path, PathBuf};

/// Where control groups are mounted, by version 2 and by version 1.
const ROOTS: [&str; 3] = ["/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"];

/// An owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This process.
    Process(i32),
    /// The process whose number the file has.
    File(PathBuf),
    /// The first process of this control group, a path below the mount.
    Group(PathBuf),
}

impl Owner {
    /// Reads `unit:NAME`, `cgroup:PATH`, or the path of a file, beside `folder` or absolute.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, folder: &Path) -> Result<Owner, String> {
        if let Some(unit) = text.strip_prefix("unit:") {
            if unit.is_empty() || unit.contains('/') {
                return Err(format!("{unit:?} is no name of a unit: write unit:nginx.service"));
            }
            return Ok(Owner::Group(Path::new("system.slice").join(unit)));
        }
        if let Some(group) = text.strip_prefix("cgroup:") {
            return Ok(Owner::Group(PathBuf::from(group.trim_start_matches('/'))));
        }
        if text.is_empty() {
            return Err("the owner is empty: write a number, a file, unit:NAME or cgroup:PATH".to_owned());
        }
        Ok(Owner::File(folder.join(text)))
    }

    /// Its process, if it is there.
    pub fn process(&self) -> Option<i32> {
        let process = match self {
            Owner::Process(process) => *process,
            Owner::File(file) => std::fs::read_to_string(file).ok()?.trim().parse().ok()?,
            Owner::Group(group) => first_of(group)?,
        };
        Stat::of(process).is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X')).then_some(process)
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::Process(process) => write!(f, "process {process}"),
            Owner::File(file) => write!(f, "the process of {}", file.display()),
            Owner::Group(group) => write!(f, "the control group {}", group.display()),
        }
    }
}

/// The process of a group whose parent is not in it; of several, the one that began first.
fn first_of(group: &Path) -> Option<i32> {
    let text =
        ROOTS.iter().find_map(|root| std::fs::read_to_string(Path::new(root).join(group).join("cgroup.procs")).ok());
    let all: Vec<i32> = text?.lines().filter_map(|line| line.parse().ok()).collect();
    let firsts = all.iter().filter_map(|process| {
        let stat = Stat::of(*process).ok()?;
        (!all.contains(&stat.parent)).then_some((stat.started_ticks, *process))
    });
    firsts.min().map(|(_, process)| process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read_and_found_when_they_are_there() {
        let file = std::env::temp_dir().join(format!("orbit-owner-{}", std::process::id()));
        let owner = Owner::parse(file.to_str().expect("text"), Path::new("/")).expect("an owner");
        assert_eq!(owner.process(), None, "no file yet");
        std::fs::write(&file, format!("{}\n", std::process::id())).expect("written");
        assert_eq!(owner.process(), Some(std::process::id() as i32));
        std::fs::write(&file, "4194304\n").expect("written");
        assert_eq!(owner.process(), None, "no process has this number");
        std::fs::remove_file(file).expect("removed");
        let unit = Owner::parse("unit:nginx.service", Path::new("/"));
        assert_eq!(unit, Ok(Owner::Group("system.slice/nginx.service".into())));
        assert_eq!(Owner::parse("cgroup:/a/b", Path::new("/")), Ok(Owner::Group("a/b".into())));
        assert!(Owner::parse("unit:a/b", Path::new("/")).is_err());
    }
}
