//! `orbit bench apps`: auxiliary tasks in real servers, beside the servers' own (sections 5.4 to
//! 5.6 of the paper).
//!
//! Servers are those of the distribution, started by the bench on unix sockets; the variants take
//! turns, round by round, in random order. Beside throughput stands CPU time, which a noisy machine
//! changes less.

mod apache;
mod leveldb;
mod lines;
mod mariadb;
mod nginx;
mod postgres;
mod redis_rdb;
mod table;
mod varnish;

use super::{Bench, Common};
use crate::plot::Chart;
use orbit_console::out::Done;

/// Measures auxiliary tasks in real servers against the servers' own.
///
/// Needs the servers' packages (scripts/packages.sh ports) and a checkout, since ports are built
/// from source. Some minutes.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// The server.
    #[arg(long, value_enum)]
    part: Part,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Part {
    /// PostgreSQL's deadlock detector.
    Postgres,
    /// MariaDB's deadlock detector.
    Mariadb,
    /// Apache's load balancer and lock watchdog.
    Apache,
    /// Redis' background save.
    RedisRdb,
    /// LevelDB's compaction.
    Leveldb,
    /// nginx' PUT.
    Nginx,
    /// Varnish' pool herder.
    Varnish,
}

pub fn run(args: &Args) -> Done {
    let mut bench = Bench::start("apps", &args.common)?;
    let (table, rows) = match args.part {
        Part::Postgres => postgres::run(&mut bench, args.common.quick)?,
        Part::Mariadb => mariadb::run(&mut bench, args.common.quick)?,
        Part::Apache => apache::run(&mut bench, args.common.quick)?,
        Part::Leveldb => leveldb::run(&mut bench, args.common.quick)?,
        Part::Varnish => varnish::run(&mut bench, args.common.quick)?,
        Part::Nginx => nginx::run(&mut bench, args.common.quick)?,
        Part::RedisRdb => redis_rdb::run(&mut bench, args.common.quick)?,
    };
    // Figures of different units: a table shows them, no chart does.
    let chart = Chart { title: "apps".to_owned(), x: String::new(), y: String::new(), series: Vec::new() };
    bench.finish(&args.common, &rows, &table, chart)
}
