//! `orbit bench pins`: how many events a second reach one subscriber of P_SYSC, what is lost
//! beyond, and what an event costs.
//!
//! A child makes system calls at a given pace, timed without system calls; the kernel program
//! counts and sends them; this process takes them. So that a loss shows, each step lasts several
//! times as long as the queue could hold its events. A child that was delayed does not make up for
//! it by a burst: its pace then is lower, and the row says what it was.

use super::plot::{Chart, Series};
use super::reach::Reach;
use super::row::Measured;
use super::stats::Summary;
use super::{Bench, Common, Progress};
use orbit_console::out::{self, Align, BAD, Failure, GOOD, PLAIN, Table};
use orbit_linux::{clock, process};
use orbit_rmk::{Client, Filter, Kind};
use serde::Serialize;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};
use std::fs::File;

/// Measures events a second through the pin P_SYSC to one subscriber, up to the first that are
/// lost, and their cost.
///
/// Needs kernel programs: root, or CAP_BPF and CAP_PERFMON. SENT is what the kernel counted; what
/// found the queue full is LOST, and RECEIVED + LOST is always SENT. Costs are CPU nanoseconds an
/// event received: of the core's thread, and of the subscriber that takes it. The last row has the
/// child call as fast as it can.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

/// One row of the result.
#[derive(Serialize)]
struct Row {
    /// Pace asked for; none: as fast as the child can.
    target_per_s: Option<u64>,
    /// Pace that was kept.
    sent_per_s: f64,
    seconds: f64,
    /// Counted in the kernel.
    sent: u64,
    received: u64,
    lost: u64,
    /// Events that may wait for the subscriber.
    queue: u32,
    /// From the last call until its event was taken.
    last_us: f64,
    core_cpu_ns: f64,
    subscriber_cpu_ns: f64,
    /// What one call took the child, in the row without a pace.
    call_ns: Option<f64>,
    /// The same before anybody subscribed.
    call_unseen_ns: Option<f64>,
}

const PACES: [u64; 9] = [10_000, 20_000, 50_000, 70_000, 100_000, 150_000, 200_000, 250_000, 300_000];
const PACES_QUICK: [u64; 4] = [10_000, 70_000, 150_000, 300_000];
const QUEUE: u32 = 16_384;
/// Events a second that are promised to arrive without loss, on two CPUs.
const PROMISED: f64 = 70_000.0;
/// What is taken at a time.
const BATCH: usize = 4096;
/// Longest wait for the child and for its last event.
const LIMIT: Duration = Duration::from_secs(60);

pub fn run(args: &Args) -> out::Done {
    let quick = args.common.quick;
    let mut bench = Bench::start("pins", &args.common)?;
    // Before the core makes a thread.
    let mut child = Child::start()?;
    let core = orbit_pins::core().map_err(text)?;
    let module = core.client("bench");
    module.use_pin("P_SYSC").map_err(text)?;
    let flood = if quick { 200_000 } else { 2_000_000 };
    let unseen = child.call(flood, 0)?;
    let paces: &[u64] = if quick { &PACES_QUICK } else { &PACES };
    let seconds = if quick { 1 } else { 3 };
    let progress = Progress::new(paces.len() + 1);
    let mut rows = Vec::new();
    for (nth, pace) in paces.iter().enumerate() {
        progress.at(nth, &format!("{pace} events a second"));
        rows.push(step(&module, &mut child, pace * seconds, *pace)?);
    }
    progress.at(paces.len(), "as fast as it can");
    let mut last = step(&module, &mut child, flood, 0)?;
    progress.finish();
    last.call_ns = Some(round(last.seconds * 1e9 / flood as f64));
    last.call_unseen_ns = Some(round(unseen.took_ns as f64 / flood as f64));
    rows.push(last);
    bench.reach([Reach::at_least("events a second without loss", lossless(&rows), PROMISED, "events/s")]);
    let behind = |row: &Row| row.target_per_s.is_some_and(|pace| row.sent_per_s < 0.95 * pace as f64);
    if rows.iter().any(behind) {
        bench.note("the pace was not kept everywhere: other programs delayed the child".to_owned());
    }
    let (table, chart) = (table(&rows), chart(&rows));
    let rows: Vec<_> = rows.into_iter().map(measured).collect();
    bench.finish(&args.common, &rows, &table, chart)
}

/// The row in the form that all benches share.
fn measured(row: Row) -> Measured<Row> {
    let what = match row.target_per_s {
        Some(pace) => format!("events received, {pace} calls a second asked for"),
        None => "events received, as many calls as the child can make".to_owned(),
    };
    let figure = |per_s: f64| Summary { p50: round(per_s), p99: round(per_s), n: 1 };
    let (ours, sent) = (row.received as f64 / row.seconds, row.sent_per_s);
    Measured::new(what, "events/s", row).ours(Some(figure(ours))).rival("calls made", Some(figure(sent)))
}

/// The highest pace, as kept, of a step without loss; 0 if there was none.
fn lossless(rows: &[Row]) -> f64 {
    rows.iter().filter(|row| row.lost == 0).map(|row| row.sent_per_s).fold(0.0, f64::max)
}

/// One subscription of its own, from the first call to the last event.
fn step(module: &Client, child: &mut Child, calls: u64, pace: u64) -> Result<Row, Failure> {
    let filter = Filter::pids(&[child.pid as u32]).keys(&[libc::SYS_getppid as u32]).queue(QUEUE);
    let id = module.subscr_event("P_SYSC", Kind::CallBegun, filter).map_err(text)?;
    let (process, subscriber) = (clock::process_cpu_ns(), clock::thread_cpu_ns());
    child.order(calls, pace)?;
    let began = Instant::now();
    let (mut events, mut taken_at) = (Vec::with_capacity(BATCH), 0);
    let counts = loop {
        events.clear();
        if module.wait(BATCH, Duration::from_millis(20), &mut events) > 0 {
            taken_at = orbit_rmk::now();
            continue;
        }
        let counts = module.counts(id).map_err(text)?;
        if counts.delivered + counts.lost >= calls {
            break counts;
        }
        if began.elapsed() > LIMIT + Duration::from_secs(calls.checked_div(pace).unwrap_or(0)) {
            let (got, lost) = (counts.delivered, counts.lost);
            return Err(Failure::text(format!(
                "{calls} events were expected; {got} came and {lost} were lost within {LIMIT:?}: is the machine \
                 overloaded?"
            )));
        }
    };
    let subscriber_ns = clock::thread_cpu_ns() - subscriber;
    let core_ns = (clock::process_cpu_ns() - process).saturating_sub(subscriber_ns);
    let done = child.answer()?;
    module.unsubscr_event(id).map_err(text)?;
    let each = |ns: u64| if counts.delivered > 0 { round(ns as f64 / counts.delivered as f64) } else { 0.0 };
    let seconds = done.took_ns as f64 / 1e9;
    Ok(Row {
        target_per_s: (pace > 0).then_some(pace),
        sent_per_s: round(counts.due as f64 / seconds),
        seconds,
        sent: counts.due,
        received: counts.delivered,
        lost: counts.lost,
        queue: QUEUE,
        last_us: round(taken_at.saturating_sub(done.ended_ns) as f64 / 1e3),
        core_cpu_ns: each(core_ns),
        subscriber_cpu_ns: each(subscriber_ns),
        call_ns: None,
        call_unseen_ns: None,
    })
}

fn text(error: orbit_rmk::Error) -> Failure {
    Failure::text(error.to_string())
}

/// To a tenth.
fn round(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}

/// How an order was carried out.
struct Answer {
    took_ns: u64,
    /// `CLOCK_MONOTONIC`, after the last call.
    ended_ns: u64,
}

/// The process whose calls are watched. Ends when its orders do.
struct Child {
    pid: libc::pid_t,
    orders: Option<File>,
    answers: File,
}

impl Child {
    /// Makes it; only while this process has one thread.
    fn start() -> Result<Child, Failure> {
        let [orders, answers] = [pipe()?, pipe()?];
        // SAFETY: this process has one thread, so the child finds every lock free; it ends here.
        match unsafe { process::fork() }? {
            None => {
                let _ = process::set_parent_death_signal(libc::SIGKILL);
                drop((orders.1, answers.0));
                let ended = obey(orders.0, answers.1);
                process::end(i32::from(ended.is_err()))
            }
            Some(pid) => Ok(Child { pid, orders: Some(orders.1), answers: answers.0 }),
        }
    }

    /// Has it make so many calls, so many a second; 0: as fast as it can.
    fn order(&mut self, calls: u64, pace: u64) -> io::Result<()> {
        match &mut self.orders {
            Some(orders) => orders.write_all(&pair(calls, pace)),
            None => Ok(()),
        }
    }

    /// Waits until it made them.
    fn answer(&mut self) -> io::Result<Answer> {
        let (took_ns, ended_ns) = read_pair(&mut self.answers)?;
        Ok(Answer { took_ns, ended_ns })
    }

    fn call(&mut self, calls: u64, pace: u64) -> io::Result<Answer> {
        self.order(calls, pace)?;
        self.answer()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.orders = None;
        // It may be killed half-way through an order whose result nobody wants.
        process::kill_child(self.pid);
    }
}

fn pipe() -> io::Result<(File, File)> {
    let (reader, writer) = orbit_linux::stream::pipe(0)?;
    Ok((reader.into(), writer.into()))
}

fn pair(a: u64, b: u64) -> [u8; 16] {
    (u128::from(a) | u128::from(b) << 64).to_le_bytes()
}

fn read_pair(from: &mut File) -> io::Result<(u64, u64)> {
    let mut bytes = [0; 16];
    from.read_exact(&mut bytes)?;
    let both = u128::from_le_bytes(bytes);
    Ok((both as u64, (both >> 64) as u64))
}

/// The child's life: an order, its calls, an answer; until the orders end.
fn obey(mut orders: File, mut answers: File) -> io::Result<()> {
    loop {
        let (calls, pace) = match read_pair(&mut orders) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            order => order?,
        };
        let began = orbit_rmk::now();
        let mut start = began;
        for nth in 0..calls {
            if let Some(due) = (nth * 1_000_000_000).checked_div(pace) {
                let mut now = orbit_rmk::now();
                // Held up for a millisecond or more: the pace continues from here.
                start = start.max(now.saturating_sub(due + 1_000_000));
                while now < start + due {
                    std::hint::spin_loop();
                    now = orbit_rmk::now();
                }
            }
            process::parent();
        }
        let ended = orbit_rmk::now();
        answers.write_all(&pair((ended - began).max(1), ended))?;
    }
}

fn table(rows: &[Row]) -> Table {
    use Align::Right;
    let mut table = Table::new(&[
        ("PACE/S", Right),
        ("SENT/S", Right),
        ("SENT", Right),
        ("RECEIVED", Right),
        ("LOST", Right),
        ("LAST AFTER", Right),
        ("CORE", Right),
        ("SUBSCRIBER", Right),
        ("CALL", Right),
        ("UNSEEN", Right),
    ]);
    for row in rows {
        let ns = |ns: Option<f64>| (ns.map_or("-".to_owned(), |ns| out::time(ns / 1e3)), PLAIN);
        table.row(vec![
            (row.target_per_s.map_or("any".to_owned(), |pace| pace.to_string()), PLAIN),
            (format!("{:.0}", row.sent_per_s), PLAIN),
            (row.sent.to_string(), PLAIN),
            (row.received.to_string(), PLAIN),
            (row.lost.to_string(), if row.lost == 0 { GOOD } else { BAD }),
            (out::time(row.last_us), PLAIN),
            ns(Some(row.core_cpu_ns)),
            ns(Some(row.subscriber_cpu_ns)),
            ns(row.call_ns),
            ns(row.call_unseen_ns),
        ]);
    }
    table
}

fn chart(rows: &[Row]) -> Chart {
    let of = |name: &str, pick: fn(&Row) -> f64| {
        Series::new(name, rows.iter().map(|row| (row.sent_per_s, pick(row) / 1e3)).collect())
    };
    Chart {
        title: "What an event costs its core and its subscriber".to_owned(),
        x: "events a second".to_owned(),
        y: "microseconds of CPU time an event".to_owned(),
        series: vec![of("core", |row| row.core_cpu_ns), of("subscriber", |row| row.subscriber_cpu_ns)],
    }
}
