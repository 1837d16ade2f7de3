//! LevelDB 1.23 as Debian ships it, with its compaction in an orbit: builds the library and the
//! program of the tests, and runs that in a directory of its own.
//!
//! The port itself is C++, in `extension/`, with a Makefile of its own.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub use orbit_apps::{PATIENCE, wait_until};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Builds the library and the programs into the target directory, if anything of them changed.
/// Returns the directory; `None`, having said so, where LevelDB or its source package is not
/// available.
///
/// # Panics
/// With what `make` said, where it fails.
pub fn build() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(make).clone()
}

fn make() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("extension");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| source.join("../../../target"), PathBuf::from);
    let out = target.join("orbit-leveldb");
    fs::create_dir_all(&out).expect("a directory to build in");
    let out = fs::canonicalize(out).expect("its path");
    // Several test programs build at a time: flock lets one make after the other.
    let locked = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("flock");
        command.arg(out.join("lock")).arg(program).args(arguments);
        command
    };
    if !out.join("source/leveldb-1.23").is_dir() {
        let got = locked("sh", &[]).arg(source.join("source.sh")).arg(out.join("source")).output();
        if !got.is_ok_and(|got| got.status.success()) {
            println!(
                "SKIP: needs libleveldb-dev 1.23 and its source package (Debian 12: apt-get install libleveldb-dev)"
            );
            return None;
        }
    }
    let target = fs::canonicalize(target).expect("its path");
    let made = locked("make", &["-s", "-C"])
        .arg(&source)
        .arg(format!("BUILD={}", out.display()))
        .arg(format!("TARGET={}", target.display()))
        .args(["all", "load"])
        .output()
        .expect("flock and make run");
    assert!(made.status.success(), "make: {}", String::from_utf8_lossy(&made.stderr));
    Some(out)
}

/// Which library a program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Debian's.
    Stock,
    /// The same with the compaction in an orbit.
    Orbit,
}

/// A database in a directory of its own, which is removed with it.
pub struct Database {
    programs: PathBuf,
    directory: PathBuf,
}

impl Database {
    /// One that does not exist yet; `None`, having said so, where LevelDB is not available.
    ///
    /// # Panics
    /// Where the programs do not build.
    pub fn new() -> Option<Database> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("orbit-leveldb-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("a directory");
        Some(Database { programs: build()?, directory })
    }

    /// The program and its arguments, for whoever runs it in a way of their own.
    pub fn words(&self, library: Library, words: &str) -> Vec<OsString> {
        let program = if library == Library::Orbit { "load" } else { "load-stock" };
        let own = [self.programs.join(program).into_os_string(), self.directory.join("db").into_os_string()];
        own.into_iter().chain(words.split_whitespace().map(OsString::from)).collect()
    }

    fn command(&self, library: Library, words: &str) -> Command {
        let words = self.words(library, words);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        command
    }

    /// Runs the program (see `extension/load.cc`) to its end and returns what it printed, by names.
    ///
    /// # Panics
    /// With what it said and the database's log, where it fails.
    pub fn run(&self, library: Library, words: &str) -> HashMap<String, String> {
        let ended = self.command(library, words).output().expect("the program runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{library:?} {words}: {}: {said}\n{}", ended.status, self.log());
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        text.lines().filter_map(|line| line.split_once(' ')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
    }

    /// Starts it; its standard output is a pipe.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn start(&self, library: Library, words: &str) -> Child {
        self.command(library, words).stdout(Stdio::piped()).spawn().expect("the program starts")
    }

    /// LevelDB's log of the last time the database was opened, or of the time before that.
    pub fn log(&self) -> String {
        let read = |name| fs::read_to_string(self.directory.join("db").join(name)).unwrap_or_default();
        read("LOG.old") + &read("LOG")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
