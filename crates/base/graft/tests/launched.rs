//! A program is entered before its first instruction, and runs as any other then.

mod common;

use common::{Dir, may_trace};
use graft::{Error, Protection, Source, launch};
use std::io::Read;
use std::process::{Command, Stdio};

fn echo() -> Command {
    let mut command = Command::new("/bin/echo");
    command.arg("it runs").stdout(Stdio::piped());
    command
}

#[test]
fn before_its_first_instruction() {
    if !may_trace() {
        return;
    }
    for _ in 0..10 {
        let (mut child, name) = launch(echo(), |stopped| -> Result<String, Error> {
            assert_eq!(stopped.tids(), [stopped.pid()]);
            let region = stopped.map(Some(0x2000_0000_0000), 4096, Protection::READ_EXECUTE, Source::Bytes(&[0xc3]))?;
            stopped.leave(region)?;
            // Nothing but program, loader and the kernel's own is mapped.
            let maps = stopped.mappings()?;
            assert!(!maps.iter().any(|entry| entry.name.contains("libc")), "{maps:?}");
            Ok(maps.iter().map(|entry| entry.name.clone()).find(|name| name.starts_with('/')).unwrap_or_default())
        })
        .expect("launched");
        assert!(name.ends_with("/echo"), "{name}");
        let mut said = String::new();
        child.stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
        assert_eq!(said, "it runs\n");
        assert!(child.wait().expect("its end").success());
    }
}

#[test]
fn what_cannot_be_started() {
    let error = launch(Command::new("/no/such/program"), |_| Ok::<(), Error>(())).expect_err("no such program");
    assert!(matches!(&error, Error::Start { .. }) && error.to_string().contains("/no/such/program"), "{error}");
    assert_eq!(error.errno(), libc::ENOENT);
}

#[test]
fn a_failure_of_the_work_kills_it() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("launched");
    let mark = dir.0.join("ran");
    let mut command = Command::new("/bin/touch");
    command.arg(&mark);
    let mut pid = 0;
    let failed = launch(command, |stopped| -> Result<(), Error> {
        pid = stopped.pid();
        Err(Error::Gone { id: 7 })
    });
    assert!(matches!(failed, Err(Error::Gone { id: 7 })), "{failed:?}");
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is left");
    assert!(!mark.exists(), "it ran");
}
