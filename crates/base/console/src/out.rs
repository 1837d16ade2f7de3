//! What a command writes: failures, exit status, tables, colours.
//!
//! Colour only on terminals, and never with `NO_COLOR` (`anstream` decides). When the reader has
//! closed the pipe, as in `orbit ps | head -1`, the command exits with 0: writes return an error
//! and nothing panics.

use anstyle::{AnsiColor, Style};
use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Reading or writing failed.
    Io(io::Error),
    /// Anything else, as a sentence with the way out.
    Text(String),
}

/// The result of a command.
pub type Done = Result<ExitCode, Failure>;

impl Failure {
    /// A failure with this sentence.
    pub fn text(sentence: impl Into<String>) -> Failure {
        Failure::Text(sentence.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Io(error) => f.write_str(&without_error_numbers(&error.to_string())),
            Failure::Text(sentence) => f.write_str(&without_error_numbers(sentence)),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl From<orbit::Error> for Failure {
    fn from(error: orbit::Error) -> Failure {
        Failure::Text(error.to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        // An error of writing keeps its kind, so that a closed pipe is known as one.
        Failure::Io(error.into())
    }
}

/// The exit status of a command; says what failed on stderr.
pub fn exit_code(done: Done) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            let bold = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
            // There is no other place to report it if stderr is closed too.
            let _ = writeln!(anstream::stderr(), "{bold}orbit:{bold:#} {failure}");
            ExitCode::FAILURE
        }
    }
}

/// The text without what `std::io::Error` adds to the kernel's sentence: ` (os error 2)`.
fn without_error_numbers(text: &str) -> String {
    const BEGIN: &str = " (os error ";
    let mut parts = text.split(BEGIN);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => plain.push_str(rest),
            _ => plain.extend([BEGIN, part]),
        }
    }
    plain
}

/// Writes a value as indented JSON, with a line end.
pub fn json(to: &mut impl Write, value: &impl serde::Serialize) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut *to, value)?;
    writeln!(to)?;
    to.flush()?;
    Ok(())
}

/// Writes text for people to stderr, in colour on a terminal, without the numbers of the kernel's
/// errors. Blocks until all of it is written.
pub fn say(text: impl FnOnce(&mut anstream::AutoStream<Vec<u8>>) -> io::Result<()>) -> io::Result<()> {
    let mut stderr = io::stderr();
    let mut styled = anstream::AutoStream::new(Vec::new(), anstream::AutoStream::choice(&stderr));
    text(&mut styled)?;
    let styled = styled.into_inner();
    let plain = std::str::from_utf8(&styled).map(without_error_numbers);
    let mut left = plain.as_ref().map_or(&styled[..], |text| text.as_bytes());
    while !left.is_empty() {
        left = &left[some(&mut stderr, left)?..];
    }
    Ok(())
}

/// Writes at least one byte and returns how many. Blocks until there is room, even if the
/// descriptor is non-blocking: another process that shares it may have made it so.
pub fn some(to: &mut (impl Write + AsFd), bytes: &[u8]) -> io::Result<usize> {
    loop {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let fd = to.as_fd().as_raw_fd();
                orbit_linux::poll::poll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], None)?;
            }
            written => return written,
        }
    }
}

/// Good news.
pub const GOOD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
/// A warning.
pub const WARN: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
/// Bad news.
pub const BAD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));
/// Headings.
pub const HEAD: Style = Style::new().bold();
/// Asides.
pub const FAINT: Style = Style::new().dimmed();
/// Nothing special.
pub const PLAIN: Style = Style::new();

/// A table: columns as wide as their longest cell, numbers to the right.
pub struct Table {
    head: Vec<(&'static str, Align)>,
    rows: Vec<Vec<(String, Style)>>,
}

/// How a cell is aligned in its column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// To the left: words.
    Left,
    /// To the right: numbers.
    Right,
}

impl Table {
    /// An empty table with these columns.
    pub fn new(head: &[(&'static str, Align)]) -> Table {
        Table { head: head.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; cells beyond the columns are not shown.
    pub fn row(&mut self, cells: Vec<(String, Style)>) {
        self.rows.push(cells);
    }

    /// Its lines, coloured, without line ends; the heading is the first.
    pub fn lines(&self) -> Vec<String> {
        let widths: Vec<usize> = (0..self.head.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|(text, _)| text.chars().count());
                cells.chain([self.head[column].0.chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let line = |cells: &[(String, Style)]| {
            let mut line = String::new();
            for (column, (text, style)) in cells.iter().take(widths.len()).enumerate() {
                let pad = " ".repeat(widths[column] - text.chars().count());
                let gap = if column == 0 { "" } else { "  " };
                match self.head[column].1 {
                    Align::Left => line.push_str(&format!("{gap}{style}{text}{style:#}{pad}")),
                    Align::Right => line.push_str(&format!("{gap}{pad}{style}{text}{style:#}")),
                }
            }
            line.trim_end().to_owned()
        };
        let head: Vec<_> = self.head.iter().map(|(name, _)| ((*name).to_owned(), HEAD)).collect();
        std::iter::once(line(&head)).chain(self.rows.iter().map(|row| line(row))).collect()
    }

    /// Writes it.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        self.lines().iter().try_for_each(|line| writeln!(to, "{line}"))
    }
}

/// `512 B`, `64 KiB`, `1.5 MiB`.
pub fn bytes(count: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if count >> shift != 0 {
            let tenths = (u128::from(count) * 10) >> shift;
            return match (tenths / 10, tenths % 10) {
                (whole, rest) if whole >= 100 || rest == 0 => format!("{whole} {unit}"),
                (whole, rest) => format!("{whole}.{rest} {unit}"),
            };
        }
    }
    format!("{count} B")
}

/// A time in microseconds with three figures and its unit: `840 ns`, `4.71 us`, `12.3 ms`.
pub fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 1.0 => (us * 1e3, "ns"),
        us if us < 1e3 => (us, "us"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    format!("{} {unit}", figures(value))
}

/// A number with three figures: `0.47`, `4.71`, `47.1`, `471`.
pub fn figures(value: f64) -> String {
    match value.abs() {
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_kernel_are_sentences() {
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        let twice = format!("a: {missing}: b: {missing}");
        assert!(missing.to_string().contains("(os error 2)"));
        assert_eq!(Failure::Io(missing).to_string(), "No such file or directory");
        assert_eq!(Failure::text(twice).to_string(), "a: No such file or directory: b: No such file or directory");
        for other in ["f (os error x)", "f (os error 2", "f (2)", ""] {
            assert_eq!(Failure::text(other).to_string(), other);
        }
    }
}
