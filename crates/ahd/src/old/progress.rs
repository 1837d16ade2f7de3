//! What a suspect got done: instructions where the processor counts them, else CPU time.
//!
//! Owns: the choice, made once by trying it; one counter a suspect, opened when it has used half of what it may and closed with its
//! burst, so that healthy threads carry none. Promises: what is shown is in one unit, named by [`Unit`]. Decisions are
//! made in CPU time all the same: what a thread usually does is known in that only (a counter for every thread would cost each of their
//! switches), and instructions are counted in user space alone. The part of a burst before the counter was opened is
//! taken at the rate of the part after. Where there is no counter, or it stands still, it is CPU time.

use crate::event::Unit;
use orbit_linux::perf::{Counter, Kind};

/// Suspects with a counter at a time.
const MOST: usize = 64;
/// Instructions of the trial.
const TRIAL: u64 = 100_000;

/// The source of progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Source {
    /// Not tried yet.
    #[default]
    Untried,
    /// A counter a suspect.
    Counter(Kind),
    /// CPU time by `schedstat`.
    CpuTime,
}

impl Source {
    /// Instructions, if the processor counts them for this thread. Takes some 50 us.
    pub(crate) fn choose() -> Source {
        let counts = |c: &Counter| {
            let before = c.read();
            for i in 0..TRIAL {
                std::hint::black_box(i);
            }
            // Some virtual machines have a counter that stands still.
            c.read().saturating_sub(before) >= TRIAL
        };
        match Counter::open_thread(0, Kind::Instructions) {
            Ok(c) if counts(&c) => Source::Counter(Kind::Instructions),
            _ => Source::CpuTime,
        }
    }
}

/// A suspect's counter.
#[derive(Debug)]
pub(crate) struct Meter {
    counter: Counter,
    unit: Unit,
    /// CPU time of the thread when it was opened.
    run: u64,
}

impl Meter {
    /// Counts from now on; nothing where that is not possible. `open`: how many there are.
    pub(crate) fn open(source: &mut Source, open: &mut usize, tid: i32, run: u64) -> Option<Meter> {
        if *source == Source::Untried {
            *source = Source::choose();
        }
        let Source::Counter(kind) = *source else {
            return None;
        };
        if *open >= MOST {
            return None;
        }
        let unit = if kind == Kind::Instructions { Unit::Instructions } else { Unit::CpuNs };
        // A thread that may not be counted, or none any more: CPU time.
        let counter = Counter::open_thread(tid, kind).ok()?;
        *open += 1;
        Some(Meter { counter, unit, run })
    }

    /// Counts for each nanosecond of CPU since it was opened; nothing while there are none.
    pub(crate) fn rate(&self, run: u64) -> Option<(f64, Unit)> {
        let (count, ran) = (self.counter.read(), run.saturating_sub(self.run));
        (count > 0 && ran > 0).then(|| (count as f64 / ran as f64, self.unit))
    }
}

/// Figures of a busy hang in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) progress: u64,
    pub(crate) check: u64,
    pub(crate) usual: Option<u64>,
    pub(crate) unit: Unit,
}

impl Counted {
    /// CPU times, in what `rate` counts if there is one.
    pub(crate) fn of(progress: u64, check: u64, usual: Option<u64>, rate: Option<(f64, Unit)>) -> Counted {
        let (rate, unit) = rate.unwrap_or((1.0, Unit::CpuNs));
        let by = |ns: u64| if unit == Unit::CpuNs { ns } else { (ns as f64 * rate) as u64 };
        Counted { progress: by(progress), check: by(check), usual: usual.map(by), unit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(ns: u64) -> u64 {
        let file = std::fs::File::open("/proc/thread-self/schedstat").unwrap();
        let run = || crate::old::proc::sched(&file).unwrap().run;
        let start = run();
        while run() - start < ns {}
        start
    }

    #[test]
    fn a_counter_a_suspect_where_it_opens_and_cpu_time_where_not() {
        // SAFETY: plain call.
        let me = unsafe { libc::gettid() };
        let (mut source, mut open) = (Source::Untried, 0);
        let meter = Meter::open(&mut source, &mut open, me, 0);
        match source {
            Source::Counter(_) => assert!(meter.is_some_and(|m| m.unit == Unit::Instructions) && open == 1),
            Source::CpuTime => assert!(meter.is_none() && open == 0),
            Source::Untried => panic!("it was to be tried"),
        }
        // The same by a counter that every machine has, of the time a thread runs: one a nanosecond.
        let (mut source, mut open) = (Source::Counter(Kind::TaskClock), 0);
        let start = spin(1_000_000);
        let Some(meter) = Meter::open(&mut source, &mut open, me, start + 1_000_000) else {
            println!("SKIP: needs perf_event_open");
            return;
        };
        let from = spin(20_000_000);
        let (rate, unit) = meter.rate(from + 20_000_000).unwrap();
        assert!((0.5..2.0).contains(&rate) && unit == Unit::CpuNs, "{rate}");
        let mut full = MOST;
        assert!(Meter::open(&mut source, &mut full, me, 0).is_none(), "so many and no more");
        assert!(Meter::open(&mut source, &mut open, -1, 0).is_none() && open == 1, "no such thread");
    }

    #[test]
    fn one_unit_for_all_figures() {
        let cpu = Counted { progress: 100, check: 40, usual: Some(10), unit: Unit::CpuNs };
        assert_eq!(Counted::of(100, 40, Some(10), None), cpu);
        assert_eq!(Counted::of(100, 40, Some(10), Some((1.1, Unit::CpuNs))), cpu);
        let instructions = Counted { progress: 250, check: 100, usual: None, unit: Unit::Instructions };
        assert_eq!(Counted::of(100, 40, None, Some((2.5, Unit::Instructions))), instructions);
    }
}
