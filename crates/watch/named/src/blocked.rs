//! Waits inside sections by name.

use crate::Sections;
use orbit_ahd::facts::Id;
use orbit_ahd::stacks::place;
use orbit_ahd::{Event, Hang, Kind, Sure, ThreadNow, Unit, Watcher, words};
use orbit_inspect::waits::Watched;
use std::time::Duration;

impl Sections {
    /// A thread that has not run for long: is it inside a section?
    pub(crate) fn watch_blocked(&mut self, watcher: &mut Watcher, thread: &ThreadNow) {
        let Id { pid, tid } = thread.id;
        if thread.is_at_home || watcher.is_reported(thread.id) {
            return;
        }
        let Some(holder) = watcher.hopeless_wait(thread.id) else { return };
        let does = |id: Id| Watched::of_few(id.pid).map_or_else(|e| e.to_string(), |mut w| words(&w.wait_of(id.tid)));
        // Without stopping it: some calls would end early.
        let mut threads_wanted = vec![(pid, tid, does(thread.id))];
        threads_wanted.extend(holder.map(|id| (id.pid, id.tid, does(id))));
        let threads = watcher.stacks().involve(threads_wanted, true);
        let Some(section) = threads.first().and_then(|t| self.all(pid, &t.stack).first().copied()) else { return };
        let Some(first) = threads.first() else { return };
        let name = self.sections[section].name.clone();
        let since = Duration::try_from_secs_f64(thread.still).unwrap_or_default();
        let limit = watcher.config().limit;
        let mut why =
            format!("thread {tid} has not run in section {name} for {:.1} s: it {}", thread.still, first.does);
        if let Some(holder) = threads.get(1) {
            why += &format!("; thread {} is in {}", holder.tid, place(&holder.stack));
        }
        self.report(
            watcher,
            Hang {
                kind: Kind::Blocked,
                pid,
                tid,
                comm: String::new(),
                section: Some(name),
                progress: since.as_nanos() as u64,
                usual: None,
                check_value: limit.as_nanos() as u64,
                unit: Unit::WaitNs,
                since,
                latency: since.saturating_sub(limit),
                why,
                sure: Sure::Likely,
                threads,
                cycle: Vec::new(),
                runtime: Vec::new(),
            },
        );
    }

    /// Reports it.
    pub(crate) fn report(&mut self, watcher: &mut Watcher, mut hang: Hang) {
        hang.comm = hang.threads.first().map_or_else(String::new, |t| t.comm.clone());
        watcher.claim(&hang);
        self.claimed.insert(Id { pid: hang.pid, tid: hang.tid }, (hang.kind, std::time::Instant::now()));
        self.events.push(Event::Hang(Box::new(hang)));
    }

    /// What was reported of a thread is over.
    pub(crate) fn over(&mut self, watcher: &mut Watcher, id: Id) {
        if let Some((kind, at)) = self.claimed.remove(&id)
            && watcher.unclaim(id)
        {
            self.events.push(Event::Recovered { pid: id.pid, tid: id.tid, kind, after: at.elapsed() });
        }
    }
}
