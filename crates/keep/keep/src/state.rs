//! What a checkpoint holds beside memory.

use crate::files::FileState;
use crate::marks::Marks;
use crate::objects::Objects;
use crate::shared::LogState;
use graft::Regs;
use orbit_linux::maps::Entry;
use orbit_linux::ptrace::state::Rseq;
use orbit_linux::sched::Schedule;

/// A thread at a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct ThreadState {
    pub tid: i32,
    /// From which it can continue: a call that was interrupted is about to be made.
    pub regs: Regs,
    /// Blocked signals.
    pub mask: u64,
    pub rseq: Option<Rseq>,
    /// Address and length of its list of robust mutexes.
    pub robust: (u64, u64),
    /// Address of the word that the kernel clears at its end; 0: not known.
    pub cleared: u64,
    pub name: String,
    /// Without a log only: its stack for signals, as `sigaltstack` has it.
    pub stack: Option<[u64; 3]>,
    /// Without a log only.
    pub schedule: Option<Schedule>,
    /// Signals that wait to be delivered to it; without a log only.
    pub pending: Vec<[u64; 16]>,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub threads: Vec<ThreadState>,
    pub mappings: Vec<Entry>,
    pub files: Vec<FileState>,
    /// Without a log only.
    pub objects: Option<Objects>,
    /// Stacks for signals that the program's side has seen being set.
    pub stacks: Option<u32>,
    pub log: LogState,
    /// Without a log, where going back has to be exact.
    pub marks: Option<Marks>,
    /// With a log: inputs that other threads had read.
    pub others_read: u64,
}
