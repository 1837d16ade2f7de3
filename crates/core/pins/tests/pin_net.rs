//! P_NET reports what a program sends and receives, also by read and write, and lists its sockets
//! with what waits in them.

mod common;
use common::{Forked, event, kernel_programs_or_skip, until};
use orbit_rmk::{Command, Filter, Kind, Reply};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd,
};

#[test]
fn arrival_and_sending_are_seen() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("net");
    module.use_pin("P_NET").expect("P_NET");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let mut near = TcpStream::connect(listener.local_addr().expect("addr")).expect("connect");
    let (far, _) = listener.accept().expect("accept");
    let fd = far.as_raw_fd();
    // SAFETY: the child reads and writes its own buffer.
    let guest = Forked::new(|| unsafe {
        let mut buffer = [0u8; 64];
        loop {
            let n = libc::read(fd, buffer.as_mut_ptr().cast(), 64);
            libc::send(fd, buffer.as_ptr().cast(), n as usize, 0);
        }
    });
    module.subscr_event("P_NET", Kind::CallCompleted, Filter::pids(&[guest.pid()])).expect("a subscription");
    let mut echo = [0; 5];
    near.write_all(b"hello").expect("write");
    near.read_exact(&mut echo).expect("read");
    assert_eq!(&echo, b"hello");
    let arrival = event(&module, "the arrival", |event| event.values[0] == libc::SYS_read as u64);
    assert_eq!((arrival.values[1], arrival.values[3]), (5, fd as u64));
    // It may have been taken together with the arrival, so another round shows it for sure.
    near.write_all(b"again").expect("write");
    let sent = event(&module, "the sending", |event| event.values[0] == libc::SYS_sendto as u64);
    assert_eq!((sent.values[1], sent.values[3]), (5, fd as u64));
}

#[test]
fn sockets_are_listed_with_what_waits() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = core.client("net");
    module.use_pin("P_NET").expect("P_NET");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let mut near = TcpStream::connect(listener.local_addr().expect("addr")).expect("connect");
    let (far, _) = listener.accept().expect("accept");
    // SAFETY: pause takes no pointers.
    let guest = Forked::new(|| unsafe {
        loop {
            libc::pause();
        }
    });
    near.write_all(b"seven b").expect("write");
    let find = |fd: i32| match module.issue_cmd("P_NET", &Command::Sockets { pid: guest.pid() }) {
        Ok(Reply::Sockets { sockets }) => sockets.into_iter().find(|socket| socket.fd == fd as u32).expect("listed"),
        other => panic!("{other:?}"),
    };
    until("seven bytes wait", || find(far.as_raw_fd()).unread == 7);
    let socket = find(far.as_raw_fd());
    assert_eq!(
        (socket.family.as_str(), socket.local, socket.peer, socket.listening),
        ("tcp", listener.local_addr().expect("addr").to_string(), near.local_addr().expect("addr").to_string(), false)
    );
    assert!(find(listener.as_raw_fd()).listening);
}
