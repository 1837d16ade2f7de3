//! Deadlocks made on purpose: a ring of sessions each of which holds a row and waits for the next
//! one's.

use crate::{Cluster, Reply, Session, wait_until};

/// Makes the table that the rings lock rows of.
pub fn prepare(cluster: &Cluster) {
    cluster.query(
        "CREATE TABLE ring (id int PRIMARY KEY, v int NOT NULL); INSERT INTO ring SELECT g, 0 FROM \
        generate_series(0, 99) g",
    );
}

/// A ring of sessions, deadlocked once it is closed.
pub struct Ring {
    sessions: Vec<Session>,
    /// Answers that are there already, in order.
    early: Vec<Option<Reply>>,
    /// The row of the first; the others' follow.
    first: usize,
}

impl Ring {
    /// So many sessions, in transactions; each has locked a row of its own, from row `first` on.
    pub fn new(cluster: &Cluster, size: usize, first: usize) -> Ring {
        let mut sessions: Vec<Session> = (0..size).map(|_| cluster.session()).collect();
        for (nth, session) in sessions.iter_mut().enumerate() {
            session.run("BEGIN");
            let locked = session.run(&format!("UPDATE ring SET v = v + 1 WHERE id = {}", first + nth));
            assert_eq!(locked.error(), None, "{locked:?}");
        }
        let early = vec![None; size];
        Ring { sessions, early, first }
    }

    /// Has each session, in order, wait for the row of the next; with the last the ring is closed.
    pub fn close(&mut self, cluster: &Cluster) {
        let size = self.sessions.len();
        for nth in 0..size {
            let row = self.first + (nth + 1) % size;
            let pid = self.sessions[nth].pid();
            self.sessions[nth].send(&format!("UPDATE ring SET v = v + 1 WHERE id = {row}"));
            if nth + 1 < size {
                wait_until("a session of the ring waits", || is_waiting(cluster, pid));
            }
        }
    }

    /// The backends, in order.
    pub fn pids(&self) -> Vec<i32> {
        self.sessions.iter().map(Session::pid).collect()
    }

    /// Waits until one has failed; the others wait on, or have their row.
    pub fn wait_for_victim(&mut self) {
        let until = std::time::Instant::now() + crate::PATIENCE;
        let mut nth = 0;
        while self.early.iter().flatten().all(|reply| reply.error().is_none()) {
            assert!(std::time::Instant::now() < until, "no session of the ring failed");
            nth = (nth + 1) % self.sessions.len();
            if self.early[nth].is_none() {
                self.early[nth] = self.sessions[nth].reply_within(std::time::Duration::from_micros(200));
            }
        }
    }

    /// Waits until each has an answer to its wait, and commits those that got their row. Returns
    /// the answers, in order.
    pub fn finish(mut self) -> Vec<Reply> {
        let mut ended = vec![false; self.sessions.len()];
        wait_until("every session of the ring has its answer", || {
            for ((session, reply), ended) in self.sessions.iter_mut().zip(&mut self.early).zip(&mut ended) {
                if reply.is_none() {
                    *reply = session.reply_within(std::time::Duration::from_millis(10));
                }
                if let (Some(reply), false) = (reply.as_ref(), *ended) {
                    let end = if reply.error().is_none() { "COMMIT" } else { "ROLLBACK" };
                    assert_eq!(session.run(end).error(), None);
                    *ended = true;
                }
            }
            ended.iter().all(|ended| *ended)
        });
        self.early.into_iter().flatten().collect()
    }
}

/// Whether this backend waits for a lock.
pub fn is_waiting(cluster: &Cluster, pid: i32) -> bool {
    cluster.query(&format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = {pid}")) != "0"
}

/// The places of the answers that are a deadlock's.
///
/// # Panics
/// Where one failed with anything else.
pub fn victims(replies: &[Reply]) -> Vec<usize> {
    let failed = replies.iter().enumerate().filter(|(_, reply)| reply.error().is_some());
    failed.inspect(|(_, reply)| assert_eq!(reply.error(), Some("40P01"), "{reply:?}")).map(|(nth, _)| nth).collect()
}
