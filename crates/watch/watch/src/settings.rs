//! The guard's configuration file.
//!
//! Owns: reading a TOML file of single settings. Promises: a key that is not known, a value that
//! is not possible or a key given twice is an error with file, line, key and what would be right.
//! Refuses: tables, text that is not UTF-8, more than 1 MiB. A byte order mark at the start is
//! skipped.

use super::action::OnHang;
use orbit_modules::hangs;
use orbit_named::Named;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{Spanned, Value};

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
    ("section", "\"NAME=FUNCTION\", FUNCTION as in --section; several as [\"...\", \"...\"]"),
    ("section_cost", "a number from 0 to 100, percent; 0 for no bound"),
    ("deadline_ms", "a whole number from 500 to 3600000"),
    (
        "on_hang",
        "\"report\", \"signal:SIG\", \"kill\", \"restart\" or \"exec:CMD\", perhaps with \"likely:\", \"guess:\" or \
         \"after=60s:\" before it",
    ),
    ("events", "a file name of at most 4095 bytes in quotes, or \"-\" for stdout"),
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
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let line_of = |at: usize| 1 + text.get(..at).unwrap_or(text).matches('\n').count();
    let file: BTreeMap<String, Spanned<Value>> = toml::from_str(text).map_err(|e| {
        let what = format!("{}: a setting is a line `key = value`", quoted(e.message()));
        (line_of(e.span().map_or(0, |span| span.start)), what)
    })?;
    let mut out = Settings::default();
    let mut events = None;
    for (key, value) in &file {
        let line = line_of(value.span().start);
        let written = text.get(value.span()).unwrap_or_default();
        let named = set(&mut out, key, value.get_ref(), written).map_err(|what| (line, what))?;
        events = named.map(|file| (file, line)).or(events);
    }
    Ok((out, events))
}

/// Takes a setting over, `written` so in the file; answers the file for events if it names one.
fn set(out: &mut Settings, key: &str, value: &Value, written: &str) -> Result<Option<PathBuf>, String> {
    let Some((_, right)) = KEYS.iter().find(|(k, _)| *k == key) else {
        let all: Vec<&str> = KEYS.iter().map(|(k, _)| *k).collect();
        return Err(format!("unknown key `{}`: known are {}", quoted(key), all.join(", ")));
    };
    let wrong = || format!("{key} = {}: must be {right}", quoted(written));
    let ms = |low: u64, high: u64| {
        let whole = value.as_integer().and_then(|n| u64::try_from(n).ok());
        whole.filter(|n| (low..=high).contains(n)).map(Duration::from_millis).ok_or_else(wrong)
    };
    let number = |low: f64, high: f64| {
        let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
        number.filter(|n| (low..=high).contains(n)).ok_or_else(wrong)
    };
    let flag = || value.as_bool().ok_or_else(wrong);
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned).ok_or_else(wrong);
    let detection = &mut out.detection;
    let c = &mut detection.config;
    match key {
        "limit_ms" => c.limit = ms(100, 3_600_000)?,
        "floor_ms" => c.floor = ms(50, 3_600_000)?,
        "factor" => c.factor = number(1.0, 1000.0)?,
        "children" => c.children = flag()?,
        "busy" => c.busy = flag()?,
        "blocked" => c.blocked = flag()?,
        "section" => {
            for value in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
                detection.sections.push(section(&text(value)?).map_err(|e| format!("{}: {e}", wrong()))?);
            }
        }
        "section_cost" => detection.section_cost = number(0.0, 100.0)?,
        "deadline_ms" => out.deadline = Some(ms(500, 3_600_000)?),
        "on_hang" => out.on_hang = Some(text(value)?.parse().map_err(|e| format!("{}: {e}", wrong()))?),
        _ => {
            let file = text(value)?;
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
        let text = "# a comment\nlimit_ms = 1_00\nfactor=2.5 # more\n\nchildren = false\non_hang = \"exec:echo '#'\"\n";
        let s = parse(text).unwrap().0;
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
        let s = parse("section = [\"a=f\", \"b=libx.so:ns::g\"]\nsection_cost = 0.5\n").unwrap().0;
        let names: Vec<String> = s.detection.sections.iter().map(|s| format!("{}={}", s.name, s.function)).collect();
        assert_eq!((names, s.detection.section_cost), (vec!["a=f".into(), "b=libx.so:ns::g".into()], 0.5));
        for (text, part) in [
            ("section = \"f\"", "NAME=FUNCTION"),
            ("section = \"=f\"", "no name"),
            ("section = \"a=\"", "names no function"),
            ("section = \"a=0xyz\"", "hexadecimal"),
            ("section_cost = -1", "from 0 to 100"),
            ("section = [1]", "NAME=FUNCTION"),
            ("section_cost = 1\nsection_cost = 1", "duplicate key"),
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
            ("busy = 1", 1, "true or false"),
            ("busy = true\nbusy = true", 2, "duplicate key"),
            ("[busy]\na = 1", 1, "true or false"),
            ("hello", 1, "key = value"),
            ("on_hang = \"signal:NONSENSE\"", 1, "NONSENSE"),
            ("events = \"\"", 1, "a file name"),
            ("events = \"", 1, "key = value"),
            ("events = \"a\" \"b\"", 1, "key = value"),
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
            (format!("\"{long}\" = 1"), "known are limit_ms"),
            (format!("limit_ms = \"{long}\""), "must be a whole number"),
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
