//! What is in one open file, by kind: read from `/proc/PID/fdinfo`, put back through a duplicate,
//! or by calls in the program.

use graft::{Batch, Call};
use orbit_linux::open_file::{self, Owner};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

/// Bytes of a pipe that are kept: the largest that an ordinary user may have.
const MOST_OF_A_PIPE: usize = 1 << 20;
/// A semaphore is lowered by so many at most.
const MOST_STEPS: u64 = 1 << 16;

/// One file of an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    fd: i32,
    events: u32,
    data: u64,
}

/// What an open file holds beside what the file itself holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// A regular file: offset; length if it is open for appending.
    Regular {
        offset: u64,
        length: Option<u64>,
    },
    Folder {
        offset: u64,
    },
    Event {
        count: u64,
        is_semaphore: bool,
    },
    Timer {
        remaining: Duration,
        interval: Duration,
        expired: u64,
    },
    Signal {
        mask: u64,
    },
    Epoll {
        watches: Vec<Watch>,
    },
    /// What it holds, where the program has both ends.
    Pipe {
        content: Option<Vec<u8>>,
    },
    Terminal {
        settings: Option<[u64; 5]>,
    },
    /// Nothing that could be put back.
    Other,
}

/// A lock that the program has on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    /// `FLOCK`, `POSIX`, `OFDLCK`, `LEASE`.
    kind: String,
    is_write: bool,
    start: i64,
    /// 0: to the end.
    len: i64,
}

/// Flags, state and locks of an open file, from its text of `fdinfo`.
pub(crate) fn parse(info: &str, file: &Metadata, name: &str) -> Option<(i32, Detail, Vec<Lock>)> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = i32::from_str_radix(field("flags:")?, 8).ok()?;
    let offset = || field("pos:").and_then(|pos| pos.parse().ok()).unwrap_or(0);
    let hex = |name: &str| field(name).and_then(|value| u64::from_str_radix(value, 16).ok());
    let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
    let kind = file.file_type();
    let detail = if flags & libc::O_PATH != 0 {
        Detail::Other
    } else if kind.is_file() {
        Detail::Regular { offset: offset(), length: (flags & libc::O_APPEND != 0).then_some(file.len()) }
    } else if kind.is_dir() {
        Detail::Folder { offset: offset() }
    } else if kind.is_fifo() {
        Detail::Pipe { content: None }
    } else if kind.is_char_device() && (name.starts_with("/dev/pts/") || name.starts_with("/dev/tty")) {
        Detail::Terminal { settings: None }
    } else if let Some(count) = hex("eventfd-count:") {
        Detail::Event { count, is_semaphore: number("eventfd-semaphore:") == Some(1) }
    } else if let Some(expired) = number("ticks:") {
        Detail::Timer {
            remaining: duration(field("it_value:")?)?,
            interval: duration(field("it_interval:")?)?,
            expired,
        }
    } else if let Some(mask) = hex("sigmask:") {
        Detail::Signal { mask }
    } else if name == "anon_inode:[eventpoll]" {
        let mut watches: Vec<Watch> = info.lines().filter_map(watch).collect();
        watches.sort_by_key(|watch| watch.fd);
        Detail::Epoll { watches }
    } else {
        Detail::Other
    };
    let locks = info.lines().filter_map(|line| lock(line.strip_prefix("lock:")?)).collect();
    Some((flags, detail, locks))
}

/// `(seconds, nanoseconds)`.
fn duration(text: &str) -> Option<Duration> {
    let (s, ns) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
    Some(Duration::new(s.trim().parse().ok()?, ns.trim().parse().ok()?))
}

/// `tfd:        5 events:       19 data:                5  pos:0 ino:… sdev:…`
fn watch(line: &str) -> Option<Watch> {
    let mut words = line.strip_prefix("tfd:")?.split_whitespace();
    let fd = words.next()?.parse().ok()?;
    let mut value = |name: &str| -> Option<u64> {
        words.next().filter(|word| *word == name)?;
        u64::from_str_radix(words.next()?, 16).ok()
    };
    Some(Watch { fd, events: value("events:")? as u32, data: value("data:")? })
}

/// `1: FLOCK  ADVISORY  WRITE 4711 08:01:42 0 EOF`
fn lock(text: &str) -> Option<Lock> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [_, kind, _, access, _, _, start, end] = words[..] else { return None };
    let start: i64 = start.parse().ok()?;
    let len = if end == "EOF" { 0 } else { end.parse::<i64>().ok()? - start + 1 };
    Some(Lock { kind: kind.to_owned(), is_write: access == "WRITE", start, len })
}

impl Lock {
    /// Sets it or takes it away, where it belongs to the open file.
    pub fn set(&self, file: BorrowedFd<'_>, set: bool) -> bool {
        let owner = match self.kind.as_str() {
            "FLOCK" => Owner::Flock,
            "OFDLCK" => Owner::OpenFile,
            _ => return false,
        };
        open_file::set_lock(file, owner, set.then_some(self.is_write), self.start, self.len).is_ok()
    }

    /// The call that sets it or takes it away, where it belongs to the process.
    pub fn call(&self, fd: i32, set: bool, batch: &Batch) -> Option<Call> {
        if self.kind != "POSIX" {
            return None;
        }
        let kind = match (set, self.is_write) {
            (false, _) => libc::F_UNLCK,
            (true, true) => libc::F_WRLCK,
            (true, false) => libc::F_RDLCK,
        };
        // struct flock: type and whence (SEEK_SET is 0), start, length, process.
        batch.put(0, &[kind as u64, self.start as u64, self.len as u64, 0]);
        Some((libc::SYS_fcntl, [fd as u64, libc::F_SETLK as u64, batch.room(0), 0, 0, 0]))
    }
}

impl Detail {
    /// Puts it back where a duplicate is enough; `now`: as it is.
    pub fn restore(&self, now: &Detail, mut file: &File) -> io::Result<()> {
        match self {
            Detail::Regular { offset, length } => {
                // A file of `/proc` or `/sys` may not have a position; then it has not moved
                // either.
                if *self != *now {
                    file.seek(SeekFrom::Start(*offset))?;
                }
                match length {
                    Some(length) if file.metadata()?.len() > *length => file.set_len(*length),
                    _ => Ok(()),
                }
            }
            Detail::Folder { offset } if self != now => file.seek(SeekFrom::Start(*offset)).map(drop),
            Detail::Event { count, is_semaphore } => {
                let Detail::Event { count: is, .. } = now else { return Ok(()) };
                let mut word = [0; 8];
                if *is > *count && *is_semaphore {
                    if is - count > MOST_STEPS {
                        return Err(io::Error::other("its count has grown too much to lower it again"));
                    }
                    return (*count..*is).try_for_each(|_| file.read_exact(&mut word));
                }
                if *is > *count {
                    file.read_exact(&mut word)?;
                }
                let more = if *is > *count { *count } else { count - is };
                if more > 0 { file.write_all(&more.to_ne_bytes()) } else { Ok(()) }
            }
            Detail::Timer { remaining, interval, expired } => {
                open_file::set_timer(file.as_fd(), *remaining, *interval, *expired)
            }
            Detail::Signal { mask } => open_file::set_signals(file.as_fd(), *mask),
            _ => Ok(()),
        }
    }

    /// Calls in the program that put it back.
    pub fn calls(&self, now: &Detail, fd: i32, batch: &Batch) -> Vec<Call> {
        match (self, now) {
            (Detail::Epoll { watches }, Detail::Epoll { watches: is }) => {
                let mut changes = Vec::new();
                for watch in is.iter().filter(|is| !watches.iter().any(|was| was.fd == is.fd)) {
                    changes.push((libc::EPOLL_CTL_DEL, *watch));
                }
                for was in watches {
                    match is.iter().find(|is| is.fd == was.fd) {
                        None => changes.push((libc::EPOLL_CTL_ADD, *was)),
                        Some(is) if is != was => changes.push((libc::EPOLL_CTL_MOD, *was)),
                        Some(_) => {}
                    }
                }
                changes.truncate(512);
                let mut calls = Vec::with_capacity(changes.len());
                for (nth, (what, watch)) in changes.into_iter().enumerate() {
                    // struct epoll_event is packed: 4 bytes of events, 8 of data.
                    let at = nth * 16;
                    batch.put(at, &[u64::from(watch.events) | watch.data << 32, watch.data >> 32]);
                    calls.push((libc::SYS_epoll_ctl, [fd as u64, what as u64, watch.fd as u64, batch.room(at), 0, 0]));
                }
                calls
            }
            (Detail::Terminal { settings: Some(words) }, _) => {
                batch.put(0, words);
                vec![(libc::SYS_ioctl, [fd as u64, libc::TCSETS, batch.room(0), 0, 0, 0])]
            }
            _ => Vec::new(),
        }
    }
}

/// What a pipe holds. It stays there.
pub(crate) fn pipe_content(end: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let waiting = open_file::waiting(end).ok()?;
    let mut bytes = vec![0; waiting];
    if waiting == 0 {
        return Some(bytes);
    }
    if waiting > MOST_OF_A_PIPE {
        return None;
    }
    let (read, write) = open_file::pipe(waiting.max(MOST_OF_A_PIPE)).ok()?;
    let mut copied = 0;
    if open_file::tee(end, write.as_fd(), waiting).ok()? == waiting {
        copied = waiting;
    }
    drop(write);
    File::from(read).read_exact(&mut bytes).ok().filter(|()| copied == waiting)?;
    Some(bytes)
}

/// Empties a pipe and fills it.
pub(crate) fn refill(read: OwnedFd, write: OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let waiting = open_file::waiting(read.as_fd())?;
    let mut drained = vec![0; waiting];
    File::from(read).read_exact(&mut drained)?;
    // It has room: it held as much.
    if bytes.is_empty() { Ok(()) } else { File::from(write).write_all(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel() {
        assert_eq!(duration("(1, 500000000)"), Some(Duration::from_millis(1500)));
        let line = "tfd:        5 events:       19 data:        1000000005  pos:0 ino:24 sdev:d";
        assert_eq!(watch(line), Some(Watch { fd: 5, events: 0x19, data: 0x10_0000_0005 }));
        let whole = lock("\t1: FLOCK  ADVISORY  WRITE 4711 08:01:42 0 EOF").expect("a lock");
        assert_eq!((whole.kind.as_str(), whole.is_write, whole.start, whole.len), ("FLOCK", true, 0, 0));
        let range = lock("\t2: POSIX  ADVISORY  READ 4711 08:01:42 10 19").expect("a lock");
        assert_eq!((range.is_write, range.start, range.len), (false, 10, 10));
    }
}
