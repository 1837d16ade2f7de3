//! The usual call on its short path: the orbit is idle, the areas are few and small, nothing waits
//! to be reaped, and no copier is needed.
//!
//! A server calls once in milliseconds. By then code and data have left the caches, and each line
//! that a call touches costs some 0.1 us, each page a page walk. So this path touches few lines,
//! and its functions lie together, in a section of their own (`orbit_usual`). It does what
//! [`Inner::submit`] does, no more and no less; whatever it does not expect it leaves to that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::area::Area;
use crate::call::Call;
use crate::channel::{COPIER_NONE, INLINE_ARGS, READY, SLOTS};
use crate::clock::now_ns;
use crate::core::Inner;
use crate::generation::generation;
use crate::queue::Waiting;
use crate::units::Pages;

/// Most pages in use of an area that this path copies: such an area is copied whole by every call.
const MAX_PAGES: Pages = Pages::new(16);
/// After so long without a call, caches have hardly anything left of what the last one touched.
const COLD_AFTER_NS: u64 = 300_000;

impl Inner {
    /// Makes a call of the entry function without a deadline, if it is a usual one; it counts one
    /// future. `None`: nothing was done that [`Inner::submit`] would not do again.
    #[inline(always)]
    pub fn submit_usual(self: &Arc<Inner>, areas: &[&Area], args: &[u8]) -> Option<Arc<Call>> {
        if args.len() > INLINE_ARGS || self.has_deadline || self.generation != generation() {
            return None;
        }
        let mut guard = self.core.lock().unwrap_or_else(|e| e.into_inner());
        if !guard.queue.is_empty() {
            drop(guard);
            // It may release the lock itself to wake wakers. This path wakes none.
            self.reap();
            guard = self.core.lock().unwrap_or_else(|e| e.into_inner());
        }
        let core = &mut *guard;
        let process = core.life.healthy_process()?;
        let up = &process.up;
        if !core.forget.is_empty() || !core.queue.is_idle(up) {
            return None;
        }
        let submitted_ns = now_ns();
        let is_cold = core.queue.note_made(submitted_ns) > COLD_AFTER_NS;
        let mut pages = Pages::ZERO;
        for area in areas {
            let replica = core.replicas.iter_mut().find(|r| r.area.is_same(area))?;
            replica.small_again();
            let to = replica.alias_at.pointer();
            // SAFETY: the alias has the area's limit, and the orbit, which is idle, does not use it
            // meanwhile. The replica, which lives under the lock held here, keeps the area in use.
            pages += unsafe { area.copy_small(to, MAX_PAGES, is_cold) }?;
        }
        let number = core.queue.next_number();
        let slot = &self.down.slots[(number & (SLOTS - 1)) as usize];
        let log = core.queue.log_head();
        slot.copier.store(COPIER_NONE, Ordering::Relaxed);
        for (to, from) in slot.args.iter().zip(args) {
            to.store(*from, Ordering::Relaxed);
        }
        slot.call.store(number, Ordering::Relaxed);
        slot.function.store(0, Ordering::Relaxed);
        slot.args_len.store(args.len() as u32, Ordering::Relaxed);
        slot.log_start.store(log, Ordering::Relaxed);
        slot.log_end.store(log, Ordering::Relaxed);
        slot.state.store(READY, Ordering::Relaxed);
        slot.attach.store(0, Ordering::Relaxed);
        slot.submitted_ns.store(submitted_ns, Ordering::Relaxed);
        core.stats.calls += 1;
        core.stats.pages += pages.get() as u64;
        let call = core.queue.usual_call(number, submitted_ns);
        core.queue.push(Waiting {
            call: call.clone(),
            log_end: log,
            args_len: args.len(),
            copier: None,
            held: Vec::new(),
            pins: Vec::new(),
            cancelled: false,
        });
        self.hand_over(core, number.wrapping_add(1));
        self.status.call_submitted(1, pages.get() as u64);
        Some(call)
    }
}
