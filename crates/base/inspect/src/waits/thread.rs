//! A thread at one moment.

/// What the scheduler says of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// On a CPU or waiting for one (R).
    Running,
    /// Asleep, signals wake it (S).
    Sleeping,
    /// Asleep in the kernel, signals do not wake it (D).
    Uninterruptible,
    /// Stopped by a signal (T).
    Stopped,
    /// Stopped by a tracer (t).
    Traced,
    /// Ended, not yet collected (Z, X).
    Ended,
    /// Another letter of the kernel's.
    Other(char),
}

impl State {
    pub(crate) fn of(letter: u8) -> State {
        match letter {
            b'R' => State::Running,
            b'S' => State::Sleeping,
            b'D' => State::Uninterruptible,
            b'T' => State::Stopped,
            b't' => State::Traced,
            b'Z' | b'X' | b'x' => State::Ended,
            c => State::Other(char::from(c)),
        }
    }
}

/// A thread as [`super::Watched::scan`] saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// Thread id.
    pub tid: i32,
    /// The thread's name, at most 15 bytes; bytes that are no UTF-8 are replaced.
    pub comm: String,
    /// What the scheduler says.
    pub state: State,
    /// CPU time used since its start, in nanoseconds. Of a thread that runs now it may lack the
    /// last clock tick.
    pub cpu_ns: u64,
    /// Time it could have run but had no CPU, in nanoseconds: a starved thread is no hung one.
    pub delayed_ns: u64,
    /// Times it was put on a CPU. If this and `cpu_ns` stand still, the thread did nothing.
    pub switches: u64,
}
