//! Lines of events on their way to the output, which may block for ever: a stopped terminal, a full
//! pipe, a disk that hangs.
//!
//! A watcher that waited for its output would lack its wake-ups, and its idle CPU would pass for
//! hung. So it only leaves the line and wakes a writer. There is a writer on each CPU, beside the
//! watcher and as urgent: a living CPU's lines need no CPU that hangs. Leaving a line neither waits
//! nor takes a lock. What finds [`MAX_WAITING_LINES`] others waiting is dropped, and counted in the
//! output.

use crate::{Error, watcher::settle};
use orbit_linux::sched;
use std::{
    fs::File,
    io::Write,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread::{self, Thread},
    time::Duration,
};

/// Lines that may wait for a writer.
const MAX_WAITING_LINES: usize = 256;
/// How long the end waits for lines that are not written yet.
const MAX_WAIT_AT_END: Duration = Duration::from_secs(1);

struct Shared {
    to: File,
    dropped: AtomicU64,
    closed: AtomicBool,
}

/// The writers. Dropping them has them write what waits and end, for which it waits a second at
/// most.
pub struct Output {
    shared: Arc<Shared>,
    /// By number of the CPU.
    writers: Vec<Option<(SyncSender<String>, Thread)>>,
    /// Disconnected once all have ended.
    ended: Mutex<Receiver<()>>,
}

impl Output {
    /// Starts a writer on each of these CPUs.
    pub fn start(to: File, cpus: &[usize], priority: i32) -> Result<Output, Error> {
        let shared = Arc::new(Shared { to, dropped: AtomicU64::new(0), closed: AtomicBool::new(false) });
        let (ending, ended) = channel();
        let mut output = Output { shared, writers: Vec::new(), ended: Mutex::new(ended) };
        output.writers.resize_with(cpus.last().map_or(0, |last| last + 1), || None);
        let begun = cpus.iter().try_for_each(|&cpu| output.begin(cpu, priority, ending.clone()));
        // Held on to, it would keep the end of those that began waiting.
        drop(ending);
        begun.map(|()| output)
    }

    /// Starts the writer of a CPU, and returns once it runs there.
    fn begin(&mut self, cpu: usize, priority: i32, ending: Sender<()>) -> Result<(), Error> {
        let (lines, waiting) = sync_channel(MAX_WAITING_LINES);
        let shared = self.shared.clone();
        let (ready, started) = channel();
        let thread = thread::Builder::new()
            .name(format!("shd-out/{cpu}"))
            .stack_size(128 << 10)
            .spawn(move || {
                let settled = settle(cpu, priority);
                let go = settled.is_ok();
                // The starter waits for it.
                let _ = ready.send(settled);
                if go {
                    shared.write(&waiting, &ending);
                }
            })
            .map_err(|e| Error::of(&format!("starting the writer of CPU {cpu}"), &e))?;
        self.writers[cpu] = Some((lines, thread.thread().clone()));
        started.recv().map_err(|_| Error(format!("the writer of CPU {cpu} ended before it had begun")))?
    }

    /// Leaves a line to the writer of the CPU on which the caller runs.
    pub fn leave(&self, line: String) {
        let cpu = sched::current_cpu();
        let Some((lines, writer)) = self.writers.get(cpu).and_then(Option::as_ref) else {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if lines.try_send(line).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        writer.unpark();
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        for (_, writer) in self.writers.drain(..).flatten() {
            writer.unpark();
        }
        // Nothing is ever sent: it returns when the last has exited. One that its output blocks for
        // longer is not waited for.
        let _ = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(MAX_WAIT_AT_END);
    }
}

impl Shared {
    /// Runs a writer. Dropping `_ending` reports that it has exited.
    fn write(&self, waiting: &Receiver<String>, _ending: &Sender<()>) {
        loop {
            // Checked first: what was left before the end is found below.
            let closed = self.closed.load(Ordering::Acquire);
            for line in waiting.try_iter() {
                // Without a reader there is nothing to report.
                let _ = (&self.to).write_all(line.as_bytes());
                let dropped = self.dropped.swap(0, Ordering::Relaxed);
                if dropped != 0 {
                    let _ = writeln!(&self.to, r#"{{"event":"events-dropped","events":{dropped}}}"#);
                }
            }
            if closed {
                return;
            }
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn writers_that_cannot_start_are_not_waited_for() {
        // One begins where it may run; there is no such CPU as the last one of a set.
        let none = libc::CPU_SETSIZE as usize - 1;
        for cpus in [vec![none], vec![crate::online().expect("CPUs")[0], none]] {
            // The host may hold a try up.
            let least = (0..5).map(|_| {
                let begun = Instant::now();
                let to = File::options().write(true).open("/dev/null").expect("a file");
                assert!(Output::start(to, &cpus, 0).is_err_and(|e| e.to_string().contains("CPU 1023")));
                begun.elapsed()
            });
            assert!(least.min().is_some_and(|least| least < MAX_WAIT_AT_END), "of {cpus:?}");
        }
    }
}
