//! The descriptors of a program: which files they are, and putting that back.
//!
//! A descriptor opened since is closed, one closed since is opened again: from a duplicate that the
//! keeper holds, from another descriptor of the same open file, or by its path. The keeper holds no
//! pipe, socket, terminal or file open for writing: the other end would not see that the program
//! has closed it, and a file open for writing cannot be executed.

use crate::appenders::Appenders;
use crate::error::Error;
use crate::open_state::{Detail, Lock, parse};
use crate::restore::Restored;
use graft::{Batch, Call, Process, Stopped};
use orbit_linux::{open_file, procfs, socket};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::Instant;

/// Duplicates that are held at most.
const MOST_HELD: usize = 512;
/// Flags that `F_SETFL` changes.
const SETTABLE: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME;
/// The major number of `/dev/null`, `/dev/zero`, `/dev/urandom` and their like.
const MEMORY_DEVICES: u32 = 1;

/// One descriptor of the program.
#[derive(Clone, Debug)]
pub(crate) struct FileState {
    pub fd: i32,
    /// What it is, as `/proc/PID/fd` has it.
    pub name: String,
    device: u64,
    inode: u64,
    is_openable: bool,
    /// `/dev/null` or its like.
    is_memory_device: bool,
    flags: i32,
    pub detail: Detail,
    locks: Vec<Lock>,
    /// The lowest descriptor of the same open file.
    first: i32,
    held: Option<Arc<OwnedFd>>,
    /// Open for appending, and other processes have appended too: see [`now`].
    has_others: bool,
}

impl FileState {
    /// Device and inode.
    pub fn id(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Whether it is `/dev/null` or its like.
    pub fn is_memory_device(&self) -> bool {
        self.is_memory_device
    }

    fn of(pid: i32, fd: i32, name: String) -> Option<FileState> {
        let file = fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok()?;
        let info = procfs::text(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
        let (flags, detail, locks) = parse(&info, &file, &name)?;
        Some(FileState {
            fd,
            is_openable: (file.is_file() || file.is_dir()) && !name.ends_with(" (deleted)") && name.starts_with('/'),
            is_memory_device: file.file_type().is_char_device() && libc::major(file.rdev()) == MEMORY_DEVICES,
            name,
            device: file.dev(),
            inode: file.ino(),
            flags,
            detail,
            locks,
            first: fd,
            held: None,
            has_others: false,
        })
    }

    /// Whether it may be the same open file, as far as can be seen from outside.
    fn is_like(&self, other: &FileState) -> bool {
        let access = libc::O_ACCMODE | libc::O_PATH;
        (self.device, self.inode, self.flags & access) == (other.device, other.inode, other.flags & access)
            && self.name == other.name
    }

    /// Whether a duplicate in the keeper does no harm: see the module's head.
    fn may_be_held(&self) -> bool {
        let is_read_only = self.flags & libc::O_ACCMODE == libc::O_RDONLY;
        match self.detail {
            Detail::Event { .. } | Detail::Timer { .. } | Detail::Signal { .. } | Detail::Epoll { .. } => true,
            Detail::Regular { .. } | Detail::Folder { .. } => {
                self.locks.is_empty() && (is_read_only || self.name.ends_with(" (deleted)"))
            }
            _ => self.name.starts_with("anon_inode:inotify") || is_pidfd(&self.name) || self.is_memory_device,
        }
    }
}

/// Whether the keeper's own lines go to this file: its offset and length stay, or the lines since
/// the checkpoint would be overwritten or cut off.
fn is_reported_to(file: &FileState) -> bool {
    let ours = fs::metadata("/proc/self/fd/2");
    ours.is_ok_and(|ours| ours.is_file() && (ours.dev(), ours.ino()) == (file.device, file.inode))
}

/// A descriptor of a process, as old and new kernels name it; it has no state of its own.
fn is_pidfd(name: &str) -> bool {
    name.starts_with("anon_inode:[pidfd]") || name.starts_with("pidfd:[")
}

/// All descriptors, in order; `hold`: with duplicates, those of `before` where they are the same.
fn all(process: &Process, hold: bool, before: &[FileState]) -> Vec<FileState> {
    let pid = process.pid();
    let mut files: Vec<FileState> =
        procfs::descriptors(pid).into_iter().filter_map(|(fd, name)| FileState::of(pid, fd, name)).collect();
    files.sort_by_key(|file| file.fd);
    let mut firsts: BTreeMap<(u64, u64, String), Vec<usize>> = BTreeMap::new();
    for at in 0..files.len() {
        let file = &files[at];
        let alike = firsts.entry((file.device, file.inode, file.name.clone())).or_default();
        let same = alike.iter().find(|&&other| open_file::are_one(pid, files[other].fd, file.fd).unwrap_or(false));
        match same {
            Some(&other) => files[at].first = files[other].first,
            None => alike.push(at),
        }
    }
    if hold {
        let mut held = 0;
        for file in files.iter_mut().filter(|file| file.first == file.fd) {
            if held == MOST_HELD || !file.may_be_held() {
                continue;
            }
            let earlier = before.iter().find(|was| was.fd == file.fd).and_then(|was| was.held.clone());
            let same = earlier.filter(|ours| open_file::is_same(ours.as_fd(), pid, file.fd).unwrap_or(false));
            file.held = same.or_else(|| process.duplicate(file.fd).ok().map(Arc::new));
            held += usize::from(file.held.is_some());
        }
        contents(process, &mut files);
    }
    files
}

/// Notes what pipes hold of which the program has both ends, and the settings of terminals.
fn contents(process: &Process, files: &mut [FileState]) {
    let writable: Vec<u64> = files
        .iter()
        .filter(|f| matches!(f.detail, Detail::Pipe { .. }) && f.flags & libc::O_ACCMODE != libc::O_RDONLY)
        .map(|f| f.inode)
        .collect();
    for file in files.iter_mut() {
        let reads = file.flags & libc::O_ACCMODE != libc::O_WRONLY;
        match &mut file.detail {
            Detail::Pipe { content } if reads && writable.contains(&file.inode) && file.first == file.fd => {
                *content = process.duplicate(file.fd).ok().and_then(|end| crate::open_state::pipe_content(end.as_fd()));
            }
            Detail::Terminal { settings } if file.first == file.fd => {
                *settings = process.duplicate(file.fd).ok().and_then(|end| open_file::terminal(end.as_fd()));
            }
            _ => {}
        }
    }
}

/// The descriptors of a stopped program; `before`: those of the checkpoint before.
pub(crate) fn capture(process: &Process, before: &[FileState], appenders: &Appenders) -> Vec<FileState> {
    appenders.begin();
    let files = all(process, true, before);
    appenders.watch(process.pid(), &files);
    files
}

/// The descriptors as they are, for [`restore`] to `then`, those of the checkpoint of `since`.
pub(crate) fn now(process: &Process, then: &[FileState], since: Instant, appenders: &Appenders) -> Vec<FileState> {
    let mut files = all(process, false, &[]);
    for file in &mut files {
        let Detail::Regular { offset, length: Some(length) } = file.detail else { continue };
        let was = then.iter().find(|was| was.fd == file.fd && was.id() == file.id()).map(|was| &was.detail);
        let has_grown = matches!(was, Some(Detail::Regular { length: Some(was), .. }) if length > *was);
        file.has_others = has_grown && appenders.have_written(process.pid(), file, offset, length, since);
    }
    files
}

/// Puts the descriptors back; `now`: as they are. `closed`: connections by TCP that were closed
/// since; such a number becomes a socket without a peer, which ends each call on it with an error.
pub(crate) fn restore(
    stopped: &mut Stopped<'_>,
    batch: &mut Batch,
    then: &[FileState],
    now: Vec<FileState>,
    closed: &[i32],
    done: &mut Restored,
) -> Result<(), Error> {
    let pid = stopped.pid();
    let mut by_number: BTreeMap<i32, &FileState> = now.iter().map(|file| (file.fd, file)).collect();
    let is_there = |was: &FileState, now: Option<&&FileState>| {
        now.is_some_and(|now| {
            was.is_like(now)
                && was.held.as_ref().is_none_or(|ours| open_file::is_same(ours.as_fd(), pid, was.fd).unwrap_or(true))
        })
    };
    let missing: Vec<&FileState> = then.iter().filter(|was| !is_there(was, by_number.get(&was.fd))).collect();
    let mut is_changed = !missing.is_empty();
    let made: Vec<i32> = now.iter().map(|f| f.fd).filter(|fd| !then.iter().any(|was| was.fd == *fd)).collect();
    let mut gone: Vec<i32> = Vec::new();
    for was in missing {
        let flag = (was.flags & libc::O_CLOEXEC) as u64;
        let is_back = |other: &&FileState| {
            other.first == was.first && other.fd != was.fd && is_there(other, by_number.get(&other.fd))
        };
        let from = then.iter().filter(|other| !gone.contains(&other.fd)).find(is_back).map(|other| other.fd);
        let number = match from {
            Some(number) => Some((number, false)),
            None if closed.contains(&was.fd) => {
                let socket = socket::without_peer().map_err(Error::io("making a socket"))?;
                Some((stopped.send(socket.as_fd())?, true))
            }
            None => match reopened(was, then, pid) {
                Some(file) => Some((stopped.send(file.as_fd())?, true)),
                None => None,
            },
        };
        match number {
            Some((number, is_sent)) => {
                let is_in_place = number == was.fd;
                let call: Call = match is_in_place {
                    // It was the lowest number that is free.
                    true => {
                        let closes = if flag != 0 { libc::FD_CLOEXEC } else { 0 };
                        (libc::SYS_fcntl, [number as u64, libc::F_SETFD as u64, closes as u64, 0, 0, 0])
                    }
                    false => (libc::SYS_dup3, [number as u64, was.fd as u64, flag, 0, 0, 0]),
                };
                let result = batch.run(stopped, &[call])?[0];
                if is_sent && !is_in_place {
                    stopped.close(number)?;
                }
                if result < 0 {
                    done.left.push(format!("descriptor {} ({}) could not be put back", was.fd, was.name));
                    gone.push(was.fd);
                } else {
                    done.descriptors_opened += 1;
                    // From here on it is another one's source.
                    by_number.insert(was.fd, was);
                }
            }
            None => {
                done.left
                    .push(format!("descriptor {} ({}) was closed since and cannot be opened again", was.fd, was.name));
                gone.push(was.fd);
            }
        }
    }
    let mut calls: Vec<Call> = made.iter().map(|fd| (libc::SYS_close, [*fd as u64, 0, 0, 0, 0, 0])).collect();
    done.descriptors_closed = calls.len();
    // A number whose file is gone but that another one has now would be taken for it.
    calls.extend(
        gone.iter().filter(|fd| by_number.contains_key(*fd)).map(|fd| (libc::SYS_close, [*fd as u64, 0, 0, 0, 0, 0])),
    );
    let kept: Vec<&FileState> = then.iter().filter(|was| !gone.contains(&was.fd)).collect();
    for was in &kept {
        let flag = |file: &FileState| file.flags & libc::O_CLOEXEC;
        if by_number.get(&was.fd).is_some_and(|now| flag(now) != flag(was)) {
            let to = if flag(was) != 0 { libc::FD_CLOEXEC } else { 0 };
            calls.push((libc::SYS_fcntl, [was.fd as u64, libc::F_SETFD as u64, to as u64, 0, 0, 0]));
        }
    }
    is_changed |= !calls.is_empty();
    for some in calls.chunks(512) {
        batch.run(stopped, some)?;
    }
    // As they are after the table is right again: a lock goes with any descriptor of its file that
    // is closed.
    let now = if is_changed { again(stopped.process(), now) } else { now };
    states(stopped, batch, &kept, &now, done)
}

/// The descriptors as they are now; `before`: some moments ago.
fn again(process: &Process, before: Vec<FileState>) -> Vec<FileState> {
    let mut files = all(process, false, &[]);
    for file in &mut files {
        file.has_others = before.iter().any(|was| was.has_others && was.id() == file.id());
    }
    files
}

/// The file of a descriptor that is not there any more: ours if we hold it, else opened by its
/// path.
fn reopened(was: &FileState, then: &[FileState], pid: i32) -> Option<OwnedFd> {
    if let Some(held) = then.iter().find(|other| other.fd == was.first).and_then(|first| first.held.as_ref()) {
        return held.try_clone().ok();
    }
    if !was.is_openable {
        return None;
    }
    let access = was.flags & libc::O_ACCMODE;
    let once = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_ACCMODE | libc::O_CLOEXEC;
    let file = OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .custom_flags(was.flags & !once & !libc::O_APPEND)
        .open(format!("/proc/{pid}/root{}", was.name))
        .ok()?;
    let is_it = file.metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == (was.device, was.inode));
    is_it.then(|| OwnedFd::from(file))
}

/// Puts back offsets, counts, timers, contents, locks; what cannot be is said.
fn states(
    stopped: &mut Stopped<'_>,
    batch: &mut Batch,
    then: &[&FileState],
    now: &[FileState],
    done: &mut Restored,
) -> Result<(), Error> {
    for was in then {
        let Some(is) = now.iter().find(|file| file.fd == was.fd) else { continue };
        if was.first != was.fd && then.iter().any(|other| other.fd == was.first) {
            continue;
        }
        let Ok(file) = stopped.process().duplicate(was.fd) else { continue };
        if (is.flags ^ was.flags) & SETTABLE != 0
            && let Err(error) = open_file::set_flags(file.as_fd(), was.flags & SETTABLE)
        {
            done.left.push(format!("flags of descriptor {}: {error}", was.fd));
        }
        if is.has_others {
            done.files_not_cut += 1;
            done.left.push(format!(
                "{} keeps what was appended since, for another process appends to it too: lines of the program may be \
                 there twice",
                was.name
            ));
        } else if !is_reported_to(was)
            && let Err(error) = was.detail.restore(&is.detail, &File::from(file))
        {
            done.left.push(format!("descriptor {} ({}): {error}", was.fd, was.name));
        }
        let calls = was.detail.calls(&is.detail, was.fd, batch);
        if batch.run(stopped, &calls)?.iter().any(|result| *result < 0) {
            done.left.push(format!("descriptor {} ({}) is not in all as it was", was.fd, was.name));
        }
        locks(stopped, batch, was, is, done)?;
    }
    pipes(stopped.process(), then, now, done);
    Ok(())
}

fn locks(
    stopped: &mut Stopped<'_>,
    batch: &mut Batch,
    was: &FileState,
    is: &FileState,
    done: &mut Restored,
) -> Result<(), Error> {
    if was.locks == is.locks {
        return Ok(());
    }
    let file = stopped.process().duplicate(was.fd)?;
    let mut is_right = true;
    let gone = is.locks.iter().filter(|lock| !was.locks.contains(lock)).map(|lock| (lock, false));
    let back = was.locks.iter().filter(|lock| !is.locks.contains(lock)).map(|lock| (lock, true));
    for (lock, set) in gone.chain(back) {
        is_right &= match lock.call(was.fd, set, batch) {
            Some(call) => batch.run(stopped, &[call])?[0] == 0,
            None => lock.set(file.as_fd(), set),
        };
    }
    if !is_right {
        done.left.push(format!("a lock on {} is not as it was: another process may have it", was.name));
    }
    Ok(())
}

/// Pipes of which the program has both ends hold again what they held.
fn pipes(process: &Process, then: &[&FileState], now: &[FileState], done: &mut Restored) {
    for was in then {
        let Detail::Pipe { content: Some(bytes) } = &was.detail else { continue };
        let writes = |file: &&FileState| file.inode == was.inode && file.flags & libc::O_ACCMODE != libc::O_RDONLY;
        let ends = now.iter().find(writes).map(|writer| (process.duplicate(was.fd), process.duplicate(writer.fd)));
        let is_done = match ends {
            Some((Ok(read), Ok(write))) => crate::open_state::refill(read, write, bytes).is_ok(),
            _ => false,
        };
        if !is_done {
            done.left.push(format!("descriptor {} ({}) does not hold what it held", was.fd, was.name));
        }
    }
}

/// A sentence for kinds of descriptors whose state is not rolled back, if there are any.
pub(crate) fn not_rolled_back(files: &[FileState]) -> Option<String> {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for file in files.iter().filter(|file| file.first == file.fd) {
        let kind = match &file.detail {
            Detail::Other if file.name.starts_with("socket:") => "sockets",
            Detail::Other if file.name.contains("inotify") => "inotify",
            Detail::Other if file.name.contains("fanotify") => "fanotify",
            Detail::Other if file.name.starts_with("anon_inode:") && !is_pidfd(&file.name) => "other kernel objects",
            Detail::Other if file.name.starts_with("/dev/mqueue") => "message queues",
            Detail::Pipe { content: None } if file.fd > 2 => "pipes to other processes",
            _ => continue,
        };
        *kinds.entry(kind).or_default() += 1;
    }
    let list: Vec<String> = kinds.iter().map(|(kind, n)| format!("{kind} ({n})")).collect();
    (!list.is_empty()).then(|| format!("what went through these is not rolled back: {}", list.join(", ")))
}
