//! A blocked thread is told with what it waits for and with who could end that: file locks, pipes, sockets, children, locks.
//!
//! The test starts itself again as the program that hangs, inside a marked section.

mod common;
use common::{Program, Watcher};
use orbit_ahd::{Config, Kind};
use orbit_section::{Section, enter, section};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

static WAITS: Section = section!("waits");
const WAY: &str = "ORBIT_AHD_TEST_WAITS";
const WAYS: [&str; 7] = ["flock", "fcntl", "pipe", "unix", "tcp", "child", "mutex"];

/// A child that does this and then sleeps; it ends with its parent.
fn child(does: impl FnOnce()) -> i32 {
    // SAFETY: the child makes system calls only, none of them needs a lock of this process.
    unsafe {
        match libc::fork() {
            0 => {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                does();
                loop {
                    libc::pause();
                }
            }
            pid => pid,
        }
    }
}

/// Locks a whole file by `fcntl`, waiting for it.
fn lock(fd: i32) {
    // SAFETY: all-zero bytes are a valid flock.
    let mut l: libc::flock = unsafe { std::mem::zeroed() };
    l.l_type = libc::F_WRLCK as i16;
    // SAFETY: `l` outlives the call.
    unsafe { libc::fcntl(fd, libc::F_SETLKW, &raw const l) };
}

/// The program: makes somebody it then waits for.
fn program(way: &str) {
    let path = std::env::temp_dir().join(format!("orbit-waits-{way}-{}", std::process::id()));
    let open = || std::fs::File::options().create(true).truncate(true).write(true).open(&path).expect("a file");
    let mut byte = [0u8; 1];
    // SAFETY: each is a plain call on descriptors and memory of this function's own, which does not return.
    unsafe {
        match way {
            "flock" | "fcntl" => {
                // Opened anew by the child: the lock is its own.
                let there = std::ffi::CString::new(path.to_str().expect("a path")).expect("a path");
                let mine = open();
                let (ready, tell) = UnixStream::pair().expect("sockets");
                child(|| {
                    let fd = libc::open(there.as_ptr(), libc::O_WRONLY);
                    if way == "flock" {
                        libc::flock(fd, libc::LOCK_EX);
                    } else {
                        lock(fd);
                    }
                    libc::write(tell.as_raw_fd(), c"x".as_ptr().cast(), 1);
                });
                let _ = (&ready).read(&mut byte);
                let _ = std::fs::remove_file(&path);
                let _inside = enter(&WAITS);
                if way == "flock" {
                    libc::flock(mine.as_raw_fd(), libc::LOCK_EX);
                } else {
                    lock(mine.as_raw_fd());
                }
            }
            "pipe" => {
                let mut ends = [0; 2];
                libc::pipe(ends.as_mut_ptr());
                child(|| ());
                libc::close(ends[1]);
                let _inside = enter(&WAITS);
                libc::read(ends[0], byte.as_mut_ptr().cast(), 1);
            }
            "unix" => {
                let (mine, other) = UnixStream::pair().expect("sockets");
                child(|| {
                    libc::close(mine.as_raw_fd());
                });
                drop(other);
                let _inside = enter(&WAITS);
                let _ = (&mine).read(&mut byte);
            }
            "tcp" => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
                let other = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
                let mine = listener.accept().expect("accepted").0;
                child(|| {
                    libc::close(mine.as_raw_fd());
                });
                drop(other);
                let _inside = enter(&WAITS);
                let _ = (&mine).read(&mut byte);
            }
            "child" => {
                let pid = child(|| ());
                let _inside = enter(&WAITS);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
            _ => {
                let mutex = Box::leak(Box::new(libc::PTHREAD_MUTEX_INITIALIZER));
                let at = &raw mut *mutex as usize;
                let (held, wait_held) = std::sync::mpsc::channel();
                let holder = std::thread::Builder::new().name("holder".into()).spawn(move || {
                    libc::pthread_mutex_lock(at as *mut libc::pthread_mutex_t);
                    let _ = held.send(());
                    loop {
                        libc::pause();
                    }
                });
                let _ = wait_held.recv();
                drop(holder);
                let _inside = enter(&WAITS);
                libc::pthread_mutex_lock(at as *mut libc::pthread_mutex_t);
            }
        }
    }
}

#[test]
fn the_program() {
    if let Ok(way) = std::env::var(WAY) {
        program(&way);
    }
}

/// Children of any thread of the process.
fn children(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let of = |t: std::fs::DirEntry| std::fs::read_to_string(t.path().join("children")).unwrap_or_default();
    let lists: Vec<String> = tasks.flatten().map(of).collect();
    lists.iter().flat_map(|l| l.split_whitespace()).filter_map(|p| p.parse().ok()).collect()
}

fn hang(way: &str) {
    let itself = std::env::current_exe().expect("the test");
    let p = Program::start(Command::new(itself).args(["the_program", "--exact", "--nocapture"]).env(WAY, way));
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    let h = w.hang();
    assert_eq!((h.kind, h.section.as_deref()), (Kind::Blocked, Some("waits")), "{way}: {h:#?}");
    let peer = children(p.pid()).first().copied();
    let (what, who) = match way {
        "flock" | "fcntl" => ("lock on file", format!("held by process {}", peer.expect("a child"))),
        "pipe" => ("bytes from a pipe", format!("process {} alone", peer.expect("a child"))),
        "unix" => ("on socket", format!("process {}", peer.expect("a child"))),
        "tcp" => ("connected to tcp 127.0.0.1:", format!("process {}", peer.expect("a child"))),
        "child" => ("a child to end", format!("process {}", peer.expect("a child"))),
        _ => ("mutex 0x", "held by thread".to_owned()),
    };
    assert!(h.why.contains(what) && h.why.contains(&who), "{way}: wants {what:?} and {who:?}: {}", h.why);
    // Whoever could end it is shown with what it does.
    let other = h.threads.get(1).unwrap_or_else(|| panic!("{way}: alone: {h:#?}"));
    if way == "mutex" {
        assert_eq!((other.pid, other.comm.as_str()), (p.pid(), "holder"));
        assert!(h.why.contains(&format!("held by thread {}", other.tid)), "{}", h.why);
    } else {
        assert_eq!(Some(other.pid), peer, "{way}");
    }
    assert!(!other.stack.is_empty(), "{way}: {other:#?}");
    assert!(h.since >= Duration::from_millis(900) && h.progress >= 900_000_000, "{way}: {h:#?}");
}

#[test]
fn who_could_end_it() {
    // Few at a time: each watcher reads the program's debug information, and stops threads that must have a CPU to stop.
    for some in WAYS.chunks(2) {
        std::thread::scope(|s| {
            for way in some {
                s.spawn(move || hang(way));
            }
        });
    }
}
