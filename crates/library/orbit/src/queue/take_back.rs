//! Calls taken back from the end of the queue.
//!
//! Main lowers `submitted`, sees that the orbit has not begun the calls, owes their pages again,
//! and gives their slots and their part of the log to the next call; or puts them back, if that one
//! cannot be made. Everything here runs under the orbit's lock.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::Waiting;
use crate::channel::SLOTS;
use crate::core::{Core, Inner};
use crate::log::Record;
use crate::page::PAGE_BYTES;
use crate::units::Bytes;

/// Calls taken back from the end of the queue.
#[derive(Default)]
pub(crate) struct TakenBack {
    pub calls: VecDeque<Waiting>,
    /// Their part of the log, if some of them are not cancelled and may have to be put back.
    pub log: Option<Vec<u8>>,
    /// [`super::Queue::detached_before`] before.
    detached_before: u32,
    /// Replicas, by number, whose [`crate::replica::Replica::first_call`] was one of these, and
    /// which.
    first_calls: Vec<(u32, u32)>,
}

impl Inner {
    /// Takes calls back from the end of the queue, so that their slots and their part of the log
    /// are free: those that are cancelled or to be `replaced`, as far as the orbit has begun none
    /// of them. Their pages are owed again. Calls whose snapshot a copier holds stay, and those
    /// before them.
    pub fn take_back(&self, core: &mut Core, replaced: impl Fn(&Waiting) -> bool) -> TakenBack {
        let taken = |w: &&Waiting| w.copier.is_none() && (w.cancelled || replaced(w));
        let all = core.queue.pending.len();
        let wanted = all - core.queue.pending.iter().rev().take_while(taken).count();
        if wanted == all {
            return TakenBack::default();
        }
        let (completed, submitted) = (core.queue.completed(), core.queue.submitted);
        let up = core.life.up();
        // An orbit that counts wrongly harms itself.
        let begun =
            || up.as_ref().map_or(0, |up| up.begun.load(Ordering::SeqCst).wrapping_sub(completed) as usize).min(all);
        let mut first = wanted.max(begun());
        while first < all {
            self.hand_over(core, completed.wrapping_add(first as u32));
            // The orbit stores `begun` and then reads `submitted`; here it is the other way
            // round, so one of both sees the other. If the orbit does, it waits.
            let begun = begun();
            if begun <= first {
                break;
            }
            first = begun;
        }
        if first == all {
            if core.queue.submitted != submitted {
                self.hand_over(core, submitted);
            }
            return TakenBack::default();
        }
        let log_start = first
            .checked_sub(1)
            .map_or(core.queue.log.tail(), |before| core.queue.get(before).map_or(0, |w| w.log_end));
        let calls = core.queue.pending.split_off(first);
        let log = calls.iter().any(|w| !w.cancelled).then(|| core.queue.log.copy_from(&self.down, log_start));
        self.rewind_log(core, log_start);
        core.queue.attached += self.attached_with(&calls);
        let first_call = core.queue.submitted;
        let is_past = |number: u32| number.wrapping_sub(first_call) <= submitted.wrapping_sub(first_call);
        let mut first_calls = Vec::new();
        for replica in core.replicas.iter_mut().filter(|r| is_past(r.first_call)) {
            first_calls.push((replica.number, std::mem::replace(&mut replica.first_call, first_call)));
        }
        let detached_before = core.queue.detached_before;
        if is_past(detached_before) {
            core.queue.detached_before = first_call;
        }
        TakenBack { calls, log, detached_before, first_calls }
    }

    /// The next call was not made: those that it was to replace wait as before.
    pub fn put_back(&self, core: &mut Core, taken: TakenBack) {
        let Some(log) = &taken.log else { return };
        core.queue.log.put_back(&self.down, log);
        core.queue.attached -= self.attached_with(&taken.calls);
        core.queue.detached_before = taken.detached_before;
        for (number, first_call) in taken.first_calls {
            core.replicas.iter_mut().filter(|r| r.number == number).for_each(|r| r.first_call = first_call);
        }
        let submitted = core.queue.submitted.wrapping_add(taken.calls.len() as u32);
        core.queue.pending.append(taken.calls);
        self.hand_over(core, submitted);
    }

    /// Replicas that the orbit is to map before these calls.
    fn attached_with(&self, calls: &VecDeque<Waiting>) -> u32 {
        let slot = |w: &Waiting| &self.down.slots[(w.call.number & (SLOTS - 1)) as usize];
        calls.iter().map(|w| slot(w).attach.load(Ordering::Relaxed)).sum()
    }

    /// Takes back what was appended to the log after a position: its pages are owed again, and the
    /// orbit is still to learn which areas are gone.
    pub fn rewind_log(&self, core: &mut Core, position: u64) {
        let Core { queue, replicas, forget, .. } = core;
        queue.log.between(&self.down, position, queue.log.head(), |record| match record {
            Record::Pages { area, first, data } => {
                for replica in replicas.iter().filter(|r| r.area.id() == area) {
                    replica.owe_again(first, Bytes::new(data.len()).whole_pages(PAGE_BYTES));
                }
            }
            Record::Forget { replica } => forget.push(replica),
            Record::Args(_) => {}
        });
        queue.log.rewind(position);
    }
}
