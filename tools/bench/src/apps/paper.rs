//! What the paper reports of its eight tasks, and which of its figures and tables a row repeats.

use crate::stats::Summary;
use serde::Serialize;

/// A task of the paper: `T1` is the deadlock detector, `T8` LevelDB's compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    T1,
    T2,
    T3,
    T4,
    T5,
    T6,
    T7,
    T8,
}

/// What a row repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Figure {
    /// Throughput with the task in an orbit, against the same task unsafe.
    #[serde(rename = "Figure 12")]
    Throughput,
    /// CPU time a request, beside it.
    #[serde(rename = "Figure 12, CPU time")]
    CpuTime,
    /// Calls a second.
    #[serde(rename = "Table 4")]
    Calls,
    /// Size of a snapshot, KiB.
    #[serde(rename = "Table 6")]
    SnapshotSize,
    /// The same as a percentage of main's memory.
    #[serde(rename = "Table 6, share")]
    SnapshotShare,
    /// The detector in an orbit and in a fork for each call.
    #[serde(rename = "Figure 13")]
    Fork,
    /// Synchronous and asynchronous calls, by number of clients.
    #[serde(rename = "Figure 14")]
    Clients,
    /// Lines.
    #[serde(rename = "Section 5.8")]
    Lines,
}

const CALLS: [f64; 8] = [510.1, 1127.8, 1.0, 1142.0, 1.0, 80.7, 0.2, 9.9];
const SIZES_KIB: [f64; 8] = [828.0, 20.0, 8.0, 4.0, 8.0, 268.0, 80_644.0, 240.0];
const SHARES: [f64; 8] = [0.33, 0.40, 0.12, 0.12, 0.001, 1.6, 76.9, 0.65];
/// Medians of lines for allocations (115) and for calls and updates (96).
const LINES: f64 = 211.0;

impl Figure {
    /// The paper's figure for a task, where it prints one.
    pub fn of(self, task: Task) -> Option<Summary> {
        let at = task as usize;
        let figure = match self {
            Figure::Calls => CALLS[at],
            Figure::SnapshotSize => SIZES_KIB[at],
            Figure::SnapshotShare => SHARES[at],
            Figure::Lines => LINES,
            _ => return None,
        };
        Some(Summary { p50: figure, p99: figure, n: 1 })
    }

    /// Throughput of the safe task, of the unsafe one's, where the paper's text has it.
    pub fn safe_of_unsafe(task: Task) -> Option<f64> {
        match task {
            Task::T1 => Some(0.898),
            Task::T3 => Some(0.9996),
            _ => None,
        }
    }
}
