//! What the keeper publishes about each process it keeps, and the socket where that is read.
//!
//! The socket is the file `keep-PID.sock` of [`orbit_console::control`]; only the same user and
//! root are answered. Each connection gets the whole as JSON.

use crate::report::Figures;
use orbit_console::control::{self, SocketFile};
use orbit_linux::{host, socket};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the names of keepers' sockets begin with.
const KIND: &str = "keep";
/// How long a reader may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// An answer is shorter than this.
const MAX_ANSWER_BYTES: u64 = 4 << 20;
/// Pauses of which the quantiles are made.
const PAUSES: usize = 4096;

/// One process that is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its process id.
    pub pid: i32,
    /// The program's name.
    pub name: String,
    /// `log` or `generic`.
    pub mode: String,
    /// Whether there is a checkpoint to go back to.
    pub is_kept: bool,
    /// Checkpoints held.
    pub generations: usize,
    /// Figures from the beginning on.
    pub figures: Figures,
}

/// The rows of one keeper. May be used from any thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<BTreeMap<i32, Row>>>);

impl Board {
    /// The process is as this row says.
    pub fn put(&self, row: Row) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(row.pid, row);
    }

    /// The process has exited.
    pub fn remove(&self, pid: i32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
    }

    /// All rows, by process id.
    pub fn rows(&self) -> Vec<Row> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Answers readers from now on, in a thread that ends with this process. The socket's file is
    /// removed with the value that is answered.
    pub fn serve(&self) -> io::Result<SocketFile> {
        let (listener, file) = control::listen(KIND)?;
        let board = self.clone();
        std::thread::Builder::new().name("keep-status".into()).spawn(move || {
            for reader in listener.incoming() {
                match reader {
                    // A client that goes away early has not wanted the rest.
                    Ok(reader) => drop(board.answer(reader)),
                    // Out of descriptors, perhaps: not in a tight loop.
                    Err(_) => std::thread::sleep(ANSWER_TIMEOUT / 20),
                }
            }
        })?;
        Ok(file)
    }

    fn answer(&self, mut reader: UnixStream) -> io::Result<()> {
        reader.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        if is_allowed(&reader)? {
            reader.write_all(&serde_json::to_vec(&self.rows())?)?;
        }
        Ok(())
    }
}

/// Whether the process at the other end belongs to root or to the user of this one.
pub(crate) fn is_allowed(peer: &UnixStream) -> io::Result<bool> {
    let (_, user) = socket::peer(peer.as_fd())?;
    Ok(user == 0 || user == host::user())
}

/// What the keepers of this user say.
#[derive(Debug, Default)]
pub struct Keepers {
    /// Each with its rows.
    pub known: Vec<(i32, Vec<Row>)>,
    /// Those of another version: what they say is not understood.
    pub unknown: Vec<i32>,
}

impl Keepers {
    /// A sentence for each that is not understood.
    pub fn complaints(&self) -> impl Iterator<Item = String> {
        self.unknown.iter().map(|keeper| {
            format!(
                "keeper {keeper} is of another version of orbit, and what it says is not understood; its programs stay \
                 kept: /proc/{keeper}/exe is the command that knows them"
            )
        })
    }
}

/// Asks all keepers of this user whose sockets this process sees.
pub fn all() -> Keepers {
    let mut found = Keepers::default();
    for keeper in control::owners(KIND) {
        match ask(keeper) {
            Ok(rows) => found.known.push((keeper, rows)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => found.unknown.push(keeper),
            // It has ended meanwhile, or does not answer.
            Err(_) => {}
        }
    }
    found
}

/// The rows of one keeper; an empty answer is an error. `InvalidData`: it is no table of this
/// version.
fn ask(keeper: i32) -> io::Result<Vec<Row>> {
    let stream = control::connect(KIND, keeper)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut text = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => io::ErrorKind::InvalidData.into(),
        _ => error.into(),
    })
}

/// The last pauses of one program.
#[derive(Debug, Default)]
pub(crate) struct Pauses(VecDeque<f64>);

impl Pauses {
    /// Another one, in us.
    pub fn add(&mut self, us: f64) {
        if self.0.len() == PAUSES {
            self.0.pop_front();
        }
        self.0.push_back(us);
    }

    /// Median and 99th percentile in us; 0 without any.
    pub fn quantiles(&self) -> (f64, f64) {
        let mut sorted: Vec<f64> = self.0.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |q: f64| sorted.get(((sorted.len() as f64 * q) as usize).min(sorted.len().saturating_sub(1)));
        (at(0.5).copied().unwrap_or(0.0), at(0.99).copied().unwrap_or(0.0))
    }
}
