//! Waits inside sections by name.

use crate::Ahd;
use crate::event::{Hang, Kind};
use crate::old::learn::takes_strangers;
use std::time::Instant;

impl Ahd {
    /// A thread that has not run for long: is it inside a section?
    pub(super) fn watch_blocked(&mut self, pid: i32, tid: i32, now: Instant) {
        let Some(p) = self.processes.get(&pid) else {
            return;
        };
        let Some(t) = p.threads.get(&tid).filter(|t| t.told.is_none()) else {
            return;
        };
        let rest = t.rest;
        let call = p.dir.call(tid).ok().flatten();
        if p.dir.status(tid).is_none_or(|s| s.tracer != 0 || s.state != b'S')
            // A server that was never busy is not known by its main loop.
            || call.is_some_and(|c| t.points.usual(&c) || takes_strangers(c.nr) && !t.points.away(&c))
        {
            return;
        }
        // Without stopping it: some calls would end early.
        let threads = self.stacks.involve(vec![(pid, tid, "waits".into())], true);
        let Some(section) = threads.first().and_then(|t| self.named.innermost(pid, &t.stack)) else {
            return;
        };
        let Some(held) = self.held_up(pid, tid) else {
            return;
        };
        // Its stack and what it waits for are of one wait, the one that has lasted for so long.
        if self.rests(pid, tid).is_none() {
            return;
        }
        let threads = if held.others.is_empty() {
            threads
        } else {
            let mut who = vec![(pid, tid, "waits".to_owned())];
            who.extend(held.others);
            self.stacks.involve(who, true)
        };
        if let Some(t) = self.processes.get_mut(&pid).and_then(|p| p.threads.get_mut(&tid)) {
            t.told = Some((Kind::Blocked, now));
        }
        let mut hang = Hang::blocked((pid, tid), self.config.limit, held.why, held.sure, held.cycle);
        hang.section = Some(self.config.sections[section].name.clone());
        self.remember_call(pid, tid);
        hang.threads = threads;
        hang.waited(rest);
        self.report(hang);
    }
}
