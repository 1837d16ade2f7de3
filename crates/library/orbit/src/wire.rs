//! What main sends a process over its socket, and how updates lie in the ring: plain integers, the
//! same program at both ends.

use orbit_linux::socket;

use crate::limits::LimitsWire;

/// Most replicas in one message.
pub(crate) const BATCH: usize = socket::MAX_FDS;

/// The first message on a process' socket: the channel by which it gets its identity and its
/// calls. With it come the descriptors of *down*, *up* and the eventfd.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Lines {
    pub log_bytes: usize,
}

/// The identity of a process. Plain integers.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    pub entry: usize,
    /// 0: none.
    pub init: usize,
    /// The number of the first call this process takes.
    pub start_at: u32,
    /// [`Passed`] records that follow at once.
    pub passed: u32,
    /// [`Attach`] records that follow these.
    pub attachments: u32,
    /// Not 0: functions take the arguments first and the store second.
    pub args_first: u32,
    pub limits: LimitsWire,
    pub name: [u8; 16],
}

/// A descriptor of main's that an orbit has under the same number. A message has one or more of
/// them, up to [`BATCH`]; with it come the descriptors.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Passed {
    pub number: u32,
    /// Not 0: exec hands it on.
    pub inherited: u32,
}

/// What gives the orbit a replica. A message has one or more of them, up to [`BATCH`]; with it come
/// the replicas' descriptors.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Attach {
    pub base: usize,
    pub len: usize,
    pub area: u32,
    /// The replica's own number: an area let go of and named again has another one.
    pub number: u32,
    /// Not 0: it is the area's own memory, which nobody writes; pages of the log are laid over it.
    pub shared: u32,
    /// Keeps the size even.
    pub reserved: u32,
}

/// The bytes of a message.
pub(crate) fn bytes_of<T: Copy>(message: &T) -> &[u8] {
    // SAFETY: the messages are repr(C) without padding bytes that matter; both ends are the same
    // program.
    unsafe { std::slice::from_raw_parts((message as *const T).cast(), size_of::<T>()) }
}

/// Header of a piece of an update, two words: its bytes and its call; whether more pieces follow.
pub(crate) const PUSH_HEADER: usize = 16;
/// Longest piece.
pub(crate) const PUSH_PIECE: usize = 64 * 1024;
