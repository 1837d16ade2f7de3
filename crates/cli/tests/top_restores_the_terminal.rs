//! `orbit top` leaves the terminal as it found it, however it ends: by a key, by SIGHUP, SIGINT,
//! SIGQUIT or SIGTERM. A signal ends it as it ends any program.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// A program on a terminal of its own.
struct Pty {
    master: File,
    slave: File,
    before: Modes,
    shown: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

/// Input, output, control and local modes.
type Modes = [libc::tcflag_t; 4];

fn modes(terminal: &File) -> Modes {
    // SAFETY: all zeroes is valid, and the call fills in a live local.
    unsafe {
        let mut modes: libc::termios = std::mem::zeroed();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &mut modes), 0);
        [modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag]
    }
}

/// Both sides of a new terminal. `openpty` would leave them open in the children of other tests.
fn terminal() -> (File, File) {
    let open = |path: &str| File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path);
    let master = open("/dev/ptmx").expect("a terminal");
    let mut name = [0; 64];
    let size = libc::winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: a descriptor that lives, a size that outlives the call, and a place for the name, as
    // long as said.
    unsafe {
        assert_eq!(libc::unlockpt(master.as_raw_fd()), 0);
        assert_eq!(libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
        assert_eq!(libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size), 0);
    }
    // SAFETY: the call has ended the name.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    let slave = open(name.to_str().expect("a path")).expect("its other side");
    (master, slave)
}

impl Pty {
    fn top() -> Pty {
        let (master, slave) = terminal();
        let before = modes(&slave);
        let end = || Stdio::from(slave.try_clone().expect("a descriptor"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
        command.args(["top", "--interval", "50"]).stdin(end()).stdout(end()).stderr(end());
        // SAFETY: the system calls may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // What starts the test may ignore them.
                for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                // SIGQUIT leaves no core file.
                libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            })
        };
        let child = command.spawn().expect("orbit runs");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (master.try_clone().expect("a descriptor"), shown.clone());
        // Ends when nobody has the other end open any more.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut bytes) {
                to.lock().expect("no panic").extend_from_slice(&bytes[..n]);
            }
        });
        Pty { master, slave, before, shown, child }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no panic")).into_owned()
    }

    fn wait_for(&self, what: &str, condition: impl Fn(&str) -> bool) {
        let began = Instant::now();
        while !condition(&self.shown()) {
            assert!(began.elapsed() < PATIENCE, "{what}; shown: {:?}", self.shown());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("its state") {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "it does not end; shown: {:?}", self.shown());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has `end` end it while it draws; gives how it ended.
fn ended_by(what: &str, end: impl FnOnce(&mut Pty)) -> ExitStatus {
    let mut pty = Pty::top();
    pty.wait_for("it takes the screen and draws", |shown| {
        shown.contains("\x1b[?1049h") && shown.contains("\x1b[?25l") && shown.contains("q quit")
    });
    assert_ne!(modes(&pty.slave), pty.before, "raw mode");
    end(&mut pty);
    let status = pty.end();
    assert_eq!(modes(&pty.slave), pty.before, "{what}: the modes are as before");
    let back = ["\x1b[?1049l", "\x1b[?25h", "\x1b[?7h"];
    pty.wait_for(&format!("{what}: the screen comes back"), |shown| back.iter().all(|word| shown.contains(word)));
    let shown = pty.shown();
    // Nothing is drawn afterwards, nor held back.
    assert!(!shown[shown.rfind("\x1b[?1049l").expect("seen")..].contains("quit"), "{what}: {shown:?}");
    assert!(shown.rfind("\x1b[?2026l") > shown.rfind("\x1b[?2026h"), "{what}: {shown:?}");
    status
}

#[test]
fn by_a_signal() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        let status = ended_by(&format!("signal {signal}"), |pty| {
            // SAFETY: the pid is our own child's, not reaped yet.
            assert_eq!(unsafe { libc::kill(pty.child.id() as i32, signal) }, 0);
        });
        assert_eq!(status.signal(), Some(signal), "it ends as any program would");
    }
}

#[test]
fn by_a_key() {
    for key in [&b"q"[..], b"\x03"] {
        let status = ended_by(&format!("key {key:?}"), |pty| pty.master.write_all(key).expect("a key"));
        assert_eq!(status.code(), Some(0));
    }
}
