//! A directory of the bench's own, with what is built in it; and whether somebody asked the bench
//! to end.
//!
//! Promises: the directory is gone when the bench ends, also after Ctrl-C or SIGTERM, which long
//! loops ask for by [`go_on`].

use orbit_console::out::Failure;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED_TO_END: AtomicBool = AtomicBool::new(false);

extern "C" fn asked(_: libc::c_int) {
    ASKED_TO_END.store(true, Ordering::Relaxed);
}

/// From now on the usual signals only take note.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler stores to an atomic and does nothing else.
        let handled = unsafe { orbit_linux::signals::handle(signal, asked) };
        // These three can be handled.
        debug_assert!(handled.is_ok());
    }
}

/// Whether to continue.
///
/// # Errors
/// Once a signal asked the bench to end.
pub fn go_on() -> Result<(), Failure> {
    if ASKED_TO_END.load(Ordering::Relaxed) { Err(Failure::text("interrupted")) } else { Ok(()) }
}

/// A directory that is removed at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Result<Scratch, Failure> {
        let path = std::env::temp_dir().join(format!("orbit-ahd-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|error| Failure::text(format!("cannot make {}: {error}", path.display())))?;
        Ok(Scratch(path))
    }

    /// The path of something in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf, Failure> {
        let path = self.path(name);
        std::fs::write(&path, content)
            .map_err(|error| Failure::text(format!("cannot write {}: {error}", path.display())))?;
        Ok(path)
    }

    /// Compiles a C source.
    pub fn compile(&self, name: &str, source: &str, options: &[&str]) -> Result<PathBuf, Failure> {
        let from = self.file(&format!("{name}.c"), source)?;
        let to = self.path(name);
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-g", "-pthread", "-w"]).args(options).arg("-o").arg(&to).arg(from).arg("-ldl");
        match cc.output() {
            Ok(output) if output.status.success() => Ok(to),
            Ok(output) => Err(Failure::text(format!("cc: {}", String::from_utf8_lossy(&output.stderr)))),
            Err(error) => Err(Failure::text(format!("cannot run cc, which this part needs: {error}"))),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now nothing else will: there is nothing better to do.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether a command is there.
pub fn has(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]).any(|dir| is_file(&dir.join(command)))
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file())
}
