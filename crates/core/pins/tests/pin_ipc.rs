//! P_IPC reports calls on pipes, not those on files, lists a program's channels with what waits,
//! and writes to one.

mod common;
use common::{Forked, event, kernel_programs_or_skip, take_all};
use orbit_rmk::{Command, Filter, Kind, Reply};

fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written to a live array.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    ends
}

fn close(ends: [i32; 2]) {
    for end in ends {
        // SAFETY: the test's own descriptors, closed once.
        unsafe { libc::close(end) };
    }
}

#[test]
fn a_message_through_a_pipe_is_seen() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("ipc");
    module.use_pin("P_IPC").expect("P_IPC");
    let ends = pipe();
    // SAFETY: the child reads and writes its own buffer.
    let guest = Forked::new(|| unsafe {
        let mut buffer = [0u8; 3];
        let null = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY);
        loop {
            libc::write(ends[1], buffer.as_ptr().cast(), 3);
            libc::read(ends[0], buffer.as_mut_ptr().cast(), 3);
            libc::read(null, buffer.as_mut_ptr().cast(), 2);
            libc::usleep(2000);
        }
    });
    let calls = [libc::SYS_read as u32, libc::SYS_write as u32];
    module
        .subscr_event("P_IPC", Kind::CallCompleted, Filter::pids(&[guest.pid()]).keys(&calls))
        .expect("a subscription");
    for (call, end) in [(libc::SYS_write, ends[1]), (libc::SYS_read, ends[0])] {
        let seen = event(&module, "a message", |event| event.values[0] == call as u64);
        assert_eq!((seen.values[1], seen.values[3]), (3, end as u64));
    }
    for other in take_all(&module) {
        assert_eq!(other.values[1], 3, "only the pipe: {other:?}");
    }
    drop(guest);
    close(ends);
}

#[test]
fn channels_are_listed_and_written() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = core.client("ipc");
    module.use_pin("P_IPC").expect("P_IPC");
    let ends = pipe();
    // SAFETY: pause takes no pointers.
    let guest = Forked::new(|| unsafe {
        loop {
            libc::pause();
        }
    });
    let pid = guest.pid();
    let find = |fd: i32| match module.issue_cmd("P_IPC", &Command::Channels { pid }) {
        Ok(Reply::Channels { channels }) => {
            channels.into_iter().find(|channel| channel.fd == fd as u32).expect("listed")
        }
        other => panic!("{other:?}"),
    };
    let (reader, writer) = (find(ends[0]), find(ends[1]));
    assert_eq!((reader.kind.as_str(), reader.writable, writer.writable), ("pipe", false, true));
    assert_eq!(reader.identity, writer.identity, "both ends of one pipe");
    let write = Command::ChannelWrite { pid, fd: ends[1] as u32, bytes: b"four".to_vec() };
    assert_eq!(module.issue_cmd("P_IPC", &write).expect("written"), Reply::Id { id: 4 });
    assert_eq!(find(ends[0]).waiting, 4);
    let wrong = Command::ChannelWrite { pid, fd: ends[0] as u32, bytes: b"x".to_vec() };
    assert!(module.issue_cmd("P_IPC", &wrong).is_err(), "the reading end takes nothing");
    drop(guest);
    close(ends);
}
