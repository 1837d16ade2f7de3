//! Reading a process: waits, holders, peers, rings, stacks, Python frames, CPU use.
//!
//! Waits are read before the stacks, for a stop may end a wait. All text that the process chooses
//! is made harmless when it is shown.

use crate::runtime::Runtime;
use orbit_inspect::contention::{Contention, Holder, Waiter, contentions};
use orbit_inspect::rings::{Ring, RingWatch};
use orbit_inspect::stacks::{Frame, Unwinder};
use orbit_inspect::waits::{FutexKind, Owner, State, Wait, Watched, unreaped};
use orbit_inspect::{Error, Maps, globals, python};
use orbit_linux::procfs;
use orbit_linux::stat::Stat;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// What was read of a process.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) pid: i32,
    pub(crate) at: SystemTime,
    /// The command line, for a thread of the kernel or an exited process the short name.
    pub(crate) command: String,
    pub(crate) threads: Vec<Thread>,
    pub(crate) rings: Vec<Ring>,
    /// The locks that threads wait for, and the variable that each is, where a symbol says so.
    pub(crate) locks: Vec<(Contention, Option<String>)>,
    /// What its own runtime says.
    pub(crate) runtime: Runtime,
    /// Children that have exited and that it has not asked for.
    pub(crate) unreaped: Vec<i32>,
    /// Command lines of processes at the other ends.
    pub(crate) commands: BTreeMap<i32, String>,
    /// Those of them that a signal has stopped.
    pub(crate) stopped: Vec<i32>,
    /// What could not be read, in sentences.
    pub(crate) lacks: Vec<String>,
}

impl Sample {
    /// From this share of the time on in which it ran, or waited for a CPU, a thread computes
    /// without a pause.
    const NO_PAUSE: f64 = 0.9;

    /// What is to be said of children that it has not asked for.
    pub(crate) fn unreaped(&self) -> Option<String> {
        const NAMED: usize = 8;
        let named: Vec<String> = self.unreaped.iter().take(NAMED).map(i32::to_string).collect();
        let more = if self.unreaped.len() > NAMED { ", ..." } else { "" };
        let (count, pids) = (self.unreaped.len(), named.join(", "));
        match count {
            0 => None,
            1 => Some(format!("child {pids} has exited, and the process has not asked for its status")),
            _ => Some(format!("{count} children have exited, and the process has not asked for them: {pids}{more}")),
        }
    }

    /// Where names of generated code come from, where it has none.
    pub(crate) fn names_of_generated_code(&self) -> Option<String> {
        let is_nameless = |frame: &Frame| frame.module.is_empty() && frame.function.is_none();
        let any = self.threads.iter().flat_map(|thread| &thread.frames).any(is_nameless);
        any.then(|| {
            "generated code has no names here: they are in /tmp/perf-PID.map if node runs with --perf-basic-prof, \
             Python 3.12 with -X perf, or after jcmd PID Compiler.perfmap"
                .to_owned()
        })
    }

    /// Whether threads wait for each other, or for a lock that will not come free, or one computes
    /// without a pause.
    pub(crate) fn seems_to_hang(&self) -> bool {
        let never_free = |lock: &Contention| match lock.holder {
            Holder::OwnHandler { .. } | Holder::Named(Owner::Gone { .. } | Owner::Forked { .. }) => true,
            // Readers and a writer that wait for each other's turn, while nobody uses a CPU.
            Holder::Readers { .. } => self.threads.iter().all(|thread| !thread.is_busy()) && lock.waiters.len() > 1,
            Holder::Named(_) | Holder::Unknown => false,
        };
        let computes = |thread: &Thread| thread.is_busy() && thread.runnable >= Sample::NO_PAUSE;
        !self.rings.is_empty()
            || !self.runtime.rings().is_empty()
            || self.locks.iter().any(|(lock, _)| never_free(lock))
            || self.threads.iter().any(computes)
    }
}

/// One thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) tid: i32,
    pub(crate) name: String,
    pub(crate) wait: Wait,
    /// CPU time per time, over the interval: 1 is one whole CPU.
    pub(crate) cpu: f64,
    /// The same with the time in which it waited for a CPU: on a loaded machine one that computes
    /// gets a part of a CPU only.
    pub(crate) runnable: f64,
    /// The thread that holds what it waits for, with its process.
    pub(crate) holder: Option<(i32, i32)>,
    /// Processes at the other end of what it waits for.
    pub(crate) peers: Vec<i32>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) python: Vec<String>,
    /// In a ring of locks.
    pub(crate) in_ring: bool,
    /// Waits in a signal's handler for a lock that the code below the handler seems to hold.
    pub(crate) waits_for_itself: bool,
}

impl Thread {
    /// From this share of a CPU on a thread is said to use it.
    const BUSY: f64 = 0.05;

    /// Whether it uses a CPU.
    pub(crate) fn is_busy(&self) -> bool {
        self.cpu >= Thread::BUSY
    }
}

/// A thread's frames, and Python's.
pub(crate) type Stack = (Vec<Frame>, Vec<String>);

/// Reads a process, and stops each thread for its stack. Blocks for the interval and what reading
/// takes.
pub(crate) fn take(pid: i32, interval: Duration) -> Result<Sample, Error> {
    read(pid, interval, None)
}

/// The same without a stop, and without asking its runtime: these stacks were taken before, by
/// thread, and this is what its runtime said.
pub(crate) fn beside(
    pid: i32,
    interval: Duration,
    stacks: BTreeMap<i32, Stack>,
    says: Vec<String>,
) -> Result<Sample, Error> {
    read(pid, interval, Some((stacks, says)))
}

fn read(pid: i32, interval: Duration, known: Option<(BTreeMap<i32, Stack>, Vec<String>)>) -> Result<Sample, Error> {
    let mut lacks = Vec::new();
    let mut watched = Watched::new(pid)?;
    let (began, before) = (Instant::now(), times(&mut watched));
    std::thread::sleep(interval);
    let found = watched.scan();
    let elapsed = began.elapsed();
    let rings = RingWatch::new(&[pid])?.scan();
    let waits: Vec<(i32, Wait)> = found.iter().map(|thread| (thread.tid, watched.wait_of(thread.tid))).collect();
    let mut runtime = Runtime::of(pid, &waits, &mut watched);
    let (mut stacks, mut pythons) = match known {
        Some((known, says)) => {
            runtime.says = says;
            let split = known.into_iter().map(|(tid, (frames, python))| ((tid, frames), (tid, python)));
            split.unzip()
        }
        None => {
            let mut unwinder = Unwinder::new(pid)?;
            runtime.ask(pid, &mut unwinder, &mut lacks);
            let mut stacks = stacks(&mut unwinder, &mut lacks);
            for (tid, stack) in &mut stacks {
                runtime.jvm.iter().for_each(|jvm| jvm.name(*tid, stack));
            }
            (stacks, python_frames(pid, &mut lacks))
        }
    };
    let mut threads = Vec::new();
    for (state, (tid, wait)) in found.into_iter().zip(waits) {
        if state.state == State::Ended {
            continue;
        }
        let (cpu, delayed) = before.get(&tid).copied().unwrap_or((state.cpu_ns, state.delayed_ns));
        let (used, waited) = (state.cpu_ns.saturating_sub(cpu), state.delayed_ns.saturating_sub(delayed));
        let share = |time: u64| time as f64 / elapsed.as_nanos() as f64;
        let by_runtime = runtime.edge(tid).map(|edge| (pid, edge.holder));
        let (holder, peers) = (by_runtime.or_else(|| holder(&wait)), peers(&wait));
        let in_ring = |ring: &Vec<&crate::runtime::Edge>| ring.iter().any(|edge| edge.waiter == tid);
        let by_runtime = runtime.rings().iter().any(in_ring);
        threads.push(Thread {
            tid,
            name: state.comm,
            cpu: share(used),
            runnable: share(used + waited),
            holder,
            peers,
            frames: stacks.remove(&tid).unwrap_or_default(),
            python: pythons.remove(&tid).unwrap_or_default(),
            in_ring: by_runtime || rings.iter().any(|ring| ring.members.iter().any(|member| member.tid == tid)),
            waits_for_itself: false,
            wait,
        });
    }
    let locks = locks(pid, &threads);
    for thread in &mut threads {
        thread.waits_for_itself =
            locks.iter().any(|(lock, _)| matches!(lock.holder, Holder::OwnHandler { tid } if tid == thread.tid));
    }
    let others =
        threads.iter().flat_map(|thread| thread.peers.iter().copied().chain(thread.holder.map(|(pid, _)| pid)));
    let commands: BTreeMap<i32, String> =
        others.filter(|other| *other != pid).map(|other| (other, command(other))).collect();
    let is_stopped = |other: &i32| Stat::of(*other).is_ok_and(|stat| stat.state == 'T');
    let stopped = commands.keys().copied().filter(is_stopped).collect();
    let (at, command, unreaped) = (SystemTime::now(), command(pid), unreaped(pid));
    Ok(Sample { pid, at, command, threads, rings, locks, runtime, unreaped, commands, stopped, lacks })
}

/// The locks that threads wait for, with names.
fn locks(pid: i32, threads: &[Thread]) -> Vec<(Contention, Option<String>)> {
    let waiter = |thread: &'_ Thread| match &thread.wait {
        Wait::Futex(wait) => Some((thread.tid, wait.clone(), thread.frames.clone())),
        _ => None,
    };
    let waiting: Vec<_> = threads.iter().filter_map(waiter).collect();
    let waiters: Vec<Waiter<'_>> =
        waiting.iter().map(|(tid, wait, frames)| Waiter { pid, tid: *tid, wait, frames }).collect();
    let found = contentions(&waiters);
    let maps = if found.is_empty() { Maps::default() } else { Maps::of(pid).unwrap_or_default() };
    let name = |lock: u64| {
        let (variable, distance) = globals::at(pid, &maps, lock)?;
        Some(if distance == 0 { variable.name } else { format!("{}+{distance:#x}", variable.name) })
    };
    found
        .into_iter()
        .map(|contention| {
            let name = name(contention.lock);
            (contention, name)
        })
        .collect()
}

/// Of each thread the time that it ran and that it waited for a CPU, ns.
fn times(watched: &mut Watched) -> BTreeMap<i32, (u64, u64)> {
    watched.scan().into_iter().map(|thread| (thread.tid, (thread.cpu_ns, thread.delayed_ns))).collect()
}

fn stacks(unwinder: &mut Unwinder, lacks: &mut Vec<String>) -> BTreeMap<i32, Vec<Frame>> {
    if let Err(error) = unwinder.prepare() {
        lacks.push(error.to_string());
    }
    let stacks = unwinder.capture(&[]);
    lacks.extend(
        stacks.iter().filter(|stack| stack.frames.is_empty()).filter_map(|s| Some(s.error.as_ref()?.to_string())),
    );
    stacks.into_iter().map(|stack| (stack.tid, stack.frames)).collect()
}

fn python_frames(pid: i32, lacks: &mut Vec<String>) -> BTreeMap<i32, Vec<String>> {
    let python = match python::find(pid) {
        Ok(Some(python)) => python,
        Ok(None) => return BTreeMap::new(),
        Err(error) => {
            lacks.push(error.to_string());
            return BTreeMap::new();
        }
    };
    let stacks = python.stacks().into_iter();
    stacks.map(|thread| (thread.tid, thread.frames.iter().map(python_line).collect())).collect()
}

/// A frame of Python's.
pub(crate) fn python_line(frame: &python::PyFrame) -> String {
    match frame.line {
        Some(line) => format!("{} at {}:{line}", frame.function, frame.file),
        None => format!("{} at {}", frame.function, frame.file),
    }
}

/// The thread that holds what is waited for: its process and its id.
fn holder(wait: &Wait) -> Option<(i32, i32)> {
    let owner = match wait {
        Wait::Futex(futex) => match futex.kind {
            FutexKind::Mutex { owner } | FutexKind::RwLock { writer: owner } | FutexKind::Join(owner) => owner,
            _ => return None,
        },
        Wait::FileLock { owner, .. } => return owner.map(|pid| (pid, pid)),
        _ => return None,
    };
    match owner {
        Owner::Thread { pid, tid } => Some((pid, tid)),
        _ => None,
    }
}

fn peers(wait: &Wait) -> Vec<i32> {
    match wait {
        Wait::Pipe { peers, .. } | Wait::Socket { peers, .. } => peers.clone(),
        Wait::Child { pids } => pids.clone(),
        Wait::Traced { by } if *by != 0 => vec![*by],
        _ => Vec::new(),
    }
}

/// A process' command line; its short name where it has none; empty if it has exited.
fn command(pid: i32) -> String {
    let line = procfs::text(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = line.trim_end_matches('\0').replace('\0', " ");
    match line.is_empty() {
        true => procfs::text(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned(),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A program that is killed at the end.
    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Samples a program until the sample is as said; fails after a minute.
    fn until(arguments: &[&str], holds: impl Fn(&Sample) -> bool) -> Sample {
        let mut command = Command::new(arguments[0]);
        command.args(&arguments[1..]).stdin(Stdio::piped()).stdout(Stdio::null());
        let running = Running(command.spawn().expect("a program"));
        let began = Instant::now();
        loop {
            let sample = take(running.0.id() as i32, Duration::from_millis(50)).expect("a sample");
            if holds(&sample) {
                return sample;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{sample:#?}");
        }
    }

    #[test]
    fn the_other_end_of_a_pipe_is_named() {
        let own = std::process::id() as i32;
        let sample = until(&["cat"], |sample| sample.threads.iter().any(|thread| thread.peers.contains(&own)));
        assert!(sample.commands.contains_key(&own) && sample.command == "cat", "{sample:#?}");
        assert!(!sample.threads[0].frames.is_empty() && !sample.threads[0].is_busy(), "{sample:#?}");
        let mut text = Vec::new();
        crate::show::text(&mut text, &sample).expect("memory takes all");
        let text = String::from_utf8(text).expect("text");
        assert!(text.contains("bytes from the pipe") && text.contains(&format!("{own} is ")), "{text}");
        let json = crate::show::json(&sample);
        assert!(
            json["threads"][0]["peers"].as_array().is_some_and(|peers| peers.iter().any(|p| p["pid"] == own)),
            "{json:#}"
        );
    }

    #[test]
    fn a_child_that_is_stopped_is_said_to_be() {
        // The child ends with its parent, stopped or not.
        const STOPS: &str = "import ctypes, os, signal\n\
                             if os.fork(): os.wait()\n\
                             ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n\
                             os.kill(os.getpid(), signal.SIGSTOP)";
        let sample = until(&["python3", "-c", STOPS], |sample| !sample.stopped.is_empty());
        let mut text = Vec::new();
        crate::show::text(&mut text, &sample).expect("memory takes all");
        let text = String::from_utf8(text).expect("text");
        assert!(text.contains(&format!("{} is stopped by a signal: ", sample.stopped[0])), "{text}");
        let json = crate::show::json(&sample);
        assert_eq!(json["stopped_processes"], serde_json::json!(sample.stopped), "{json:#}");
    }

    #[test]
    fn a_thread_that_computes_is_busy() {
        let sample = until(&["sh", "-c", "while :; do :; done"], |sample| sample.threads[0].is_busy());
        assert!(sample.threads[0].cpu <= 1.5, "{sample:#?}");
        assert!(crate::show::json(&sample)["threads"][0]["waits_for"].is_null());
    }

    #[test]
    fn a_process_that_is_not_there() {
        assert!(take(i32::MAX, Duration::from_millis(10)).is_err());
    }
}
