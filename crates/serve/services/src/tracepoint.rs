//! Hits of a tracepoint, counted in the kernel by a program of its own; a descriptor says when
//! there are new ones.

use crate::error::{Error, Kind, Result};
use crate::ticks::failed;
use aya::maps::{Array, MapData, RingBuf};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};
use std::os::fd::{AsRawFd, BorrowedFd};

#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/tracepoint.bpf.o")));

/// An attached counter; dropping it detaches.
pub(crate) struct Hits {
    /// Keeps the program loaded.
    _program: Ebpf,
    hits: Array<MapData, u64>,
    bell: RingBuf<MapData>,
    seen: u64,
}

impl std::fmt::Debug for Hits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hits").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Hits {
    /// Counts from now on.
    ///
    /// # Errors
    /// `Unsupported` without the rights; `NotFound` when there is no such tracepoint.
    pub(crate) fn start(name: &str) -> Result<Hits> {
        let mut program = EbpfLoader::new().load(&OBJECT.0).map_err(|error| failed("loading the counter", &error))?;
        let mut map = |name: &str| {
            let missing = || Error::new(Kind::Unsupported, format!("the kernel half lacks map {name:?}"));
            program.take_map(name).ok_or_else(missing)
        };
        let hits = Array::try_from(map("hits")?).map_err(|error| failed("map \"hits\"", &error))?;
        let bell = RingBuf::try_from(map("bell")?).map_err(|error| failed("map \"bell\"", &error))?;
        let Some(Ok(hit)) = program.program_mut("hit").map(TryInto::<&mut RawTracePoint>::try_into) else {
            return Err(Error::new(Kind::Unsupported, "the kernel half lacks program \"hit\""));
        };
        hit.load().map_err(|error| failed("the counter's program", &error))?;
        // By name alone: that needs no tracing file system.
        hit.attach(name).map_err(|error| {
            let text = format!("tracepoint {name:?}: {error}: see the folders in /sys/kernel/tracing/events");
            Error::new(Kind::NotFound, text)
        })?;
        Ok(Hits { _program: program, hits, bell, seen: 0 })
    }

    /// Readable when there are new hits.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the map's descriptor, which is open as long as the map, that is, as `self`.
        unsafe { BorrowedFd::borrow_raw(self.bell.as_raw_fd()) }
    }

    /// The number of hits since the last call.
    pub(crate) fn take(&mut self) -> u64 {
        while self.bell.next().is_some() {}
        let now = self.hits.get(&0, 0).unwrap_or(self.seen);
        let new = now.wrapping_sub(self.seen);
        self.seen = now;
        new
    }
}
