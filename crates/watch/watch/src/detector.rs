//! Where the detection runs: in the module `ahd` of a core of the guard's own, or in the guard
//! itself.
//!
//! Promises: a module that crashes, loops or leaks is loaded again and gets all that was watched;
//! each process is reported to join and to leave once, however often that happens; nothing here
//! waits for the module. Without the right to inspect a program from a process that is not its
//! parent, the detection runs in the guard, and [`Detector::new`] says so.

use orbit_ahd::{Event, json};
use orbit_console::control::SocketFile;
use orbit_linux::host;
use orbit_linux::procfs;
use orbit_modules::hangs::{self, Detection, Detector as AhdModule, Settings};
use orbit_modules::hosted::{self, Hosted};
use orbit_rmk::{Module, Report};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is new.
pub enum News {
    /// The detection reports this.
    Event(Event),
    /// How a module stands, or what one beside the detection said.
    Module(About),
}

/// Something about a module.
#[derive(Clone, Debug)]
pub struct About {
    pub module: String,
    /// `loaded`, `failed`, `reloaded`, `gave up`, `refused`, `said`, `dropped`, `unloaded` or
    /// `in-process`.
    pub state: &'static str,
    pub text: String,
    /// Its process; 0 if it has none.
    pub pid: i32,
}

/// See the module's head.
pub enum Detector {
    Here(Box<Here>),
    Module(Apart),
}

/// In the guard itself.
pub struct Here {
    ahd: Detection,
    settings: Settings,
    news: Vec<News>,
}

/// In a module.
pub struct Apart {
    hosted: Arc<Hosted>,
    /// Where `orbit modules` asks; removed with this.
    _socket: Option<SocketFile>,
    /// Processes reported to have joined and not to have left.
    watched: BTreeSet<i32>,
    news: Vec<News>,
    /// Whether the detection was there at the last check.
    there: bool,
    /// Whether it has something to report at the end.
    sections: bool,
    /// Whether all are let go: what joins now was found before the module heard of it, and leaves
    /// with the others.
    leaving: bool,
}

/// Longest wait for what a module reports at the end.
const MAX_WAIT_AT_END: Duration = Duration::from_secs(1);
/// Longest wait until probes are gone from a program that continues: the kernel takes some 0.1 s
/// for each.
const MAX_WAIT_FOR_PROBES: Duration = Duration::from_secs(10);
/// Longest time between two checks whether modules came or went.
const MODULE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Detector {
    /// Begins the detection, of nothing yet; `deadline` is how long one scan may take before it
    /// counts as an endless loop.
    pub fn new(settings: &Settings, deadline: Option<Duration>, in_process: bool) -> Detector {
        let here = |why: String| {
            let about = About { module: AhdModule::NAME.into(), state: "in-process", text: why, pid: 0 };
            let news = vec![News::Module(about)];
            Detector::Here(Box::new(Here { ahd: Detection::new(settings), settings: settings.clone(), news }))
        };
        if in_process {
            return here("as asked".to_owned());
        }
        if let Some(why) = lacks_proc() {
            return here(why);
        }
        if let Some(why) = only_a_parent_may_inspect() {
            return here(why);
        }
        match Apart::new(settings, deadline) {
            Ok(apart) => Detector::Module(apart),
            Err(why) => here(format!("it cannot run in a process of its own: {why}")),
        }
    }

    /// Watches this process and, if the settings have it so, those that it makes. Why it cannot is
    /// news, unless the process has ended.
    pub fn watch(&mut self, pid: i32) {
        let not_watched = |why: &dyn std::fmt::Display| trouble(pid, format!("process {pid} is not watched: {why}"));
        if let Some(why) = lacks_proc() {
            match self {
                Detector::Here(here) => here.news.extend(not_watched(&why)),
                Detector::Module(apart) => apart.news.extend(not_watched(&why)),
            }
            return;
        }
        match self {
            Detector::Here(here) => {
                if let Err(e) = here.ahd.add(pid) {
                    here.news.extend(not_watched(&e));
                }
            }
            Detector::Module(apart) => match apart.hosted.core().guard(pid as u32) {
                Ok(()) => {
                    let comm = procfs::text(format!("/proc/{pid}/comm")).unwrap_or_default();
                    apart.join(pid, comm.trim_end().to_owned());
                }
                Err(e) => apart.news.extend(not_watched(&e)),
            },
        }
    }

    /// Watches nothing any more, and forgets what it knew.
    pub fn forget(&mut self) {
        match self {
            Detector::Here(here) => here.ahd = Detection::new(&here.settings),
            Detector::Module(apart) => {
                for pid in std::mem::take(&mut apart.watched) {
                    apart.hosted.core().unguard(pid as u32);
                }
            }
        }
    }

    /// The watched processes, sorted.
    pub fn pids(&self) -> Vec<i32> {
        match self {
            Detector::Here(here) => here.ahd.pids(),
            Detector::Module(apart) => apart.watched.iter().copied().collect(),
        }
    }

    /// Descriptors that become readable when there is news, for the next wait only.
    pub fn descriptors(&self) -> Vec<OwnedFd> {
        match self {
            Detector::Here(_) => Vec::new(),
            Detector::Module(apart) => apart.hosted.descriptors(),
        }
    }

    /// How long to wait at most before asking for news.
    pub fn pause(&self) -> Duration {
        match self {
            Detector::Here(here) if here.news.is_empty() => here.ahd.pause(),
            Detector::Module(apart) if apart.news.is_empty() => MODULE_CHECK_INTERVAL,
            _ => Duration::ZERO,
        }
    }

    /// What is new. In the guard itself this scans, if it is time to.
    pub fn news(&mut self) -> Vec<News> {
        match self {
            Detector::Here(here) => {
                let mut news = std::mem::take(&mut here.news);
                if here.ahd.pause() == Duration::ZERO {
                    news.extend(here.ahd.tick().into_iter().map(News::Event));
                }
                news
            }
            Detector::Module(apart) => {
                apart.read();
                std::mem::take(&mut apart.news)
            }
        }
    }
}

impl Detector {
    /// What is left to report once nothing will be watched any more, but for processes that leave.
    pub fn finish(&mut self) -> Vec<News> {
        match self {
            Detector::Here(here) => {
                let news = here.ahd.finish().into_iter().map(News::Event).collect();
                here.ahd.settle(longest(&here.ahd.pids()));
                news
            }
            Detector::Module(apart) => {
                apart.read();
                if apart.sections {
                    apart.wait_for_the_last();
                }
                let mut news = std::mem::take(&mut apart.news);
                news.retain(|news| !matches!(news, News::Event(Event::Left { .. })));
                news
            }
        }
    }
}

impl Apart {
    fn new(settings: &Settings, deadline: Option<Duration>) -> Result<Apart, String> {
        let hosted = Hosted::new()?;
        let sections = !settings.sections.is_empty();
        let mut options = hangs::options(settings);
        options.deadline = deadline.unwrap_or(options.deadline);
        hosted.install(AhdModule::NAME, &[], |core| core.install::<AhdModule>(options))?;
        // Only for observers outside: without it the guard does its work.
        let socket = hosted.serve().ok();
        let mut apart = Apart {
            hosted,
            _socket: socket,
            watched: BTreeSet::new(),
            news: Vec::new(),
            there: true,
            sections,
            leaving: false,
        };
        apart.about(AhdModule::NAME, "loaded", String::new());
        Ok(apart)
    }

    /// Lets all go and waits until the module has said so of each: before that it reports what
    /// is left to report of it.
    fn wait_for_the_last(&mut self) {
        for pid in &self.watched {
            self.hosted.core().unguard(*pid as u32);
        }
        self.leaving = true;
        let start = Instant::now();
        while !self.watched.is_empty() && start.elapsed() < longest(&self.watched) {
            let reports = self.hosted.descriptors();
            let mut fds: Vec<_> = reports.iter().map(|fd| super::readable(fd.as_fd())).collect();
            // Woken early or not at all, it reads, and the clock decides.
            let _ = orbit_linux::poll::poll(&mut fds, Some(MAX_WAIT_AT_END));
            self.read();
        }
        self.leaving = false;
    }

    fn about(&mut self, module: &str, state: &'static str, text: String) {
        let pid = self.hosted.process_of(module);
        self.news.push(News::Module(About { module: module.to_owned(), state, text, pid }));
    }

    fn join(&mut self, pid: i32, comm: String) {
        if self.watched.insert(pid) {
            self.news.push(News::Event(Event::Joined { pid, comm }));
        }
    }

    fn read(&mut self) {
        for (name, report) in self.hosted.reports() {
            match report {
                Report::Said(text) if name == AhdModule::NAME => {
                    match serde_json::from_str(&text).ok().as_ref().and_then(json::event) {
                        Some(event) => self.event(event),
                        None => self.about(name, "refused", format!("a report that is no event: {text}")),
                    }
                }
                report => {
                    let (state, text) = hosted::words(report);
                    self.about(name, state, text);
                }
            }
        }
        let there = self.hosted.has(AhdModule::NAME);
        if there != std::mem::replace(&mut self.there, there) {
            self.about(AhdModule::NAME, if there { "loaded" } else { "unloaded" }, String::new());
        }
    }

    /// Passes an event on, unless it was reported before or is about what is no longer watched.
    fn event(&mut self, event: Event) {
        match event {
            Event::Joined { pid, comm } => {
                if !self.leaving
                    && let Err(e) = self.hosted.core().guard(pid as u32)
                {
                    let text = format!("process {pid} will not be watched if the detection is loaded again: {e}");
                    self.news.extend(trouble(pid, text));
                }
                self.join(pid, comm);
            }
            Event::Left { pid } => {
                self.hosted.core().unguard(pid as u32);
                if self.watched.remove(&pid) {
                    self.news.push(News::Event(event));
                }
            }
            Event::Hang(ref hang) if !self.watched.contains(&hang.pid) => {}
            Event::Recovered { pid, .. } | Event::Trouble { pid, .. } if !self.watched.contains(&pid) => {}
            event => self.news.push(News::Event(event)),
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // The thread that answers `orbit modules` holds on to the core for as long as the process
        // lives.
        self.hosted.clear();
    }
}

/// What is wrong with watching a process; nothing if it has ended, which is no trouble.
fn trouble(pid: i32, text: String) -> Option<News> {
    lives(pid).then_some(News::Event(Event::Trouble { pid, text }))
}

/// How long to wait until these processes are let go.
fn longest<'a>(pids: impl IntoIterator<Item = &'a i32>) -> Duration {
    if pids.into_iter().any(|pid| lives(*pid)) { MAX_WAIT_FOR_PROBES } else { MAX_WAIT_AT_END }
}

/// Whether the process has not ended, as far as is known.
fn lives(pid: i32) -> bool {
    match orbit_linux::pidfd::open(pid) {
        Ok(process) => !orbit_linux::pidfd::has_ended(process.as_fd()),
        Err(e) => e.raw_os_error() != Some(libc::ESRCH),
    }
}

/// Why `/proc` does not show the processes that the guard knows by their numbers, if so: without it
/// nothing can be inspected.
pub fn lacks_proc() -> Option<String> {
    match std::fs::read_link("/proc/self") {
        Ok(own) if own.as_os_str() == std::process::id().to_string().as_str() => None,
        Ok(_) => {
            Some("/proc is of another namespace of processes: mount this one's (`unshare -pf --mount-proc`)".into())
        }
        Err(e) => Some(format!("/proc is needed ({e}): `mount -t proc proc /proc`")),
    }
}

/// Whether this user may see what the threads of a process wait for: without it hardly anything can
/// be found.
pub fn may_see(pid: i32) -> io::Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        match std::fs::read(thread.path().join("syscall")) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(e),
            Ok(_) => return Ok(()),
            // One that has just ended, or a kernel that does not say.
            Err(_) => {}
        }
    }
    Ok(())
}

/// Why a process beside the guard may not inspect the program, if so. Yama's exception
/// (PR_SET_PTRACER) would not do: it holds for one process, and processes that the program makes do
/// not inherit it.
fn only_a_parent_may_inspect() -> Option<String> {
    const CAP_SYS_PTRACE: u32 = 19;
    let scope = host::text("/proc/sys/kernel/yama/ptrace_scope")?;
    (scope != "0" && !host::has_capability(CAP_SYS_PTRACE)).then(|| {
        format!(
            "kernel.yama.ptrace_scope is {scope}: only a program's parent may inspect it, so a detector that fails \
             is not \
             loaded again; sysctl kernel.yama.ptrace_scope=0 or CAP_SYS_PTRACE would allow it a process of its own"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_linux::rlimit::{self, Resource};

    #[test]
    fn what_cannot_be_watched_is_reported_while_it_runs() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let pid = child.id() as i32;
        // A thread with descriptors of its own, and none left.
        let poor = std::thread::spawn(move || {
            let (soft, hard) = rlimit::get(0, Resource::Files).expect("a limit");
            rlimit::set(0, Resource::Files, soft.min(1024), hard).expect("a limit");
            // SAFETY: numbers only; the copies of stderr are nothing else's, and end with the
            // thread.
            unsafe {
                assert_eq!(libc::unshare(libc::CLONE_FILES), 0);
                while libc::dup(2) >= 0 {}
            }
            let mut detector = Detector::new(&Settings::default(), None, true);
            detector.watch(pid);
            detector.news()
        });
        let news = poor.join().expect("no panic");
        child.kill().expect("a child");
        child.wait().expect("a child");
        let is_report = |news: &News| match news {
            News::Event(Event::Trouble { pid: of, text }) => *of == pid && text.contains("not watched: Too many open"),
            _ => false,
        };
        assert_eq!(news.iter().filter(|news| is_report(news)).count(), 1);
        assert!(trouble(pid, String::new()).is_none(), "it has ended");
    }

    #[test]
    fn what_joins_while_all_leave_is_not_guarded_anew() {
        let mut apart = Apart::new(&Settings::default(), None).expect("a module");
        let pid = std::process::id() as i32;
        let joined = || Event::Joined { pid, comm: String::new() };
        apart.leaving = true;
        apart.event(joined());
        assert_eq!((apart.hosted.core().guarded(), apart.watched.contains(&pid)), (Vec::new(), true));
        apart.leaving = false;
        apart.event(joined());
        assert_eq!(apart.hosted.core().guarded(), [pid as u32]);
    }
}
