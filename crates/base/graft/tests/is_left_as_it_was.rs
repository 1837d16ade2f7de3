//! A program in which calls ran, memory was mapped and descriptors moved is the same as before
//! afterwards, and computes on.

mod common;

use common::{Dir, Subject, have, may_trace};
use graft::{Error, Leaf, Process, Protection, Source, free_address};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

fn everything_is_given_back(subject: &Subject) {
    let before = subject.outside();
    let process = &subject.process;
    let address = free_address(&[process], 8192).expect("free in it");
    let memory = orbit_linux::memfd::create("graft-test", 4096, false).expect("a file");
    for _ in 0..20 {
        let result = process.while_stopped(|stopped| -> Result<u64, Error> {
            let pid = stopped.call(libc::SYS_getpid, [0; 6])?;
            assert_eq!(pid, process.pid() as u64);
            let region = stopped.map(Some(address), 8192, Protection::READ_WRITE, Source::Zeroes)?;
            assert_eq!(region.start, address);
            stopped.write(address + 8190, b"ab")?;
            let shared = Source::File { file: memory.as_fd(), offset: 0, shared: true };
            let shared = stopped.map(None, 4096, Protection::READ_WRITE, shared)?;
            stopped.write(shared.start, b"shared with it")?;
            let number = stopped.send(memory.as_fd())?;
            assert!(stopped.call(libc::SYS_fcntl, [number as u64, libc::F_GETFD as u64, 0, 0, 0, 0])? & 1 == 1);
            let event = stopped.take_from(libc::SYS_eventfd2, [5, libc::EFD_CLOEXEC as u64, 0, 0, 0, 0])?;
            let mut count = [0u8; 8];
            std::fs::File::from(event).read_exact(&mut count).expect("the counter");
            Ok(u64::from_ne_bytes(count))
        });
        assert_eq!(result.expect("all of it"), 5);
    }
    let mut text = [0u8; 14];
    let mut file = std::fs::File::from(memory);
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_exact(&mut text)).expect("14 bytes");
    assert_eq!(&text, b"shared with it");
    subject.is_unharmed();
    assert_eq!(subject.outside(), before);
}

#[test]
fn a_dynamic_program() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("dynamic");
    let program = dir.build("cc", "subject.c", &[]);
    everything_is_given_back(&Subject::program(&program, &["compute"]));
    everything_is_given_back(&Subject::program(&program, &["read"]).ended());
}

#[test]
fn a_static_program() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("static");
    everything_is_given_back(&Subject::program(&dir.build("cc", "subject.c", &["-static"]), &["compute"]));
}

#[test]
fn a_program_with_musl() {
    if !may_trace() || !have("musl-gcc") {
        return;
    }
    let dir = Dir::new("musl");
    for flags in [&["-static"][..], &[]] {
        everything_is_given_back(&Subject::program(&dir.build("musl-gcc", "subject.c", flags), &["compute"]));
    }
}

#[test]
fn what_is_left_stays() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("left");
    let subject = Subject::program(&dir.build("cc", "subject.c", &[]), &["compute"]);
    let process = &subject.process;
    let address =
        free_address(&[process, &Process::find(std::os::unix::process::parent_id() as i32).expect("a parent")], 4096)
            .expect("free in both");
    // mov $42, %eax; ret
    let code = [0xb8, 0x2a, 0, 0, 0, 0xc3];
    let mut file = std::fs::File::from(orbit_linux::memfd::create("graft-test", 4096, false).expect("a file"));
    file.write_all(b"hello").expect("five bytes");
    let (region, number) = process
        .while_stopped(|stopped| -> Result<_, Error> {
            let region = stopped.map(Some(address), 4096, Protection::READ_EXECUTE, Source::Bytes(&code))?;
            stopped.leave(region)?;
            let again = stopped.map(Some(address), 4096, Protection::READ, Source::Zeroes);
            assert!(matches!(again, Err(Error::Occupied { .. })), "{again:?}");
            let number = stopped.send(file.as_fd())?;
            stopped.leave_descriptor(number)?;
            Ok((region, number))
        })
        .expect("left");
    let mut there = [0u8; 6];
    process.read(address, &mut there).expect("the code");
    assert_eq!(there, code);
    assert!(
        process.mappings().expect("mappings").iter().any(|m| m.start == address && m.protection & libc::PROT_EXEC != 0)
    );
    let mut copy = std::fs::File::from(process.duplicate(number).expect("the descriptor"));
    let mut text = String::new();
    copy.seek(SeekFrom::Start(0)).and_then(|_| copy.read_to_string(&mut text)).expect("text");
    assert!(text.starts_with("hello"), "{text:?}");
    subject.is_unharmed();
    process
        .while_stopped(|stopped| -> Result<(), Error> {
            stopped.unmap(region)?;
            stopped.close(number)
        })
        .expect("taken away");
    assert!(process.read(address, &mut there).is_err());
    assert!(process.duplicate(number).is_err());
}

#[test]
fn registers_are_read_and_set() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("registers");
    let subject = Subject::program(&dir.build("cc", "subject.c", &[]), &["compute"]);
    subject
        .process
        .while_stopped(|stopped| -> Result<(), Error> {
            let tid = subject.pid();
            let before = stopped.thread(tid)?.regs()?;
            assert!(before.vectors.len() >= 512);
            stopped.call(libc::SYS_getppid, [0; 6])?;
            let mut thread = stopped.thread(tid)?;
            let after = thread.regs()?;
            assert_eq!(after.vectors, before.vectors);
            assert_eq!((after.general.rip, after.general.rax), (before.general.rip, before.general.rax));
            // Other registers run, and the right ones are put back before it is released.
            let mut other = before.clone();
            other.general.rbx ^= 1;
            other.vectors[160] ^= 0xff;
            thread.set_regs(&other)?;
            assert_eq!(thread.regs()?.general.rbx, other.general.rbx);
            assert_eq!(thread.regs()?.vectors, other.vectors);
            stopped.call(libc::SYS_getppid, [0; 6])?;
            let mut thread = stopped.thread(tid)?;
            assert_eq!(thread.regs()?.vectors, other.vectors);
            thread.set_regs(&before)
        })
        .expect("registers");
    subject.is_unharmed();
}

/// `mov 8, %rax` or nothing; then the end of every leaf.
fn leaf(faults: bool) -> Vec<u8> {
    let first: &[u8] = if faults { &[0x48, 0x8b, 0x04, 0x25, 8, 0, 0, 0] } else { &[] };
    let end = [0xb8, 3, 0, 0, 0, 0x48, 0xc7, 0xc7, 0xff, 0xff, 0xff, 0xff, 0x41, 0xff, 0xe0];
    [first, &end].concat()
}

/// See the test [`a_leaf`].
fn leaves_come_to_their_end_or_are_given_up(subject: &Subject) {
    let process = &subject.process;
    let before = subject.outside();
    for faults in [false, true, false] {
        let ended = process.while_stopped(|stopped| -> Result<bool, Error> {
            let code = stopped.map(None, 4096, Protection::READ_EXECUTE, Source::Bytes(&leaf(faults)))?;
            let mut worked = 0;
            let ended = stopped.run_leaf(Leaf { address: code.start, rdi: 0, rdx: 0, r9: 0 }, || worked += 1)?;
            assert_eq!(worked, 1, "this side has worked meanwhile");
            assert_eq!(stopped.call(libc::SYS_getpid, [0; 6])?, process.pid() as u64, "calls can be made after it");
            Ok(ended)
        });
        assert_eq!(ended.expect("released"), !faults);
    }
    subject.is_unharmed();
    assert_eq!(subject.outside(), before);
}

#[test]
fn a_leaf() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("leaf");
    let program = dir.build("cc", "subject.c", &[]);
    leaves_come_to_their_end_or_are_given_up(&Subject::program(&program, &["compute"]));
    leaves_come_to_their_end_or_are_given_up(&Subject::program(&program, &["read"]).ended());
}
