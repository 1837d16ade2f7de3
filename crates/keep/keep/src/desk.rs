//! Orders from other processes: put a kept program back because it hangs.
//! `orbit watch --on-hang recover` sends them.
//!
//! The socket is the file `keep-orders-PID.sock`, beside the one of [`crate::board`]; only the same
//! user and root are answered. A connection brings one order and gets one answer, a line of JSON
//! each.

use crate::board::is_allowed;
use orbit_console::control::{self, SocketFile};
use orbit_linux::eventfd;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the names of these sockets begin with.
const KIND: &str = "keep-orders";
/// How long either side waits for the other.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);
/// An order or an answer is shorter than this.
const MAX_ORDER_BYTES: u64 = 64 << 10;

/// A process hangs and is to be put back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The process.
    pub pid: i32,
    /// Its thread that hangs.
    pub tid: i32,
    /// A sentence.
    pub why: String,
}

/// What came of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub is_done: bool,
    pub text: String,
}

/// An order that waits for its keeper.
pub(crate) struct Waiting {
    pub order: Order,
    to: SyncSender<Answer>,
}

impl Waiting {
    pub fn answer(self, is_done: bool, text: String) {
        // The client may have lost patience.
        let _ = self.to.send(Answer { is_done, text });
    }
}

#[derive(Default)]
struct Place {
    bell: Option<Arc<OwnedFd>>,
    waiting: Option<Waiting>,
}

/// Where orders for the processes of one keeper wait. May be used from any thread.
#[derive(Clone, Default)]
pub(crate) struct Desk(Arc<Mutex<BTreeMap<i32, Place>>>);

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Desk")
    }
}

/// Takes orders for one process, until it is dropped.
pub(crate) struct Counter {
    desk: Desk,
    pid: i32,
    bell: Arc<OwnedFd>,
}

impl Desk {
    fn places(&self) -> std::sync::MutexGuard<'_, BTreeMap<i32, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on orders for this process are taken.
    pub fn open(&self, pid: i32) -> io::Result<Counter> {
        let bell = Arc::new(eventfd::create()?);
        self.places().insert(pid, Place { bell: Some(Arc::clone(&bell)), waiting: None });
        Ok(Counter { desk: self.clone(), pid, bell })
    }

    /// Takes orders from now on, in a thread that ends with this process. The socket's file is
    /// removed with the value that is answered.
    pub fn serve(&self) -> io::Result<SocketFile> {
        let (listener, file) = control::listen(KIND)?;
        let desk = self.clone();
        std::thread::Builder::new().name("keep-orders".into()).spawn(move || {
            for peer in listener.incoming() {
                match peer {
                    // A client that goes away early does not want the answer.
                    Ok(peer) => drop(desk.take(peer)),
                    // Out of descriptors, perhaps: not in a tight loop.
                    Err(_) => std::thread::sleep(ORDER_TIMEOUT / 50),
                }
            }
        })?;
        Ok(file)
    }

    fn take(&self, mut peer: UnixStream) -> io::Result<()> {
        peer.set_read_timeout(Some(ORDER_TIMEOUT))?;
        peer.set_write_timeout(Some(ORDER_TIMEOUT))?;
        if !is_allowed(&peer)? {
            return Ok(());
        }
        let order: Order = serde_json::from_slice(&line(&peer)?)?;
        let answer = self.order(order);
        peer.write_all(&serde_json::to_vec(&answer)?)?;
        peer.write_all(b"\n")
    }

    /// Has the keeper of the process deal with it; blocks until it has, for [`ORDER_TIMEOUT`] at
    /// most.
    fn order(&self, order: Order) -> Answer {
        let (to, from) = sync_channel(1);
        let pid = order.pid;
        let not = |text: String| Answer { is_done: false, text };
        {
            let mut places = self.places();
            let Some(Place { bell: Some(bell), waiting }) = places.get_mut(&pid) else {
                return not(format!("process {pid} is not kept here"));
            };
            *waiting = Some(Waiting { order, to });
            eventfd::signal(bell.as_fd());
        }
        from.recv_timeout(ORDER_TIMEOUT).unwrap_or_else(|_| not(format!("the keeper of process {pid} does not answer")))
    }
}

impl Counter {
    /// The order that waits.
    pub fn next(&self) -> Option<Waiting> {
        eventfd::drain(self.bell.as_fd());
        self.desk.places().get_mut(&self.pid)?.waiting.take()
    }
}

impl AsFd for Counter {
    /// Readable while an order waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.desk.places().remove(&self.pid);
    }
}

fn line(peer: &UnixStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    BufReader::new(peer.take(MAX_ORDER_BYTES)).read_until(b'\n', &mut bytes)?;
    Ok(bytes)
}

/// Has the keeper of a process put it back because its thread `tid` hangs; returns what was done,
/// or why nothing was. Blocks for some milliseconds, at most 10 s.
///
/// # Errors
/// A sentence: the process is not kept by this user, or it could not be put back and is left as it
/// is.
pub fn recover(pid: i32, tid: i32, why: &str) -> Result<String, String> {
    let keepers = crate::board::all();
    let Some((keeper, _)) = keepers.known.iter().find(|(_, rows)| rows.iter().any(|row| row.pid == pid)) else {
        if let Some(complaint) = keepers.complaints().next() {
            return Err(complaint);
        }
        return Err(format!(
            "process {pid} is not kept: start it by `orbit keep -- PROGRAM`, or keep it by --pid {pid}"
        ));
    };
    let order = Order { pid, tid, why: why.to_owned() };
    match send(*keeper, &order) {
        Ok(Answer { is_done: true, text }) => Ok(text),
        Ok(Answer { text, .. }) => Err(text),
        Err(error) => Err(format!("its keeper (process {keeper}): {error}")),
    }
}

fn send(keeper: i32, order: &Order) -> io::Result<Answer> {
    let mut peer = control::connect(KIND, keeper)?;
    peer.set_read_timeout(Some(2 * ORDER_TIMEOUT))?;
    peer.set_write_timeout(Some(ORDER_TIMEOUT))?;
    let mut bytes = serde_json::to_vec(order)?;
    bytes.push(b'\n');
    peer.write_all(&bytes)?;
    Ok(serde_json::from_slice(&line(&peer)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_reaches_its_keeper_and_is_answered() {
        let desk = Desk::default();
        let counter = desk.open(7).expect("an eventfd");
        let its = desk.clone();
        let asked = std::thread::spawn(move || its.order(Order { pid: 7, tid: 8, why: "it loops".into() }));
        let waiting = loop {
            if let Some(waiting) = counter.next() {
                break waiting;
            }
            std::thread::yield_now();
        };
        assert_eq!((waiting.order.tid, waiting.order.why.as_str()), (8, "it loops"));
        waiting.answer(true, "put back".into());
        let answer = asked.join().expect("no panic");
        assert!(answer.is_done && answer.text == "put back");
        drop(counter);
        assert!(!desk.order(Order { pid: 7, tid: 8, why: String::new() }).is_done, "nobody is there any more");
    }
}
