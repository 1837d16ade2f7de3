//! Deadlocks made on purpose: a ring of sessions each of which has locked rows of its own and waits
//! for the next one's.

use std::time::{Duration, Instant};

use crate::{Reply, Server, Session, wait_until};

/// A ring of sessions, deadlocked once it is closed.
pub struct Ring {
    sessions: Vec<Session>,
    first: usize,
    replies: Vec<Option<Reply>>,
}

impl Ring {
    /// A session for each weight, in a transaction that has changed so many rows. Rows are taken
    /// from number `first` on, 100 for each session.
    ///
    /// # Panics Where a row is locked by others.
    pub fn new(server: &Server, weights: &[usize], first: usize) -> Ring {
        let mut sessions: Vec<Session> = weights.iter().map(|_| server.session()).collect();
        for (nth, (session, weight)) in sessions.iter_mut().zip(weights).enumerate() {
            session.run("BEGIN");
            for row in 0..*weight {
                let id = first + 100 * nth + row;
                let locked = session.run(&format!("UPDATE test.ring SET v = v + 1 WHERE id = {id}"));
                assert_eq!(locked.error(), None, "{locked:?}");
            }
        }
        Ring { replies: vec![None; weights.len()], sessions, first }
    }

    /// Has each session, in order, wait for the first row of the next; with the last the ring is
    /// closed. When that was.
    pub fn close(&mut self, server: &Server) -> Instant {
        let mut closed = Instant::now();
        let count = self.sessions.len();
        for nth in 0..count {
            let row = self.first + 100 * ((nth + 1) % count);
            closed = Instant::now();
            self.sessions[nth].send(&format!("UPDATE test.ring SET v = v + 100 WHERE id = {row}"));
            if nth + 1 < count {
                let thread = self.sessions[nth].thread();
                wait_until("a session waits", || server.is_waiting(thread));
            }
        }
        closed
    }

    /// Waits until a session has its answer.
    pub fn wait_for_victim(&mut self) {
        wait_until("somebody is freed", || {
            self.sessions.iter_mut().zip(&mut self.replies).any(|(session, reply)| {
                if reply.is_none() {
                    *reply = session.reply_within(Duration::from_millis(1));
                }
                reply.is_some()
            })
        });
    }

    /// Waits for the answers of all, in order. Who has one commits, so that the others continue.
    pub fn finish(&mut self) -> Vec<Reply> {
        let mut committed = vec![false; self.sessions.len()];
        wait_until("all are freed", || {
            for (nth, session) in self.sessions.iter_mut().enumerate() {
                if self.replies[nth].is_none() {
                    self.replies[nth] = session.reply_within(Duration::from_millis(1));
                }
                if self.replies[nth].is_some() && !std::mem::replace(&mut committed[nth], true) {
                    session.run("COMMIT");
                }
            }
            committed.iter().all(|done| *done)
        });
        self.replies.iter().flatten().cloned().collect()
    }

    /// Closes the ring, and waits for all. Which sessions got an error, and that error.
    pub fn resolve(&mut self, server: &Server) -> Vec<(usize, String)> {
        self.close(server);
        let replies = self.finish();
        let failed = replies.iter().enumerate().filter_map(|(nth, reply)| Some((nth, reply.error()?.to_owned())));
        failed.collect()
    }

    /// The sessions.
    pub fn sessions(&mut self) -> &mut [Session] {
        &mut self.sessions
    }
}
