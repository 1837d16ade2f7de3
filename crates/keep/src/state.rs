//! What a checkpoint holds beside memory.

use crate::shared::LogState;
use graft::Regs;
use orbit_linux::maps::Entry;
use orbit_linux::ptrace::state::Rseq;
use std::fs;
use std::os::unix::fs::MetadataExt;

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
}

/// A regular file that the program has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    pub fd: i32,
    pub offset: u64,
    /// Its length, if it is open for appending.
    pub length: Option<u64>,
    device: u64,
    inode: u64,
}

impl FileState {
    /// The file behind descriptor `fd`, if it is a regular one.
    pub fn of(pid: i32, fd: i32) -> Option<FileState> {
        let file = fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok().filter(fs::Metadata::is_file)?;
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let flags = i32::from_str_radix(field("flags:")?, 8).ok()?;
        Some(FileState {
            fd,
            offset: field("pos:")?.parse().ok()?,
            length: (flags & libc::O_APPEND != 0).then_some(file.len()),
            device: file.dev(),
            inode: file.ino(),
        })
    }

    /// Whether an open file is this one.
    pub fn is(&self, file: &fs::Metadata) -> bool {
        (file.dev(), file.ino()) == (self.device, self.inode)
    }
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub threads: Vec<ThreadState>,
    pub mappings: Vec<Entry>,
    pub files: Vec<FileState>,
    pub log: LogState,
}
