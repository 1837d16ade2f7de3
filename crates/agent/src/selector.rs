//! Which processes of the node are watched.
//!
//! Owns: the processes that are known, with what was decided about each, and a descriptor of each
//! that is watched. Promises: a process is known by its number and the time of its start, so that
//! a later one of the same number is a new one; a process that may not be read, or whose policy
//! cannot be decided, is kept with the reason; threads of the kernel and Orbit's own processes are
//! left out. A scan reads the list of processes; each new one is read whole, each other one in
//! every eighth scan, for it may have moved or become another program. Between two scans those of
//! new control groups are read.

use crate::identity::{self, Names};
use crate::kubernetes::pods::Pods;
use crate::policy::{Choice, Config, Subject};
use orbit_linux::stat::Stat;
use orbit_linux::status::Status;
use orbit_linux::{host, pidfd, procfs};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A process that is watched.
#[derive(Debug)]
pub struct Watched {
    /// When it was started, in the kernel's ticks.
    pub started: u64,
    /// What holds it.
    pub pidfd: OwnedFd,
    /// What is known of it.
    pub subject: Subject,
    /// The place of its policy.
    pub policy: usize,
}

/// A process that a policy selects and that is not watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwatched {
    /// What is known of it.
    pub service: String,
    /// Its name.
    pub command: String,
    /// The policy's name.
    pub policy: String,
    /// Why it is not watched.
    pub why: String,
}

/// What a scan changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Watched from now on.
    pub added: Vec<i32>,
    /// Watched no more: ended, or no longer selected.
    pub removed: Vec<i32>,
}

#[derive(Debug)]
struct Known {
    started: u64,
    scans: u64,
    /// Why it cannot be watched, as was found while it was.
    refused: Option<String>,
}

/// See the module's head.
#[derive(Debug)]
pub struct Selector {
    known: HashMap<i32, Known>,
    watched: BTreeMap<i32, Watched>,
    unwatched: BTreeMap<i32, Unwatched>,
    names: HashMap<String, Names>,
    scans: u64,
    own: Option<(u64, u64)>,
    logs: PathBuf,
    pods: Option<Pods>,
}

/// Scans after which a process is taken to be what it will stay.
const NEW_SCANS: u64 = 10;
/// Afterwards it is read again in one of so many scans.
const REREAD_EVERY: u64 = 8;
const MAX_NAMES: usize = 10_000;

impl Selector {
    /// A selector that knows nothing yet, with the pods of the node where they are listed.
    pub fn new(pods: Option<Pods>) -> Selector {
        let own = fs::metadata("/proc/self/exe").ok().map(|m| (m.dev(), m.ino()));
        Selector {
            known: HashMap::new(),
            watched: BTreeMap::new(),
            unwatched: BTreeMap::new(),
            names: HashMap::new(),
            scans: 0,
            own,
            logs: "/var/log/containers".into(),
            pods,
        }
    }

    /// The watched processes.
    pub fn watched(&self) -> &BTreeMap<i32, Watched> {
        &self.watched
    }

    /// Selected processes that are not watched.
    pub fn unwatched(&self) -> &BTreeMap<i32, Unwatched> {
        &self.unwatched
    }

    /// Notes that a process that was selected cannot be watched.
    pub fn refuse(&mut self, pid: i32, config: &Config, why: &str) {
        if let Some(watched) = self.watched.remove(&pid) {
            let policy = config.policies.get(watched.policy).map_or("", |policy| &policy.name);
            self.unwatched.insert(pid, unwatched(&watched.subject, policy, why));
            if let Some(known) = self.known.get_mut(&pid) {
                known.refused = Some(why.to_owned());
            }
        }
    }

    /// Has the next scan decide about every process anew: the policies are others. What is watched
    /// stays so until then.
    pub fn forget_decisions(&mut self) {
        self.known.clear();
        self.unwatched.clear();
    }

    /// Scans once.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn scan(&mut self, config: &Config) -> io::Result<Changes> {
        self.scans += 1;
        let pids = procfs::ids_in("/proc")?;
        let there: BTreeSet<i32> = pids.iter().copied().collect();
        let mut changes = Changes::default();
        self.known.retain(|pid, _| there.contains(pid));
        self.unwatched.retain(|pid, _| there.contains(pid));
        let ended: Vec<i32> =
            self.watched.iter().filter(|(_, w)| pidfd::has_ended(w.pidfd.as_fd())).map(|(pid, _)| *pid).collect();
        for pid in ended {
            self.drop_watched(pid, &mut changes);
            self.known.remove(&pid);
        }
        for pid in pids {
            let is_due = self
                .known
                .get(&pid)
                .is_none_or(|known| known.scans < NEW_SCANS || (self.scans + pid as u64).is_multiple_of(REREAD_EVERY));
            if is_due {
                self.read(pid, config, &mut changes);
                if let Some(known) = self.known.get_mut(&pid) {
                    known.scans += 1;
                }
            }
        }
        if self.names.len() > MAX_NAMES {
            self.names.clear();
        }
        Ok(changes)
    }

    /// Reads these processes now.
    pub fn read_now(&mut self, pids: &[i32], config: &Config) -> Changes {
        let mut changes = Changes::default();
        for pid in pids {
            self.read(*pid, config, &mut changes);
        }
        changes
    }

    fn drop_watched(&mut self, pid: i32, changes: &mut Changes) {
        if self.watched.remove(&pid).is_some() {
            changes.removed.push(pid);
        }
    }

    /// Reads a process and decides about it.
    fn read(&mut self, pid: i32, config: &Config, changes: &mut Changes) {
        // Held first: what is read afterwards is of this process, if it still lives then.
        let Ok(stat) = Stat::of(pid) else { return };
        let known = self.known.entry(pid).or_insert(Known { started: stat.started_ticks, scans: 0, refused: None });
        let is_another = known.started != stat.started_ticks
            || self.watched.get(&pid).is_some_and(|watched| watched.started != stat.started_ticks);
        let refused = known.refused.clone();
        if is_another {
            self.known.insert(pid, Known { started: stat.started_ticks, scans: 0, refused: None });
            self.drop_watched(pid, changes);
        }
        self.unwatched.remove(&pid);
        if stat.has_ended() || stat.is_exiting() || stat.is_kernel_thread() || pid == std::process::id() as i32 {
            return self.drop_watched(pid, changes);
        }
        let Ok(text) = procfs::text(format!("/proc/{pid}/cgroup")) else { return };
        let identity = identity::of_process(&text);
        let names = identity.container.clone().filter(|_| identity.pod.is_some()).and_then(|id| self.names_of(&id));
        let user = Status::of(pid).ok().and_then(|status| status.effective_user());
        let listed = self.pods.as_ref().zip(identity.pod.as_ref()).map(|(pods, uid)| pods.of(uid));
        let subject = Subject { identity, names, command: stat.name, user, listed };
        let name = |at: usize| config.policies.get(at).map_or("", |policy| &policy.name);
        let (policy, why) = match config.choose(&subject) {
            Choice::None | Choice::Excluded => return self.drop_watched(pid, changes),
            Choice::Undecided(at, why) => (at, Some(why)),
            Choice::Policy(at) if self.watched.contains_key(&pid) => (at, None),
            Choice::Policy(at) if refused.is_some() && !is_another => (at, refused),
            Choice::Policy(_) if self.is_own(pid) => return,
            Choice::Policy(at) if self.watched.len() >= config.limits.processes => {
                (at, Some(format!("{} processes are watched: limits.processes", self.watched.len())))
            }
            Choice::Policy(at) => (at, may_inspect(pid).err()),
        };
        if let Some(why) = why {
            self.drop_watched(pid, changes);
            self.unwatched.insert(pid, unwatched(&subject, name(policy), &why));
            return;
        }
        if let Some(watched) = self.watched.get_mut(&pid) {
            (watched.subject, watched.policy) = (subject, policy);
            return;
        }
        let held = pidfd::open(pid);
        match held {
            // Still the one that was read: a descriptor of a later one of its number differs in
            // its start.
            Ok(pidfd) if Stat::of(pid).is_ok_and(|now| now.started_ticks == stat.started_ticks) => {
                self.watched.insert(pid, Watched { started: stat.started_ticks, pidfd, subject, policy });
                changes.added.push(pid);
            }
            Ok(_) => {
                self.known.remove(&pid);
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                self.known.remove(&pid);
            }
            Err(e) => {
                self.unwatched.insert(pid, unwatched(&subject, name(policy), &format!("it cannot be held: {e}")));
            }
        }
    }

    fn names_of(&mut self, id: &str) -> Option<Names> {
        if let Some(names) = self.names.get(id) {
            return Some(names.clone());
        }
        let names = identity::names(id, &self.logs)?;
        self.names.insert(id.to_owned(), names.clone());
        Some(names)
    }

    /// Whether it runs this program: the agent's modules, other commands of Orbit.
    fn is_own(&self, pid: i32) -> bool {
        let exe = fs::metadata(format!("/proc/{pid}/exe")).ok().map(|m| (m.dev(), m.ino()));
        exe.is_some() && exe == self.own
    }
}

fn unwatched(subject: &Subject, policy: &str, why: &str) -> Unwatched {
    Unwatched {
        service: service(subject),
        command: subject.command.clone(),
        policy: policy.to_owned(),
        why: why.to_owned(),
    }
}

/// The service of a process in words, the same for all of its processes.
pub fn service(of: &Subject) -> String {
    let id = &of.identity;
    match (&of.names, &id.container, &id.user_unit, &id.unit) {
        (Some(names), ..) => format!("{}/{}/{}", names.namespace, names.pod, names.container),
        (None, Some(container), _, Some(unit)) => format!("{unit}/{}", container.get(..12).unwrap_or(container)),
        (None, Some(container), ..) => format!("container {}", container.get(..12).unwrap_or(container)),
        (None, None, Some(user_unit), Some(unit)) => format!("{unit}/{user_unit}"),
        (None, None, _, Some(unit)) => unit.clone(),
        (None, None, _, None) if !["", "/"].contains(&id.cgroup.as_str()) => format!("{} in {}", of.command, id.cgroup),
        (None, None, _, None) => of.command.clone(),
    }
}

const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_SYS_PTRACE: u32 = 19;

/// Whether the threads of a process may be inspected; else which right is missing, by name.
///
/// # Errors
/// A sentence.
pub fn may_inspect(pid: i32) -> Result<(), String> {
    for tid in procfs::ids(format!("/proc/{pid}/task")) {
        match fs::read(format!("/proc/{pid}/task/{tid}/syscall")) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(missing_right()),
            // A thread that has just ended.
            Err(_) => {}
        }
    }
    Err("its threads cannot be read: it ends, or the kernel does not show what they wait for".into())
}

fn missing_right() -> String {
    let has_ptrace = host::has_capability(CAP_SYS_PTRACE);
    let has_read = host::has_capability(CAP_DAC_READ_SEARCH) || host::has_capability(CAP_DAC_OVERRIDE);
    let missing = match (has_ptrace, has_read) {
        (true, true) => return "the kernel forbids it (a security module, or another user namespace)".into(),
        (false, false) => "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
        (false, true) => "CAP_SYS_PTRACE",
        (true, false) => "CAP_DAC_READ_SEARCH (files of other users' processes have mode 0400)",
    };
    format!("the agent lacks {missing}: AmbientCapabilities= and CapabilityBoundingSet= of its unit give it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    struct Owned(Child);

    impl Drop for Owned {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A process of a name that no other has.
    fn named(name: &str) -> (Owned, i32, tempfile::Folder) {
        let folder = tempfile::Folder::new(name);
        let program = folder.0.join(name);
        orbit_testing::copy_of_program("/bin/sleep".as_ref(), &program);
        let child = Command::new(&program).arg("1000").spawn().expect("started");
        let pid = child.id() as i32;
        (Owned(child), pid, folder)
    }

    mod tempfile {
        pub struct Folder(pub std::path::PathBuf);

        impl Folder {
            pub fn new(name: &str) -> Folder {
                let path = std::env::temp_dir().join(format!("orbit-{name}-{}", std::process::id()));
                std::fs::create_dir_all(&path).expect("made");
                Folder(path)
            }
        }

        impl Drop for Folder {
            fn drop(&mut self) {
                let _ = std::fs::remove_dir_all(&self.0);
            }
        }
    }

    fn config(name: &str, text: &str) -> Config {
        let folder = tempfile::Folder::new(&format!("{name}-config"));
        let path = folder.0.join("agent.toml");
        fs::write(&path, text).expect("written");
        Config::read(&path).expect("sound")
    }

    fn policy(command: &str) -> String {
        format!("[[policy]]\nname = \"p\"\nmatch = {{ command = \"{command}\" }}\n")
    }

    #[test]
    fn what_is_selected_is_added_once_and_removed_at_its_end() {
        let (child, pid, _folder) = named("oa-select");
        let config = config("oa-select", &policy("oa-select"));
        let mut selector = Selector::new(None);
        // It may still be this program's copy at the first scan.
        let added: Vec<i32> = (0..20).flat_map(|_| selector.scan(&config).expect("/proc").added).collect();
        assert_eq!(added, [pid]);
        assert_eq!(selector.watched().keys().copied().collect::<Vec<_>>(), [pid]);
        drop(child);
        assert_eq!(selector.scan(&config).expect("/proc"), Changes { added: vec![], removed: vec![pid] });
        assert!(selector.watched().is_empty() && selector.unwatched().is_empty());
    }

    #[test]
    fn a_process_that_becomes_another_program_is_decided_anew() {
        let folder = tempfile::Folder::new("oa-exec");
        let program = folder.0.join("oa-exec");
        orbit_testing::copy_of_program("/bin/sleep".as_ref(), &program);
        let shell = format!("read line; exec {} 1000", program.display());
        let mut child =
            Command::new("sh").args(["-c", &shell]).stdin(std::process::Stdio::piped()).spawn().expect("sh");
        let pid = child.id() as i32;
        let config = config("oa-exec", &policy("oa-exec"));
        let mut selector = Selector::new(None);
        for _ in 0..2 * NEW_SCANS {
            assert_eq!(selector.scan(&config).expect("/proc"), Changes::default(), "a shell");
        }
        drop(child.stdin.take());
        let child = Owned(child);
        let start = std::time::Instant::now();
        while selector.scan(&config).expect("/proc").added != [pid] {
            assert!(start.elapsed().as_secs() < 60, "never selected");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        drop(child);
    }

    #[test]
    fn another_process_of_the_same_number_is_a_new_one() {
        let (_child, pid, _folder) = named("oa-reuse");
        let config = config("oa-reuse", &policy("oa-reuse"));
        let mut selector = Selector::new(None);
        while !selector.scan(&config).expect("/proc").added.contains(&pid) {}
        // As if one of that number had been there before.
        selector.known.get_mut(&pid).expect("known").started -= 1;
        let changes = selector.scan(&config).expect("/proc");
        assert_eq!(changes, Changes { added: vec![pid], removed: vec![pid] });
    }

    #[test]
    fn the_limit_of_processes_is_a_reason_that_is_shown() {
        let (_child, pid, _folder) = named("oa-limit");
        let config = config("oa-limit", &("[limits]\nprocesses = 0\n".to_owned() + &policy("oa-limit")));
        let mut selector = Selector::new(None);
        while selector.unwatched().is_empty() {
            assert_eq!(selector.scan(&config).expect("/proc"), Changes::default());
        }
        let found = &selector.unwatched()[&pid];
        assert!(found.why.contains("limits.processes") && found.policy == "p", "{found:?}");
    }

    #[test]
    fn orbits_own_processes_are_not_selected() {
        let config = config("oa-own", "[[policy]]\nname = \"all\"\nmatch = { any = true }\n");
        let mut selector = Selector::new(None);
        selector.scan(&config).expect("/proc");
        assert!(!selector.watched().contains_key(&(std::process::id() as i32)));
    }

    #[test]
    fn services_in_words() {
        let of = |path: &str| {
            service(&Subject { identity: identity::of_path(path), command: "x".into(), ..Subject::default() })
        };
        assert_eq!(of("/system.slice/a.service"), "a.service");
        assert_eq!(of("/user.slice/user-1.slice/user@1.service/app.slice/b.service"), "user@1.service/b.service");
        assert_eq!(of(&format!("/docker/{}", "ab".repeat(32))), "container abababababab");
        assert_eq!([of("/mine"), of("/")], ["x in /mine", "x"]);
    }
}
