//! One virtual machine: QEMU, emulating, with two processors; what it says, line by line, each with
//! the time it was heard at.
//!
//! Owns the process and the sockets by which it talks; dropping it ends both. Everything the
//! console said stays in a file.

use super::Failed;
use orbit_linux::child::Exit;
use serde_json::Value;
use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{
        net::{UnixListener, UnixStream},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

/// What every machine is made of.
pub struct Parts {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    /// Where sockets and consoles go.
    pub work: PathBuf,
}

/// Something a machine said.
pub enum Said {
    /// A JSON line of the program inside.
    Line(Value),
    /// A line of the console.
    Console(String),
    /// A sign of life.
    Beat,
}

pub struct Vm {
    child: Child,
    heard: Receiver<(Instant, Said)>,
    sockets: Vec<PathBuf>,
    /// What the console said.
    pub console: PathBuf,
}

/// How waiting for a word ended.
pub enum Next {
    Said(Instant, Said),
    Silence,
    /// The machine has ended.
    Gone,
}

const CHANNELS: [&str; 3] = ["console", "life", "lines"];

impl Vm {
    /// Boots. `part` is what `orbit-lab guest` is to do; `kernel` are words for the kernel's
    /// command line; with `again` a reboot boots anew, else it ends the machine.
    pub fn boot(parts: &Parts, name: &str, part: &str, kernel: &str, again: bool) -> Result<Vm, Failed> {
        let cannot = |what: &str, e: std::io::Error| format!("{what}: {e}");
        let mut command = Command::new("qemu-system-x86_64");
        let (accelerator, cpu) = match std::env::var_os("ORBIT_VM_KVM") {
            Some(_) => ("kvm", "host"),
            None => ("tcg,thread=multi", "max"),
        };
        if part == "keys" {
            // One cycle for each instruction: emulated, a change of rights empties the caches of
            // addresses, which would be all that a clock sees.
            command.args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-cpu", "max", "-smp", "1"]);
        } else {
            command.args(["-accel", accelerator, "-cpu", cpu, "-smp", "2"]);
        }
        command.args(["-m", "512", "-display", "none", "-nodefaults"]);
        if !again {
            command.arg("-no-reboot");
        }
        let (mut listeners, mut sockets) = (Vec::new(), Vec::new());
        for channel in CHANNELS {
            let path = parts.work.join(format!("{name}.{channel}"));
            // Of a run before that was killed.
            let _ = std::fs::remove_file(&path);
            listeners.push(UnixListener::bind(&path).map_err(|e| cannot(&path.display().to_string(), e))?);
            command.arg("-chardev").arg(format!("socket,id={channel},path={}", path.display()));
            sockets.push(path);
        }
        command.args(["-serial", "chardev:console"]);
        command.args(["-device", "isa-debugcon,iobase=0xe9,chardev=life"]);
        command.args(["-device", "isa-debugcon,iobase=0xea,chardev=lines"]);
        command.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(&parts.initrd);
        let words = part.replace(' ', ",");
        command.arg("-append").arg(format!("console=ttyS0 panic=-1 {kernel} orbit_lab={words}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        // Whatever ends this program ends the machine: it would continue for ever. The thread that
        // boots is the main thread.
        // SAFETY: between fork and exec one system call is made, which touches no memory.
        unsafe { command.pre_exec(|| orbit_linux::process::set_parent_death_signal(libc::SIGKILL)) };
        let child = command.spawn().map_err(|e| cannot("qemu-system-x86_64", e))?;
        let (to, heard) = channel();
        let console = parts.work.join(format!("{name}.log"));
        let mut vm = Vm { child, heard, sockets, console };
        for (channel, listener) in CHANNELS.into_iter().zip(listeners) {
            let to = to.clone();
            let stream = accept(&listener, &mut vm.child).map_err(|e| cannot("qemu-system-x86_64 did not start", e))?;
            match channel {
                "life" => drop(thread::spawn(move || beats(stream, &to))),
                "lines" => drop(thread::spawn(move || each_line(stream, |line| lines(line, &to)))),
                _ => {
                    let log = File::create(&vm.console);
                    let mut log = log.map_err(|e| cannot(&vm.console.display().to_string(), e))?;
                    drop(thread::spawn(move || {
                        each_line(stream, |line| {
                            // A full disk costs the log only.
                            let _ = writeln!(log, "{line}");
                            let _ = to.send((Instant::now(), Said::Console(line.to_owned())));
                        });
                    }));
                }
            }
        }
        Ok(vm)
    }

    /// The next word, waited for until `until`.
    pub fn next(&mut self, until: Instant) -> Next {
        match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((at, said)) => Next::Said(at, said),
            Err(RecvTimeoutError::Timeout) => Next::Silence,
            Err(RecvTimeoutError::Disconnected) => Next::Gone,
        }
    }

    /// The last lines of the console, for whoever has to find out what went wrong.
    pub fn tail(&self) -> String {
        let text = std::fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        format!("{}:\n{}", self.console.display(), lines[lines.len().saturating_sub(30)..].join("\n"))
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait_for_exit();
        for path in &self.sockets {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The emulator comes within a minute, or not at all.
fn accept(listener: &UnixListener, emulator: &mut Child) -> std::io::Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(e) => {
                let ended = emulator.exited()?.is_some();
                if e.kind() != std::io::ErrorKind::WouldBlock || ended || begun.elapsed() > Duration::from_secs(60) {
                    return Err(e);
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn beats(mut stream: UnixStream, to: &Sender<(Instant, Said)>) {
    let mut bytes = [0; 64];
    while stream.read(&mut bytes).is_ok_and(|n| n > 0) {
        if to.send((Instant::now(), Said::Beat)).is_err() {
            break;
        }
    }
}

fn lines(line: &str, to: &Sender<(Instant, Said)>) {
    // A line that was cut short by a hang is no JSON: it is left out.
    if let Ok(value) = serde_json::from_str(line) {
        let _ = to.send((Instant::now(), Said::Line(value)));
    }
}

fn each_line(stream: UnixStream, mut with: impl FnMut(&str)) {
    let mut from = BufReader::new(stream);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if !text.is_empty() {
            with(text);
        }
        line.clear();
    }
}

/// A file that must be there.
pub fn there(path: &str) -> Result<PathBuf, Failed> {
    Path::new(path).canonicalize().map_err(|e| format!("{path}: {e}"))
}
