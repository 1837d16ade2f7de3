//! The points that a task needs, found without `orbit analyse`: the stock program runs with an
//! allocator of the bench's own (`c/withheld.c`), and a child of it calls the task while all
//! allocated memory is closed, as it is for an orbit when nothing was moved into areas. What the
//! task faults on is needed; what stays closed until the task has returned is not.
//!
//! It shares with the analyser how a stack's addresses get names, and nothing else: the allocator,
//! the record of stacks and the way an access is noticed (a page fault, a trapped system call) are
//! others.

use super::super::ahd::scratch::Scratch;
use orbit_console::out::Failure;
use orbit_inspect::stacks::{Frame, Unwinder};
use orbit_inspect::{Maps, functions};
use orbit_linux::child::Exit;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Frames of a stack; as in `withheld.c`.
const FRAMES: usize = 16;
/// The program must have started, or a call ended, after this time.
const PATIENCE: Duration = Duration::from_secs(120);

/// By allocation point the function that accessed first what the point allocates.
pub type Needed = BTreeMap<String, String>;

/// Runs the program to its end and returns what these calls of the entry need. Blocks as long.
pub fn run(program: &[OsString], entry: &str, calls: u64) -> Result<Needed, Failure> {
    let scratch = Scratch::new()?;
    let library = scratch.compile("withheld.so", include_str!("c/withheld.c"), &["-shared", "-fPIC"])?;
    let socket = scratch.path("talk");
    let listener = UnixListener::bind(&socket)?;
    let (first, arguments) = program.split_first().ok_or_else(|| Failure::text("no program"))?;
    let mut command = Command::new(first);
    let child = command.args(arguments).env("LD_PRELOAD", library).env("ORBIT_WITHHELD", socket).spawn()?;
    let mut program = Ended(child);
    let mut stream = accept(&listener, &mut program.0)?;
    let needed = watch(&mut stream, entry, calls)?;
    program.0.wait_for_exit()?;
    Ok(needed)
}

/// The program, which is gone when this is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It has ended already, or there is nothing better to do.
        let _ = self.0.kill();
        let _ = self.0.wait_for_exit();
    }
}

fn accept(listener: &UnixListener, program: &mut Child) -> Result<UnixStream, Failure> {
    listener.set_nonblocking(true)?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(status) = program.exited()? {
            return Err(Failure::text(format!("the program ended before its main function: {status}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(Failure::text("the program did not start"))
}

fn word(stream: &mut UnixStream) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn watch(stream: &mut UnixStream, entry: &str, calls: u64) -> Result<Needed, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::text(error.to_string());
    let pid = i32::try_from(word(stream)?).map_err(|error| failed(&error))?;
    let maps = Maps::of(pid).map_err(|error| failed(&error))?;
    let wanted = entry.parse().map_err(Failure::text)?;
    let found = functions::find(pid, &maps, &wanted).map_err(|why| Failure::text(format!("{entry} {why}")))?;
    stream.write_all(&found.address.to_ne_bytes())?;
    stream.write_all(&calls.to_ne_bytes())?;
    let mut unwinder = Unwinder::new(pid).map_err(|error| failed(&error))?;
    let mut needed = Needed::new();
    for call in 0..calls {
        let count = match word(stream) {
            Ok(count) => count,
            // Fewer calls than were asked for.
            Err(_) if call > 0 => break,
            Err(error) => return Err(Failure::text(format!("no call of {entry}: {error}"))),
        };
        let (ended, result) = (word(stream)?, word(stream)?);
        for _ in 0..count {
            let mut stack = [0; FRAMES];
            for frame in &mut stack {
                *frame = word(stream)?;
            }
            let at = word(stream)?;
            let frames = |of: &[u64]| unwinder_frames(&mut unwinder, of);
            note(&mut needed, &found.module, &stack, at, frames)?;
        }
        if ended == 0 {
            return Err(Failure::text(format!("{entry} faulted at {result:#x}, on no allocated memory")));
        }
        stream.write_all(&[1])?;
    }
    Ok(needed)
}

fn unwinder_frames(unwinder: &mut Unwinder, of: &[u64]) -> Result<Vec<Frame>, Failure> {
    let frames = unwinder.returns(of).map_err(|error| Failure::text(error.to_string()))?;
    Ok(frames.into_iter().flatten().collect())
}

/// The innermost function of the program that has a name and is no allocator.
fn own(frames: &[Frame], module: &str) -> Option<String> {
    let mut names = frames.iter().filter(|frame| frame.module == module).filter_map(|frame| frame.function.as_deref());
    let is_allocator = |name: &str| {
        let is_cs = !name.contains("::");
        is_cs && ["alloc", "strdup", "operator new"].iter().any(|word| name.contains(word)) || name.starts_with("std::")
    };
    names.find(|name| !is_allocator(name)).map(|name| super::without_parameters(name).to_owned())
}

fn note(
    needed: &mut Needed,
    module: &str,
    stack: &[u64],
    at: u64,
    mut frames: impl FnMut(&[u64]) -> Result<Vec<Frame>, Failure>,
) -> Result<(), Failure> {
    let depth = stack.iter().position(|&frame| frame == 0).unwrap_or(stack.len());
    if let Some(point) = own(&frames(&stack[..depth])?, module)
        && !needed.contains_key(&point)
    {
        // Names are those of what comes ahead of a return address.
        let reader = frames(&[at + 1])?.into_iter().find_map(|frame| frame.function);
        needed.insert(point, reader.unwrap_or_else(|| "a function without a symbol".to_owned()));
    }
    Ok(())
}
