//! A server of its own: directory, socket, settings, log.

use orbit_linux::child::Exit;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use orbit_apps::signal as kill;

use crate::build::build;
use crate::session::Session;
use crate::{PATIENCE, wait_until};

/// The directory of PostgreSQL 15's programs; `None` where it, or what building for it needs, is
/// not installed.
pub fn programs() -> Option<PathBuf> {
    let debians = Path::new("/usr/lib/postgresql/15/bin/pg_config");
    let program = if debians.exists() { debians } else { Path::new("pg_config") };
    let config = Command::new(program).args(["--version", "--bindir", "--includedir-server"]).output().ok()?;
    let text = String::from_utf8_lossy(&config.stdout);
    let mut lines = text.lines();
    let is_15 = lines.next().is_some_and(|version| version.starts_with("PostgreSQL 15"));
    let (bin, headers) = (PathBuf::from(lines.next()?), PathBuf::from(lines.next()?));
    (is_15 && bin.join("postgres").exists() && bin.join("pgbench").exists() && headers.join("postgres.h").exists())
        .then_some(bin)
}

/// The user that runs the server: PostgreSQL rejects root, so then it is `postgres`, or nobody.
fn user() -> Option<(u32, u32)> {
    orbit_apps::user_of_servers("postgres")
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGINT to the postmaster: sessions are ended.
    Fast,
    /// kill -9 of the postmaster.
    Kill,
}

/// A running server. Dropping it stops the server and removes its directory.
pub struct Cluster {
    bin: PathBuf,
    directory: PathBuf,
    postmaster: Child,
    /// The server's own detector alone: no extension.
    stock: bool,
}

impl Cluster {
    /// A server with the extension and these lines of configuration; `None`, having said so, where
    /// PostgreSQL 15 is missing.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start(settings: &str) -> Option<Cluster> {
        Cluster::start_in(None, settings, false)
    }

    /// The same without the extension.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_stock(settings: &str) -> Option<Cluster> {
        Cluster::start_in(None, settings, true)
    }

    /// The same with the postmaster as process 1 of a pid namespace, as in a container. Needs root.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_as_process_1(settings: &str) -> Option<Cluster> {
        Cluster::start_in(Some(&["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]), settings, false)
    }

    fn start_in(around: Option<&[&str]>, settings: &str, stock: bool) -> Option<Cluster> {
        let Some(bin) = programs() else {
            println!("SKIP: needs PostgreSQL 15 (Debian: apt-get install postgresql-15 postgresql-server-dev-15)");
            return None;
        };
        let directory = make_directory();
        let mut initdb = as_user(&bin.join("initdb"), &[]);
        initdb.args(["-A", "trust", "-U", "postgres", "--no-sync", "--locale=C", "-E", "UTF8", "-D"]);
        let made = initdb.arg(directory.join("data")).output().expect("initdb runs");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut lines = format!(
            "listen_addresses = ''\nunix_socket_directories = '{0}'\nfsync = off\nshared_buffers = 16MB\n\
             log_line_prefix = '%m [%p] '\n",
            directory.display()
        );
        if !stock {
            let extension = build().unwrap_or_else(|error| panic!("the extension does not build: {error}"));
            let library = directory.join("orbit_deadlock.so");
            fs::copy(&extension.library, &library).expect("a copy of the library");
            lines += &format!("shared_preload_libraries = '{}'\n", library.display());
            let sql = fs::read_to_string(&extension.sql).expect("the declarations");
            let sql = sql.replace("MODULE_PATHNAME", &library.display().to_string());
            fs::write(directory.join("declare.sql"), sql).expect("the declarations");
        }
        let mut conf = fs::OpenOptions::new();
        let conf = conf.append(true).open(directory.join("data/postgresql.conf"));
        std::io::Write::write_all(&mut conf.expect("its settings"), (lines + settings + "\n").as_bytes())
            .expect("written");
        let log = fs::File::create(directory.join("log")).expect("a log");
        let mut command = as_user(&bin.join("postgres"), around.unwrap_or(&[]));
        command.arg("-D").arg(directory.join("data")).stdin(Stdio::null());
        let postmaster = command.stdout(log.try_clone().expect("a log")).stderr(log).spawn().expect("postgres starts");
        let cluster = Cluster { bin, directory, postmaster, stock };
        wait_until("the server accepts connections", || {
            assert!(!cluster.log().contains("FATAL:  could not"), "the server does not start:\n{}", cluster.log());
            cluster.try_query("SELECT 1").is_ok()
        });
        // Without a place for it the worker is never ready.
        if !stock && !settings.contains("max_worker_processes = 0") {
            cluster.psql_file("declare.sql");
            cluster.wait_for_log("orbit_deadlock: ready");
        }
        Some(cluster)
    }

    /// The postmaster, or what it was started by.
    pub fn pid(&self) -> i32 {
        self.postmaster.id() as i32
    }

    /// The postmaster as this process sees it.
    pub fn postmaster_pid(&self) -> i32 {
        let named = fs::read_to_string(self.directory.join("data/postmaster.pid")).unwrap_or_default();
        let own: i32 = named.lines().next().and_then(|pid| pid.parse().ok()).expect("postmaster.pid");
        if own == 1 { crate::below(self.pid())[0] } else { own }
    }

    /// Where socket and log are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What the server has written to its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Waits until the log contains this.
    ///
    /// # Panics
    /// With the log, where it does not.
    pub fn wait_for_log(&self, text: &str) {
        let until = std::time::Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(std::time::Instant::now() < until, "not in the log: {text}\n{}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// A program of PostgreSQL, as a client of this server, with its arguments to be added.
    pub fn client(&self, program: &str) -> Command {
        let mut command = as_user(&self.bin.join(program), &[]);
        command.arg("-h").arg(&self.directory).args(["-U", "postgres"]).current_dir(&self.directory);
        command
    }

    fn psql_file(&self, file: &str) {
        let done = self.client("psql").args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file]).output();
        let done = done.expect("psql runs");
        assert!(done.status.success(), "{file}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn try_query(&self, sql: &str) -> Result<String, String> {
        let done = self.client("psql").args(["-X", "-q", "-At", "-c", sql]).output().map_err(|e| e.to_string())?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
    }

    /// The answer to a query on a connection of its own, unaligned.
    ///
    /// # Panics
    /// With the server's log, where it fails.
    pub fn query(&self, sql: &str) -> String {
        self.try_query(sql).unwrap_or_else(|error| panic!("{sql}: {error}\n{}", self.log()))
    }

    /// A column of the view `orbit_deadlock`, as a number; 0 for NULL.
    pub fn state(&self, column: &str) -> i64 {
        self.query(&format!("SELECT coalesce({column}, 0) FROM orbit_deadlock")).parse().expect("a number")
    }

    /// Has the task do harm, and returns the event that came of it.
    pub fn fault(&self, kind: &str) -> String {
        self.query(&format!("SET orbit_deadlock.faults = on; SELECT orbit_deadlock_fault('{kind}')"))
    }

    /// A session that may wait for locks.
    pub fn session(&self) -> Session {
        let mut command = self.client("psql");
        command.args(["-X", "-q", "-At", "-v", "VERBOSITY=verbose"]);
        Session::start(command)
    }

    /// Rereads the configuration, with this line added.
    pub fn reload_with(&self, line: &str) {
        let conf = fs::OpenOptions::new().append(true).open(self.directory.join("data/postgresql.conf"));
        std::io::Write::write_all(&mut conf.expect("its settings"), format!("{line}\n").as_bytes()).expect("written");
        assert_eq!(self.query("SELECT pg_reload_conf()"), "t");
    }

    /// Stops the server and waits for the end of the postmaster; its directory stays until the
    /// drop.
    pub fn stop(&mut self, how: Stop) {
        let signal = if how == Stop::Fast { libc::SIGINT } else { libc::SIGKILL };
        if let Ok(None) = self.postmaster.exited() {
            kill(self.postmaster_pid(), signal);
        }
        let _ = self.postmaster.wait_for_exit();
    }

    /// Whether it has the extension.
    pub fn is_stock(&self) -> bool {
        self.stock
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
        let all = crate::below(self.pid());
        if let Ok(None) = self.postmaster.exited() {
            // Immediate shutdown: backends first, then the postmaster.
            kill(self.postmaster_pid(), libc::SIGQUIT);
            let _ = self.postmaster.wait_for_exit();
        }
        let _ = all;
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn make_directory() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("orbit-pg-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let directory = std::env::temp_dir().join(name);
    fs::create_dir_all(&directory).expect("a directory");
    if let Some((uid, gid)) = user() {
        chown(&directory, Some(uid), Some(gid)).expect("root may give a directory away");
    }
    directory
}

/// A program, run as the user of servers, started by what is `around` it (which runs as this
/// process's user).
fn as_user(program: &Path, around: &[&str]) -> Command {
    static USER: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    let user = *USER.get_or_init(user);
    let mut command = match around {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest);
            if let Some((uid, gid)) = user {
                command.args(["setpriv", "--clear-groups"]).arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
            }
            command.arg(program);
            command
        }
    };
    if let (Some((uid, gid)), []) = (user, around) {
        command.uid(uid).gid(gid);
    }
    // Not a directory that the user may not enter; nor the environment's idea of a server.
    command.current_dir("/").env_remove("PGHOST").env_remove("PGDATABASE").env_remove("PGOPTIONS");
    command
}
