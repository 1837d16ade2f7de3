//! Crashes of a kept server without end, while clients check each answer: which ones saw an error,
//! and how long nobody was answered.

use super::hung;
use orbit_testing::Random;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of the server's data that are zeroed.
const RUINED: u64 = 64 << 10;
/// How long a crash may take to show after data was zeroed; then it has done no harm that shows.
const EFFECT: Duration = Duration::from_millis(300);
/// How long nobody may be answered before the server counts as hung, on a loaded machine too.
const HANG: Duration = Duration::from_secs(10);
/// How long a recovery may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One connection of a checking client.
pub trait Client: Send {
    /// Asks once and checks the answer. `Err` names what was wrong; the connection is given up
    /// then.
    fn ask(&mut self) -> Result<(), String>;
}

/// A kept server.
pub trait Server: Sync {
    /// The process whose memory is zeroed.
    fn pid(&self) -> i32;
    /// A new connection of client `nth`.
    fn connect(&self, nth: usize) -> Option<Box<dyn Client + '_>>;
    /// Sends a request that kills the server, and does not wait.
    fn poison(&self) -> Box<dyn std::any::Any>;
    /// The file with the keeper's events.
    fn events(&self) -> &Path;
    /// Whether it was given up, and nothing starts another one.
    fn has_ended(&self) -> bool {
        false
    }
}

/// How the server is made to crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By a request.
    Poison,
    /// By 64 KiB of its data that are zeroed.
    Zeroed,
    /// By a signal from outside, at any moment: also in the middle of a call.
    Killed,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    pub crashes: usize,
    /// Of these, zeroed data after which no crash came soon. It may come at any time later.
    pub without_effect: usize,
    pub good: u64,
    /// That clients saw.
    pub errors: Vec<String>,
    /// Of the keeper: inputs that it dropped beyond the poison, replays that differed, and
    /// connections closed for it.
    pub reported: u64,
    /// Ruined programs that did not crash but answered nobody any more, and were put back by an
    /// order, as `orbit watch --on-hang recover` gives it.
    pub hangs: u64,
    /// In ms, from each crash on: the longest time in which no client was answered.
    pub gaps: Vec<f64>,
}

impl Outcome {
    /// The gap that the share `q` of the crashes did not exceed.
    pub fn gap(&self, q: f64) -> f64 {
        let mut gaps = self.gaps.clone();
        gaps.sort_by(f64::total_cmp);
        gaps.get(((gaps.len() as f64 * q) as usize).min(gaps.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "{} crashes ({} without effect, {} hangs), {} good answers, {} errors, {} reported, gap p50 {:.1} ms p99 \
             {:.1} ms",
            self.crashes,
            self.without_effect,
            self.hangs,
            self.good,
            self.errors.len(),
            self.reported,
            self.gap(0.5),
            self.gap(0.99)
        );
        for error in self.errors.iter().take(5) {
            let _ = write!(text, "\n  {error}");
        }
        text
    }
}

struct State {
    since: Instant,
    stop: AtomicBool,
    good: AtomicU64,
    last_good: AtomicU64,
    gap: AtomicU64,
    errors: Mutex<Vec<String>>,
}

impl State {
    fn now(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }

    fn answered(&self) {
        let now = self.now();
        let before = self.last_good.swap(now, SeqCst);
        self.gap.fetch_max(now.saturating_sub(before), SeqCst);
        self.good.fetch_add(1, SeqCst);
    }

    fn client(&self, server: &dyn Server, nth: usize) {
        while !self.stop.load(SeqCst) {
            let Some(mut client) = server.connect(nth) else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            while !self.stop.load(SeqCst) {
                match client.ask() {
                    Ok(()) => self.answered(),
                    Err(error) => {
                        let at = self.since.elapsed().as_secs_f64();
                        self.errors.lock().expect("no panic").push(format!("client {nth} at {at:.3} s: {error}"));
                        break;
                    }
                }
            }
        }
    }

    /// Waits until some answers have come. If none comes for long, records what explains it; of a
    /// program that was ruined from outside, orders its keeper to put it back, which `orbit watch`
    /// would. Returns how often.
    fn goes_on(&self, more: u64, server: &dyn Server, is_ruined: bool) -> u64 {
        let (at, end) = (self.good.load(SeqCst), Instant::now() + PATIENCE);
        let (mut last, mut since, mut orders) = (at, Instant::now(), 0);
        while self.good.load(SeqCst) < at + more {
            let good = self.good.load(SeqCst);
            if good != last {
                (last, since) = (good, Instant::now());
            }
            if is_ruined && server.has_ended() {
                break;
            }
            if since.elapsed() > HANG {
                let pid = server.pid();
                println!("{}", hung::record(pid, server.events()));
                assert!(is_ruined, "no client is answered any more");
                let said = orbit_keep::recover(pid, pid, "no client is answered any more");
                println!("ordered to put it back: {said:?}");
                (since, orders) = (Instant::now(), orders + 1);
            }
            assert!(Instant::now() < end, "no client is answered any more");
            thread::sleep(Duration::from_millis(1));
        }
        orders
    }
}

/// Zeroes 64 KiB of the program's own data.
fn zero(pid: i32, random: &mut Random) {
    use orbit_linux::{maps, remote};
    let Ok(of) = maps::of(pid) else { return };
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let program = program.to_string_lossy();
    let Some(first) = of.iter().position(|e| e.name == program && e.protection & libc::PROT_WRITE != 0) else { return };
    // With what follows it without a gap: memory that is 0 at the start.
    let mut end = of[first].end;
    for entry in of[first + 1..].iter().take_while(|e| e.name.is_empty() || e.name == program) {
        if entry.start == end && entry.protection & libc::PROT_WRITE != 0 {
            end = entry.end;
        }
    }
    let (start, length) = (of[first].start, end - of[first].start);
    let ruined = RUINED.min(length);
    let at = start + random.below((length - ruined) / 8 + 1) * 8;
    let _ = remote::write(pid, at, &vec![0u8; ruined as usize]);
}

/// Counts the ends of replays, reading only what was added to the file.
struct Replays<'e> {
    events: &'e Path,
    at: u64,
    count: u64,
}

impl Replays<'_> {
    fn count(&mut self) -> u64 {
        use std::io::{Read, Seek, SeekFrom};
        let mut text = String::new();
        if let Ok(mut file) = std::fs::File::open(self.events) {
            let _ = file.seek(SeekFrom::Start(self.at)).and_then(|_| file.read_to_string(&mut text));
        }
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.at += whole as u64;
        self.count += text[..whole].lines().filter(|line| line.contains("\"event\":\"recovered\"")).count() as u64;
        self.count
    }
}

/// What so many clients may have seen: each is an event of the keeper. A process that is given up
/// ends the connections that it holds, of each client at most.
fn reported(events: &Path, clients: usize) -> u64 {
    let text = std::fs::read_to_string(events).unwrap_or_default();
    let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    events
        .map(|e| orbit_testing::described("keep-events", e))
        .map(|e| match e["event"].as_str() {
            Some("recovered") if e["rung"] == "drop" => 1,
            Some("recovered") => e["reset"].as_array().map_or(0, Vec::len) as u64,
            Some("gave-up") => clients as u64,
            _ => 0,
        })
        .sum()
}

/// Crashes the server `crashes` times while `clients` ask.
pub fn run(server: &dyn Server, kind: Kind, crashes: usize, clients: usize, mut random: Random) -> Outcome {
    let state = State {
        since: Instant::now(),
        stop: AtomicBool::new(false),
        good: AtomicU64::new(0),
        last_good: AtomicU64::new(0),
        gap: AtomicU64::new(0),
        errors: Mutex::default(),
    };
    let mut outcome = Outcome::default();
    let mut replays = Replays { events: server.events(), at: 0, count: 0 };
    thread::scope(|scope| {
        for nth in 0..clients {
            let state = &state;
            scope.spawn(move || state.client(server, nth));
        }
        let driver = thread::Builder::new().spawn_scoped(scope, || {
            for nth in 0..crashes {
                outcome.hangs += state.goes_on(20, server, kind == Kind::Zeroed);
                if server.has_ended() {
                    break;
                }
                thread::sleep(Duration::from_millis(random.below(100)));
                let before = replays.count();
                state.gap.store(0, SeqCst);
                let since = Instant::now();
                let poison = match kind {
                    Kind::Poison => Some(server.poison()),
                    Kind::Zeroed => {
                        zero(server.pid(), &mut random);
                        None
                    }
                    Kind::Killed => {
                        // SAFETY: a process of our own server, which is kept and so does not end by
                        // it.
                        unsafe { libc::kill(server.pid(), libc::SIGSEGV) };
                        None
                    }
                };
                outcome.crashes += 1;
                let mut has_effect = true;
                while replays.count() == before {
                    if kind == Kind::Zeroed && since.elapsed() > EFFECT {
                        has_effect = false;
                        break;
                    }
                    if since.elapsed() > PATIENCE {
                        println!("{}", hung::record(server.pid(), server.events()));
                        panic!("crash {nth} is not recovered from");
                    }
                    thread::sleep(Duration::from_millis(2));
                }
                outcome.hangs += state.goes_on(20, server, kind == Kind::Zeroed);
                drop(poison);
                if has_effect {
                    outcome.gaps.push(state.gap.load(SeqCst) as f64 / 1e6);
                } else {
                    outcome.without_effect += 1;
                }
            }
        });
        let driven = driver.expect("a thread").join();
        state.stop.store(true, SeqCst);
        driven.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    outcome.good = state.good.load(SeqCst);
    outcome.errors = state.errors.into_inner().expect("no panic");
    // Each poison is dropped once.
    let poison = if kind == Kind::Poison { outcome.crashes as u64 } else { 0 };
    outcome.reported = reported(server.events(), clients).saturating_sub(poison);
    outcome
}
