//! What the tests share: guests compiled from C, and running a program under the executive.
#![allow(dead_code, reason = "each test uses some of it")]

use orbit_hijack::reader::{Event, Traced, What};
use orbit_hijack::{Options, Outcome, Session, calls};
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How a guest went.
pub struct Run {
    pub outcome: Outcome,
    pub stdout: String,
    pub events: Vec<Event>,
}

impl Run {
    /// Calls of this name, in their order.
    pub fn calls<'a>(&'a self, name: &str) -> Vec<&'a Traced> {
        let number = u64::from(calls::by_name(name).expect("a known call").number);
        let all = self.events.iter().filter_map(|event| match &event.what {
            What::Call(call) if call.number == number => Some(call),
            _ => None,
        });
        all.collect()
    }
}

/// Runs a program under the executive to its end.
pub fn run(options: &Options, arguments: &[&str]) -> Run {
    run_with(options, arguments, |_| ())
}

/// The same, with changes of environment and the like.
pub fn run_with(options: &Options, arguments: &[&str], configure: impl FnOnce(&mut Command)) -> Run {
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    let mut session = Session::start_with(options, &arguments, |command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        configure(command);
    })
    .unwrap_or_else(|error| panic!("cannot start {arguments:?}: {error}"));
    let mut pipe = session.stdout().expect("a pipe");
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        pipe.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
    });
    let mut events = Vec::new();
    let followed = session.follow(|event| {
        events.push(event.clone());
        Ok(())
    });
    followed.expect("followed");
    let stdout = reader.join().expect("reader").expect("output");
    Run { outcome: session.outcome(), stdout, events }
}

/// Compiles `guests/NAME.c` with these flags; returns the program.
pub fn guest(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests").join(name).with_extension("c");
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}{}", flags.concat().replace('/', "_")));
    // Tests run at once: each compiles into a file of its own, which then takes the name.
    let fresh = to.with_extension(
        format!("{:?}", std::thread::current().id()).replace(['(', ')'], "_") + &std::process::id().to_string(),
    );
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(compiler)
        .arg("-O1")
        .arg("-o")
        .arg(&fresh)
        .arg(&source)
        .args(["-pthread", "-Wno-unused-result"])
        .args(flags)
        .status();
    assert!(status.expect("a C compiler").success(), "cannot compile {}", source.display());
    std::fs::rename(&fresh, &to).expect("renamed");
    to
}

/// Whether a program is installed; says so if not.
pub fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|place| place.join(program).exists()));
    if !found {
        println!("SKIP: needs {program}");
    }
    found
}

/// Compiles `objects/NAME.c` as policy object.
pub fn object(name: &str) -> orbit_hijack::Object {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join("tests/objects").join(name).with_extension("c");
    let file = format!("{name}-{}-{:?}.so", std::process::id(), std::thread::current().id());
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file.replace(['(', ')'], "_"));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-O2", "-ffreestanding", "-fPIC", "-shared", "-nostdlib", "-mgeneral-regs-only"]);
    command.args(["-fcf-protection=none", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root.join("include"));
    let status = command.arg("-o").arg(&to).arg(&source).status();
    assert!(status.expect("a C compiler").success(), "cannot compile {}", source.display());
    let object = orbit_hijack::Object::load(&to).unwrap_or_else(|error| panic!("{error}"));
    std::fs::remove_file(&to).expect("removed");
    object
}
