//! Recordings: one [`Record`] a line, read back and judged without any process.
//!
//! Owns: reading (plain or gzip), the writer for `--record`, [`replay`], and [`events`]. Promises:
//! a line that is cut off at the end is left out; any other line that is no record is an error with
//! its number. Bounded: at most `MAX_RECORDING_BYTES` bytes unpacked.

use crate::event::Event;
use crate::explain;
use crate::facts::{Facts, Record};
use crate::history::History;
use crate::judge::{Verdict, judge};
use crate::limits::Limits;
use crate::report::{News, Reports};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Most bytes of a recording, unpacked: an hour of a hundred restless threads.
const MAX_RECORDING_BYTES: u64 = 1 << 30;

/// Reads a recording.
///
/// # Errors
/// Those of the file; `InvalidData` with the line's number where one is no record.
pub fn read(path: &Path) -> io::Result<Vec<Record>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_RECORDING_BYTES).read_to_end(&mut bytes)?;
    let mut text = Vec::new();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        flate2::read::GzDecoder::new(&bytes[..]).take(MAX_RECORDING_BYTES).read_to_end(&mut text)?;
    } else {
        text = bytes;
    }
    let whole = text.iter().rposition(|b| *b == b'\n').map_or(0, |last| last + 1);
    let lines = text[..whole].split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines
        .map(|(i, line)| {
            serde_json::from_slice(line).map_err(|e| {
                let what = format!("line {} is not one that `orbit watch --record` writes: {e}", i + 1);
                io::Error::new(io::ErrorKind::InvalidData, what)
            })
        })
        .collect()
}

/// Writes a recording, a line at a time; each scan is on disk when the next begins.
#[derive(Debug)]
pub struct Writer(BufWriter<File>);

impl Writer {
    /// Creates the file, for its owner alone, or empties it.
    ///
    /// # Errors
    /// Those of the file.
    pub fn create(path: &Path) -> io::Result<Writer> {
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Writer(BufWriter::new(file)))
    }

    /// Appends a record.
    ///
    /// # Errors
    /// Those of the file.
    pub fn put(&mut self, record: &Record) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, record)?;
        self.0.write_all(b"\n")?;
        if matches!(record, Record::Tick { .. } | Record::End { .. }) { self.0.flush() } else { Ok(()) }
    }
}

/// Facts and history of a recording up to some record: what live watching keeps as well.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    /// The facts.
    pub facts: Facts,
    /// The history.
    pub history: History,
}

impl Scene {
    /// Takes a record; at the end of a scan it answers what the rules find.
    pub fn take(&mut self, record: &Record, limits: &Limits) -> Vec<Verdict> {
        self.history.take(&mut self.facts, record);
        if matches!(record, Record::Tick { .. }) { judge(&self.facts, &self.history, limits) } else { Vec::new() }
    }
}

/// Judges a recording, and hands over each scan's verdicts with its time.
pub fn replay(records: &[Record], limits: &Limits, each: &mut dyn FnMut(&Scene, Vec<Verdict>)) {
    let mut scene = Scene::default();
    for record in records {
        let verdicts = scene.take(record, limits);
        if matches!(record, Record::Tick { .. }) {
            each(&scene, verdicts);
        }
    }
}

/// Judges a recording, and hands over what live watching would have reported, without stacks, with
/// the time of each, s.
pub fn events(records: &[Record], limits: &Limits, each: &mut dyn FnMut(f64, Event)) {
    let (mut scene, mut reports) = (Scene::default(), Reports::default());
    for record in records {
        if let Record::Thread(sight) = record
            && sight.exec != 0
        {
            reports.forget(sight.p);
        }
        let verdicts = scene.take(record, limits);
        if !matches!(record, Record::Tick { .. }) {
            continue;
        }
        let Scene { facts, history } = &scene;
        for news in reports.take(verdicts, facts) {
            let event = match news {
                News::Hang { verdict, before } => Some(explain::without_stacks(&verdict, before, (facts, history))),
                News::Over { verdict, after } => explain::over(&verdict, after, (facts, history)),
            };
            event.into_iter().for_each(|event| each(facts.now, event));
        }
    }
}
