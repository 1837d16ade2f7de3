//! How a process answers on a port, and how it is answered: which requests it read and has not
//! answered, which of its own have no answer, and how long answers took.

use crate::facts::{Connection, SocketUse};
use std::collections::{BTreeMap, BTreeSet};

/// A connection: the port that is asked at, and the other one.
type Key = (u16, u16);

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// Since when, s.
    pub since: f64,
    /// Time that a thread of the process had waited for a CPU by then, ns: see
    /// [`Learnt::queue`](super::Learnt::queue).
    pub queue: u64,
    /// The process' descriptor of the connection.
    pub fd: i32,
    /// The answer before it came within the same millisecond: it may be that which came last.
    pub is_unclear: bool,
}

/// A port that a process is asked at, or asks at.
#[derive(Clone, Debug, Default)]
pub struct Port {
    /// Requests that wait.
    pub waiting: BTreeMap<Key, Waiting>,
    /// Longest time an answer took, s.
    pub longest: f64,
    /// Exchanges that ended: by an answer, or with the connection.
    pub ended: u64,
    /// Those that ended by an answer.
    pub answered: u64,
    /// When an answer was last seen, s.
    pub last_answer: f64,
}

/// All ports of a process.
#[derive(Clone, Debug, Default)]
pub struct Ports {
    /// Those that requests come in at, by number.
    pub ports: BTreeMap<u16, Port>,
    /// Those that the process opens connections to, by number.
    pub asked: BTreeMap<u16, Port>,
    listened: BTreeSet<u16>,
    last: BTreeMap<Key, Last>,
}

/// A connection when it was seen last.
#[derive(Clone, Copy, Debug)]
struct Last {
    bytes_in: u64,
    bytes_out: u64,
    /// Bytes that the program has read.
    taken: u64,
    /// Times that more were read than before.
    takes: u32,
}

/// A connection on which so much came in at different times, and nothing ever went out, goes one
/// way.
const ONE_WAY: u32 = 3;

/// States of a TCP socket in which an answer can still be sent.
const OPEN: [u8; 2] = [1, 8];

/// From this port on the kernel chooses one for a connection that is opened.
pub const FIRST_CHOSEN: u16 = 32768;

/// The ports that sockets of a process listen on.
pub(super) fn listened(connections: &[Connection]) -> BTreeSet<u16> {
    connections.iter().filter(|c| c.3 == SocketUse::Listens as u8).map(|c| c.1).collect()
}

/// Which way a connection was opened.
enum Way {
    In,
    Out,
}

impl Ports {
    /// Whether it has the side of a connection that is asked.
    pub fn is_asked_at(&self, port: u16, peer: u16) -> bool {
        self.ports.contains_key(&port) && self.last.contains_key(&(port, peer))
    }

    /// The ports that it listened on when its sockets were read last.
    pub(super) fn listened(&self) -> impl Iterator<Item = u16> {
        self.listened.iter().copied()
    }

    /// Takes all TCP sockets of the process at this moment; `queue` as in [`Waiting`]; `served` are
    /// the ports that it or another watched process listens on.
    pub fn saw(&mut self, now: f64, queue: u64, connections: &[Connection], served: &BTreeSet<u16>) {
        self.listened = listened(connections);
        let mut waiting: [BTreeMap<Key, Waiting>; 2] = Default::default();
        let mut last = BTreeMap::new();
        for &(fd, own, peer, used, received, sent, bytes_in, bytes_out, unread, state) in connections {
            const LISTENS: u8 = SocketUse::Listens as u8;
            const CAME_IN: u8 = SocketUse::CameIn as u8;
            const OPENED: u8 = SocketUse::Opened as u8;
            let way = match (used, served.contains(&own), own >= FIRST_CHOSEN && own > peer) {
                (LISTENS, ..) => continue,
                (_, true, _) => Way::In,
                (CAME_IN, ..) => Way::In,
                (OPENED, ..) | (_, _, true) => Way::Out,
                // Which side asks is not known.
                _ => continue,
            };
            let (key, port) = match way {
                Way::In => ((own, peer), self.ports.entry(own).or_default()),
                Way::Out => ((peer, own), self.asked.entry(peer).or_default()),
            };
            if !OPEN.contains(&state) {
                continue;
            }
            let taken = bytes_in.saturating_sub(unread.max(0) as u64);
            let before = self.last.get(&key).copied();
            // More of the request was read since: it is not complete, or it is another one.
            let grew = before.is_some_and(|before| taken > before.taken);
            let takes = before.map_or(0, |before| before.takes) + u32::from(grew || before.is_none() && taken > 0);
            last.insert(key, Last { bytes_in, bytes_out, taken, takes });
            if matches!(way, Way::In) && bytes_out == 0 && takes >= ONE_WAY {
                port.waiting.remove(&key);
                continue;
            }
            // Whether the last bytes are those of whoever asks, and since when, s; and whether they
            // are others than before. Of an answer and the next request within a millisecond the
            // request is the later one for whoever opened the connection.
            let (asked_last, since, is_new) = match way {
                Way::In => (bytes_in > 0 && (received < sent || received == sent && bytes_out == 0), received, grew),
                Way::Out => (
                    bytes_out > 1 && unread <= 0 && sent <= received,
                    sent,
                    before.is_some_and(|before| (before.bytes_in, before.bytes_out) != (bytes_in, bytes_out)),
                ),
            };
            let spoke = if matches!(way, Way::In) { bytes_out > 0 } else { bytes_in > 0 };
            let is_exchange = before.is_none_or(|b| (b.bytes_in, b.bytes_out) != (bytes_in, bytes_out));
            if asked_last {
                let since = now - f64::from(since) / 1e3;
                let earlier = port.waiting.get(&key).filter(|_| !is_new).copied();
                if matches!(way, Way::Out) && is_new {
                    port.answered += 1;
                    let clear = port.waiting.get(&key).filter(|request| !request.is_unclear);
                    port.longest = clear.map_or(port.longest, |request| port.longest.max(since - request.since));
                }
                let waits = earlier.unwrap_or(Waiting { since, queue, fd, is_unclear: sent == received });
                waiting[way as usize].insert(key, waits);
            } else if spoke {
                if is_exchange {
                    (port.ended, port.answered) = (port.ended + 1, port.answered + 1);
                    port.last_answer = now;
                }
                if let Some(request) = port.waiting.remove(&key) {
                    port.longest = port.longest.max(now - request.since);
                }
            }
        }
        let [incoming, outgoing] = waiting;
        for (ports, waiting) in [(&mut self.ports, incoming), (&mut self.asked, outgoing)] {
            for (number, port) in ports {
                for (key, request) in std::mem::take(&mut port.waiting) {
                    if !waiting.contains_key(&key) {
                        port.ended += 1;
                        port.longest = port.longest.max(now - request.since);
                    }
                }
                port.waiting.extend(waiting.iter().filter(|(key, _)| key.0 == *number));
            }
        }
        self.last = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener() -> Connection {
        (3, 80, 0, 1, 0, 0, 0, 0, 0, 10)
    }

    #[test]
    fn a_request_waits_until_it_is_answered() {
        let mut ports = Ports::default();
        ports.saw(1.0, 0, &[listener(), (4, 80, 9, 0, 100, 500, 10, 0, 0, 1)], &BTreeSet::from([80]));
        let since = ports.ports[&80].waiting[&(80, 9)].since;
        assert!((since - 0.9).abs() < 1e-9, "{since}");
        ports.saw(2.0, 0, &[listener(), (4, 80, 9, 0, 1100, 0, 10, 7, 0, 1)], &BTreeSet::from([80]));
        let port = &ports.ports[&80];
        assert_eq!((port.waiting.len(), port.answered, port.last_answer), (0, 1, 2.0));
        assert!((port.longest - 1.1).abs() < 1e-9);
    }

    #[test]
    fn a_request_that_is_still_being_read_waits_anew() {
        let mut ports = Ports::default();
        for i in 1..20u64 {
            ports.saw(i as f64, 0, &[listener(), (4, 80, 9, 0, 10, 500, i * 1000, 7, 0, 1)], &BTreeSet::from([80]));
        }
        assert!(ports.ports[&80].waiting[&(80, 9)].since > 18.0, "an upload");
        for i in 20..30u64 {
            ports.saw(
                i as f64,
                0,
                &[listener(), (4, 80, 9, 0, 10, 500, i * 1000, 7, (i as i64 - 19) * 1000, 1)],
                &BTreeSet::from([80]),
            );
        }
        assert!(ports.ports[&80].waiting[&(80, 9)].since < 20.0, "nobody reads what comes in");
    }

    #[test]
    fn a_request_of_its_own_waits_for_an_answer() {
        let mut ports = Ports::default();
        let mut saw = |now: f64, sent: u32, received: u32, bytes: (u64, u64)| {
            ports.saw(now, 0, &[(5, 40_000, 9, 0, received, sent, bytes.0, bytes.1, 0, 1)], &BTreeSet::new());
            let port = &ports.asked[&9];
            (port.waiting.values().map(|w| (w.fd, w.since)).next(), port.answered)
        };
        assert_eq!(saw(1.0, 0, 9000, (0, 1)).0, None, "nothing was asked yet");
        assert_eq!(saw(2.0, 500, 500, (10, 12)), (Some((5, 1.5)), 1), "answered, and asked again at once");
        assert_eq!(saw(3.0, 1500, 1500, (10, 12)), (Some((5, 1.5)), 1));
        assert_eq!(saw(4.0, 2500, 10, (20, 12)), (None, 2), "the connection rests");
        // At a port that another process listens on it is the one that is asked.
        ports.saw(5.0, 0, &[(5, 40_000, 9, 0, 10, 900, 30, 12, 0, 1)], &BTreeSet::from([40_000]));
        assert_eq!((ports.asked[&9].waiting.len(), ports.ports[&40_000].waiting.len()), (0, 1));
    }

    #[test]
    fn a_collector_owes_no_answer() {
        let mut ports = Ports::default();
        for i in 1..10u64 {
            ports.saw(i as f64, 0, &[listener(), (4, 80, 9, 0, 10, 500, i * 1000, 0, 0, 1)], &BTreeSet::from([80]));
        }
        assert!(ports.ports[&80].waiting.is_empty());
    }
}
