//! A `psql` that is given statements one after the other, and may wait in one of them.

use orbit_linux::child::Exit;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::PATIENCE;

/// A session. Dropping it ends the connection.
pub struct Session {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    sent: usize,
    pid: i32,
    /// What has come of the answer that is waited for.
    partial: Vec<String>,
}

/// What came of a statement: its lines, errors included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply(pub Vec<String>);

impl Reply {
    /// The SQLSTATE of its error, if it failed.
    pub fn error(&self) -> Option<&str> {
        self.0.iter().find_map(|line| line.strip_prefix("ERROR:  ").or(line.strip_prefix("FATAL:  "))?.get(..5))
    }

    /// All lines.
    pub fn text(&self) -> String {
        self.0.join("\n")
    }
}

impl Session {
    pub(crate) fn start(mut command: Command) -> Session {
        // Errors in line with the answers: psql writes both to one pipe.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.stdin(Stdio::piped()).stdout(writer.try_clone().expect("a pipe")).stderr(writer);
        let mut child = command.spawn().expect("psql starts");
        // The command holds the pipe's other ends: without them the reader sees the end.
        drop(command);
        let input = child.stdin.take().expect("its input");
        let (to, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                if to.send(line).is_err() {
                    break;
                }
            }
        });
        let mut session = Session { child, input, lines, sent: 0, pid: 0, partial: Vec::new() };
        session.pid = session.run("SELECT pg_backend_pid()").text().parse().expect("a pid");
        session
    }

    /// The backend that serves it.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Hands a statement over and does not wait for it.
    pub fn send(&mut self, sql: &str) {
        self.sent += 1;
        writeln!(self.input, "{sql};\n\\echo :done-{}", self.sent).expect("psql lives");
    }

    /// Waits for what was sent last.
    ///
    /// # Panics
    /// After [`PATIENCE`].
    pub fn reply(&mut self) -> Reply {
        self.reply_within(PATIENCE)
            .unwrap_or_else(|| panic!("no answer to a statement within {} s", PATIENCE.as_secs()))
    }

    /// The same; `None` if there is no answer in time.
    pub fn reply_within(&mut self, time: Duration) -> Option<Reply> {
        let until = std::time::Instant::now() + time;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(std::time::Instant::now())) {
                Ok(line) if line == format!(":done-{}", self.sent) => {
                    return Some(Reply(std::mem::take(&mut self.partial)));
                }
                Ok(line) => self.partial.push(line),
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => return Some(Reply(std::mem::take(&mut self.partial))),
            }
        }
    }

    /// Runs a statement.
    pub fn run(&mut self, sql: &str) -> Reply {
        self.send(sql);
        self.reply()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait_for_exit();
    }
}
