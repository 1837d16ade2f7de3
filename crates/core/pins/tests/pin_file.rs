//! P_FILE reports calls on files, not those on pipes, and reads, writes and seeks through a
//! program's own descriptor.

mod common;
use common::{Forked, event, kernel_programs_or_skip, take_all};
use orbit_rmk::{Command, Filter, Kind, Reply};
use std::{fs::File, os::fd::AsRawFd, os::unix::fs::FileExt};

/// A file without a name, shared with a child made after it.
fn scratch() -> File {
    let file = orbit_linux::memfd::create("scratch", 4096, false).expect("memfd");
    File::from(file)
}

#[test]
fn a_read_of_a_file_is_seen_and_one_of_a_pipe_is_not() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("files");
    module.use_pin("P_FILE").expect("P_FILE");
    let file = scratch();
    let (on_file, mut pipe) = (file.as_raw_fd(), [0; 2]);
    // SAFETY: two descriptors are written to a live array; the child reads and writes its own
    // buffer.
    let guest = unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        Forked::new(|| {
            let mut byte = 0u8;
            loop {
                libc::write(pipe[1], (&raw const byte).cast(), 1);
                libc::read(pipe[0], (&raw mut byte).cast(), 1);
                libc::pread(on_file, (&raw mut byte).cast(), 1, 7);
                libc::lseek(on_file, 0, libc::SEEK_SET);
                libc::read(on_file, (&raw mut byte).cast(), 1);
                libc::usleep(2000);
            }
        })
    };
    let reads = [libc::SYS_read as u32, libc::SYS_pread64 as u32, libc::SYS_write as u32];
    module
        .subscr_event("P_FILE", Kind::CallCompleted, Filter::pids(&[guest.pid()]).keys(&reads))
        .expect("a subscription");
    for call in [libc::SYS_pread64, libc::SYS_read] {
        let seen = event(&module, "a read of the file", |event| event.values[0] == call as u64);
        assert_eq!((seen.values[1], seen.values[3]), (1, on_file as u64), "one byte, of the file");
    }
    for other in take_all(&module) {
        assert_eq!(other.values[3], on_file as u64, "only the file: {other:?}");
    }
    // SAFETY: our own descriptors.
    unsafe {
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
}

#[test]
fn a_programs_file_is_listed_read_written_and_moved() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = core.client("files");
    module.use_pin("P_FILE").expect("P_FILE");
    let file = scratch();
    file.write_all_at(b"old text", 0).expect("write");
    // SAFETY: pause takes no pointers.
    let guest = Forked::new(|| unsafe {
        loop {
            libc::pause();
        }
    });
    let (pid, fd) = (guest.pid(), file.as_raw_fd() as u32);
    let command = |command: Command| module.issue_cmd("P_FILE", &command).expect("a reply");
    let path = |fd: u32| match command(Command::OpenFiles { pid }) {
        Reply::Files { files } => files.into_iter().find(|file| file.fd == fd).expect("listed"),
        other => panic!("{other:?}"),
    };
    assert!(path(fd).path.contains("scratch"));
    assert_eq!(command(Command::FileRead { pid, fd, offset: 4, length: 100 }), {
        let mut bytes = vec![0; 4092];
        file.read_exact_at(&mut bytes, 4).expect("read");
        bytes.truncate(100);
        Reply::Bytes { bytes }
    });
    assert_eq!(command(Command::FileWrite { pid, fd, offset: 0, bytes: b"new".to_vec() }), Reply::Id { id: 3 });
    let mut now = [0; 8];
    file.read_exact_at(&mut now, 0).expect("read");
    assert_eq!(&now, b"new text");
    assert_eq!(command(Command::FileSeek { pid, fd, offset: 5 }), Reply::Id { id: 5 });
    assert_eq!(path(fd).offset, 5);
    let error = module
        .issue_cmd("P_FILE", &Command::FileRead { pid, fd: 9999, offset: 0, length: 1 })
        .expect_err("no such descriptor");
    assert!(error.to_string().contains("descriptor 9999"), "{error}");
}
