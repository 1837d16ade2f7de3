//! Varnish' pool herder: in the orbit and by Varnish, one pool. Throughput and CPU time when
//! threads are few enough, and how long a burst of requests takes for which threads have to be
//! made.

use super::lines::lines;
use super::paper::{Figure, Task};
use super::table::{self, Own, Row, Rows, number, snapshot};
use super::turns::{self, Done, Figures};
use crate::reach::{Reach, ratio};
use crate::stats::{Samples, Shuffle, median};
use crate::{Bench, Progress};
use orbit_console::out::Failure;
use orbit_varnish::{Herder, Server, burst, get};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: usize = 4;
/// Requests of a burst, each a second long; ten threads are there before.
const BURST: usize = 35;
/// What a call is shown of main: `struct herder_view` of the port, most of it Varnish' parameters.
const VIEW_KIB: f64 = 1.0;
/// Of a round's servers, each started for it. The last shows how much two of stock differ.
const HERDERS: [Herder; 3] = [Herder::Orbit, Herder::Stock, Herder::Stock];
const NAMES: [&str; 2] = ["stock", "stock, another server"];

pub fn run(bench: &mut Bench, quick: bool) -> Result<Rows, Failure> {
    let (rounds, seconds) = if quick { (8, 1.0) } else { (15, 4.0) };
    let progress = Progress::new(rounds);
    let mut figures: [Figures; 3] = Default::default();
    let mut bursts: [Samples; 2] = Default::default();
    let mut shuffle = Shuffle::new(5);
    let (mut calls, mut called_for) = (0.0, 0.0);
    let mut sizes = None;
    let of = |figure| Own::new("varnish", CLIENTS).repeats(Task::T5, figure);
    for round in 0..rounds {
        progress.at(round, "requests and bursts");
        let servers = [server(HERDERS[0])?, server(HERDERS[1])?, server(HERDERS[2])?];
        let before = (waits_of_orbit(&servers[0]), Instant::now());
        turns::round(&servers, &mut figures, &mut shuffle, seconds, requests)?;
        calls += waits_of_orbit(&servers[0]) - before.0;
        called_for += before.1.elapsed().as_secs_f64();
        let mut order = [0, 1];
        shuffle.shuffle(&mut order);
        for nth in order {
            let began = Instant::now();
            if burst(&servers[nth].socket(), "/slow", BURST) != BURST {
                return Err(Failure::text(format!("{:?}: a request failed", HERDERS[nth])));
            }
            bursts[nth].add_figure(began.elapsed().as_secs_f64() * 1e3);
        }
        // A call has the pool's fields and the parameters as its argument; no area.
        sizes = Some(snapshot("herder", VIEW_KIB, servers[0].worker(), of(Figure::SnapshotSize), Task::T5));
    }
    progress.finish();
    let [ours, stock, other] = figures.map(|of| of.summaries());
    let [our_burst, stock_burst] = bursts.map(|of| of.summary());
    let reach = [
        Reach::at_least("throughput, of stock's", ratio(median(ours[0]), median(stock[0])), 0.95, "times"),
        Reach::at_most("CPU time a request, of stock's", ratio(median(ours[1]), median(stock[1])), 1.05, "times"),
    ];
    let row = |measure: &str, unit, nth: usize, bounds: &[Reach], own| -> Row {
        table::row(measure, unit, ours[nth], &[(NAMES[0], stock[nth]), (NAMES[1], other[nth])], bounds, own)
    };
    let mut rows = vec![
        row("requests", "requests/s", 0, &reach[..1], of(Figure::Throughput)),
        row("CPU time a request", "us", 1, &reach[1..], of(Figure::CpuTime)),
        table::row(
            "35 requests of a second at once, 10 threads there",
            "ms",
            our_burst,
            &[(NAMES[0], stock_burst)],
            &[],
            Own::new("varnish", BURST),
        ),
        number("calls of the herder's orbit", "calls/s", calls / called_for, of(Figure::Calls)),
    ];
    rows.extend(sizes.into_iter().flatten());
    rows.extend(lines("varnish").map(|lines| number("lines of the port", "lines", lines, of(Figure::Lines))));
    bench.reach(reach);
    Ok(rows)
}

/// Waits of the orbit for its next call, so many times in all its life: a call ends with one.
fn waits_of_orbit(server: &Server) -> f64 {
    let status = server.orbit().map(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default());
    let status = status.unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0.0)
}

fn server(herder: Herder) -> Result<Server, Failure> {
    Server::start(herder, &[])
        .ok_or_else(|| Failure::text("Varnish 7.1 or its headers are missing: scripts/packages.sh ports"))
}

fn requests(server: &Server, seconds: f64) -> Result<Done, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let (before, began) = (server.cpu(), Instant::now());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (stop, socket) = (stop.clone(), server.socket());
            std::thread::spawn(move || {
                let mut good = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    if !get(&socket, "/").is_ok_and(|status| status == 200) {
                        return None;
                    }
                    good += 1;
                }
                Some(good)
            })
        })
        .collect();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    stop.store(true, Ordering::Relaxed);
    let mut good = 0;
    for client in clients {
        good += client.join().ok().flatten().ok_or_else(|| Failure::text("a request failed"))?;
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(Done { requests: good as f64, seconds, cpu_seconds: server.cpu() - before })
}
