//! The guard's configuration file.
//!
//! Owns: reading `key = value` lines, a part of TOML: comments, bare keys, strings in double quotes
//! without escapes, numbers, booleans. Promises: a key that is not known, a value that is not
//! possible or a key given twice is an error with file, line, key and what would be right; only
//! `section` may be given several times. Refuses: tables, arrays, several values a line, a double
//! quote inside a string, text that is not UTF-8, more than 1 MiB. A byte order mark at the start
//! is skipped.

use super::action::OnHang;
use orbit_modules::hangs;
use orbit_named::Named;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a file may set.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub detection: hangs::Settings,
    /// How long one scan may take before the detector is taken for looping.
    pub deadline: Option<Duration>,
    pub on_hang: Option<OnHang>,
    /// With the place in the file, `FILE:LINE`.
    pub events: Option<(PathBuf, String)>,
}

/// Keys with what is right for each, in the order of the documentation.
const KEYS: [(&str, &str); 11] = [
    ("limit_ms", "a whole number from 100 to 3600000"),
    ("floor_ms", "a whole number from 50 to 3600000"),
    ("factor", "a number from 1 to 1000"),
    ("children", "true or false"),
    ("busy", "true or false"),
    ("blocked", "true or false"),
    ("section", "\"NAME=FUNCTION\", FUNCTION as in --section; may be given several times"),
    ("section_cost", "a number from 0 to 100, percent; 0 for no bound"),
    ("deadline_ms", "a whole number from 500 to 3600000"),
    (
        "on_hang",
        "\"report\", \"signal:SIG\", \"kill\", \"restart\" or \"exec:CMD\", perhaps with \"likely:\", \"guess:\" or \
         \"after=60s:\" before it",
    ),
    ("events", "a file name of at most 4095 bytes in double quotes, or \"-\" for stdout"),
];

/// Keys of earlier releases, with what to do about each.
const FORMER: [(&str, &str); 5] = [
    ("blocked_ms", "is limit_ms now"),
    ("period_ms", "is no setting any more: scans are 80 ms apart, further if they cost much; remove it"),
    ("pool_floor_ms", "is no setting any more: threads that wait for other threads have no check value; remove it"),
    ("window", "is no setting any more: check values go by the last 50 executions of each exit; remove it"),
    ("busy_limit_ms", "is no setting any more: a thread that never waited is not reported; remove it"),
];

/// Most bytes of a file: what never ends (a device) is no settings.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Characters of a file that an error quotes at most.
const MAX_QUOTED_CHARACTERS: usize = 100;

/// A text as an error quotes it: of a long one its beginning, and how long it is.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARACTERS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
    }
}

/// A process' number.
pub fn process(text: &str) -> Result<i32, String> {
    let number = text.parse().ok().filter(|n| *n > 0);
    number.ok_or_else(|| "the number of a running process, 1 or more, as `ps` and `pgrep` show it".into())
}

/// A section by name from `NAME=FUNCTION`.
pub fn section(text: &str) -> Result<Named, String> {
    let wrong = |what: &str| format!("`{}` has {what}: write NAME=FUNCTION", quoted(text));
    let (name, function) = text.split_once('=').ok_or_else(|| wrong("no `=`"))?;
    if name.trim().is_empty() {
        return Err(wrong("no name before the `=`"));
    }
    Ok(Named { name: name.trim().to_owned(), function: function.parse()? })
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Settings, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let right = "--config takes a file with lines of `key = value`";
        return Err(format!("{}: has more than {} MiB: {right}", path.display(), MAX_FILE_BYTES >> 20));
    }
    let at = |line: usize| format!("{}:{line}", path.display());
    let text = std::str::from_utf8(&bytes).map_err(|e| {
        let line = 1 + bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count();
        format!("{}: this line is not UTF-8: save the file as UTF-8", at(line))
    })?;
    let (mut settings, events) = parse(text).map_err(|(line, what)| format!("{}: {what}", at(line)))?;
    settings.events = events.map(|(file, line)| (file, at(line)));
    Ok(settings)
}

/// A file to write events to, and the line that says so.
type Events = Option<(PathBuf, usize)>;

/// Parses a file's text; an error has the line, from 1. The place of the events is answered
/// apart.
fn parse(text: &str) -> Result<(Settings, Events), (usize, String)> {
    let mut out = Settings::default();
    let mut events = None;
    let mut seen: Vec<&str> = Vec::new();
    for (i, line) in text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate() {
        let line = uncommented(line).trim();
        if line.is_empty() {
            continue;
        }
        let file = set(&mut out, &mut seen, line).map_err(|what| (i + 1, what))?;
        events = file.map(|file| (file, i + 1)).or(events);
    }
    Ok((out, events))
}

/// The line without its comment; a `#` inside double quotes is none.
fn uncommented(line: &str) -> &str {
    let mut quoted = false;
    for (i, c) in line.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '#' if !quoted => return &line[..i],
            _ => {}
        }
    }
    line
}

/// Takes a line over; answers the file for events if the line names one.
fn set<'a>(out: &mut Settings, seen: &mut Vec<&'a str>, line: &'a str) -> Result<Option<PathBuf>, String> {
    let Some((key, value)) = line.split_once('=') else {
        return Err(format!("`{}` is no setting: write `key = value`", quoted(line)));
    };
    let (key, value) = (key.trim(), value.trim());
    if let Some((_, what)) = FORMER.iter().find(|(k, _)| *k == key) {
        return Err(format!("key `{key}` {what}"));
    }
    let Some((_, right)) = KEYS.iter().find(|(k, _)| *k == key) else {
        let all: Vec<&str> = KEYS.iter().map(|(k, _)| *k).collect();
        return Err(format!("unknown key `{}`: known are {}", quoted(key), all.join(", ")));
    };
    if seen.contains(&key) && key != "section" {
        return Err(format!("key `{key}` is given twice: remove one"));
    }
    seen.push(key);
    let wrong = || format!("{key} = {}: must be {right}", quoted(value));
    let whole = |low: u64, high: u64| {
        let n: u64 = value.replace('_', "").parse().map_err(|_| wrong())?;
        if (low..=high).contains(&n) { Ok(n) } else { Err(wrong()) }
    };
    let ms = |low, high| whole(low, high).map(Duration::from_millis);
    let flag = || value.parse::<bool>().map_err(|_| wrong());
    let text = || {
        let inner =
            value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).filter(|v| !v.is_empty()).ok_or_else(wrong)?;
        match inner.contains('"') {
            false => Ok(inner),
            true => Err(format!(
                "{}; one string, with no double quote inside, for there are no escapes (a backslash stands for \
                 itself): a command may \
                 use single quotes, or be put into a script",
                wrong()
            )),
        }
    };
    let detection = &mut out.detection;
    let c = &mut detection.config;
    match key {
        "limit_ms" => c.limit = ms(100, 3_600_000)?,
        "floor_ms" => c.floor = ms(50, 3_600_000)?,
        "factor" => {
            c.factor = value.parse().ok().filter(|f| (1.0..=1000.0).contains(f)).ok_or_else(wrong)?;
        }
        "children" => c.children = flag()?,
        "busy" => c.busy = flag()?,
        "blocked" => c.blocked = flag()?,
        "section" => detection.sections.push(section(text()?).map_err(|e| format!("{}: {e}", wrong()))?),
        "section_cost" => {
            detection.section_cost = value.parse().ok().filter(|p| (0.0..=100.0).contains(p)).ok_or_else(wrong)?;
        }
        "deadline_ms" => out.deadline = Some(ms(500, 3_600_000)?),
        "on_hang" => out.on_hang = Some(text()?.parse().map_err(|e| format!("{}: {e}", wrong()))?),
        _ => {
            let file = text()?;
            return if file.len() < libc::PATH_MAX as usize { Ok(Some(file.into())) } else { Err(wrong()) };
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::action::Action;
    use super::*;

    #[test]
    fn a_whole_file() {
        let s =
            parse("# a comment\nlimit_ms = 1_00\nfactor=2.5 # more\n\nchildren = false\non_hang = \"exec:echo '#'\"\n")
                .unwrap()
                .0;
        assert_eq!(s.detection.config.limit, Duration::from_millis(100));
        assert_eq!((s.detection.config.factor, s.detection.config.children), (2.5, false));
        assert_eq!(s.on_hang.map(|on_hang| on_hang.action), Some(Action::Exec("echo '#'".into())));
    }

    #[test]
    fn the_documented_file_has_all_keys_at_their_defaults() {
        let readme = include_str!("../../../../docs/watch.md");
        let text = readme.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```")).expect("an example").0;
        for (key, _) in KEYS {
            assert!(text.lines().any(|line| line.starts_with(&format!("{key} = "))), "no {key} in the example");
            assert!(readme.contains(&format!("\n| `{key}` |")), "no {key} in the table");
        }
        let (s, events) = parse(text).unwrap();
        assert_eq!((s.detection.sections.len(), s.on_hang, events.is_some()), (2, Some(OnHang::default()), true));
        assert_eq!(hangs::Settings { sections: Vec::new(), ..s.detection }, hangs::Settings::default());
        assert_eq!(s.deadline, Some(hangs::options(&hangs::Settings::default()).deadline));
    }

    #[test]
    fn sections_by_name() {
        let s = parse("section = \"a=f\"\nsection = \"b=libx.so:ns::g\"\nsection_cost = 0.5\n").unwrap().0;
        let names: Vec<String> = s.detection.sections.iter().map(|s| format!("{}={}", s.name, s.function)).collect();
        assert_eq!((names, s.detection.section_cost), (vec!["a=f".into(), "b=libx.so:ns::g".into()], 0.5));
        for (text, part) in [
            ("section = \"f\"", "NAME=FUNCTION"),
            ("section = \"=f\"", "no name"),
            ("section = \"a=\"", "names no function"),
            ("section = \"a=0xyz\"", "hexadecimal"),
            ("section_cost = -1", "from 0 to 100"),
            ("section_cost = 1\nsection_cost = 1", "twice"),
        ] {
            let (_, what) = parse(text).unwrap_err();
            assert!(what.contains(part), "{text}: {what}");
        }
    }

    #[test]
    fn errors_name_line_key_and_the_way_out() {
        for (text, line, part) in [
            ("\nlimitms = 5", 2, "unknown key `limitms`: known are limit_ms"),
            ("limit_ms = 5", 1, "limit_ms = 5: must be a whole number from 100 to 3600000"),
            ("limit_ms = -75", 1, "must be"),
            ("factor = nan", 1, "must be a number from 1 to 1000"),
            ("busy = yes", 1, "true or false"),
            ("busy_limit_ms = 499", 1, "no setting any more"),
            ("busy = true\nbusy = true", 2, "twice"),
            ("hello", 1, "key = value"),
            ("on_hang = \"signal:NONSENSE\"", 1, "NONSENSE"),
            ("events = \"\"", 1, "a file name"),
            ("events = \"", 1, "a file name"),
            ("events = \"a\" \"b\"", 1, "no double quote inside"),
            ("on_hang = \"exec:echo \\\"hi\\\"\"", 1, "a command may use single quotes"),
        ] {
            let (at, what) = parse(text).unwrap_err();
            assert_eq!(at, line, "{text}");
            assert!(what.contains(part), "{text}: {what}");
        }
    }

    #[test]
    fn of_a_long_line_the_beginning_is_quoted() {
        let long = "\u{e4}".repeat(1 << 20);
        for (text, part) in [
            (long.clone(), "is no setting: write `key = value`"),
            (format!("{long} = 1"), "known are limit_ms"),
            (format!("limit_ms = {long}"), "must be a whole number"),
            (format!("section = \"{long}\""), "has no `=`"),
            (format!("section = \"={long}\""), "has no name"),
            (format!("section = \"a={long}:\""), "names no function"),
            (format!("section = \"a=f:0x{long}\""), "hexadecimal"),
            (format!("on_hang = \"{long}\""), "is no action"),
            (format!("events = \"{long}\""), "a file name of at most 4095 bytes"),
            (format!("on_hang = \"signal:{long}\""), "is no signal"),
        ] {
            let (_, what) = parse(&text).unwrap_err();
            assert!(what.contains(part) && what.contains("... (2097"), "{what:.300}");
            assert!(what.len() < 2000, "{} bytes for {part}", what.len());
        }
    }
}
