//! `orbit bench apps`: auxiliary tasks in real servers, beside the servers' own (sections 5.4 to
//! 5.8 of the paper).
//!
//! Servers are those of the distribution, started by the bench on unix sockets; the variants take
//! turns, round by round, in random order. Beside throughput stands CPU time, which a noisy machine
//! changes less. Rows that repeat a figure of the paper name it.

mod apache;
mod leveldb;
mod lines;
mod mariadb;
mod nginx;
mod paper;
mod postgres;
mod redis;
mod redis_rdb;
mod sheet;
mod summary;
mod table;
mod turns;
mod varnish;
mod ycsb;

use super::{Bench, Common};
use clap::ValueEnum;
use orbit_console::out::{Done, Failure};
use sheet::Sheet;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;
use table::Rows;

/// Measures auxiliary tasks in real servers against the servers' own.
///
/// Needs the servers' packages (scripts/packages.sh ports bench) and a checkout, since ports are
/// built from source. Without --part all of them, which gives Figure 12 and Tables 4 and 6 of the
/// paper as a whole: a quarter of an hour with --quick.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// The server; without it, all of them.
    #[arg(long, value_enum)]
    part: Option<Part>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Part {
    /// PostgreSQL's deadlock detector.
    Postgres,
    /// MariaDB's deadlock detector.
    Mariadb,
    /// Apache's load balancer and lock watchdog.
    Apache,
    /// nginx' PUT.
    Nginx,
    /// Varnish' pool herder.
    Varnish,
    /// Redis' slow log.
    Redis,
    /// Redis' background save.
    RedisRdb,
    /// LevelDB's compaction.
    Leveldb,
}

impl Part {
    fn run(self, bench: &mut Bench, quick: bool) -> Result<Rows, Failure> {
        match self {
            Part::Postgres => postgres::run(bench, quick),
            Part::Mariadb => mariadb::run(bench, quick),
            Part::Apache => apache::run(bench, quick),
            Part::Nginx => nginx::run(bench, quick),
            Part::Varnish => varnish::run(bench, quick),
            Part::Redis => redis::run(bench, quick),
            Part::RedisRdb => redis_rdb::run(bench, quick),
            Part::Leveldb => leveldb::run(bench, quick),
        }
    }
}

/// Runs a part. One that panics, as where a server does not start in time, has failed: the others'
/// figures are not lost with it.
fn attempt(part: Part, bench: &mut Bench, quick: bool) -> Result<Rows, Failure> {
    let run = AssertUnwindSafe(|| part.run(bench, quick));
    catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Failure::text(text.unwrap_or_else(|| "it panicked".to_owned())))
    })
}

/// Says which part begins: all of them take long.
fn announce(nth: usize, count: usize, part: Part, began: Instant) {
    let name = part.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    // A terminal that is gone is no reason to stop measuring.
    let _ = writeln!(std::io::stderr(), "part {} of {count}, {name}; {minutes:.0} min so far", nth + 1);
}

pub fn run(args: &Args) -> Done {
    let mut bench = Bench::start("apps", &args.common)?;
    let mut rows = Rows::new();
    let mut is_whole = true;
    let parts = args.part.map_or_else(|| Part::value_variants().to_vec(), |part| vec![part]);
    let is_all = parts.len() > 1;
    let (count, began) = (parts.len(), Instant::now());
    for (nth, part) in parts.into_iter().enumerate() {
        if is_all {
            announce(nth, count, part, began);
        }
        match attempt(part, &mut bench, args.common.quick) {
            Ok(more) => rows.extend(more),
            // The others' figures are of use all the same.
            Err(failure) if is_all => {
                bench.note(format!("not measured: {part:?}: {failure}"));
                is_whole = false;
            }
            Err(failure) => return Err(failure),
        }
    }
    if is_all {
        rows.extend(summary::rows(&mut bench, &rows));
    }
    let (table, sheet) = (table::table(&rows), Sheet::of(&rows));
    let measured: Vec<_> = rows.into_iter().map(|row| row.measured).collect();
    let done = bench.finish(&args.common, &measured, &table, sheet)?;
    Ok(if is_whole { done } else { ExitCode::FAILURE })
}
