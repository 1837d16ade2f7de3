//! A client that is given statements one after the other, and may wait in one of them.

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
    thread: u64,
    /// What has come of the answer that is waited for.
    partial: Vec<String>,
}

/// What came of a statement: its lines, errors included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply(pub Vec<String>);

impl Reply {
    /// Its error, if it failed: `1213 (40001)`.
    pub fn error(&self) -> Option<&str> {
        let rest = self.0.iter().find_map(|line| line.strip_prefix("ERROR "))?;
        Some(rest.split(" at line").next().unwrap_or(rest))
    }

    /// All lines.
    pub fn text(&self) -> String {
        self.0.join("\n")
    }
}

impl Session {
    pub(crate) fn start(mut command: Command) -> Session {
        // Errors in line with the answers: both go to one pipe.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.args(["--batch", "--skip-column-names", "--force", "--unbuffered", "--skip-reconnect"]);
        command.stdin(Stdio::piped()).stdout(writer.try_clone().expect("a pipe")).stderr(writer);
        let mut child = command.spawn().expect("mariadb starts");
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
        let mut session = Session { child, input, lines, sent: 0, thread: 0, partial: Vec::new() };
        session.thread = session.run("SELECT connection_id()").text().parse().expect("a number");
        session
    }

    /// The server's number of its connection.
    pub fn thread(&self) -> u64 {
        self.thread
    }

    /// Sends a statement; its answer is read by [`Session::reply`].
    ///
    /// # Panics
    /// Where the client has ended.
    pub fn send(&mut self, sql: &str) {
        self.sent += 1;
        writeln!(self.input, "{sql};\nSELECT ':done-{}';", self.sent).expect("the client reads");
        self.input.flush().expect("the client reads");
    }

    /// The answer to the last statement.
    ///
    /// # Panics
    /// Where none comes.
    pub fn reply(&mut self) -> Reply {
        self.reply_within(PATIENCE).unwrap_or_else(|| panic!("no answer; so far: {:?}", self.partial))
    }

    /// The same, if it comes within this time.
    pub fn reply_within(&mut self, time: Duration) -> Option<Reply> {
        loop {
            match self.lines.recv_timeout(time) {
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
