//! The queue of one orbit's calls as main counts it, and why one may not be queued.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::answers::Reader;
use crate::area::PageRuns;
use crate::call::Call;
use crate::copier::Copier;
use crate::error::Error;
use crate::log::LogWriter;

/// A call main has submitted.
pub(crate) struct Waiting {
    pub call: Arc<Call>,
    /// The log up to here is free when the call is completed.
    pub log_end: u64,
    pub args_len: usize,
    pub copier: Option<Copier>,
    /// Areas whose pages the copier holds: owed again if it dies.
    pub held: Vec<u32>,
    pub cancelled: bool,
}

/// An orbit's queue as main counts it.
pub(crate) struct Queue {
    pub submitted: u32,
    pub pending: VecDeque<Waiting>,
    pub log: LogWriter,
    /// Main's place in the orbit's answers; counts the completed calls.
    pub answers: Reader,
    /// Replicas sent to the orbit and not yet counted in a slot.
    pub attached: u32,
    /// Calls before this one may name an area that main has let go of since.
    pub let_go_at: u32,
    pub runs: PageRuns,
}

impl Queue {
    pub fn new() -> Queue {
        Queue {
            submitted: 0,
            pending: VecDeque::new(),
            log: LogWriter::new(),
            answers: Reader::new(),
            attached: 0,
            let_go_at: 0,
            runs: PageRuns::default(),
        }
    }

    /// Bytes of the updates that calls brought which have not ended, and that nobody pulled yet.
    pub fn waiting_bytes(&self) -> usize {
        self.pending.iter().map(|waiting| waiting.call.waiting_bytes()).sum()
    }

    /// Calls that main has seen completed.
    pub fn completed(&self) -> u32 {
        self.answers.completed
    }
}

/// Why a snapshot cannot be taken now.
pub(crate) enum Obstacle {
    /// No room until the orbit has come further.
    NoRoom(String),
    /// No copier was to be had; main is to copy the pages.
    NoCopier,
    Failed(Error),
}

impl From<Error> for Obstacle {
    fn from(e: Error) -> Obstacle {
        Obstacle::Failed(e)
    }
}
