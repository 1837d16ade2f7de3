//! The snapshot of a call: what each area that it names needs to be sent, and by which way.

use crate::area::{Area, Engine, PageRuns, Pin};
use crate::channel::INLINE_ARGS;
use crate::copier::Part;
use crate::core::{Core, Inner};
use crate::costs;
use crate::error::Result;
use crate::log::LogWriter;
use crate::page::PAGE_BYTES;
use crate::queue::Obstacle;
use crate::replica::{Held, Taken};
use crate::units::{Bytes, Pages};

/// Areas up to this many pages in use are never given to a copier.
const COPIER_FROM_PAGES: Pages = Pages::new(512);

/// A snapshot on its way.
#[derive(Default)]
pub(crate) struct Gathered {
    /// What a copier is to write.
    pub parts: Vec<Part>,
    /// The pages of those, by area: owed again if no copier begins.
    pub held: Vec<Held>,
    /// The shared areas among those named.
    pub pins: Vec<Pin>,
    pub pages: Pages,
}

impl Inner {
    /// The snapshot: what changed in each area goes into the replica, the log, or the list for a
    /// copier; then long arguments into the log.
    pub fn gather(
        &self,
        core: &mut Core,
        areas: &[&Area],
        args: &[u8],
        idle: bool,
        gathered: &mut Gathered,
    ) -> std::result::Result<(), Obstacle> {
        let args_need = if args.len() > INLINE_ARGS { LogWriter::need_for_args(args.len()) } else { Bytes::ZERO };
        for area in areas {
            let at = core.replicas.iter().position(|r| r.area.id() == area.id());
            let at = at.expect("`attach_new` has made those that were not there");
            if area.is_shared() {
                let (pin, pages) = self.pin(core, area, args_need)?;
                gathered.pins.push(pin);
                gathered.pages += pages;
                continue;
            }
            let replica = &mut core.replicas[at];
            let used = area.used_pages();
            let is_first = replica.last_delta == Pages::MAX;
            if is_first && used > COPIER_FROM_PAGES && area.engine() == Engine::Compare {
                // The first harvest fills the shadow, before it is known how many pages are sent.
                self.check_room(area, used, 2)?;
            }
            // An engine that is named is used, and no other.
            let mut large = area.asked_engine() == Engine::Fork;
            let mut most = Pages::MAX;
            if used > COPIER_FROM_PAGES && area.asked_engine() == Engine::Auto && replica.may_have_copier() {
                most = costs::copier_pays_from(used);
                // Reading ahead takes as long as the scan. Where little is expected, only that is
                // made.
                let expects_few = replica.last_delta.get() < most.get() / 4 && replica.owed_pages() < most;
                large = !expects_few && replica.peek(most)? >= most;
            }
            let harvests = !large || replica.protect_now();
            let buffer = core.queue.lend_runs();
            let taken = if harvests { Taken::changed(replica, buffer)? } else { Taken::all(replica, used, buffer)? };
            let pages = taken.pages();
            large |= pages >= most;
            // A replica's first pages are new memory; what a copier holds main copies as it writes.
            self.check_room(area, pages, u64::from(is_first) + u64::from(large))?;
            let sent = if large {
                let from = if harvests { area.source_begins()? } else { area.base() as *const u8 };
                gathered.held.push(taken.into_copier(from, &mut gathered.parts));
                Ok(PageRuns::new())
            } else if idle {
                // The first time the pages are not mapped yet, and cost more.
                costs::copying(pages, pages < used, || taken.into_replica()).map_err(Obstacle::from)
            } else {
                let (need, room) = (taken.need_of_log() + args_need, core.queue.log_room(&self.down));
                if need > room {
                    let bytes = self.down.log_bytes();
                    let why = format!("{need} bytes of pages for a log with {room} of {bytes} bytes free");
                    drop(taken);
                    Err(Obstacle::NoRoom(why))
                } else {
                    taken.into_log(core.queue.log_mut(), &self.down).map_err(Obstacle::from)
                }
            };
            let replica = &mut core.replicas[at];
            replica.last_delta = pages;
            if harvests && (!large || pages.get() < used.get() / 2) {
                replica.small_again();
            }
            gathered.pages += pages;
            core.queue.return_runs(sent?);
        }
        if args_need > core.queue.log_room(&self.down) {
            return Err(Obstacle::NoRoom("the log has no room for the arguments".to_owned()));
        }
        if core.queue.log_room(&self.down)
            > args_need + Bytes::new(core.forget.len() * 64) + Pages::new(2).bytes(PAGE_BYTES)
        {
            for replica in core.forget.drain(..) {
                core.queue.log_mut().forget(&self.down, replica);
            }
        }
        // The last record of the call: see `has_args`.
        if args_need > Bytes::ZERO {
            core.queue.log_mut().args(&self.down, args);
        }
        Ok(())
    }

    /// An error if there is no room around main for so many copies of so many pages of an area.
    fn check_room(&self, area: &Area, pages: Pages, copies: u64) -> Result<()> {
        let bytes = pages.bytes(PAGE_BYTES).get() as u64 * copies;
        self.runtime.room.check(bytes, || format!("a snapshot of area \"{}\"", area.name()))
    }
}
