//! Main's hold on one orbit's copy of one area, and the life of the pages until they are in it: the
//! [`ledger`].

mod ledger;
pub(crate) use ledger::{Held, Taken};

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use orbit_linux::descriptors::file_of;
use orbit_linux::memfd;

use crate::area::{Area, OwedSet, PageRuns, fault};
use crate::error::{Error, Result};
use crate::own::Own;
use crate::page::{PAGE, PAGE_BYTES};
use crate::shared::Shared;
use crate::stream;
use crate::units::{Address, Pages};
use crate::wire::Attach;

/// A replica: memory that main writes through `alias` while the orbit is idle, and that the orbit
/// maps privately at the area's own address.
///
/// What the usual call needs lies together, first.
#[repr(C)]
pub(crate) struct Replica {
    pub area: Area,
    /// The address of `alias`, which the usual call finds here without another line of memory.
    pub alias_at: Address,
    /// Calls in a row whose pages were left to a copier; see [`Replica::protect_now`].
    copied_in_a_row: u32,
    until_protect: u32,
    /// Its own number: the next replica of the same area has another one.
    pub number: u32,
    /// The number of the first call that could name the area: those before it know nothing of the
    /// area.
    pub first_call: u32,
    /// What this orbit has not been sent of the area yet; see the [`ledger`].
    owed: Arc<OwedSet>,
    pub fd: Own,
    /// Shared with the supervisor, which populates it. `None`: the area's own memory is what the
    /// orbit maps, and nothing is written here.
    pub alias: Option<Arc<Shared>>,
    /// The number of that memory, 0 for none.
    pub memory: u64,
    /// Pages of it that the supervisor was asked to populate.
    pub mapped: Pages,
    /// Pages of the last snapshot; of a replica that has had none, more than any.
    pub last_delta: Pages,
    /// Copiers of its pages in a row that could not be made or died.
    copiers_failed: u32,
    /// Until then its pages are copied by main, however many they are.
    no_copier_until: Option<Instant>,
}

/// So many large deltas in a row say that the next one is large.
const LARGE_DELTAS_IN_A_ROW: u32 = 8;
/// How long a replica has no copier after one has failed; twice as long with each further one.
const NO_COPIER_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Doublings, at most: nine minutes.
const MAX_DOUBLINGS: u32 = 9;

/// Number of the next replica.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

impl Replica {
    /// A replica that is owed the whole area.
    pub fn make(area: &Area, first_call: u32) -> Result<Replica> {
        let doing = || format!("a replica of area \"{}\" ({} bytes)", area.name(), area.limit());
        if let Some((fd, number)) = area.shared_file()? {
            let mut replica = Replica::over(area, first_call, area.attach()?, fd, None);
            replica.memory = number;
            return Ok(replica);
        }
        let fd = fault::check()
            .and_then(|()| memfd::create("orbit-replica", area.limit(), true))
            .map_err(|e| Error::system(doing(), e))?;
        // Else the orbit, which has the descriptor, could cut the memory short under main.
        fault::check().and_then(|()| memfd::seal_size(fd.as_fd())).map_err(|e| Error::system(doing(), e))?;
        let alias = fault::check()
            .and_then(|()| Shared::map(fd.as_fd(), area.limit()))
            .map_err(|e| Error::system(doing(), e))?;
        let fd = Own::new(fd).map_err(|e| Error::system(doing(), e))?;
        let owed = area.attach()?;
        Ok(Replica::over(area, first_call, owed, fd, Some(Arc::new(alias))))
    }

    fn over(area: &Area, first_call: u32, owed: Arc<OwedSet>, fd: Own, alias: Option<Arc<Shared>>) -> Replica {
        Replica {
            area: area.clone(),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            first_call,
            owed,
            fd,
            alias_at: alias.as_ref().map_or(Address::of(std::ptr::null::<u8>()), |alias| Address::of(alias.as_ptr())),
            alias,
            memory: 0,
            mapped: Pages::ZERO,
            copied_in_a_row: 0,
            last_delta: Pages::MAX,
            until_protect: 0,
            copiers_failed: 0,
            no_copier_until: None,
        }
    }

    /// What gives it to the orbit; its descriptor goes along.
    pub fn message(&self) -> Attach {
        Attach {
            base: self.area.base(),
            len: self.area.limit(),
            area: self.area.id(),
            number: self.number,
            shared: u32::from(self.alias.is_none()),
            reserved: 0,
        }
    }

    /// Copies pages from the area straight into the replica: only while the orbit is idle.
    ///
    /// # Errors
    /// `Gone`.
    fn write(&self, runs: &PageRuns) -> Result<()> {
        self.area.with_source(|source| {
            let target: *mut u8 = self.alias_at.pointer();
            let pages = runs.iter().flat_map(|(first, count)| first.run(count));
            let pairs = pages.map(|page| (source(page), target.wrapping_add(page.offset(PAGE_BYTES).get())));
            if runs.pages() >= stream::WORTH_IT {
                // SAFETY: pages reported by the area lie below its limit, which is the alias's
                // length; both are whole pages, and the alias is no part of the area.
                return unsafe { stream::copy_pages(pairs) };
            }
            // SAFETY: as above.
            pairs.for_each(|(from, to)| unsafe { std::ptr::copy_nonoverlapping(from, to, PAGE) });
        })
    }

    /// Whether more than an eighth of its first `pages` pages have no memory: giving it to them
    /// would cost what it saves.
    pub fn is_sparse(&self, pages: Pages) -> bool {
        let held = self.fd.fd().and_then(|fd| file_of(fd.as_raw_fd()));
        !held.is_ok_and(|(_, bytes)| bytes >= pages.bytes(PAGE_BYTES).get() / 8 * 7)
    }

    /// Whether a call that goes to a copier should harvest (protect the written pages again) first.
    /// Not to do so makes the next call's delta as large again, whatever main writes; to do so
    /// costs main tens of nanoseconds a page. So it is done, but for an area of which so much is
    /// written between calls, [`LARGE_DELTAS_IN_A_ROW`] times in a row, that it will be large the
    /// next time too: then ever more seldom.
    pub fn protect_now(&mut self) -> bool {
        self.copied_in_a_row = (self.copied_in_a_row + 1).min(LARGE_DELTAS_IN_A_ROW + 4);
        if self.copied_in_a_row <= LARGE_DELTAS_IN_A_ROW {
            return true;
        }
        if self.until_protect > 0 {
            self.until_protect -= 1;
            return false;
        }
        self.until_protect = 1 << (self.copied_in_a_row - LARGE_DELTAS_IN_A_ROW);
        true
    }

    /// Whether a copier may hold its pages: where processes cannot be made, or end at once, main
    /// copies.
    pub fn may_have_copier(&self) -> bool {
        self.no_copier_until.is_none_or(|until| Instant::now() >= until)
    }

    /// A copier of its pages could not be made, or died.
    pub fn copier_failed(&mut self) {
        self.no_copier_until = Some(Instant::now() + NO_COPIER_AFTER_FAILURE * (1 << self.copiers_failed));
        self.copiers_failed = (self.copiers_failed + 1).min(MAX_DOUBLINGS);
    }

    /// A copier has written all of its pages.
    pub fn copier_done(&mut self) {
        (self.copiers_failed, self.no_copier_until) = (0, None);
    }

    /// A call's delta was small again.
    #[inline(always)]
    pub fn small_again(&mut self) {
        self.copied_in_a_row = 0;
        self.until_protect = 0;
    }
}
