//! nginx' PUT: in the orbit and by nginx' own module, in one worker. Throughput, CPU time, and what
//! other clients of the worker see while a large file is copied to another file system.

use super::lines::lines;
use super::paper::{Figure, Task};
use super::table::{self, Own, Row, Rows, number, snapshot};
use crate::reach::{Reach, ratio};
use crate::stats::{Samples, Shuffle, median};
use crate::{Bench, Progress};
use orbit_console::out::Failure;
use orbit_nginx::{How, Load, Put, Server};
use std::path::PathBuf;
use std::time::Duration;

const CLIENTS: usize = 4;
/// Bytes of a file that is put.
const BODY: usize = 1024;
/// Bytes of a file that is copied from one file system to another.
const LARGE: usize = 64 << 20;
/// What a call is shown: its arguments, with paths of the bench's length.
const ARGUMENTS_KIB: f64 = 0.15;
/// The loads: GETs after each PUT. Nine make the tenth of uploads of the paper's section 5.5.
const LOADS: [(&str, usize); 2] = [("a tenth PUT", 9), ("PUT only", 0)];
const PUTS: [Put; 2] = [Put::Orbit, Put::Stock];

/// Figures of one load with one PUT, each a sample a round.
#[derive(Default)]
struct Figures {
    requests: Samples,
    cpu: Samples,
    calls: Samples,
}

pub fn run(bench: &mut Bench, quick: bool) -> Result<Rows, Failure> {
    let (rounds, seconds) = if quick { (9, 1) } else { (20, 4) };
    let progress = Progress::new(rounds * 2);
    let mut rows = throughput(bench, &progress, rounds, Duration::from_secs(seconds))?;
    rows.extend(beside_copies(bench, &progress, rounds)?);
    let own = own(CLIENTS).repeats(Task::T4, Figure::Lines);
    rows.extend(lines("nginx").map(|lines| number("lines of the port", "lines", lines, own)));
    progress.finish();
    Ok(rows)
}

fn own(clients: usize) -> Own {
    Own::new("nginx", clients)
}

fn server(put: Put, bodies: Option<PathBuf>) -> Result<Server, Failure> {
    let mut how = How::new(put, "");
    how.bodies = bodies;
    Server::start(how).ok_or_else(|| Failure::text("nginx 1.22 or its headers are missing: scripts/packages.sh ports"))
}

fn throughput(bench: &mut Bench, progress: &Progress, rounds: usize, time: Duration) -> Result<Vec<Row>, Failure> {
    let servers = [server(PUTS[0], None)?, server(PUTS[1], None)?];
    let mut figures: [[Figures; 2]; LOADS.len()] = Default::default();
    let mut shuffle = Shuffle::new(23);
    for round in 0..rounds {
        progress.at(round, "throughput");
        for (load, (_, gets)) in LOADS.iter().enumerate() {
            let mut order = [0, 1];
            shuffle.shuffle(&mut order);
            for nth in order {
                let before = servers[nth].cpu();
                let running = Load::start(&servers[nth].socket(), "bench", CLIENTS, BODY, *gets);
                std::thread::sleep(time);
                let done = running.stop();
                if !done.wrong.is_empty() || done.failed > 0 {
                    return Err(Failure::text(format!("{} PUTs failed; {:?}", done.failed, done.wrong)));
                }
                let of = &mut figures[load][nth];
                of.requests.add_figure(done.good as f64 / time.as_secs_f64());
                of.calls.add_figure(done.stored as f64 / time.as_secs_f64());
                of.cpu.add_figure((servers[nth].cpu() - before) * 1e6 / done.good.max(1) as f64);
            }
        }
    }
    let mut rows = Vec::new();
    for ((name, _), [ours, stock]) in LOADS.iter().zip(&figures) {
        let [a, b] = [ours, stock].map(|of| (of.requests.summary(), of.cpu.summary()));
        let reach = [
            Reach::at_least(format!("throughput, {name}, of stock's"), ratio(median(a.0), median(b.0)), 0.95, "times"),
            Reach::at_most(
                format!("CPU time a request, {name}, of stock's"),
                ratio(median(a.1), median(b.1)),
                1.05,
                "times",
            ),
        ];
        // The bound of Figure 12 is for the paper's load.
        let is_bound = *name == LOADS[0].0;
        let bounds = |nth: usize| if is_bound { &reach[nth..=nth] } else { &[] };
        let of = |figure| if is_bound { own(CLIENTS).repeats(Task::T4, figure) } else { own(CLIENTS) };
        let row = |measure: String, unit, ours, stock, bounds, figure| {
            table::row(&measure, unit, ours, &[("stock", stock)], bounds, of(figure))
        };
        rows.push(row(format!("requests, {name}"), "requests/s", a.0, b.0, bounds(0), Figure::Throughput));
        rows.push(row(format!("CPU time a request, {name}"), "us", a.1, b.1, bounds(1), Figure::CpuTime));
        let calls = ours.calls.summary();
        rows.push(table::row(&format!("calls of the orbit, {name}"), "calls/s", calls, &[], &[], of(Figure::Calls)));
        if is_bound {
            bench.reach(reach);
        }
    }
    // The arguments of a call are all that it is shown: two paths and some numbers.
    let worker = servers[0].wait_for("worker process");
    rows.extend(snapshot("PUT", ARGUMENTS_KIB, worker, own(CLIENTS), Task::T4));
    Ok(rows)
}

/// A client's GETs while files of another are copied between file systems.
fn beside_copies(bench: &mut Bench, progress: &Progress, rounds: usize) -> Result<Vec<Row>, Failure> {
    let bodies = PathBuf::from(format!("/dev/shm/orbit-bench-nginx-{}", std::process::id()));
    let remove = || std::fs::remove_dir_all(&bodies);
    let mut longest = [Samples::default(), Samples::default()];
    let mut shuffle = Shuffle::new(24);
    for round in 0..rounds {
        progress.at(rounds + round, "beside copies");
        let mut order = [0, 1];
        shuffle.shuffle(&mut order);
        for nth in order {
            std::fs::create_dir_all(&bodies)?;
            std::fs::set_permissions(&bodies, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
            let server = server(PUTS[nth], Some(bodies.clone()))?;
            let body = vec![b'x'; LARGE];
            // Sent to a file first, so that only its copy is measured.
            let pages = Load::start(&server.socket(), "page", 1, BODY, 1_000_000);
            std::thread::sleep(Duration::from_millis(100));
            let put = server.connect().put("/large", &body);
            let pages = pages.stop();
            drop(server);
            let _ = remove();
            if !put.is_ok_and(|response| response.status == 201) || !pages.wrong.is_empty() {
                return Err(Failure::text(format!("a PUT of 64 MiB failed, or GETs beside it: {:?}", pages.wrong)));
            }
            let time = pages.get_times.iter().max().copied().unwrap_or_default();
            longest[nth].add_figure(time.as_secs_f64() * 1e3);
        }
    }
    let [ours, stock] = longest.map(|samples| samples.summary());
    let shorter = ratio(median(stock), median(ours));
    let reach = [Reach::at_least("longest GET beside a copy, stock's of ours", shorter, 2.0, "times")];
    let measure = "longest GET while 64 MiB are put to another file system";
    let row = table::row(measure, "ms", ours, &[("stock", stock)], &reach, own(2));
    bench.reach(reach);
    Ok(vec![row])
}
