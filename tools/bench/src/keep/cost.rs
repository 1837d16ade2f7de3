//! What keeping costs gzip, without a log; with the paper's Table 8.

use super::super::stats::{Samples, Shuffle, median};
use super::super::{Bench, Progress};
use super::kept::{self, failed};
use super::{Own, Results, subject};
use orbit_console::out::Failure;
use orbit_linux::child::Exit;
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes that gzip compresses: some seconds of work.
const TEXT_BYTES: usize = 96 << 20;

/// A folder of this process, removed with it.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Result<Folder, Failure> {
        let path = std::env::temp_dir().join(format!("orbit-bench-{name}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether a program is installed; if not, the result says so.
pub fn has(program: &str, bench: &mut Bench) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|p| p.join(program).exists()));
    if !found {
        bench.note(format!("{program} is not installed: its rows are left out"));
    }
    found
}

/// How much longer `with` took than `without`, in percent, round by round.
pub fn more(with: &[f64], without: &[f64]) -> Samples {
    let mut samples = Samples::default();
    with.iter().zip(without).for_each(|(with, without)| samples.add_figure((with / without - 1.0) * 100.0));
    samples
}

/// Something like text: words of a small vocabulary.
fn text(path: &Path) -> Result<(), Failure> {
    let mut random = Shuffle::new(20);
    let mut text = Vec::with_capacity(TEXT_BYTES + 16);
    while text.len() < TEXT_BYTES {
        let word = random.below(5000).pow(2) % 9973;
        text.extend_from_slice(format!("{word:x} ").as_bytes());
    }
    fs::write(path, text)?;
    Ok(())
}

/// Seconds of a run.
fn timed(mut command: Command) -> Result<f64, Failure> {
    let since = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    match status.success() {
        true => Ok(since.elapsed().as_secs_f64()),
        false => Err(failed("gzip failed")),
    }
}

/// gzip at two intervals, and Table 8.
pub fn gzip(rounds: usize, results: &mut Results, bench: &mut Bench) -> Result<(), Failure> {
    if !has("gzip", bench) {
        return Ok(());
    }
    let folder = Folder::new("gzip")?;
    let input = folder.0.join("text");
    text(&input)?;
    let program: [OsString; 3] = ["gzip".into(), "-c".into(), input.into()];
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let progress = Progress::new(rounds * 3);
    for round in 0..rounds {
        for (nth, every) in [None, Some("2s"), Some("50ms")].into_iter().enumerate() {
            progress.at(round * 3 + nth, "gzip");
            let mut command = Command::new(crate::orbit_command()?);
            match every {
                None => command = Command::new("gzip"),
                Some(every) => drop(command.args(["keep", "--quiet", "--every", every, "--", "gzip"])),
            }
            command.args(&program[1..]);
            times[nth].push(timed(command)?);
        }
    }
    progress.finish();
    for (nth, every, limit) in [(1, "2 s", 0.5), (2, "50 ms", 5.0)] {
        let more = more(&times[nth], &times[0]).summary();
        results.add(&format!("cost for gzip, every {every}"), "%", more, &[], Some(limit), Own::default());
    }
    // Its output must not be taken for events.
    let mut quiet: Vec<OsString> = vec!["sh".into(), "-c".into(), "exec \"$@\" > /dev/null".into(), "sh".into()];
    quiet.extend(program);
    table_8("gzip", &quiet, json!({"n": 111, "p": 34, "overall_ms": 1.01, "dump_ms": 1.94}), results)?;
    let large = subject::command("write", 1024, 0, 9000)?;
    table_8("a program with 1 GiB", &large, json!({"n": 1426, "overall_ms": 1.29, "dump_ms": 15.08}), results)
}

/// A row of Table 8: what a checkpoint every two seconds costs, beside a dump of all memory. The
/// paper's large program is ns2.
fn table_8(
    name: &str,
    program: &[OsString],
    paper: serde_json::Value,
    results: &mut Results,
) -> Result<(), Failure> {
    let events = kept::events(&["--every", "1s"], program)?;
    match kept::of(&events) {
        Some(figures) => row_8(name, &figures, paper, results),
        None => Ok(()),
    }
}

/// The row of these figures.
pub fn row_8(
    name: &str,
    figures: &kept::Figures,
    paper: serde_json::Value,
    results: &mut Results,
) -> Result<(), Failure> {
    let written = figures.pages / figures.checkpoints;
    let first_write = first_write_us()?;
    let (mut ours, mut dump) = (Samples::default(), Samples::default());
    ours.add_figure((figures.pause_p50 + written * first_write) / 1e3);
    dump.add_figure(figures.pause_longest / 1e3);
    let columns = json!({
        "n": figures.held_bytes / 4096.0, "p": written, "c_ms": figures.pause_p50 / 1e3,
        "s_and_r_ms": first_write / 1e3, "paper": paper,
    });
    let own = Own { columns: Some(columns), ..Own::default() };
    let name = format!("Table 8: {name}, overhead of a checkpoint");
    results.add(&name, "ms", ours.summary(), &[("all memory", dump.summary())], None, own);
    Ok(())
}

/// What the first write to a page costs after a checkpoint, in us.
fn first_write_us() -> Result<f64, Failure> {
    const PAGES: usize = 4096;
    let memory = orbit_linux::map::Mapping::anonymous(PAGES * 4096, true)?;
    let uffd = orbit_linux::uffd::Uffd::open_wp_async()?;
    uffd.register_wp(memory.addr(), memory.len())?;
    let pagemap = orbit_linux::pagemap::Pagemap::own()?;
    let mut samples = Samples::default();
    for round in 0..5u8 {
        let end = memory.addr() + memory.len();
        pagemap.scan_written(memory.addr(), end, true, 0, &mut Vec::new())?;
        let since = Instant::now();
        for page in 0..PAGES {
            // SAFETY: within the live mapping, which is this function's own.
            unsafe { memory.as_ptr().add(page * 4096).write_volatile(round) };
        }
        samples.add_figure(since.elapsed().as_nanos() as f64 / 1e3 / PAGES as f64);
    }
    Ok(median(samples.summary()))
}

/// A server that was started for a measurement: asked to end, and waited for.
pub struct Server(pub Child);

impl Drop for Server {
    fn drop(&mut self) {
        // An own child that was not waited for yet.
        let _ = orbit_linux::signals::send(self.0.id() as i32, libc::SIGTERM);
        let end = Instant::now() + Duration::from_secs(20);
        while self.0.exited().ok().flatten().is_none() {
            if Instant::now() > end {
                let _ = self.0.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
