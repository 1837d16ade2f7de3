//! `--report DIR`: a page for each hang, with what waits for what and the stacks, as `orbit why
//! --html` writes it.
//!
//! A thread of its own draws them, so that signals are handed on meanwhile. Promises: no thread of
//! the program is stopped for a page: it shows the stacks of the report; a file that is there is
//! never written over; none but its owner may read one; what is done about a hang waits until its
//! page is written, [`MAX_WAIT_FOR_PAGES`] at most.

use orbit_ahd::Hang;
use orbit_console::time::rfc3339;
use std::collections::BTreeSet;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant, SystemTime};

/// Pages that wait to be drawn; more are left out, which is said.
const MAX_WAITING: usize = 16;
/// Pages of one run: a program that hangs again and again fills no disk.
const MAX_PAGES: u32 = 1000;
/// Longest wait for pages before something is done about a hang.
const MAX_WAIT_FOR_PAGES: Duration = Duration::from_secs(5);
/// Over which CPU use is measured for a page.
const INTERVAL: Duration = Duration::from_millis(50);

/// What was done, and about which process.
type Did = (String, i32);

/// See the module's head.
pub struct Pages {
    to: SyncSender<why::Found>,
    did: Receiver<Did>,
    /// Pages asked for whose end was not read yet.
    waiting: usize,
    asked: u32,
}

impl Pages {
    /// Makes the folder where there is none. To be called with the signals blocked that only the
    /// guard's first thread is to get.
    ///
    /// # Errors
    /// If no file can be made in the folder, or all users can list it.
    pub fn start(dir: &Path) -> io::Result<Pages> {
        let dir = std::path::absolute(dir)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        if std::fs::metadata(&dir)?.mode() & libc::S_IROTH != 0 {
            return Err(io::Error::other(
                "all users can list it, and pages have command lines and stacks: `chmod o-r` it, or name a folder \
                 that does not exist yet",
            ));
        }
        let probe = dir.join(format!(".orbit-{}", std::process::id()));
        create(&probe).and_then(|_| std::fs::remove_file(&probe))?;
        let (to, from) = sync_channel::<why::Found>(MAX_WAITING);
        let (say, did) = channel();
        std::thread::Builder::new().name("orbit-pages".into()).spawn(move || {
            for found in from {
                let pid = found.pids.first().copied().unwrap_or(0);
                let what = match draw(&dir, pid, &found) {
                    Ok(path) => format!("wrote {}", path.display()),
                    Err(error) => format!("could not write a page about process {pid}: {error}"),
                };
                // Nobody listens once the guard ends.
                let _ = say.send((what, pid));
            }
        })?;
        Ok(Pages { to, did, waiting: 0, asked: 0 })
    }

    /// Has the page of a hang drawn; what is to be said of it at once.
    pub fn add(&mut self, hang: &Hang) -> Option<Did> {
        if self.asked >= MAX_PAGES {
            let is_first = self.asked == MAX_PAGES;
            self.asked = MAX_PAGES + 1;
            return is_first.then(|| (format!("writes no more pages: {MAX_PAGES} are written"), hang.pid));
        }
        let found = found(hang);
        match self.to.try_send(found) {
            Ok(()) => {
                self.asked += 1;
                self.waiting += 1;
                None
            }
            Err(TrySendError::Full(_)) => {
                Some((format!("left out a page: {MAX_WAITING} wait to be written"), hang.pid))
            }
            Err(TrySendError::Disconnected(_)) => Some(("writes no more pages: their thread failed".into(), hang.pid)),
        }
    }

    /// What was done since this was asked last. Does not wait.
    pub fn did(&mut self) -> Vec<Did> {
        let all: Vec<Did> = self.did.try_iter().collect();
        self.waiting = self.waiting.saturating_sub(all.len());
        all
    }

    /// Waits until all pages are written that were asked for, [`MAX_WAIT_FOR_PAGES`] at most.
    pub fn finish(&mut self) -> Vec<Did> {
        let until = Instant::now() + MAX_WAIT_FOR_PAGES;
        let mut all = self.did();
        while self.waiting > 0 {
            match self.did.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(did) => {
                    self.waiting -= 1;
                    all.push(did);
                }
                Err(_) => return all,
            }
        }
        all
    }
}

/// A hang for who draws it.
pub fn found(hang: &Hang) -> why::Found {
    let mut seen = BTreeSet::from([hang.pid]);
    let others = hang.threads.iter().map(|thread| thread.pid).filter(|pid| seen.insert(*pid));
    why::Found {
        headline: format!("{} ({})", hang.why, hang.sure),
        pids: std::iter::once(hang.pid).chain(others).collect(),
        stacks: hang.threads.iter().map(|t| (t.pid, t.tid, t.stack.clone(), t.python.clone())).collect(),
        runtime: hang.runtime.clone(),
    }
}

fn create(path: &Path) -> io::Result<std::fs::File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Draws a page into a file of the folder that was not there.
fn draw(dir: &Path, pid: i32, found: &why::Found) -> Result<PathBuf, String> {
    let page = why::page(found, INTERVAL).map_err(|error| error.to_string())?;
    // Colons are no part of a name everywhere.
    let time = rfc3339(SystemTime::now()).replace(':', "");
    for nth in 0..MAX_PAGES {
        let again = if nth == 0 { String::new() } else { format!("-{nth}") };
        let path = dir.join(format!("hang-{time}-{pid}{again}.html"));
        match create(&path).and_then(|mut file| file.write_all(page.as_bytes())) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Err("all names for it are taken".into())
}
