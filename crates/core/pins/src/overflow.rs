//! Counters that overflow, for P_PMC, P_APIC and P_DBR: opening what a module asked for, or what
//! comes nearest and is there, and a source that hands their samples on.

use orbit_linux::perf::{Counter, Kind, Sample};
use orbit_rmk::{Measure, PinError, Source, Target, Unit};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
};

/// Opens a counter that counts; `period`: it also leaves a sample each time so many were counted
/// (0: never). Instructions become CPU time where there is no performance unit, and the unit says
/// so.
pub(super) fn open(target: &Target, measure: &Measure, period: u64) -> Result<(Counter, Unit), PinError> {
    let open = |kind: Kind| -> io::Result<Counter> {
        let mut counter = match *target {
            Target::Thread { tid } => Counter::open_thread(tid as i32, kind)?,
            Target::Cpu { cpu } => Counter::open_cpu(cpu as usize, kind)?,
        };
        if period > 0 {
            counter.set_period(period)?;
        }
        Ok(counter)
    };
    let clock = match target {
        Target::Thread { .. } => Kind::TaskClock,
        Target::Cpu { .. } => Kind::CpuClock,
    };
    let failed = |error: io::Error| PinError::of(format!("a counter of {measure:?} at {target:?}"), error);
    match measure {
        Measure::Instructions => match open(Kind::Instructions) {
            Ok(counter) => Ok((counter, Unit::Count)),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                open(clock).map(|counter| (counter, Unit::Nanoseconds)).map_err(failed)
            }
            Err(error) => Err(failed(error)),
        },
        Measure::CpuTime => open(clock).map(|counter| (counter, Unit::Nanoseconds)).map_err(failed),
        _ => Err(PinError::Refused(format!("{measure:?} cannot raise an overflow here: use Instructions or CpuTime"))),
    }
}

struct Overflows<F> {
    counter: Counter,
    samples: Vec<Sample>,
    hand_on: F,
}

impl<F: FnMut(&[Sample]) + Send> Source for Overflows<F> {
    fn fd(&self) -> RawFd {
        self.counter.as_fd().as_raw_fd()
    }

    fn ready(&mut self) {
        self.samples.clear();
        while let Some(sample) = self.counter.next_sample() {
            self.samples.push(sample);
        }
        if !self.samples.is_empty() {
            (self.hand_on)(&self.samples);
        }
    }
}

/// A source that calls `hand_on` with the samples that came, oldest first. It runs on the
/// dispatcher's thread.
pub(super) fn source(counter: Counter, hand_on: impl FnMut(&[Sample]) + Send + 'static) -> Box<dyn Source> {
    Box::new(Overflows { counter, samples: Vec::new(), hand_on })
}

/// Sends a signal (0: only checks whether it could be sent).
pub(super) fn send_signal(pid: u32, signal: u32) -> Result<(), PinError> {
    // Pid 0 and negative ones are groups, which no command means.
    let target = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    let target = target.ok_or_else(|| PinError::Refused(format!("{pid} is no process")))?;
    orbit_linux::signals::send(target, signal as i32)
        .map_err(|error| PinError::of(format!("signal {signal} to process {pid}"), error))
}
