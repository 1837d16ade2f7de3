//! What /proc tells of a process, for the pins that need it. A thread or process that ends meanwhile is left out, not an error;
//! a process that is not there at all is one.

use crate::{command::ThreadTime, error::PinError};
use std::fs;

/// The threads of a process.
pub(super) fn threads(pid: u32) -> Result<Vec<u32>, PinError> {
    let dir = fs::read_dir(format!("/proc/{pid}/task"))
        .map_err(|error| PinError::of(format!("threads of process {pid}"), error))?;
    Ok(dir.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// How each thread of a process was scheduled so far.
pub(super) fn thread_times(pid: u32) -> Result<Vec<ThreadTime>, PinError> {
    let one = |tid: u32| {
        let schedstat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        let mut words = schedstat.split_whitespace().map(|word| word.parse().ok());
        let (ran_ns, waited_ns, slices) = (words.next()??, words.next()??, words.next()??);
        let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
        let state = *stat.rsplit_once(')')?.1.trim_start().as_bytes().first()?;
        Some(ThreadTime { tid, state, ran_ns, waited_ns, slices })
    };
    Ok(threads(pid)?.into_iter().filter_map(one).collect())
}
