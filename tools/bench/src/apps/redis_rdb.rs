//! Redis' background save: by the orbit and by a fork. How long Redis is blocked, and what clients
//! see of a save.

use super::lines::lines;
use super::paper::{Figure, Task};
use super::table::{Own, Row, Rows, cpu_us, number, resident_kib, row};
use super::ycsb;
use crate::reach::{Reach, ratio};
use crate::stats::{Samples, Shuffle, median};
use crate::{Bench, Progress};
use orbit_console::out::Failure;
use orbit_redis_rdb::{Connection, Server};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a value, and of memory that Redis takes for a key with such a value.
const VALUE: usize = 1000;
const PER_KEY: usize = 1180;
const OWN: Own = Own::new("redis-rdb", 1);
/// How long before a save keys at random are written.
const SPREAD: Duration = Duration::from_secs(3);

/// What is written between two saves.
#[derive(Clone, Copy, PartialEq)]
enum Written {
    /// A hundredth of the keys that lie together, just before the save.
    Memory,
    /// A hundredth of the keys at random, evenly over [`SPREAD`].
    Keys,
}

impl Written {
    fn text(self) -> &'static str {
        if self == Written::Memory { "1 % of the memory written" } else { "1 % of the keys written at random" }
    }
}

pub fn run(bench: &mut Bench, quick: bool) -> Result<Rows, Failure> {
    // Megabytes of heap.
    let sizes: &[usize] = if quick { &[350] } else { &[350, 1000] };
    let rounds = if quick { 4 } else { 12 };
    let progress = Progress::new(2 * sizes.len() * rounds);
    let mut rows = Vec::new();
    for (nth, &size) in sizes.iter().enumerate() {
        rows.extend(of_size(bench, &progress, 2 * nth * rounds, size, rounds)?);
    }
    rows.extend(throughput(bench, quick)?);
    let of = OWN.repeats(Task::T7, Figure::Lines);
    rows.extend(lines("redis-rdb").map(|lines| number("lines of the port", "lines", lines, of)));
    progress.finish();
    bench.note(
        "1 % of the memory: keys that lie together, just before the save. 1 % of the keys: at random, in the"
            .to_owned(),
    );
    bench.note(format!(
        "{} s before the save: some 7 % of the memory. Of the rivals each save is a fork",
        SPREAD.as_secs()
    ));
    bench.note("blocked: latest_fork_usec of INFO, the fork or the call in its place".to_owned());
    Ok(rows)
}

/// Megabytes of heap under the load of Figure 12.
const LOADED_MB: usize = 100;

/// Throughput while Redis saves again and again: 95 % reads, 5 % writes.
fn throughput(bench: &mut Bench, quick: bool) -> Result<Vec<Row>, Failure> {
    let (rounds, time) = if quick { (3, Duration::from_secs(2)) } else { (12, Duration::from_secs(5)) };
    let keys = (LOADED_MB << 20) / PER_KEY;
    let servers = [server(true, keys)?, server(false, keys)?];
    for server in &servers {
        save(server, &mut Figures::default())?;
    }
    let snapshot_kib = 4.0 * servers[0].number("ORBIT.RDB INFO", "pages") as f64;
    let share = 100.0 * snapshot_kib / resident_kib(servers[0].pid()).max(1.0);
    let mut figures: [[Samples; 2]; 2] = Default::default();
    let (mut calls, mut shuffle) = (Samples::default(), Shuffle::new(11));
    for _ in 0..rounds {
        let mut order = [0, 1];
        shuffle.shuffle(&mut order);
        for nth in order {
            let server = &servers[nth];
            let count = || if nth == 0 { orbits_calls(server) } else { 0.0 };
            let (cpu, called, began) = (saving_cpu_us(server, nth == 0), count(), Instant::now());
            // One save in this time.
            let said = server.run("BGSAVE");
            let rate = ycsb::load(server, keys, VALUE, time)?;
            if !said.starts_with("Background saving started") || !server.wait_for_save() {
                return Err(Failure::text(format!("a save failed: {said}\n{}", server.log())));
            }
            let took = began.elapsed().as_secs_f64();
            figures[nth][0].add_figure(rate);
            figures[nth][1].add_figure((saving_cpu_us(server, nth == 0) - cpu) / (rate * time.as_secs_f64()).max(1.0));
            if nth == 0 {
                calls.add_figure((count() - called) / took);
            }
        }
    }
    let [ours, fork] = figures.map(|of| of.map(|samples| samples.summary()));
    let part = |nth: usize| ratio(median(ours[nth]), median(fork[nth]));
    let reach = [
        Reach::at_least("background save: throughput meanwhile, of a fork's", part(0), 0.95, "times"),
        Reach::at_most("background save: CPU time a request with its save, of a fork's", part(1), 1.05, "times"),
    ];
    let of = |figure| Own::new("redis-rdb", ycsb::CLIENTS).repeats(Task::T7, figure);
    let rows = vec![
        row(
            "throughput while it saves",
            "requests/s",
            ours[0],
            &[("fork", fork[0])],
            &reach[..1],
            of(Figure::Throughput),
        ),
        row(
            "CPU time a request, with the save's",
            "us",
            ours[1],
            &[("fork", fork[1])],
            &reach[1..],
            of(Figure::CpuTime),
        ),
        row("calls, saves and pages ahead", "calls/s", calls.summary(), &[], &[], of(Figure::Calls)),
        number("snapshot of the first save", "KiB", snapshot_kib, of(Figure::SnapshotSize)),
        number("snapshot of the first save, share of memory", "%", share, of(Figure::SnapshotShare)),
    ];
    bench.reach(reach);
    Ok(rows)
}

/// Saves, and calls that send pages ahead, so far.
fn orbits_calls(server: &Server) -> f64 {
    (server.number("ORBIT.RDB INFO", "saves") + server.number("ORBIT.RDB INFO", "syncs")) as f64
}

/// CPU time so far of Redis with the process that saves, microseconds: of children that Redis has
/// reaped too.
fn saving_cpu_us(server: &Server, has_orbit: bool) -> f64 {
    if has_orbit {
        return cpu_us(server.pid()) + cpu_us(server.number("ORBIT.RDB INFO", "orbit_pid") as i32);
    }
    orbit_apps::own_cpu(server.pid()) * 1e6
}

/// A server that holds so many keys.
fn server(orbit: bool, keys: usize) -> Result<Server, Failure> {
    let server = if orbit { Server::start(&[]) } else { Server::start_stock(&[]) };
    let server = server.ok_or_else(|| Failure::text("Redis 7.0 is missing: scripts/packages.sh bench"))?;
    let said = server.run(&format!("DEBUG POPULATE {keys} key {VALUE}"));
    if said == "OK" { Ok(server) } else { Err(Failure::text(format!("DEBUG POPULATE: {said}"))) }
}

/// Figures of one way to save, microseconds.
#[derive(Default)]
struct Figures {
    held_up: Samples,
    /// CPU time of Redis' main thread, from the command until its answer.
    cpu: Samples,
    /// Of single requests while a save runs.
    latency: Samples,
    /// The longest of each save.
    longest: Samples,
}

/// Figures of both ways, in turn, for what is written between two saves.
fn of_size(
    bench: &mut Bench,
    progress: &Progress,
    done: usize,
    size: usize,
    rounds: usize,
) -> Result<Vec<Row>, Failure> {
    let keys = (size << 20) / PER_KEY;
    let servers = [server(true, keys)?, server(false, keys)?];
    let mut shuffle = Shuffle::new(3);
    // The first hands over everything, the second is the first that does not.
    for server in &servers {
        for _ in 0..2 {
            save(server, &mut Figures::default())?;
        }
    }
    let mut rows = Vec::new();
    for (nth, written) in [Written::Memory, Written::Keys].into_iter().enumerate() {
        let mut figures = [Figures::default(), Figures::default()];
        let (mut pages, mut ahead) = (Samples::default(), Samples::default());
        for round in 0..rounds {
            progress.at(done + nth * rounds + round, &format!("{size} MB"));
            let mut order = [0, 1];
            shuffle.shuffle(&mut order);
            let first = shuffle.below(keys - keys / 100);
            let chosen: Vec<usize> = (0..keys / 100)
                .map(|nth| if written == Written::Memory { first + nth } else { shuffle.below(keys) })
                .collect();
            for nth in order {
                let before = (nth == 0).then(|| servers[0].number("ORBIT.RDB INFO", "sync_usec"));
                let began = Instant::now();
                write(&servers[nth], &chosen, round, written)?;
                if let Some(before) = before {
                    let us = servers[0].number("ORBIT.RDB INFO", "sync_usec") - before;
                    ahead.add_figure(us as f64 / began.elapsed().as_secs_f64() / 1e4);
                }
                save(&servers[nth], &mut figures[nth])?;
            }
            pages.add_figure(servers[0].number("ORBIT.RDB INFO", "pages") as f64);
        }
        let what = format!("{size} MB, {}", written.text());
        rows.extend(rows_of(bench, &what, figures));
        rows.push(row(&format!("pages sent at a save, {what}"), "pages", pages.summary(), &[], &[], OWN));
        rows.push(row(
            &format!("main thread's time for pages sent ahead, {what}"),
            "%",
            ahead.summary(),
            &[],
            &[],
            OWN,
        ));
    }
    Ok(rows)
}

fn rows_of(bench: &mut Bench, what: &str, [ours, fork]: [Figures; 2]) -> Vec<Row> {
    let of = |f: &Figures| [&f.held_up, &f.cpu, &f.latency, &f.longest].map(Samples::summary);
    let [held, cpu, latency, longest] = of(&ours);
    let [held_fork, cpu_fork, latency_fork, longest_fork] = of(&fork);
    let part = ratio(median(cpu), median(cpu_fork));
    let bounds = [Reach::at_most(format!("main thread's CPU time for a save, {what}, of a fork"), part, 0.1, "times")];
    let rows = vec![
        row(&format!("Redis blocked by a save, {what}"), "us", held, &[("fork", held_fork)], &[], OWN),
        row(&format!("main thread's CPU time for a save, {what}"), "us", cpu, &[("fork", cpu_fork)], &bounds, OWN),
        row(&format!("a request while it saves, {what}"), "us", latency, &[("fork", latency_fork)], &[], OWN),
        row(&format!("longest request of a save, {what}"), "us", longest, &[("fork", longest_fork)], &[], OWN),
    ];
    bench.reach(bounds);
    rows
}

/// Writes these keys anew, in batches; those at random evenly over [`SPREAD`].
fn write(server: &Server, keys: &[usize], round: usize, written: Written) -> Result<(), Failure> {
    let mut client = server.connect();
    let value = format!("{round:0VALUE$}");
    let (began, batches) = (Instant::now(), keys.len().div_ceil(20).max(1) as u32);
    for (nth, batch) in keys.chunks(20).enumerate() {
        for key in batch {
            client.send(&["SET", &format!("key:{key}"), &value])?;
        }
        for _ in batch {
            client.answer()?;
        }
        if written == Written::Keys {
            let due = began + SPREAD * (nth as u32 + 1) / batches;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
    Ok(())
}

/// One background save, with a client that reads and writes meanwhile.
fn save(server: &Server, figures: &mut Figures) -> Result<(), Failure> {
    let stop = AtomicBool::new(false);
    let good = std::thread::scope(|scope| -> Result<bool, Failure> {
        let client = scope.spawn(|| requests(server, &stop));
        let mut starter = server.connect();
        let before = main_thread_cpu(server)?;
        let said = starter.run(&["BGSAVE"])?;
        figures.cpu.add_figure(main_thread_cpu(server)? - before);
        let good = said.starts_with("Background saving started") && server.wait_for_save();
        stop.store(true, Ordering::Relaxed);
        let times = client.join().map_err(|_| Failure::text("a client's thread ended"))??;
        let longest = times.iter().copied().fold(0.0, f64::max);
        figures.latency.extend(&times);
        figures.longest.add_figure(longest);
        Ok(good)
    })?;
    if !good {
        return Err(Failure::text(format!("a save failed:\n{}", server.log())));
    }
    figures.held_up.add_figure(server.number("INFO stats", "latest_fork_usec") as f64);
    Ok(())
}

/// CPU time of Redis' main thread so far, microseconds.
fn main_thread_cpu(server: &Server) -> Result<f64, Failure> {
    let pid = server.pid();
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat"))?;
    let ns: f64 = text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0);
    Ok(ns / 1e3)
}

/// Requests one after the other, some thousand a second; what each took, microseconds.
fn requests(server: &Server, stop: &AtomicBool) -> Result<Vec<f64>, Failure> {
    let mut client: Connection = server.connect();
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        client.run(&["SET", &format!("own:{}", times.len() % 100), "value"])?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
        std::thread::sleep(Duration::from_micros(300));
    }
    Ok(times)
}
