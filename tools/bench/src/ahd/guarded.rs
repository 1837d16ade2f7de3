//! A program under `orbit watch`, and what the guard reports of it.
//!
//! The guard is this very command, run as a user runs it; its events come through a pipe and are
//! stamped when they arrive, so latencies are those a user sees. Programs are ended through
//! descriptors taken when the guard named them.

use orbit_console::out::Failure;
use orbit_linux::child::Exit;
use orbit_linux::pidfd;
use orbit_linux::status::Status;
use orbit_family as family;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// One event of the guard.
pub struct Reported {
    /// When it arrived, nanoseconds of the monotonic clock.
    pub at: i64,
    pub event: Value,
}

impl Reported {
    /// A thread hangs.
    pub fn is_hang(&self) -> bool {
        self.event["event"] == "hang"
    }

    /// The reason and the stacks, in a few lines.
    pub fn report(&self) -> String {
        let mut text = self.event["why"].as_str().unwrap_or("?").to_owned();
        for thread in self.event["stacks"].as_array().into_iter().flatten().take(6) {
            text += &format!("\n    {} {}:", thread["tid"], thread["comm"].as_str().unwrap_or_default());
            for frame in thread["frames"].as_array().into_iter().flatten().take(8) {
                let at = format!("{}+{}", frame["module"].as_str().unwrap_or("?"), frame["offset"]);
                text += &format!(" {}", frame["function"].as_str().unwrap_or(&at));
            }
        }
        text
    }
}

/// A guard that runs, with the processes it watches.
pub struct Guarded {
    guard: Child,
    reported: Receiver<Reported>,
    processes: Vec<(i32, OwnedFd)>,
    /// Threads whose loop it knows.
    learnt: BTreeSet<i32>,
    /// What it reported of itself.
    troubles: Vec<Value>,
    /// The guard started the program, and so it ends with it.
    own: bool,
}

/// How long a guard may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(20);

impl Guarded {
    /// Starts a program under guard. What it prints is dropped.
    pub fn start<S: AsRef<OsStr>>(
        program: &[S],
        env: &[(&str, &OsStr)],
        config: Option<&Path>,
    ) -> Result<Guarded, Failure> {
        // The variables are for the program alone, not for the guard; stdout is for events alone.
        let mut shell = String::new();
        for nth in 0..env.len() {
            shell += &format!("export \"$1=$2\"; shift 2 # {nth}\n");
        }
        shell += "exec \"$@\" >/dev/null 2>&1";
        let mut command = guard(config)?;
        command.args(["--", "sh", "-c", &shell, "sh"]);
        for (name, value) in env {
            command.arg(name).arg(value);
        }
        Guarded::run(command.args(program), true)
    }

    /// Watches a process that runs.
    pub fn join(pid: i32) -> Result<Guarded, Failure> {
        let mut command = guard(None)?;
        Guarded::run(command.arg("--pid").arg(pid.to_string()), false)
    }

    fn run(command: &mut Command, own: bool) -> Result<Guarded, Failure> {
        let mut guard = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (Some(stdout), Some(stderr)) = (guard.stdout.take(), guard.stderr.take()) else {
            return Err(Failure::text("the guard has no stdout"));
        };
        let (say, said) = channel();
        std::thread::spawn(move || {
            BufReader::new(stderr).lines().map_while(Result::ok).for_each(|line| {
                // Nobody asks once the guard has begun.
                let _ = say.send(line);
            });
        });
        let (to, reported) = channel();
        // Ends with the guard's side of the pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let at = orbit_rmk::now() as i64;
                let Ok(event) = serde_json::from_str(&line) else {
                    continue;
                };
                if to.send(Reported { at, event }).is_err() {
                    return;
                }
            }
        });
        let (processes, learnt) = (Vec::new(), BTreeSet::new());
        let mut guarded = Guarded { guard, reported, processes, learnt, troubles: Vec::new(), own };
        let begun = Instant::now();
        while guarded.processes.is_empty() {
            match guarded.next(PATIENCE.saturating_sub(begun.elapsed())) {
                Ok(Some(_)) => {}
                Ok(None) if begun.elapsed() < PATIENCE => {}
                ended => {
                    let how = match ended {
                        Err(_) => "ended before it began".to_owned(),
                        Ok(_) => format!("did not begin within {} s", PATIENCE.as_secs()),
                    };
                    let said = said.try_iter().collect::<Vec<_>>().join("; ");
                    return Err(Failure::text(format!("the guard {how}; it said: {said}")));
                }
            }
        }
        Ok(guarded)
    }

    /// The next event within this time.
    ///
    /// # Errors
    /// If the guard has ended.
    pub fn next(&mut self, within: Duration) -> Result<Option<Reported>, Failure> {
        match self.reported.recv_timeout(within) {
            Ok(reported) => {
                if reported.event["event"] == "joined"
                    && let Some(pid) = reported.event["pid"].as_i64()
                    && let Ok(fd) = pidfd::open(pid as i32)
                {
                    self.processes.push((pid as i32, fd));
                }
                if reported.event["event"] == "learnt"
                    && let Some(tid) = reported.event["tid"].as_i64()
                {
                    self.learnt.insert(tid as i32);
                }
                let of_program = ["joined", "left", "hang", "recovered", "learnt"];
                if !of_program.iter().any(|&known| reported.event["event"] == known) {
                    self.troubles.push(reported.event.clone());
                }
                Ok(Some(reported))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Failure::text("the guard or its program has ended")),
        }
    }

    /// Takes in what happens for so long; returns the hangs reported.
    pub fn watch(&mut self, span: Duration) -> Result<Vec<Reported>, Failure> {
        let end = Instant::now() + span;
        let mut hangs = Vec::new();
        loop {
            match self.next(end.saturating_duration_since(Instant::now()))? {
                None => return Ok(hangs),
                Some(reported) if reported.is_hang() => hangs.push(reported),
                Some(_) => {}
            }
        }
    }

    /// The process that joined after the first one, once there is one; adds the hangs reported
    /// meanwhile.
    pub fn second_process(&mut self, hangs: &mut Vec<Reported>) -> Result<i32, Failure> {
        let begun = Instant::now();
        while self.processes.len() < 2 {
            if begun.elapsed() > PATIENCE {
                return Err(Failure::text("the program has made no process of its own"));
            }
            hangs.extend(self.watch(Duration::from_millis(20))?);
        }
        Ok(self.processes[1].0)
    }

    /// What it reported of itself so far: that a detector was loaded again, that something cannot
    /// be watched.
    pub fn troubles(&self) -> &[Value] {
        &self.troubles
    }

    /// The program's first process.
    pub fn pid(&self) -> i32 {
        self.processes[0].0
    }

    /// Whether it has said that it knows the loop of this thread.
    pub fn knows(&self, tid: i32) -> bool {
        self.learnt.contains(&tid)
    }

    /// How often the guard, with whatever it started besides the program, went to sleep by itself:
    /// about once a scan. A loaded machine takes the CPU from it more often, and that does not
    /// count.
    pub fn rests(&self) -> u64 {
        let first = |pid: i32| Status::of(pid).unwrap_or_default().voluntary_switches().unwrap_or(0);
        family::copies(self.guard.id() as i32).into_iter().map(first).sum()
    }

    /// CPU time of the guard with whatever it started besides the program, nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        family::copies(self.guard.id() as i32).into_iter().map(cpu_ns).sum()
    }

    /// Stops the guard, with whatever it started besides the program, until what comes back is
    /// dropped. Not while it examines one of these processes: those would stand still as well.
    pub fn pause(&self, watched: &[i32]) -> Result<Paused, Failure> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let paused = Paused(family::copies(self.guard.id() as i32));
            paused.all(libc::SIGSTOP);
            let stopped = Instant::now();
            while paused
                .0
                .iter()
                .any(|&pid| threads(pid, "State").any(|state| !state.starts_with(['T', 't', 'Z', 'X'])))
                && stopped.elapsed() < Duration::from_millis(100)
            {
                std::thread::sleep(Duration::from_micros(200));
            }
            if watched.iter().all(|&pid| threads(pid, "TracerPid").all(|tracer| tracer == "0")) {
                return Ok(paused);
            }
            drop(paused);
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(Failure::text("the guard examines its program all the time: it cannot be stopped for a comparison"))
    }
}

/// A guard that is stopped.
pub struct Paused(Vec<i32>);

impl Paused {
    fn all(&self, signal: i32) {
        for &pid in &self.0 {
            // These were alive when listed, and are stopped or about to be: their numbers are not
            // free.
            let _ = orbit_linux::signals::send(pid, signal);
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.all(libc::SIGCONT);
    }
}

/// A field of `status` of each thread of a process.
fn threads(pid: i32, field: &'static str) -> impl Iterator<Item = String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(move |task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    })
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.own {
            // What the program made since the last event.
            while let Ok(Some(_)) = self.next(Duration::ZERO) {}
            if let Some(&(pid, _)) = self.processes.first() {
                let made = descendants(pid).into_iter();
                self.processes.extend(made.filter_map(|pid| Some((pid, pidfd::open(pid).ok()?))));
            }
            for (_, fd) in &self.processes {
                // It may have ended.
                let _ = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
            }
        } else if let Ok(fd) = pidfd::open(self.guard.id() as i32) {
            let _ = pidfd::send_signal(fd.as_fd(), libc::SIGTERM);
        }
        let end = Instant::now() + PATIENCE;
        while matches!(self.guard.exited(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.guard.kill();
        let _ = self.guard.wait_for_exit();
    }
}

fn guard(config: Option<&Path>) -> Result<Command, Failure> {
    let mut command = Command::new(crate::orbit_command()?);
    command.args(["watch", "--events", "-"]);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    let end_with_bench = || orbit_linux::process::set_parent_death_signal(libc::SIGTERM);
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(end_with_bench) };
    Ok(command)
}

/// The descendants of a process.
fn descendants(pid: i32) -> Vec<i32> {
    let mut family = vec![pid];
    let mut nth = 0;
    while nth < family.len() {
        for thread in std::fs::read_dir(format!("/proc/{}/task", family[nth])).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            family.extend(children.split_whitespace().filter_map(|n| n.parse::<i32>().ok()));
        }
        nth += 1;
    }
    family.split_off(1)
}

/// CPU time that a process has used, with its threads that ended, nanoseconds; 0 if it is gone.
pub fn cpu_ns(pid: i32) -> u64 {
    orbit_linux::clock::cpu_ns_of(pid).unwrap_or(0)
}
