//! Whether a suspect still is in the wait that made it one.
//!
//! Counters are read at the beginning of a look, and a suspect's turn may come seconds later. One that has run meanwhile waits for something
//! else by then, and not for long. Owns: the calls of those who ran only because their stacks were taken in this look. Promises: two small files
//! are read. Refuses: to say what the wait is.

use crate::Ahd;
use crate::old::proc::Call;

impl Ahd {
    /// The call that a thread sleeps in, if it has been in it since the look began: it has not run, or was only stopped for its stack, in this call.
    pub(crate) fn rests(&self, pid: i32, tid: i32) -> Option<Call> {
        let p = self.processes.get(&pid)?;
        let call = p.dir.call(tid).ok().flatten()?;
        let t = p.threads.get(&tid)?;
        let stopped = || self.stopped.get(&tid).is_some_and(|of| of.same(&call));
        (t.sched_now(&p.dir)? == t.sched || stopped()).then_some(call)
    }

    /// These will be stopped for their stacks.
    pub(crate) fn will_stop(&mut self, who: &[(i32, i32, String)]) {
        for &(pid, tid, _) in who {
            if let Some(call) = self.rests(pid, tid) {
                self.stopped.insert(tid, call);
            }
        }
    }
}
