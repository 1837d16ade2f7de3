//! The snapshot of an area whose memory orbits share: nothing is sent, the memory is made to stand
//! still; what main has written since it last did so goes into the log.

use orbit_linux::signals::Blocked;

use crate::area::{Area, Merge, Pin};
use crate::core::{Core, Inner};
use crate::error::{Error, Kind, Result};
use crate::log::LogWriter;
use crate::queue::Obstacle;
use crate::units::{Bytes, Pages};
use std::time::Duration;

/// How often a call tries to merge a shared area, where each time another thread is in a fork, or
/// has forked before the memory was made anew.
const MOST_TRIES: usize = 100;
/// Between two tries beside a fork.
const TRY_STEP: Duration = Duration::from_millis(1);

impl Inner {
    /// Before a call with these areas: merges the shared ones among them that no call reads, if
    /// nothing writes to them, and lets go of the replicas of those whose memory is another one
    /// now. `quiet`: the program says that nothing writes to them.
    pub fn settle_shared(&self, core: &mut Core, areas: &[&Area], quiet: bool) -> Result<()> {
        for area in areas.iter().filter(|area| area.is_shared()) {
            let merge = || {
                // A handler of this thread could write as well.
                let _blocked = Blocked::all();
                // SAFETY: nothing writes to the area, by the program's word, or since this thread
                // is the only one of the program's and runs no handler.
                unsafe { area.merge_if(|| quiet || self.runtime.is_alone()) }
            };
            // Where it fails, pages are sent.
            let mut merged = merge();
            for _ in 0..MOST_TRIES {
                let Ok(now @ (Merge::Filling(_) | Merge::Busy)) = &merged else { break };
                if !core.queue.is_empty() || self.has_room(core, area)? {
                    break;
                }
                // The call would fail. Signals come meanwhile, and other threads may fork.
                match now {
                    Merge::Filling(refill) if refill.fill(Bytes::new(usize::MAX)).is_err() => break,
                    Merge::Busy if quiet => std::thread::sleep(TRY_STEP),
                    Merge::Busy => break,
                    _ => {}
                }
                merged = merge();
            }
            let memory = area.shared_number()?;
            let stale = core.replicas.iter().position(|r| r.area.id() == area.id() && r.memory != memory);
            if let Some(at) = stale {
                // No call that waits names it: each would keep the memory.
                let replica = core.replicas.swap_remove(at);
                core.forget.push(replica.number);
            }
        }
        Ok(())
    }

    /// Whether half of the log holds what is not merged of a shared area.
    fn has_room(&self, core: &mut Core, area: &Area) -> Result<bool> {
        let mut runs = core.queue.lend_runs();
        runs.clear();
        area.unmerged(&mut runs)?;
        let need = LogWriter::need_for_pages(runs.pages(), runs.runs());
        core.queue.return_runs(runs);
        Ok(need <= Bytes::new(core.queue.log_room(&self.down).get() / 2))
    }

    /// Takes the snapshot of a shared area: what is to be laid over its memory goes into the log.
    pub fn pin(&self, core: &mut Core, area: &Area, args_need: Bytes) -> std::result::Result<(Pin, Pages), Obstacle> {
        let mut runs = core.queue.lend_runs();
        runs.clear();
        let memory = core.replicas.iter().find(|r| r.area.id() == area.id()).map_or(0, |r| r.memory);
        // Another call may have had it renewed just now.
        let Some(pin) = area.pin(memory, &mut runs)? else { return Err(Obstacle::NoCopier) };
        let pages = runs.pages();
        let (need, room) = (LogWriter::need_for_pages(pages, runs.runs()) + args_need, core.queue.log_room(&self.down));
        if need > room {
            let (name, bytes) = (area.name(), self.down.log_bytes());
            if core.queue.is_empty() {
                let why = format!(
                    "{pages} pages of area \"{name}\" were written since its memory was last merged, more than the \
                     log of {bytes} bytes holds: call while no call is in flight and nothing writes to the area, and \
                     say so (quiet), or make the orbit with a larger log"
                );
                return Err(Error::new(Kind::Full, why).into());
            }
            let why = format!("{need} bytes of pages for a log with {room} of {bytes} bytes free");
            return Err(Obstacle::NoRoom(why));
        }
        area.with_source(|source| {
            for (first, count) in runs.iter() {
                core.queue.log_mut().pages(&self.down, area.id(), first, count, source);
            }
        })?;
        core.queue.return_runs(runs);
        Ok((pin, pages))
    }

    /// After a call: merges what this thread wrote meanwhile to the orbit's shared areas, if it is
    /// the program's only one. The next call needs no merge then.
    pub fn merge_if_alone(&self, core: &Core) {
        for replica in core.replicas.iter().filter(|replica| replica.area.is_shared()) {
            // A handler of this thread could write as well.
            let blocked = Blocked::all();
            // SAFETY: this thread is the only one of the program's, and runs no handler. Where it
            // is not merged now, the next call does it, or sends the pages.
            let _ = unsafe { replica.area.merge_if(|| self.runtime.is_alone()) };
            drop(blocked);
        }
    }
}
