//! `orbit watch --system`: watches the kernel instead of a program, and reports when a CPU hangs.
//!
//! Owns: where the events go, and until when. The detection is `orbit-shd`'s, in a module of a core
//! of the guard's own, so that it is loaded again if it fails; where that cannot be, in the guard
//! itself. Either way the events are written beside its watchers: what is done here may wait for a
//! CPU that hangs, so the sentence for people, on stderr, comes last of all. Ends with status 0 at
//! SIGINT or SIGTERM.

use super::detector::About;
use super::{readable, show};
use orbit_console::control::SocketFile;
use orbit_console::events;
use orbit_console::out::{BAD, Done, FAINT, Failure, GOOD, WARN};
use orbit_linux::signals;
use orbit_modules::hosted::{self, Hosted};
use orbit_rmk::{Module, Report};
use orbit_shd::module::{self, Orders, Output, Watch};
use orbit_shd::{Action, Error, Options, watch};
use serde_json::Value;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the sentence of an event waits at most, where the detection runs in the guard itself.
const MAX_DELAY: Duration = Duration::from_millis(100);

/// How to judge, with this least check value in milliseconds; the greatest is never below it.
pub fn options(check_least: Option<u64>) -> Options {
    let usual = Options::default();
    let check_least = check_least.map_or(usual.check_least, Duration::from_millis);
    Options { check_least, check_most: usual.check_most.max(check_least), ..usual }
}

/// Watches until a signal asks it to leave; `events` is a file to append to, else stdout.
pub fn run(action: Action, options: Options, events: Option<&Path>, in_process: bool) -> Done {
    let signals = Leave::catch().map_err(|e| Failure::Text(format!("cannot receive signals: {e}")))?;
    let file = events.filter(|path| path.as_os_str() != "-");
    let stdout =
        || io::stdout().as_fd().try_clone_to_owned().map_err(|e| format!("cannot write events to stdout: {e}"));
    let to = file.map_or_else(|| stdout().map(File::from), events::append).map_err(Failure::Text)?;
    let output = file.map_or(Output::Stdout, |path| Output::File(path.into()));
    let hosted = match in_process {
        true => Err(None),
        false => begin(Orders { options: options.clone(), action, output }).map_err(Some),
    };
    match hosted {
        Ok((hosted, _socket)) => {
            say(&begun(&options));
            follow(&hosted, &signals, to)?;
        }
        Err(why) => {
            let here = watch(&options, action, &to, |_, lines| {
                if let Some(why) = why {
                    say(&format!("the detection runs in the guard itself: {why}"));
                }
                say(&begun(&options));
                while !signals.came(MAX_DELAY) {
                    lines.try_iter().for_each(|line| show_event(&line));
                }
            });
            here.map_err(|e: Error| Failure::Text(format!("cannot watch the system: {e}")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is watched from now on, for people.
fn begun(options: &Options) -> String {
    let Options { check_least: least, check_most: most, .. } = options;
    format!("watches every CPU and reports one that schedules nothing for {least:?} to {most:?}; Ctrl-C ends it")
}

/// Without a reader the text is lost.
fn say(text: &str) {
    let _ = writeln!(anstream::stderr(), "{FAINT}orbit watch: {text}{FAINT:#}");
}

/// An event for people. Without a reader the text is lost.
fn show_event(line: &str) {
    let Some((style, text)) = serde_json::from_str(line).ok().and_then(|event| sentence(&event)) else { return };
    let _ = writeln!(anstream::stderr(), "{style}orbit watch:{style:#} {text}");
}

/// What an event says, and how good that is.
fn sentence(event: &Value) -> Option<(anstyle::Style, String)> {
    let cpu = &event["cpu"];
    Some(match event["event"].as_str()? {
        "cpu-hung" => {
            let ms = (event["judged"].as_f64()? - event["since"].as_f64()?) * 1e3;
            let how = match event["how"].as_str()? {
                "interrupts-on" => "though it takes interrupts",
                "interrupts-off" => "and takes no interrupts",
                "halted" => "and executes nothing",
                _ => "and takes no interrupts, or is halted",
            };
            let by = &event["by"];
            (BAD, format!("CPU {cpu} hangs: it has scheduled nothing for {ms:.0} ms, {how}; found by CPU {by}"))
        }
        "cpu-recovered" => (GOOD, format!("CPU {cpu} schedules again, after {} ms", event["lasted_ms"])),
        "cpu-left" => (WARN, format!("CPU {cpu} was taken away and is no longer watched")),
        _ => return None,
    })
}

fn begin(orders: Orders) -> Result<(Arc<Hosted>, Option<SocketFile>), String> {
    let hosted = Hosted::new()?;
    hosted.install(Watch::NAME, &[], |core| core.install::<Watch>(module::options(&orders)))?;
    // Only for observers outside: without it the guard does its work.
    let socket = hosted.serve().ok();
    Ok((hosted, socket))
}

/// Tells how the module stands, and people what it found, until a signal comes. Events it has
/// written already.
fn follow(hosted: &Hosted, signals: &Leave, mut to: File) -> io::Result<()> {
    let began = Instant::now();
    loop {
        let reports = hosted.descriptors();
        let mut fds = vec![readable(signals.0.as_fd())];
        fds.extend(reports.iter().map(|fd| readable(fd.as_fd())));
        orbit_linux::poll::poll(&mut fds, Some(Duration::from_secs(1)))?;
        if fds[0].revents != 0 {
            hosted.clear();
            return Ok(());
        }
        for (name, report) in hosted.reports() {
            if name == Watch::NAME
                && let Report::Said(line) = &report
            {
                show_event(line);
                continue;
            }
            let (state, text) = hosted::words(report);
            let about = About { module: name.to_owned(), state, text, pid: hosted.process_of(name) };
            // Without a reader the text is lost.
            let _ = show::text_about(&mut anstream::stderr(), &about);
            let _ = show::json_about(&mut to, &about, began.elapsed());
        }
    }
}

/// SIGINT and SIGTERM, as a descriptor.
struct Leave(OwnedFd);

impl Leave {
    /// To be called before there are other threads.
    fn catch() -> io::Result<Leave> {
        let set = signals::Set::of([libc::SIGINT, libc::SIGTERM]);
        set.block();
        set.descriptor(true).map(Leave)
    }

    /// Whether one comes within so long. An error, which cannot be waited out, counts as one.
    fn came(&self, within: Duration) -> bool {
        !matches!(orbit_linux::poll::poll(&mut [readable(self.0.as_fd())], Some(within)), Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_shd::{Event, How, json};

    #[test]
    fn events_are_shown_in_a_sentence() {
        let (since, judged) = (Duration::from_millis(1500), Duration::from_millis(1678));
        let hung = |how| Event::Hung { cpu: 1, how, by: 0, since, judged, check: Duration::from_millis(160) };
        for (event, said) in [
            (
                hung(How::InterruptsOn),
                "CPU 1 hangs: it has scheduled nothing for 178 ms, though it takes interrupts; found by CPU 0",
            ),
            (
                hung(How::InterruptsOffOrHalted),
                "CPU 1 hangs: it has scheduled nothing for 178 ms, and takes no interrupts, or is halted; found by \
                 CPU 0",
            ),
            (
                Event::Recovered { cpu: 1, since, lasted: Duration::from_millis(700) },
                "CPU 1 schedules again, after 700 ms",
            ),
            (Event::Left { cpu: 3 }, "CPU 3 was taken away and is no longer watched"),
        ] {
            let event = serde_json::from_str(&json(&event)).expect("JSON");
            assert_eq!(sentence(&event).map(|(_, text)| text).as_deref(), Some(said));
        }
    }
}
