//! The names of the ways to find out which pages were written.

use crate::error::{Error, Kind, Result};
use std::fmt;
use std::str::FromStr;

/// How an area's written pages are found. All of them mean the same; they differ in cost and in
/// what they need.
///
/// But `Track`, and so `Auto` and `Fork`, do not see what the kernel or a device writes to pages
/// that it holds pinned, without a fault: registered buffers of io_uring, RDMA, asynchronous reads
/// with `O_DIRECT`. Take `Compare` or `Copy` for areas that are written so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Engine {
    /// Chosen by the size in use and what the kernel offers: `copy` up to 64 KiB, then `track`, or
    /// `compare` where there is no userfaultfd. May change while the area grows.
    #[default]
    Auto,
    /// The kernel notes written pages: about 1 us for the first write to a page after a call,
    /// nothing for pages that stay. Needs userfaultfd and `PAGEMAP_SCAN` (Linux 6.7; forbidden by
    /// Docker's default seccomp profile).
    Track,
    /// Every page is compared with a copy: works everywhere, costs main a read of the whole area
    /// for each call, and as much memory again.
    Compare,
    /// Every page is sent with each call.
    Copy,
    /// As `Auto`, and a one-shot child of main sends the pages: for calls that change so much that
    /// copying it would delay main for longer than a fork.
    Fork,
    /// The area's memory is a file that orbits map too: a call sends nothing and takes about 0.1 ms
    /// whatever the size, main and its orbits have one copy of what neither has written since, and
    /// the kernel copies the pages that main writes. Needs Linux 5.13, or 6.7 to be fast. Only when
    /// asked for, since it asks for more:
    ///
    /// - Pages that main wrote during calls are merged into the file again at the next call that
    ///   finds none in flight, if main has no thread beside the one that calls and no io_uring, or
    ///   that says [`CallOptions::quiet`](crate::CallOptions::quiet); or earlier, by
    ///   [`Area::merge`](crate::Area::merge). Else calls send them, and fail when they are more
    ///   than the orbit's log holds.
    /// - No `O_DIRECT` input into the area may be on its way at a call: main would lose it. Buffers
    ///   there that an io_uring has registered, and memory pinned nobody knows where (RDMA), fail
    ///   the call.
    /// - `MADV_DONTNEED` there does not zero, freed memory is not given back to the kernel before
    ///   the area goes, and locks between processes (`PTHREAD_PROCESS_SHARED`) do not work there.
    /// - A child of `fork` has the area as ordinary memory, and may live for ever on what it has:
    ///   so after a fork the library copies the whole area beside main's work, about a second a
    ///   GiB. Until then calls send what main wrote; a call for which that is too much waits. A
    ///   child of a raw `clone` does not have the area: to touch it is a SIGSEGV. `vfork`,
    ///   `posix_spawn` and `system` are as ever.
    /// - Not under `vm.overcommit_memory=2`, a limit of address space (`ulimit -v`), or
    ///   `mlockall(MCL_FUTURE)`; not for adopted memory.
    Share,
}

impl Engine {
    const ALL: [Engine; 6] = [Engine::Auto, Engine::Track, Engine::Compare, Engine::Copy, Engine::Fork, Engine::Share];

    fn name(self) -> &'static str {
        match self {
            Engine::Auto => "auto",
            Engine::Track => "track",
            Engine::Compare => "compare",
            Engine::Copy => "copy",
            Engine::Fork => "fork",
            Engine::Share => "share",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Engine {
    type Err = Error;

    fn from_str(name: &str) -> Result<Engine> {
        Engine::ALL.into_iter().find(|engine| engine.name() == name).ok_or_else(|| {
            let names = Engine::ALL.map(Engine::name).join(", ");
            Error::new(Kind::Invalid, format!("no engine is called \"{name}\"; there are {names}"))
        })
    }
}
