//! How a process answers on a port: which requests it read and has not answered, and how long
//! answers took.

use crate::facts::Connection;
use std::collections::BTreeMap;

/// A connection: own port and the peer's.
type Key = (u16, u16);

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// Since when, s.
    pub since: f64,
    /// Time that threads of the process had waited for a CPU by then, ns.
    pub queue: u64,
}

/// A port that a process listens on.
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
    /// By number.
    pub ports: BTreeMap<u16, Port>,
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

impl Ports {
    /// Takes all TCP sockets of the process at this moment; `queue` as in [`Waiting`].
    pub fn saw(&mut self, now: f64, queue: u64, connections: &[Connection]) {
        let listens = |port: u16| connections.iter().any(|c| c.3 != 0 && c.1 == port);
        let mut waiting: BTreeMap<Key, Waiting> = BTreeMap::new();
        let mut last = BTreeMap::new();
        for &(_, own, peer, is_listener, received, sent, bytes_in, bytes_out, unread, state) in connections {
            if is_listener != 0 || !listens(own) {
                continue;
            }
            let (key, port) = ((own, peer), self.ports.entry(own).or_default());
            if !OPEN.contains(&state) {
                continue;
            }
            let taken = bytes_in.saturating_sub(unread.max(0) as u64);
            let before = self.last.get(&key).copied();
            // More of the request was read since: it is not complete, or it is another one.
            let grew = before.is_some_and(|before| taken > before.taken);
            let takes = before.map_or(0, |before| before.takes) + u32::from(grew || before.is_none() && taken > 0);
            last.insert(key, Last { bytes_in, bytes_out, taken, takes });
            if bytes_out == 0 && takes >= ONE_WAY {
                port.waiting.remove(&key);
                continue;
            }
            let came_last = received < sent || received == sent && bytes_out == 0;
            if bytes_in > 0 && came_last {
                let since = now - f64::from(received) / 1e3;
                let earlier = port.waiting.get(&key).filter(|_| !grew).copied();
                waiting.insert(key, earlier.unwrap_or(Waiting { since, queue }));
            } else if bytes_out > 0 {
                if before.is_none_or(|b| (b.bytes_in, b.bytes_out) != (bytes_in, bytes_out)) {
                    (port.ended, port.answered) = (port.ended + 1, port.answered + 1);
                    port.last_answer = now;
                }
                if let Some(request) = port.waiting.remove(&key) {
                    port.longest = port.longest.max(now - request.since);
                }
            }
        }
        for (number, port) in &mut self.ports {
            for (key, request) in std::mem::take(&mut port.waiting) {
                if !waiting.contains_key(&key) {
                    port.ended += 1;
                    port.longest = port.longest.max(now - request.since);
                }
            }
            port.waiting.extend(waiting.iter().filter(|(key, _)| key.0 == *number));
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
        ports.saw(1.0, 0, &[listener(), (4, 80, 9, 0, 100, 500, 10, 0, 0, 1)]);
        let since = ports.ports[&80].waiting[&(80, 9)].since;
        assert!((since - 0.9).abs() < 1e-9, "{since}");
        ports.saw(2.0, 0, &[listener(), (4, 80, 9, 0, 1100, 0, 10, 7, 0, 1)]);
        let port = &ports.ports[&80];
        assert_eq!((port.waiting.len(), port.answered, port.last_answer), (0, 1, 2.0));
        assert!((port.longest - 1.1).abs() < 1e-9);
    }

    #[test]
    fn a_request_that_is_still_being_read_waits_anew() {
        let mut ports = Ports::default();
        for i in 1..20u64 {
            ports.saw(i as f64, 0, &[listener(), (4, 80, 9, 0, 10, 500, i * 1000, 7, 0, 1)]);
        }
        assert!(ports.ports[&80].waiting[&(80, 9)].since > 18.0, "an upload");
        for i in 20..30u64 {
            ports.saw(i as f64, 0, &[listener(), (4, 80, 9, 0, 10, 500, i * 1000, 7, (i as i64 - 19) * 1000, 1)]);
        }
        assert!(ports.ports[&80].waiting[&(80, 9)].since < 20.0, "nobody reads what comes in");
    }

    #[test]
    fn a_collector_owes_no_answer() {
        let mut ports = Ports::default();
        for i in 1..10u64 {
            ports.saw(i as f64, 0, &[listener(), (4, 80, 9, 0, 10, 500, i * 1000, 0, 0, 1)]);
        }
        assert!(ports.ports[&80].waiting.is_empty());
    }
}
