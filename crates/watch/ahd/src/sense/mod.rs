//! The only I/O of the detector: what the kernel says of the watched processes, as records.
//!
//! Owns: [`Sensor`]. Promises: no thread is stopped and nothing is written to a process; a scan of
//! a program that sleeps asks for its CPU time, one of sleeping threads of a program that works
//! reads one small file each; per scan at most [`SAMPLES`] threads are read closer, each in its
//! turn; scans are spaced out by what they cost. Refuses: any judgement.

mod backs;
mod ends;
mod marks;
mod process;
mod runtime;
mod sockets;
mod wait;

use crate::facts::{Record, VERSION};
use orbit_linux::clock;
use process::Process;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time between two scans: 12.5 a second.
pub const PERIOD: Duration = Duration::from_millis(80);
/// A scan out of turn, after a thread came to rest at a lock whose holder rests too.
const SCAN_OUT_OF_TURN: Duration = Duration::from_millis(20);
/// A scan that comes later than so many times its turn was kept waiting by the machine: the rest is
/// no time of the program's.
const LATE_SCAN_PERIODS: u32 = 4;
/// Threads that ran and are read closer in one scan.
pub const SAMPLES: usize = 32;
/// A scan may cost this part of the time.
const SHARE: u32 = 66;
/// Scans are never further apart than this.
const SLOWEST: Duration = Duration::from_secs(1);
/// Time between two readings of sockets, s, and how often that exceeds what one costs.
const SOCKETS_EVERY: f64 = 0.48;
const SOCKETS_SHARE: f64 = 250.0;
/// Time between two readings of the holders, s, and how often that exceeds what one costs; never
/// more than the last, s.
const ENDS_EVERY: f64 = 0.45;
const ENDS_SHARE: f64 = 250.0;
const ENDS_SLOWEST: f64 = 10.0;
/// Readings of the holders that must say the same, where descriptors may have been passed on
/// during each.
const ENDS_AGREE: u32 = 3;
/// Scans between two readings of what seldom changes of a process.
const CHANGES_EVERY: u64 = 6;

/// Reads the watched processes. Use from one thread at a time.
#[derive(Debug)]
pub struct Sensor {
    began: Instant,
    /// Time in which the watcher itself was kept from scanning: it is not part of the records'
    /// time.
    lost: Duration,
    monotonic: f64,
    started: bool,
    processes: BTreeMap<i32, Process>,
    not_opened: Vec<i32>,
    took: Duration,
    scans: u64,
    last: Option<Instant>,
    soon: bool,
    was_soon: bool,
    is_trouble_said: bool,
    price: Duration,
    sockets_from: f64,
    backs_from: f64,
    ends_from: f64,
    ends_read: f64,
    ends: Option<Record>,
    /// The last reading during which descriptors may have been passed on, and how many in a row
    /// said the same.
    unsettled: Option<(Record, u32)>,
    /// Where samples begin: with the first thread that got none in the last scan.
    from: (i32, i32),
    /// The last scan that found a watched thread awake, new or gone.
    stirred: f64,
}

impl Default for Sensor {
    fn default() -> Sensor {
        let monotonic = clock::monotonic_ns() as f64 / 1e9;
        Sensor {
            began: Instant::now(),
            lost: Duration::ZERO,
            monotonic,
            started: false,
            processes: BTreeMap::new(),
            not_opened: Vec::new(),
            took: Duration::ZERO,
            scans: 0,
            last: None,
            soon: false,
            was_soon: false,
            is_trouble_said: false,
            price: Duration::ZERO,
            sockets_from: 0.2,
            backs_from: 0.0,
            ends_from: 0.0,
            ends_read: f64::MIN,
            ends: None,
            unsettled: None,
            from: (0, 0),
            stirred: 0.0,
        }
    }
}

/// The turns of one scan.
#[derive(Debug)]
struct Turns {
    left: usize,
    passed_over: Option<(i32, i32)>,
    /// See [`Sensor::stirred`].
    stirred: f64,
}

impl Sensor {
    /// Watches exactly these processes from now on. Those that cannot be opened have ended, as the
    /// next scan answers.
    pub fn watch(&mut self, pids: &[i32]) {
        self.processes.retain(|pid, _| pids.binary_search(pid).is_ok());
        for &pid in pids {
            if self.processes.contains_key(&pid) {
                continue;
            }
            match Process::open(pid) {
                Ok(process) => drop(self.processes.insert(pid, process)),
                Err(_) => self.not_opened.push(pid),
            }
        }
    }

    /// Seconds since the sensor was made, without those in which it was kept from scanning: the
    /// time of records.
    pub fn now(&self) -> f64 {
        self.began.elapsed().saturating_sub(self.lost).as_secs_f64()
    }

    /// The next scan is to be out of turn, unless this one was.
    pub fn scan_soon(&mut self, is_due: bool) {
        self.soon |= is_due && !self.was_soon;
    }

    /// What cannot be seen, with the process, since this was asked last.
    pub(crate) fn take_troubles(&mut self) -> Vec<(i32, String)> {
        let mut pids = self.processes.values_mut().filter_map(|p| std::mem::take(&mut p.is_hidden).then_some(p.pid));
        // Others may be as many as a program makes.
        let first = pids.next().filter(|_| !self.is_trouble_said);
        self.is_trouble_said |= first.is_some();
        // Files of other users' processes have mode 0400: the right to trace does not open them.
        let what = "cannot be seen: needs the same user, or CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH; nothing more is \
                    said of others like it";
        first.map(|pid| (pid, format!("what the threads of {pid} wait for {what}"))).into_iter().collect()
    }

    /// Thread, CPU time, and that since the scan before, ns, of all threads of a process.
    pub(crate) fn threads(&self, pid: i32) -> impl Iterator<Item = (i32, u64, u64)> {
        self.processes.get(&pid).into_iter().flat_map(Process::counters)
    }

    /// Time to wait until the next scan; none before the first.
    pub fn pause(&self) -> Duration {
        let spacing = if self.soon { SCAN_OUT_OF_TURN } else { self.spacing() };
        self.last.map_or(Duration::ZERO, |last| spacing.saturating_sub(last.elapsed()))
    }

    /// Notes that a thread is about to be stopped, by the watcher itself.
    pub fn stopping(&self, pid: i32, tid: i32) -> Record {
        Record::Stopped { t: self.now(), p: pid, i: tid }
    }

    /// Reads all once and hands over what changed, a [`Record::Tick`] last; answers the processes
    /// that have ended. Blocks for some microseconds a thread that ran.
    pub fn scan(&mut self, out: &mut dyn FnMut(Record)) -> Vec<i32> {
        let (began, cpu) = (Instant::now(), cpu_time());
        if let Some(last) = self.last {
            self.lost += (began - last).saturating_sub(self.spacing() * LATE_SCAN_PERIODS + self.took);
        }
        let t = self.now();
        self.last = Some(began);
        if !self.started
            && let Some(root) = self.processes.keys().next()
        {
            self.started = true;
            out(Record::Start { t0: self.monotonic, root: *root, cmd: String::new(), version: VERSION });
        }
        self.scans += 1;
        let mut turns = Turns { left: SAMPLES, passed_over: None, stirred: self.stirred };
        let full = self.scans % CHANGES_EVERY == 1;
        let pids: Vec<i32> = self.processes.keys().copied().collect();
        let from = pids.partition_point(|pid| *pid < self.from.0);
        let mut ended = std::mem::take(&mut self.not_opened);
        for pid in pids[from..].iter().chain(&pids[..from]) {
            let Some(process) = self.processes.get_mut(pid) else { continue };
            if full {
                let others: Vec<i32> = pids.iter().copied().filter(|p| p != pid).collect();
                process.changes(t, &others, out);
            }
            if !process.scan(t, self.from, &mut turns, out) {
                ended.push(*pid);
            }
        }
        self.from = turns.passed_over.unwrap_or((0, 0));
        self.stirred = if ended.is_empty() { turns.stirred } else { t };
        for pid in &ended {
            self.processes.remove(pid);
        }
        for process in self.processes.values_mut() {
            process.read_marks(t, self.scans, out);
            process.read_runtime(t, out);
            process.read_unreaped(t, out);
        }
        if t >= self.sockets_from {
            let cost = timed(|| {
                for process in self.processes.values_mut() {
                    sockets::read(process, t, out);
                }
            });
            self.sockets_from = t + SOCKETS_EVERY.max(cost * SOCKETS_SHARE).min(ENDS_SLOWEST);
        }
        if t >= self.backs_from {
            let mut left = backs::MAX_CONNECTIONS_PER_SCAN;
            let cost = timed(|| {
                for process in self.processes.values_mut() {
                    process.read_backs(t, &mut left, out);
                }
            });
            self.backs_from = t + SOCKETS_EVERY.max(cost * SOCKETS_SHARE).min(ENDS_SLOWEST);
        }
        if t >= self.ends_from && self.processes.values().any(|p| p.asks_for_ends(t, self.ends_read)) {
            let mut read = None;
            let cost = timed(|| read = Some(ends::read(&mut self.processes, t)));
            self.ends_from = t + ENDS_EVERY.max(cost * ENDS_SHARE).min(ENDS_SLOWEST);
            if let Some((record, ran)) = read {
                let record = self.settled(record, ran, t);
                self.hand_over_ends(record, t, out);
            }
        }
        self.was_soon = self.soon;
        self.soon = !self.soon && self.is_ring_possible(t);
        let spent = cpu_time().saturating_sub(cpu);
        self.price = (self.price * 7 + spent) / 8;
        self.took = began.elapsed();
        if self.started {
            out(Record::Tick { t, us: self.took.as_micros() as u64 });
        }
        ended
    }

    /// Time between two scans.
    fn spacing(&self) -> Duration {
        PERIOD.max((self.price * SHARE).min(SLOWEST))
    }

    /// The reading as it may be relied on: descriptors count as being on their way until as many
    /// readings agree as are needed.
    fn settled(&mut self, mut record: Record, ran: bool, t: f64) -> Record {
        let agree = match self.unsettled.take() {
            _ if !ran => ENDS_AGREE,
            Some((old, n)) if ends::same(&old, &record) => n + 1,
            _ => 1,
        };
        if agree >= ENDS_AGREE {
            self.ends_read = t;
        } else {
            self.unsettled = Some((record.clone(), agree));
            if let Record::Ends { flying, .. } = &mut record {
                *flying = true;
            }
        }
        record
    }

    fn hand_over_ends(&mut self, record: Record, t: f64, out: &mut dyn FnMut(Record)) {
        let same = self.ends.as_ref().is_some_and(|old| ends::same(old, &record));
        if same {
            out(Record::EndsSame { t });
        } else {
            out(record.clone());
            self.ends = Some(record);
        }
    }

    /// Whether a thread came to rest in this scan at a lock whose owner rests at one too.
    fn is_ring_possible(&mut self, t: f64) -> bool {
        self.processes.values_mut().any(|p| p.is_ring_possible(t))
    }
}

/// Runs it and says how much CPU time it took, s: what the machine took meanwhile makes it no
/// dearer.
fn timed(work: impl FnOnce()) -> f64 {
    let began = cpu_time();
    work();
    cpu_time().saturating_sub(began).as_secs_f64()
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    Duration::from_nanos(clock::thread_cpu_ns())
}
