//! Names that are no UTF-8, of a program, a file that it maps and a socket, hide nothing that the
//! pins report of it.

mod common;
use common::{Forked, until};
use orbit_rmk::{Command, Reply};
use std::{
    ffi::OsStr,
    fs::{File, read},
    os::{fd::AsRawFd, unix::ffi::OsStrExt, unix::net::UnixListener},
    path::PathBuf,
};

/// A directory whose name ends in the middle of a character, removed at the end.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn threads_regions_sockets_and_channels_are_seen() {
    let mut name = format!("{}/foreign-{}-", env!("CARGO_TARGET_TMPDIR"), std::process::id()).into_bytes();
    name.push(0xd0);
    let dir = Dir(OsStr::from_bytes(&name).into());
    std::fs::create_dir(&dir.0).expect("a directory");
    let file = File::create_new(dir.0.join("file")).expect("a file");
    // By way of the directory's descriptor: a socket's path is short.
    let opened = File::open(&dir.0).expect("the directory");
    let mut path = format!("/proc/self/fd/{}/", opened.as_raw_fd()).into_bytes();
    path.push(0xff);
    let socket = UnixListener::bind(OsStr::from_bytes(&path)).expect("bind");
    let guest = Forked::new(|| {
        orbit_linux::process::set_name(c"\xd0\xb0) \xd0").expect("a name");
        // SAFETY: a mapping that is never touched, and a call that takes nothing.
        unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
            libc::pause();
        }
    });
    let pid = guest.pid();
    let maps = || read(format!("/proc/{pid}/maps")).expect("maps");
    until("the mapping", || maps().windows(name.len()).any(|part| part == name));
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = core.client("foreign");
    let ask = |pin: &str, command: Command| {
        module.use_pin(pin).expect("the pin");
        module.issue_cmd(pin, &command).expect("an answer")
    };
    match ask("P_MEM", Command::MemoryMap { pid }) {
        Reply::Regions { regions } => {
            assert!(regions.iter().any(|region| region.name.ends_with("-\u{fffd}/file")), "{regions:?}");
        }
        other => panic!("{other:?}"),
    }
    match ask("P_NET", Command::Sockets { pid }) {
        Reply::Sockets { sockets } => {
            let own = sockets.iter().find(|one| one.fd == socket.as_raw_fd() as u32).expect("the socket");
            assert!(own.family == "unix" && own.listening && own.local.ends_with("/\u{fffd}"), "{own:?}");
        }
        other => panic!("{other:?}"),
    }
    match ask("P_IPC", Command::Channels { pid }) {
        Reply::Channels { channels } => {
            assert!(channels.iter().any(|one| one.fd == socket.as_raw_fd() as u32), "{channels:?}");
        }
        other => panic!("{other:?}"),
    }
    module.use_pin("P_SCHL").expect("the pin");
    // It has its mapping a little before it sleeps.
    until("it to sleep", || match module.issue_cmd("P_SCHL", &Command::ThreadTimes { pid }).expect("an answer") {
        Reply::Threads { threads } => {
            assert!(threads.len() == 1 && threads[0].tid == pid, "{threads:?}");
            threads[0].state == b'S'
        }
        other => panic!("{other:?}"),
    });
}
