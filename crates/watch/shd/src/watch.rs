//! System hang detection as a command: watches until a signal stops it, writes events as JSON
//! lines, acts on a hang.

use crate::{Action, Error, Event, How, Options, Shd, Sysrq, online, output::Output};
use serde::Serialize;
use std::{
    fs::File,
    os::fd::AsFd,
    sync::mpsc::{Receiver, sync_channel},
    time::Duration,
};

/// Lines that may wait for the reader that receives each event a second time.
const MAX_WAITING_LINES: usize = 256;

/// Watches the system until `until` returns, writing a JSON line an event to `to`.
///
/// A hang is also written to the kernel's log and, if `action` says so, ends the kernel. Locks the
/// memory of the whole process, which must not have to wait for pages once a CPU hangs. Output that
/// blocks delays no watcher: what finds no room is counted by a line `events-dropped` once it
/// continues. `until` is called once, with the detection running, and gets each line once again,
/// but for those that find 256 others waiting; it blocks this thread only.
pub fn watch(
    options: &Options,
    action: Action,
    to: impl AsFd,
    until: impl FnOnce(&Shd, &Receiver<String>),
) -> Result<(), Error> {
    let to = to.as_fd().try_clone_to_owned().map_err(|e| Error::of("duplicating the output", &e))?;
    let (lines, repeated) = again();
    let shd = begin(options, action, Some(File::from(to)), lines)?;
    until(&shd, &repeated);
    Ok(())
}

/// What gets each line once more, and where it is read. Made beforehand and bounded: to leave one
/// neither allocates nor waits.
pub(crate) fn again() -> (impl Fn(String) + Send + Sync + 'static, Receiver<String>) {
    let (lines, repeated) = sync_channel(MAX_WAITING_LINES);
    (move |line| drop(lines.try_send(line)), repeated)
}

/// Begins to watch, as [`watch`] does. `to` is where each event's line goes; `then` gets it last of
/// all, under the same rules as the handler of [`Shd::start`].
pub(crate) fn begin(
    options: &Options,
    action: Action,
    to: Option<File>,
    then: impl Fn(String) + Send + Sync + 'static,
) -> Result<Shd, Error> {
    let sysrq = Sysrq::new(action)?;
    orbit_linux::map::lock_all().map_err(|why| {
        let what = "locking memory (needs root, or CAP_IPC_LOCK, beside CAP_BPF, CAP_PERFMON and CAP_SYS_NICE)";
        Error::of(what, &why)
    })?;
    options.check()?;
    let to = to.map(|to| Output::start(to, &online()?, options.priority)).transpose()?;
    Shd::start(options, move |event| {
        let line = json(event);
        let hung = matches!(event, Event::Hung { .. });
        if hung {
            sysrq.log(&line);
        }
        // What is to be done comes first.
        let done = if hung { sysrq.act() } else { Ok(()) };
        if let Some(to) = &to {
            to.leave(format!("{line}\n"));
        }
        if let Err(error) = done {
            sysrq.log(&format!("the action failed: {error}"));
        }
        then(line);
    })
}

/// An event's line. Times are seconds of the monotonic clock, to the microsecond.
#[derive(Serialize)]
#[serde(tag = "event")]
enum Line {
    /// A CPU hangs.
    #[serde(rename = "cpu-hung")]
    Hung {
        /// The CPU.
        cpu: usize,
        /// In what state it is.
        how: How,
        /// The CPU that found it; the same CPU, if its own interrupts did.
        by: usize,
        /// When it last switched, seconds of the monotonic clock.
        since: f64,
        /// When it was found, seconds of the monotonic clock.
        judged: f64,
        /// The check value: it made no progress for so long, by the finder's ticks.
        check_ms: u64,
    },
    /// A CPU that was called hung schedules again.
    #[serde(rename = "cpu-recovered")]
    Recovered {
        /// The CPU.
        cpu: usize,
        /// When it had last switched before it hung, seconds of the monotonic clock.
        since: f64,
        /// How long it did not schedule.
        lasted_ms: u64,
    },
    /// A CPU was taken away (hotplug) and is no longer watched.
    #[serde(rename = "cpu-left")]
    Left {
        /// The CPU.
        cpu: usize,
    },
}

impl From<&Event> for Line {
    fn from(event: &Event) -> Line {
        let seconds = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e6;
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match event {
            Event::Hung { cpu, how, by, since, judged, check } => Line::Hung {
                cpu: *cpu,
                how: *how,
                by: *by,
                since: seconds(*since),
                judged: seconds(*judged),
                check_ms: ms(*check),
            },
            Event::Recovered { cpu, since, lasted } => {
                Line::Recovered { cpu: *cpu, since: seconds(*since), lasted_ms: ms(*lasted) }
            }
            Event::Left { cpu } => Line::Left { cpu: *cpu },
        }
    }
}

/// An event as one line of JSON, without the newline. Times are seconds of the monotonic clock,
/// durations milliseconds.
pub fn json(event: &Event) -> String {
    serde_json::to_string(&Line::from(event)).expect("numbers and names have a form in JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{self, Read, Write},
        os::fd::AsRawFd,
        sync::{atomic::Ordering, mpsc::channel},
    };

    #[test]
    fn output_that_blocks_holds_no_watcher_up() {
        let (mut reader, mut writer) = io::pipe().expect("a pipe");
        let fd = writer.as_raw_fd();
        // SAFETY: sets a flag of a live descriptor.
        let flag = |flags: i32| unsafe { libc::fcntl(fd, libc::F_SETFL, flags) };
        assert_eq!(flag(libc::O_NONBLOCK), 0);
        let mut filled = 0;
        for part in [4096, 1] {
            while let Ok(n) = writer.write(&vec![b'x'; part]) {
                filled += n;
            }
        }
        assert_eq!(flag(0), 0);
        let patient = Duration::from_secs(120);
        let options = Options { check_least: patient, check_most: patient, ..Options::default() };
        let to = File::from(std::os::fd::OwnedFd::from(writer));
        let (lines, repeated) = channel();
        let then = move |line| drop(lines.send(line));
        let shd = match begin(&options, Action::Report, Some(to), then) {
            Ok(shd) => shd,
            Err(why) => {
                println!("SKIP: needs kernel programs, real-time priority and locked memory ({why})");
                return;
            }
        };
        let cpus: Vec<usize> = shd.cpus().iter().map(|cpu| cpu.cpu).collect();
        for &cpu in &cpus {
            shd.watchers.shared.table.cpu(cpu).watched.store(0, Ordering::Relaxed);
        }
        let mut all: Vec<String> =
            cpus.iter().map(|_| repeated.recv_timeout(Duration::from_secs(30)).expect("a watcher continues")).collect();
        all.sort();
        let mut sorted: Vec<String> = cpus.iter().map(|&cpu| json(&Event::Left { cpu })).collect();
        sorted.sort();
        assert_eq!(all, sorted, "reported while the output is not read");
        reader.read_exact(&mut vec![0; filled]).expect("what filled the pipe");
        drop(shd);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("the lines");
        let mut written: Vec<&str> = text.lines().collect();
        written.sort_unstable();
        assert_eq!(written, sorted, "and written once somebody does");
    }

    #[test]
    fn events_are_json_lines() {
        let (since, judged) = (Duration::from_millis(1500), Duration::from_millis(1750));
        let how = How::InterruptsOn;
        let hung = Event::Hung { cpu: 1, how, by: 0, since, judged, check: Duration::from_millis(160) };
        assert_eq!(
            json(&hung),
            r#"{"event":"cpu-hung","cpu":1,"how":"interrupts-on","by":0,"since":1.5,"judged":1.75,"check_ms":160}"#
        );
        let lasted = Duration::from_millis(700);
        assert_eq!(
            json(&Event::Recovered { cpu: 1, since, lasted }),
            r#"{"event":"cpu-recovered","cpu":1,"since":1.5,"lasted_ms":700}"#
        );
        assert_eq!(json(&Event::Left { cpu: 3 }), r#"{"event":"cpu-left","cpu":3}"#);
        let halted = Event::Hung { cpu: 0, how: How::Halted, by: 1, since, judged, check: lasted };
        let all = [hung, halted, Event::Recovered { cpu: 1, since, lasted }, Event::Left { cpu: 3 }];
        for line in all.iter().map(json) {
            orbit_testing::described("watch-system-events", serde_json::from_str(&line).expect("JSON"));
        }
    }
}
