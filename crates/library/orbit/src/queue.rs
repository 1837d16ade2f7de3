//! The queue of one orbit's calls as main counts it, and why one may not be queued. Everything here
//! runs under the orbit's lock.

mod pending;
mod take_back;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::answers::{Ending, Nonsense, Reader};
use crate::area::{PageRuns, Pin};
use crate::call::Call;
use crate::channel::{Down, DownSide, SLOTS, Up};
use crate::copier::Copier;
use crate::error::{Error, Result};
use crate::log::LogWriter;
use crate::replica::Held;
use crate::units::Bytes;
use crate::update::Update;
use pending::Pending;

/// A call main has submitted.
pub(crate) struct Waiting {
    pub call: Arc<Call>,
    /// The log up to here is free when the call is completed.
    pub log_end: u64,
    pub args_len: usize,
    pub copier: Option<Copier>,
    /// The pages that the copier holds, by area: owed again if it does not write all of them.
    pub held: Vec<Held>,
    /// The shared areas whose memory is its snapshot.
    #[expect(dead_code, reason = "what counts is when they are dropped")]
    pub pins: Vec<Pin>,
    pub cancelled: bool,
}

/// An orbit's queue as main counts it.
///
/// ```text
/// submitted == completed + pending.len()      numbers of calls wrap
/// log.tail <= log_end of pending[0] <= ... <= log_end of the last <= log.head
/// ```
///
/// What the usual call needs lies together, first.
#[repr(C)]
pub(crate) struct Queue {
    /// Calls handed over so far: the number of the next one.
    submitted: u32,
    /// Replicas sent to the orbit and not yet counted in a slot.
    attached: u32,
    /// When the last usual call was made, nanoseconds of CLOCK_MONOTONIC.
    made_ns: u64,
    /// Main's place in the orbit's answers; counts the completed calls.
    answers: Reader,
    log: LogWriter,
    /// The call that returned last, to be used again by the next usual one.
    spent: Option<Arc<Call>>,
    /// Those that main has not seen completed, the one whose turn it is first.
    pending: Pending,
    /// Calls before this one may name an area that main has detached since.
    detached_before: u32,
    /// Memory for the pages of a snapshot, used again by the next one.
    runs: PageRuns,
}

impl Queue {
    pub fn new() -> Queue {
        Queue {
            submitted: 0,
            made_ns: 0,
            pending: Pending::default(),
            log: LogWriter::new(),
            answers: Reader::new(),
            attached: 0,
            detached_before: 0,
            runs: PageRuns::default(),
            spent: None,
        }
    }

    /// The number of the next call.
    #[inline(always)]
    pub fn next_number(&self) -> u32 {
        self.submitted
    }

    /// Counts calls as handed over up to this number;
    /// [`Inner::hand_over`](crate::core::Inner::hand_over) notifies the orbit.
    #[inline(always)]
    pub fn set_submitted(&mut self, submitted: u32) {
        self.submitted = submitted;
    }

    /// Calls that main has seen completed.
    #[inline(always)]
    pub fn completed(&self) -> u32 {
        self.answers.completed
    }

    /// Calls that wait, the one that runs included.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether nothing waits in either direction: neither calls, nor replicas, nor answers of the
    /// process with this *up*.
    #[inline(always)]
    pub fn is_idle(&self, up: &Up) -> bool {
        self.pending.is_empty()
            && self.attached == 0
            && up.completed.load(Ordering::Acquire) == self.completed()
            && !self.answers.has_updates(up)
    }

    /// The call whose turn it is.
    pub fn front(&self) -> Option<&Waiting> {
        self.pending.get(0)
    }

    /// The call at a place, 0 for the one whose turn it is.
    pub fn get(&self, at: usize) -> Option<&Waiting> {
        self.pending.get(at)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.pending.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.pending.iter_mut()
    }

    /// Adds a call at the end.
    #[inline(always)]
    pub fn push(&mut self, waiting: Waiting) {
        self.pending.push(waiting);
    }

    /// Notes when a usual call is made; returns how many nanoseconds after the last one.
    #[inline(always)]
    pub fn note_made(&mut self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(std::mem::replace(&mut self.made_ns, now_ns))
    }

    /// A usual call with one future, in the memory of the last one if nobody has that any more.
    #[inline(always)]
    pub fn usual_call(&mut self, number: u32, submitted_ns: u64) -> Arc<Call> {
        if let Some(mut call) = self.spent.take()
            && let Some(spent) = Arc::get_mut(&mut call)
        {
            spent.renew(number, submitted_ns);
            return call;
        }
        Call::usual(number, submitted_ns)
    }

    /// Keeps the memory of a call that returned for the next one.
    pub fn note_spent(&mut self, call: Arc<Call>) {
        self.spent = Some(call);
    }

    /// Takes all calls that wait; their slots and their parts of the log stay theirs. The caller
    /// gives them back by [`Queue::keep`], or ends them and calls [`Queue::forget_all`].
    pub fn take_all(&mut self) -> VecDeque<Waiting> {
        self.pending.split_off(0)
    }

    /// The calls of [`Queue::take_all`] wait on.
    pub fn keep(&mut self, waiting: VecDeque<Waiting>) {
        self.pending.append(waiting);
    }

    /// Counts all calls as completed: none is kept, and the log is free.
    pub fn forget_all(&mut self) {
        self.answers.completed = self.submitted;
        let head = self.log.head();
        self.log.release(head);
    }

    /// Takes the next completed call out of the queue, with how it ended; its part of the log is
    /// free. To be asked once for each of [`Queue::newly_completed`]. `None`: nothing waits.
    pub fn pop_completed(&mut self, up: &Up) -> std::result::Result<Option<(Waiting, Ending)>, Nonsense> {
        let ending = self.answers.ending(up)?;
        let Some(waiting) = self.pending.pop() else { return Ok(None) };
        self.log.release(waiting.log_end);
        Ok(Some((waiting, ending)))
    }

    /// How many of the waiting calls the orbit has completed.
    pub fn newly_completed(&self, up: &Up) -> std::result::Result<usize, Nonsense> {
        self.answers.newly_completed(up, self.pending.len())
    }

    /// Whether the orbit has pushed updates that main has not taken.
    pub fn has_updates(&self, up: &Up) -> bool {
        self.answers.has_updates(up)
    }

    /// Takes the updates that the orbit has pushed; see [`Reader::updates`].
    pub fn updates(&mut self, up: &Up, down: &Down) -> std::result::Result<Vec<(u32, Result<Update>)>, Nonsense> {
        self.answers.updates(up, down)
    }

    /// Bytes of the updates that calls brought which have not ended, and that nothing pulled yet.
    pub fn waiting_bytes(&self) -> usize {
        self.pending.iter().map(|waiting| waiting.call.waiting_bytes()).sum()
    }

    /// Another process answers from here on. Replicas of waiting calls are sent to it with its
    /// identity.
    pub fn begin_process(&mut self, down: &Down) {
        for waiting in self.pending.iter() {
            down.slots[(waiting.call.number & (SLOTS - 1)) as usize].attach.store(0, Ordering::Relaxed);
        }
        self.attached = 0;
        self.answers.restart(down);
    }

    /// So many replicas were sent to the orbit: the next call's slot counts them.
    pub fn note_attached(&mut self, replicas: u32) {
        self.attached += replicas;
    }

    /// Replicas sent that no slot counts yet.
    pub fn attached(&self) -> u32 {
        self.attached
    }

    /// The same, which the next call's slot counts from here on.
    pub fn take_attached(&mut self) -> u32 {
        std::mem::take(&mut self.attached)
    }

    /// An area was detached: waiting calls may name it.
    pub fn note_detached(&mut self) {
        self.detached_before = self.submitted;
    }

    /// How many of the first `waiting` calls may name an area that was detached since.
    pub fn naming_detached(&self, waiting: usize) -> usize {
        let named = self.detached_before.wrapping_sub(self.completed()) as usize;
        if named <= waiting { named } else { 0 }
    }

    /// The log's end for the next call.
    #[inline(always)]
    pub fn log_head(&self) -> u64 {
        self.log.head()
    }

    /// Bytes free in the log.
    pub fn log_room(&self, down: &DownSide) -> Bytes {
        self.log.room(down)
    }

    /// The log, to read what waiting calls brought.
    pub fn log(&self) -> &LogWriter {
        &self.log
    }

    /// The log, to append the next call's part.
    pub fn log_mut(&mut self) -> &mut LogWriter {
        &mut self.log
    }

    /// Lends memory for the pages of a snapshot, until [`Queue::return_runs`].
    pub fn lend_runs(&mut self) -> PageRuns {
        std::mem::take(&mut self.runs)
    }

    /// Gets it back.
    pub fn return_runs(&mut self, runs: PageRuns) {
        self.runs = runs;
    }
}

/// Why a snapshot cannot be taken now.
pub(crate) enum Obstacle {
    /// No room until the orbit has come further.
    NoRoom(String),
    /// No copier was available; main is to copy the pages.
    NoCopier,
    Failed(Error),
}

impl From<Error> for Obstacle {
    fn from(e: Error) -> Obstacle {
        Obstacle::Failed(e)
    }
}
