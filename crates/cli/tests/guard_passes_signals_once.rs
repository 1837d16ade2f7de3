//! A signal reaches a guarded program once, whoever else it was sent to: the guard alone, its
//! process group, each process of its control group by systemd, or each process of the guard's by
//! name; or each with a text in its command line. The witnesses end with the guard.

mod guard_common;
use guard_common::{Dir, Owned, build, signal, until};
use orbit_linux::procfs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 12;
/// Half of what the guard gives a sender for all it sends to; what a slower one sends may be taken
/// for sent to some of them only.
const PROMPT: Duration = Duration::from_millis(25);
/// What has not come by then after a slower one is lost.
const LOST: Duration = Duration::from_secs(5);

/// A guard in a group of its own, over a program that counts signals.
struct Guarded {
    guard: Child,
    dir: Dir,
    counts: PathBuf,
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if matches!(self.guard.try_wait(), Ok(None)) {
            for pid in children(self.id()).into_iter().chain([self.id()]) {
                signal(pid, libc::SIGKILL);
            }
            let _ = self.guard.wait();
        }
    }
}

fn children(pid: i32) -> Vec<i32> {
    let text = procfs::text(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Whether it got a signal that it has yet to read.
fn waits(pid: i32) -> bool {
    let status = procfs::text(format!("/proc/{pid}/status")).unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).map_or("0", str::trim);
    !bits.trim_start_matches('0').is_empty()
}

fn comm(pid: i32) -> String {
    procfs::text(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

impl Guarded {
    fn new(name: &str, program: &[&str]) -> Option<Guarded> {
        if Command::new("cc").arg("--version").output().is_err() {
            println!("SKIP: needs cc");
            return None;
        }
        let dir = Dir::new(name);
        let (counts, events) = (dir.0.join("counted"), dir.0.join("events"));
        let guard = Command::new(env!("CARGO_BIN_EXE_orbit"))
            .args(["watch", "--events", events.to_str().expect("a path"), "--"])
            .arg(build(&dir, "counts.c"))
            .arg(&counts)
            .args(program)
            .process_group(0)
            .spawn()
            .expect("orbit");
        let guarded = Guarded { guard, dir, counts };
        until("the program", || guarded.counted().starts_with('!').then_some(()));
        // What comes while it is being started may have come before it was there, and continues.
        let joined = || std::fs::read_to_string(&events).is_ok_and(|text| text.contains("joined"));
        until("the guard", || joined().then_some(()));
        until("two witnesses, named and so ready", || (guarded.witnesses().len() == 2).then_some(()));
        Some(guarded)
    }

    fn id(&self) -> i32 {
        self.guard.id() as i32
    }

    fn witnesses(&self) -> Vec<i32> {
        children(self.id()).into_iter().filter(|pid| comm(*pid) == "guard-witness").collect()
    }

    fn program(&self) -> i32 {
        children(self.id()).into_iter().find(|pid| comm(*pid) == "counts").expect("the program")
    }

    fn counted(&self) -> String {
        std::fs::read_to_string(&self.counts).unwrap_or_default()
    }

    /// Sends in rounds; after each the program has got what it is to get, and in the end no more.
    /// `send` says how long it took from the first process to the last; `Err` why that proves
    /// nothing.
    fn rounds(mut self, signals: &[i32], mut send: impl FnMut(&Guarded, i32) -> Duration) -> Result<(), String> {
        let (mut all, mut longest) = ("!".to_owned(), Duration::ZERO);
        let own = [&[self.id()], &self.witnesses()[..]].concat();
        for &s in signals.iter().cycle().take(ROUNDS) {
            // Two of one kind that wait are one.
            until("all to be read", || own.iter().all(|pid| !waits(*pid)).then_some(()));
            longest = longest.max(send(&self, s));
            all.push((b'A' + s as u8) as char);
            let sent = Instant::now();
            let lost = until(&format!("{all:?}"), || {
                let lost = longest > PROMPT && sent.elapsed() > LOST;
                (lost || self.counted().len() >= all.len()).then_some(lost)
            });
            if lost {
                return Err(format!("a sender took {longest:?} from one to the other, and signal {s} was lost"));
            }
        }
        // What was sent to the guard before continues before this.
        signal(self.id(), libc::SIGUSR2);
        let status = until("the guard's end", || self.guard.try_wait().expect("wait"));
        all.push((b'A' + libc::SIGUSR2 as u8) as char);
        let counted = self.counted();
        if counted != all && longest > PROMPT {
            return Err(format!("a sender took {longest:?} from one to the other: {counted:?}, not {all:?}"));
        }
        assert_eq!(counted, all, "each once, in order");
        assert_eq!(status.code(), Some(6));
        for pid in &own[1..] {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "a witness is left");
        }
        Ok(())
    }

    /// A process of this name that sends a signal to one process after the other for each line it
    /// reads.
    fn sender(&self, name: &str, pids: &[i32]) -> Sender {
        let shell = self.dir.0.join(name);
        // By a process of its own: a file that this one writes is no program as long as a child of
        // another test has it too.
        assert!(Command::new("cp").arg("/bin/sh").arg(&shell).status().expect("cp").success());
        let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
        let script = format!("while read s; do kill -$s {}; echo; done", pids.join(" "));
        let mut shell = Command::new(shell);
        shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = Owned(shell.spawn().expect("a shell"));
        let answers = BufReader::new(shell.0.stdout.take().expect("stdout"));
        Sender { shell, answers }
    }
}

struct Sender {
    shell: Owned,
    answers: BufReader<ChildStdout>,
}

impl Sender {
    /// Gives how long it took at most from the first process to the last.
    fn send(&mut self, s: i32) -> Duration {
        let begun = Instant::now();
        writeln!(self.shell.0.stdin.as_mut().expect("stdin"), "{s}").expect("a reader");
        assert_eq!(self.answers.read_line(&mut String::new()).expect("an answer"), 1);
        begun.elapsed()
    }
}

/// Has a process of this name send to each of these, one after the other, until a run counts.
fn one_by_one(name: &str, program: &[&str], sender: &str, whom: impl Fn(&Guarded) -> Vec<i32>) {
    let mut why = String::new();
    for _ in 0..5 {
        let Some(guarded) = Guarded::new(name, program) else { return };
        let mut sender = guarded.sender(sender, &whom(&guarded));
        match guarded.rounds(&SIGNALS, |_, s| sender.send(s)) {
            Ok(()) => return,
            Err(reason) => why = reason,
        }
    }
    println!("SKIP: no run of five counts on this machine, as it is now: {why}");
}

/// To one process, or at once to all of a group.
fn at_once(pid: i32, s: i32) -> Duration {
    signal(pid, s);
    Duration::ZERO
}

/// The last is a real-time one.
const SIGNALS: [i32; 6] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGABRT, 37];

#[test]
fn to_the_group() {
    if let Some(guarded) = Guarded::new("once-group", &[]) {
        guarded.rounds(&SIGNALS, |g, s| at_once(-g.id(), s)).expect("a run that counts");
    }
}

#[test]
fn to_the_guard_alone() {
    if let Some(guarded) = Guarded::new("once-alone", &[]) {
        guarded.rounds(&SIGNALS, |g, s| at_once(g.id(), s)).expect("a run that counts");
    }
}

#[test]
fn to_the_group_and_to_the_guard_in_turns() {
    if let Some(guarded) = Guarded::new("once-turns", &[]) {
        // The same signal by the same sender.
        let mut whom = -guarded.id();
        let send = |_: &Guarded, s| {
            whom = -whom;
            at_once(whom, s)
        };
        guarded.rounds(&[libc::SIGINT], send).expect("a run that counts");
    }
}

#[test]
fn to_the_group_that_the_program_has_left() {
    if let Some(guarded) = Guarded::new("once-left", &["leave"]) {
        guarded.rounds(&SIGNALS, |g, s| at_once(-g.id(), s)).expect("a run that counts");
    }
}

#[test]
fn by_systemd_to_each() {
    for (name, program) in [("once-systemd", &[][..]), ("once-systemd-left", &["leave"])] {
        one_by_one(name, program, "systemd", |g| [&[g.id(), g.program()], &g.witnesses()[..]].concat());
    }
}

#[test]
fn by_name_to_the_guard_and_its_copies() {
    one_by_one("once-name", &[], "shell", |g| [&g.witnesses()[..], &[g.id()]].concat());
}

/// The guard, its witnesses and the program, of those whose command line has this in it: whom
/// `pkill -f` would hit.
fn with(guarded: &Guarded, text: &str) -> Vec<i32> {
    let has = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
    };
    let all = [&[guarded.id(), guarded.program()], &guarded.witnesses()[..]].concat();
    all.into_iter().filter(has).collect()
}

#[test]
fn by_a_text_in_the_command_line_of_the_program() {
    for (name, program) in [("once-line", &[][..]), ("once-line-left", &["leave"])] {
        one_by_one(name, program, "pkill", |guarded| {
            let hit = with(guarded, "/counts /");
            assert!(hit.starts_with(&[guarded.id(), guarded.program()]), "{hit:?}");
            hit
        });
    }
}

#[test]
fn by_a_text_in_the_command_line_of_the_guard_alone() {
    for text in ["watch --events", "orbit watch", "--events"] {
        one_by_one("once-own-line", &[], "pkill", |guarded| {
            let hit = with(guarded, text);
            assert_eq!(hit, [guarded.id()], "{text}");
            hit
        });
    }
}

#[test]
fn witnesses_end_with_a_guard_that_is_killed() {
    if let Some(mut guarded) = Guarded::new("once-killed", &[]) {
        let (witnesses, program) = (guarded.witnesses(), guarded.program());
        signal(guarded.id(), libc::SIGKILL);
        guarded.guard.wait().expect("a child");
        for pid in witnesses {
            let gone = || {
                let stat = procfs::text(format!("/proc/{pid}/stat")).unwrap_or_default();
                (stat.is_empty() || stat.contains(") Z ") || comm(pid) != "guard-witness").then_some(())
            };
            until("a witness to end", gone);
        }
        let name = comm(program);
        signal(program, libc::SIGKILL);
        assert_eq!(name, "counts", "the program goes on");
    }
}
