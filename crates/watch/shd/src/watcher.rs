//! The threads in user space: one pinned to each CPU, woken once a tick.
//!
//! A watcher's wake-up is the context switch that a healthy CPU makes. Awake, it reports the alarms
//! of any CPU, so the first living CPU reports an alarm and no wake-up crosses CPUs. Each alarm is
//! reported once.

use crate::{Error, Event, How, table::Table};
use orbit_linux::{clock, host, sched};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

pub type Handler = dyn Fn(&Event) + Send + Sync;

/// What all watchers share.
pub struct Shared {
    pub table: Table,
    pub cpus: Vec<usize>,
    /// Per CPU of `cpus`: the alarm (its `progress`) that was reported last.
    reported: Vec<AtomicU64>,
    /// Per CPU: the alarm whose end was reported, or (`u64::MAX`) that it is no longer watched.
    ended: Vec<AtomicU64>,
    stop: AtomicBool,
    period: u64,
    counter: bool,
    handler: Box<Handler>,
}

/// The watchers; dropping them ends them.
pub struct Watchers {
    pub shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Watchers {
    /// Returns once every watcher runs on its CPU. `priority` 0 leaves the scheduling class as it
    /// is.
    pub fn start(
        table: Table,
        cpus: &[usize],
        period: Duration,
        priority: i32,
        counter: bool,
        handler: Box<Handler>,
    ) -> Result<Watchers, Error> {
        let zeros = || cpus.iter().map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared {
            table,
            cpus: cpus.to_vec(),
            reported: zeros(),
            ended: zeros(),
            stop: AtomicBool::new(false),
            period: period.as_nanos() as u64,
            counter,
            handler,
        });
        let mut watchers = Watchers { shared: shared.clone(), threads: Vec::new() };
        let (ready, started) = mpsc::channel();
        for &cpu in cpus {
            let (shared, ready) = (shared.clone(), ready.clone());
            let thread = std::thread::Builder::new()
                .name(format!("shd/{cpu}"))
                .stack_size(128 << 10)
                .spawn(move || {
                    let settled = settle(cpu, priority);
                    let go = settled.is_ok();
                    // The starter may have given up already.
                    let _ = ready.send(settled);
                    // Held on to, it would keep the starter waiting.
                    drop(ready);
                    if go {
                        shared.run();
                    }
                })
                .map_err(|e| Error::of(&format!("starting the watcher of CPU {cpu}"), &e))?;
            watchers.threads.push(thread);
        }
        drop(ready);
        for settled in started {
            settled?;
        }
        Ok(watchers)
    }
}

impl Watchers {
    /// From now on nothing is reported.
    pub fn hush(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.hush();
        for thread in self.threads.drain(..) {
            // A handler that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Pins the calling thread and gives it its priority.
pub fn settle(cpu: usize, priority: i32) -> Result<(), Error> {
    sched::set_affinity(0, &[cpu]).map_err(|why| Error::of(&format!("pinning a watcher to CPU {cpu}"), &why))?;
    if priority > 0 {
        sched::set_fifo(0, priority).map_err(|why| {
            let what = format!("giving the watcher of CPU {cpu} real-time priority {priority} ({})", lacking());
            Error::of(&what, &why)
        })?;
    }
    Ok(())
}

/// Why real-time priority was denied: a process with the capability may still be in a control group
/// without real-time CPU time.
fn lacking() -> String {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    why_refused(host::has_capability(CAP_SYS_NICE), &groups)
}

const CAP_SYS_NICE: u32 = 23;

/// The same, from whether the process has the capability, and from its control groups.
fn why_refused(may: bool, groups: &str) -> String {
    if !may {
        return "needs CAP_SYS_NICE".to_owned();
    }
    // `number:controllers:path`; version 2 has neither number nor controllers.
    let path = |has: &dyn Fn(&str) -> bool| {
        let mut lines = groups.lines().filter_map(|l| l.split_once(':')?.1.split_once(':'));
        lines.find(|(controllers, _)| controllers.split(',').any(has)).map(|(_, path)| path)
    };
    if let Some(path) = path(&|c| c == "cpu").filter(|&p| p != "/") {
        return format!(
            "CAP_SYS_NICE is there, but control group {path} has no real-time CPU time: give it some in its \
             cpu.rt_runtime_us, or start in the root group"
        );
    }
    match path(&str::is_empty).filter(|&p| p != "/") {
        Some(path) => format!(
            "CAP_SYS_NICE is there, but not for control group {path}: with RT_GROUP_SCHED only the root group has \
             real-time CPU time"
        ),
        None => "CAP_SYS_NICE is there: something else forbids it, as a filter of system calls does".to_owned(),
    }
}

/// Monotonic nanoseconds, the kernel half's clock.
pub fn now() -> u64 {
    clock::monotonic_ns()
}

impl Shared {
    fn run(&self) {
        let mut next = now();
        loop {
            next = (next + self.period).max(now());
            // Interrupted or not, the loop checks and sleeps again.
            clock::sleep_until(next);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            for place in 0..self.cpus.len() {
                self.check(place);
            }
        }
    }

    /// Reports what is new of the CPU at `place`. The watcher that changes `reported` or `ended`
    /// reports it.
    fn check(&self, place: usize) {
        let (cpu, row) = (self.cpus[place], self.table.cpu(self.cpus[place]));
        let alarm = row.alarm.load(Ordering::Acquire);
        let claim = |of: &AtomicU64, value: u64| {
            let before = of.load(Ordering::Relaxed);
            before != value && of.compare_exchange(before, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if alarm != 0 && claim(&self.reported[place], alarm) {
            let time = row.alarm_time.load(Ordering::Relaxed);
            let recent = |last: u64| last + 3 * self.period > time;
            let how = if recent(row.alarm_tick.load(Ordering::Relaxed)) {
                How::InterruptsOn
            } else if !self.counter {
                How::InterruptsOffOrHalted
            } else if recent(row.alarm_count.load(Ordering::Relaxed)) {
                How::InterruptsOff
            } else {
                How::Halted
            };
            (self.handler)(&Event::Hung {
                cpu,
                how,
                by: row.alarm_by.load(Ordering::Relaxed) as usize,
                since: Duration::from_nanos(alarm),
                judged: Duration::from_nanos(time),
                check: Duration::from_nanos(row.alarm_check.load(Ordering::Relaxed) * self.period),
            });
        }
        let progress = row.progress.load(Ordering::Relaxed);
        let reported = self.reported[place].load(Ordering::Acquire);
        let gone = row.watched.load(Ordering::Relaxed) == 0;
        if self.ended[place].load(Ordering::Relaxed) == u64::MAX {
            return;
        }
        if reported != 0 && reported == alarm && progress != alarm && claim(&self.ended[place], alarm) {
            let lasted = Duration::from_nanos(progress.saturating_sub(alarm));
            (self.handler)(&Event::Recovered { cpu, since: Duration::from_nanos(alarm), lasted });
        }
        if gone && claim(&self.ended[place], u64::MAX) {
            (self.handler)(&Event::Left { cpu });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::why_refused;

    #[test]
    fn why_there_is_no_real_time_priority() {
        let one = "9:memory:/a\n1:cpu,cpuacct:/orbit-7-0-shd\n0::/\n";
        for (may, groups, said) in [
            (false, one, "needs CAP_SYS_NICE"),
            (true, one, "group /orbit-7-0-shd has no"),
            (true, "1:cpu:/\n0::/user.slice\n", "for control group /user.slice"),
            (true, "1:cpu:/\n0::/\n", "something else"),
            (true, "", "something else"),
        ] {
            let why = why_refused(may, groups);
            assert!(why.contains(said), "{why}");
        }
    }
}
