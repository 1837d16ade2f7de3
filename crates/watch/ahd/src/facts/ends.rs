//! The holders of the ends of pipes and sockets, indexed.

use super::Record;
use std::collections::BTreeMap;

/// What a holder may do with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read from it.
    Read,
    /// Write to it.
    Write,
}

/// The other side of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A socket of this machine, by its inode.
    Socket(u64),
    /// Not known, or not on this machine.
    World,
}

/// The latest [`Record::Ends`].
#[derive(Clone, Debug, Default)]
pub struct Ends {
    links: BTreeMap<(i32, i32), String>,
    holders: BTreeMap<String, Vec<(i32, u8)>>,
    /// Local and remote address by inode.
    tcp: BTreeMap<u64, (String, String, u32)>,
    /// Inodes by local and remote address.
    by_ways: BTreeMap<(String, String), u64>,
    /// Inodes of listeners by port.
    listeners: BTreeMap<String, u64>,
    unix: BTreeMap<u64, u64>,
    /// Descriptors are on their way.
    pub flying: bool,
    /// Processes that could not be read.
    pub hidden: Vec<i32>,
}

/// The state of a socket that listens.
const LISTEN: u32 = 10;
/// The last characters of an address: an IPv4 one, also where it is written as IPv6, with its port.
const ADDRESS: usize = 13;
/// The last characters: the port.
const PORT: usize = 4;

impl Ends {
    /// Indexes the record; nothing if it is another one.
    pub fn of(record: &Record) -> Option<Ends> {
        let Record::Ends { f, tcp, unix, flying, hidden, .. } = record else { return None };
        let mut ends = Ends { flying: *flying, hidden: hidden.clone(), ..Ends::default() };
        for (pid, fd, link, mode) in f {
            ends.links.insert((*pid, *fd), link.clone());
            ends.holders.entry(link.clone()).or_default().push((*pid, *mode));
        }
        for (local, remote, state, inode) in tcp {
            let (local, remote) = (tail(local, ADDRESS).to_owned(), tail(remote, ADDRESS).to_owned());
            if *inode != 0 {
                if *state == LISTEN {
                    ends.listeners.entry(tail(&local, PORT).to_owned()).or_insert(*inode);
                } else {
                    ends.by_ways.insert((local.clone(), remote.clone()), *inode);
                }
                ends.tcp.insert(*inode, (local, remote, *state));
            }
        }
        for &(a, b) in unix.iter().filter(|(_, b)| *b != 0) {
            ends.unix.insert(a, b);
        }
        Some(ends)
    }

    /// What a descriptor of a process leads to.
    pub fn link(&self, pid: i32, fd: i32) -> Option<&str> {
        self.links.get(&(pid, fd)).map(String::as_str)
    }

    /// Processes that have a descriptor with this link and may do this with it; sockets can always
    /// be read and written.
    pub fn holders(&self, link: &str, access: Access) -> Vec<i32> {
        let may = |mode: u8| match (mode, access) {
            (2, _) | (0, Access::Read) | (1, Access::Write) => true,
            _ => link.starts_with('s'),
        };
        let all = self.holders.get(link).into_iter().flatten();
        let mut pids: Vec<i32> = all.filter(|(_, mode)| may(*mode)).map(|(pid, _)| *pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The other side of the socket with this inode.
    pub fn peer(&self, inode: u64) -> Peer {
        let found = match self.tcp.get(&inode) {
            Some((_, _, LISTEN)) => None,
            Some((local, remote, _)) => {
                let accepted = self.by_ways.get(&(remote.clone(), local.clone()));
                // Not accepted yet: whoever has the listener will.
                accepted.or_else(|| self.listeners.get(tail(remote, PORT)))
            }
            None => self.unix.get(&inode),
        };
        found.map_or(Peer::World, |inode| Peer::Socket(*inode))
    }
}

fn tail(text: &str, n: usize) -> &str {
    text.len().checked_sub(n).and_then(|from| text.get(from..)).unwrap_or(text)
}
