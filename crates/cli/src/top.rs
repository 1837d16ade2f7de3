//! `orbit top`: the orbits of running programs on a screen that follows them.
//!
//! The terminal is put back as it was however this ends: by a key, an error, a panic, or a signal;
//! see `terminal`.

use crate::ps;
use crate::terminal::Taken;
use crate::view::{OrbitView, ProgramView, Sample};
use anstyle::Style;
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::{cursor, queue, style, terminal};
use orbit_console::out::{Done, FAINT, Failure, HEAD};
use orbit_keep::board::Row;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Follows the orbits of running programs, and programs under `orbit keep`, on the screen; with
/// --once prints them and ends.
///
/// Keys: q ends, space stands still, + and - change the interval, p c n x m l sort by program,
/// calls per second, snapshot pages, crashes, memory, latency; arrows scroll.
#[derive(clap::Args)]
pub struct Args {
    /// Prints once, and ends.
    #[arg(long)]
    once: bool,
    /// Prints JSON; with --once.
    #[arg(long, requires = "once")]
    json: bool,
    /// Only the program with this process number.
    #[arg(long, short, value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Time between two samples, milliseconds.
    #[arg(long, short, default_value_t = 1000, value_name = "MS")]
    #[arg(value_parser = clap::value_parser!(u64).range(50..=3_600_000))]
    interval: u64,
}

/// What the orbits are sorted by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Program,
    Calls,
    Pages,
    Crashes,
    Memory,
    Latency,
}

impl Order {
    fn of_key(key: char) -> Option<Order> {
        Some(match key {
            'p' => Order::Program,
            'c' => Order::Calls,
            'n' => Order::Pages,
            'x' => Order::Crashes,
            'm' => Order::Memory,
            'l' => Order::Latency,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Order::Program => "program",
            Order::Calls => "calls/s",
            Order::Pages => "pages/call",
            Order::Crashes => "crashes",
            Order::Memory => "memory",
            Order::Latency => "p99",
        }
    }

    /// The larger, the further up.
    fn weight(self, orbit: &OrbitView) -> f64 {
        match self {
            Order::Program => 0.0,
            Order::Calls => orbit.calls_per_s,
            Order::Pages => orbit.pages_per_call,
            Order::Crashes => orbit.crashes as f64,
            Order::Memory => orbit.memory_bytes as f64,
            Order::Latency => orbit.p99_us.unwrap_or(0.0),
        }
    }
}

pub fn run(args: &Args) -> Done {
    let interval = Duration::from_millis(args.interval);
    if args.once {
        return ps::print(&ps::sample(args.pid, interval), args.pid, args.json);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::text("top needs a terminal; for scripts there is `orbit top --once --json`"));
    }
    Screen::open(args.pid, interval)?.follow()?;
    Ok(ExitCode::SUCCESS)
}

/// What the screen shows.
struct Screen {
    _terminal: Taken,
    pid: Option<i32>,
    interval: Duration,
    order: Order,
    still: bool,
    scroll: usize,
    /// The sample before the one shown, and that one.
    before: Sample,
    programs: Vec<ProgramView>,
    /// Programs under `orbit keep`.
    kept: Vec<Row>,
}

impl Screen {
    fn open(pid: Option<i32>, interval: Duration) -> Result<Screen, Failure> {
        Ok(Screen {
            _terminal: Taken::take()?,
            pid,
            interval,
            order: Order::Program,
            still: false,
            scroll: 0,
            before: Sample::now(pid),
            programs: vec![],
            kept: kept(pid),
        })
    }

    fn follow(&mut self) -> Result<(), Failure> {
        // The first rates after a short time.
        let mut next = Instant::now() + self.interval.min(Duration::from_millis(200));
        self.programs = self.before.since(None);
        self.draw()?;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if event::poll(left)? {
                if !self.answer(&event::read()?) {
                    return Ok(());
                }
                self.draw()?;
            }
            if Instant::now() >= next {
                next = Instant::now() + self.interval;
                if !self.still {
                    let sample = Sample::now(self.pid);
                    self.programs = sample.since(Some(&self.before));
                    self.before = sample;
                    self.kept = kept(self.pid);
                    self.draw()?;
                }
            }
        }
    }

    /// Does what a key says; false at the end.
    fn answer(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return true };
        if key.kind == KeyEventKind::Release {
            return true;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char(' ') => self.still = !self.still,
            KeyCode::Char('+') => self.interval = (self.interval * 2).min(Duration::from_secs(60)),
            KeyCode::Char('-') => self.interval = (self.interval / 2).max(Duration::from_millis(50)),
            KeyCode::Char(key) => self.order = Order::of_key(key).unwrap_or(self.order),
            KeyCode::Down => self.scroll += 1,
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll += 10,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(10),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        true
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let (_, height) = terminal::size()?;
        let rows = usize::from(height).saturating_sub(3);
        let table = ps::table(&self.sorted()).lines();
        let count = table.len() - 1;
        self.scroll = self.scroll.min(count.saturating_sub(1));
        let running: usize = self.programs.iter().flat_map(|p| &p.orbits).filter(|o| o.state == "running").count();
        let down = self.programs.iter().flat_map(|p| &p.orbits).filter(|o| o.state == "down").count();
        let state = if self.still { ", standing still" } else { "" };
        let title = format!(
            "{HEAD}orbit top{HEAD:#}  {} programs, {count} orbits, {running} running, {down} down; every {:?}, by \
             {}{state}",
            self.programs.len(),
            self.interval,
            self.order.name(),
        );
        let reverse = Style::new().invert();
        let mut lines = vec![title, format!("{reverse}{}{reverse:#}", plain(&table[0]))];
        if count == 0 {
            lines.push("No running program of this user has orbits.".to_owned());
        }
        let kept = if self.kept.is_empty() { Vec::new() } else { orbit_keep::table(&self.kept).lines() };
        // Kept programs below, as far as there is room for both.
        let below = (kept.len() + 1).min(rows / 2);
        let orbits = if kept.is_empty() { rows } else { rows - below };
        lines.extend(table.into_iter().skip(1 + self.scroll).take(orbits));
        if !kept.is_empty() {
            lines.push(String::new());
            lines.extend(kept.into_iter().take(below.saturating_sub(1)));
        }
        let mut to = io::stdout().lock();
        queue!(to, terminal::BeginSynchronizedUpdate, cursor::MoveTo(0, 0))?;
        for line in &lines {
            queue!(
                to,
                style::Print(line),
                terminal::Clear(terminal::ClearType::UntilNewLine),
                cursor::MoveToNextLine(1)
            )?;
        }
        queue!(to, terminal::Clear(terminal::ClearType::FromCursorDown), cursor::MoveTo(0, height.saturating_sub(1)))?;
        let keys =
            "q quit  space stand still  +/- interval  sort: p program c calls n pages x crashes m memory l latency";
        queue!(to, style::Print(format!("{FAINT}{keys}{FAINT:#}")), terminal::EndSynchronizedUpdate)?;
        to.flush()?;
        Ok(())
    }

    /// The programs as shown: in their own order, or one orbit each where orbits are sorted.
    fn sorted(&self) -> Vec<ProgramView> {
        if self.order == Order::Program {
            return self.programs.clone();
        }
        let single = |program: &ProgramView, orbit: &OrbitView| ProgramView {
            orbits: vec![orbit.clone()],
            ..ProgramView { orbits: Vec::new(), ..program.clone() }
        };
        let mut rows: Vec<_> = self.programs.iter().flat_map(|p| p.orbits.iter().map(move |o| single(p, o))).collect();
        rows.sort_by(|a, b| self.order.weight(&b.orbits[0]).total_cmp(&self.order.weight(&a.orbits[0])));
        rows
    }
}

/// The programs under `orbit keep`: all, or the one of this number.
fn kept(pid: Option<i32>) -> Vec<Row> {
    let rows = orbit_keep::board::all().known.into_iter().flat_map(|(_, rows)| rows);
    rows.filter(|row| pid.is_none_or(|pid| row.pid == pid)).collect()
}

/// A line without its colours.
fn plain(line: &str) -> String {
    anstream::adapter::strip_str(line).to_string()
}
