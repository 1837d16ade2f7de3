//! A server of its own: directory, socket, log.

use orbit_linux::child::Exit;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};

use orbit_apps::{Directory, make, user_of_servers};

use crate::session::Session;
use crate::{Named, below, signal, wait_until};

const SERVER: &str = "/usr/sbin/mariadbd";

/// Builds the plugin into the target directory, if anything of it changed, and returns its path.
///
/// # Errors
/// What `make` said.
pub fn build() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| Ok(make(env!("CARGO_MANIFEST_DIR"), "orbit-mariadb")?.join("orbit_deadlock.so"))).clone()
}

/// Which detector a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detector {
    /// The plugin, with InnoDB's off.
    Orbit,
    /// InnoDB's own.
    Own,
    /// None: waits end by their timeout.
    None,
}

/// A running server. Dropping it kills the server and removes its directory.
pub struct Server {
    directory: Directory,
    child: Child,
}

fn missing() -> Option<&'static str> {
    let needed = [SERVER, "/usr/bin/mariadb-install-db", "/usr/include/mariadb/server/mysql/plugin_audit.h"];
    let missing = needed.into_iter().find(|path| !Path::new(path).exists());
    let version = Command::new(SERVER).arg("--version").output().map(|said| said.stdout).unwrap_or_default();
    let is_known = String::from_utf8_lossy(&version).contains("Ver 10.11.");
    missing.or(if is_known { None } else { Some("MariaDB 10.11") })
}

/// A program, run as the user of servers.
fn as_user(program: &str) -> Command {
    let mut command = Command::new(program);
    if let Some((uid, gid)) = user_of_servers("mysql") {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/").arg("--no-defaults").stdin(Stdio::null());
    command
}

/// Copies a database directory as it is installed. That is made once, beside the plugin that is
/// built.
fn install(into: &Path) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let making = ONE_AT_A_TIME.lock();
    let built = build().unwrap_or_else(|error| panic!("the plugin does not build: {error}"));
    let fresh = built.with_file_name("fresh");
    let copy = |from: &Path, to: &Path| {
        let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
        assert!(copied.success(), "a copy of {}", from.display());
    };
    if !fresh.exists() {
        let directory = Directory::new("mariadb-fresh", user_of_servers("mysql"));
        let data = directory.path().join("data");
        let mut command = as_user("/usr/bin/mariadb-install-db");
        command.arg(format!("--datadir={}", data.display()));
        command.args(["--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=8M"]);
        let made = command.output().expect("mariadb-install-db runs");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{}{said}", String::from_utf8_lossy(&made.stdout));
        let own = built.with_file_name(format!("fresh-{}", std::process::id()));
        copy(&data, &own);
        // Another test may have been faster.
        if fs::rename(&own, &fresh).is_err() {
            let _ = fs::remove_dir_all(&own);
        }
    }
    drop(making);
    copy(&fresh, into);
}

impl Server {
    /// A server with this detector and these options; `None`, having said so, where MariaDB or what
    /// building needs is missing.
    ///
    /// # Panics Where it does not start.
    pub fn start(detector: Detector, options: &[&str]) -> Option<Server> {
        if let Some(missing) = missing() {
            println!("SKIP: needs {missing} (Debian 12: apt-get install mariadb-server libmariadbd-dev)");
            return None;
        }
        let directory = Directory::new("mariadb", user_of_servers("mysql"));
        let here = directory.path();
        install(&here.join("data"));
        fs::create_dir(here.join("plugins")).expect("a directory");
        let log = fs::File::create(here.join("log")).expect("a log");
        let mut command = as_user(SERVER);
        command
            .arg(format!("--datadir={}", here.join("data").display()))
            .arg(format!("--socket={}", here.join("s").display()));
        command.args(["--skip-networking", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M"]);
        command.args(["--innodb-flush-log-at-trx-commit=0", "--innodb-use-native-aio=0", "--max-connections=300"]);
        match detector {
            Detector::Orbit => {
                let plugin = build().unwrap_or_else(|error| panic!("the plugin does not build: {error}"));
                fs::copy(&plugin, here.join("plugins/orbit_deadlock.so")).expect("a copy of the plugin");
                command.arg(format!("--plugin-dir={}", here.join("plugins").display()));
                command.args(["--plugin-load-add=orbit_deadlock.so", "--orbit-deadlock-faults=ON"]);
            }
            Detector::Own => {}
            Detector::None => {
                command.arg("--innodb-deadlock-detect=OFF");
            }
        }
        command.args(options).process_group(0);
        let child = command.stdout(log.try_clone().expect("a log")).stderr(log).spawn().expect("mariadbd starts");
        let mut server = Server { directory, child };
        wait_until("the server answers", || {
            let ended = server.child.exited().expect("its state");
            assert!(ended.is_none(), "the server did not start:\n{}", server.log());
            server.try_query("SELECT 1").is_ok()
        });
        server.query("CREATE DATABASE test; CREATE TABLE test.ring (id INT PRIMARY KEY, v INT NOT NULL) ENGINE=InnoDB");
        server.query("INSERT INTO test.ring SELECT seq, 0 FROM test.seq_0_to_9999");
        if detector == Detector::Orbit {
            server.wait_for_log("orbit_deadlock: ready");
        }
        Some(server)
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What it has written to its log.
    pub fn log(&self) -> String {
        self.directory.read("log")
    }

    /// Waits until the log contains this.
    ///
    /// # Panics
    /// With the log, where it does not.
    pub fn wait_for_log(&self, text: &str) {
        let until = std::time::Instant::now() + crate::PATIENCE;
        while !self.log().contains(text) {
            assert!(std::time::Instant::now() < until, "not in the log: {text}\n{}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// A program of MariaDB as a client of this server, with its arguments to be added.
    pub fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .arg("--no-defaults")
            .arg(format!("--socket={}", self.directory().join("s").display()))
            .args(["-u", "root"]);
        command.current_dir(self.directory());
        command
    }

    /// The answer to a query on a connection of its own, or its error.
    ///
    /// # Errors
    /// What the client said.
    pub fn try_query(&self, sql: &str) -> Result<String, String> {
        let done = self.client("mariadb").args(["-N", "-B", "-e", sql]).output().map_err(|error| error.to_string())?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
    }

    /// The answer to a query on a connection of its own.
    ///
    /// # Panics
    /// With the server's log, where it fails.
    pub fn query(&self, sql: &str) -> String {
        self.try_query(sql).unwrap_or_else(|error| panic!("{sql}: {error}\n{}", self.log()))
    }

    /// A status variable of the plugin, without `orbit_deadlock_`.
    ///
    /// # Panics
    /// Where there is none.
    pub fn state(&self, name: &str) -> i64 {
        let row = self.query(&format!("SHOW GLOBAL STATUS LIKE 'orbit\\_deadlock\\_{name}'"));
        row.split('\t').nth(1).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {row}"))
    }

    /// The next run of the detector does this harm.
    pub fn fault(&self, fault: &str) {
        self.query(&format!("SET GLOBAL orbit_deadlock_fault = '{fault}'"));
    }

    /// A session that may wait for locks.
    pub fn session(&self) -> Session {
        Session::start(self.client("mariadb"))
    }

    /// Whether this connection waits for a row's lock.
    pub fn is_waiting(&self, thread: u64) -> bool {
        // The state of the transaction is shown with a delay of 100 ms; that of the thread at once.
        let count = format!(
            "SELECT COUNT(*) FROM information_schema.innodb_trx \
             WHERE trx_mysql_thread_id = {thread} AND trx_state = 'LOCK WAIT'"
        );
        std::thread::sleep(std::time::Duration::from_millis(110));
        self.query(&count) == "1"
    }

    /// The server and the detector's processes: orbit and template, which is nobody's child.
    pub fn processes(&self) -> Named {
        let mut orbit = 0;
        wait_until("the orbit is there", || {
            orbit = self.state("pid") as i32;
            orbit > 0 && crate::parent(orbit).is_some_and(|template| template > 1)
        });
        let mut all = below(self.pid());
        all.extend([orbit, crate::parent(orbit).unwrap_or(orbit)]);
        all.into_iter().map(|pid| (pid, crate::started(pid))).collect()
    }

    /// CPU time so far of the server, and with the plugin of template and orbit, seconds.
    pub fn cpu(&self) -> f64 {
        let row = self.query("SHOW GLOBAL STATUS LIKE 'orbit\\_deadlock\\_pid'");
        let orbit = row.split('\t').nth(1).and_then(|pid| pid.parse().ok()).filter(|pid| *pid > 0);
        let template = orbit.and_then(crate::parent).filter(|template| *template > 1);
        crate::family_cpu(self.pid()) + template.map_or(0.0, crate::family_cpu)
    }

    /// Stops it by this signal and waits for its end; its directory stays until the drop.
    pub fn stop(&mut self, with: i32) {
        if let Ok(None) = self.child.exited() {
            signal(self.pid(), with);
        }
        let _ = self.child.wait_for_exit();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(libc::SIGKILL);
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}
