//! Each `orbit …` line in a document's example is accepted by the command's own parser, and no
//! option is named that there is not.

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A command line in a document.
struct Shown {
    place: String,
    words: Vec<String>,
    /// In a line of text: it may be the name of a command, without what that needs.
    is_inline: bool,
}

/// Whether a word stands for a value that the reader has: `PID`, `FILE`.
fn stands_for_a_value(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_uppercase() || c == '_') && !word.is_empty()
}

/// Words of a shell's line up to what ends the command; `None` for a line with a placeholder that
/// no parser takes (`…`, `[OPTIONS]`, `<PID>`), that continues on the next line, or with a quote
/// that does not end.
fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            // What a shell puts there, as a number of a process.
            ('$', None) => {
                let end = if chars.as_str().starts_with('(') { ')' } else { ' ' };
                chars.by_ref().find(|c| *c == end);
                words.push("1".to_owned());
            }
            ('…', _) | ('\\', None) => return None,
            ('<', None) if chars.as_str().starts_with(|c: char| c.is_ascii_alphabetic()) => return None,
            (c, Some(q)) if c == q => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (' ', None) => words.extend(word.take()),
            ('#', None) if word.is_none() => break,
            // The number before a redirection is not the command's.
            ('>', None) if word.as_deref() == Some("2") => {
                word = None;
                break;
            }
            ('|' | '>' | '<' | ';' | '&', None) => break,
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    let is_placeholder = |word: &String| word.starts_with('[') || word == "..." || word == "=";
    (quote.is_none() && !words.iter().any(is_placeholder)).then_some(words)
}

/// The commands that a document shows: lines of its examples, and code within its text.
fn shown(file: &Path, text: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    let mut is_example = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_example = !is_example;
            continue;
        }
        let mut add = |line: &str, is_inline| {
            let line = line.strip_prefix("sudo ").unwrap_or(line);
            if let Some(words) = line.starts_with("orbit ").then(|| words(line)).flatten() {
                found.push(Shown { place: format!("{}:{}", file.display(), number + 1), words, is_inline });
            }
        };
        if is_example {
            // An output may begin with the name of the command: `orbit keep: redis-server: crash`.
            let line = line.trim_start();
            let command = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")).unwrap_or(line);
            if !command.split(' ').take(2).any(|word| word.ends_with(':')) {
                add(command, false);
            }
        } else {
            for code in line.split('`').skip(1).step_by(2) {
                add(code, true);
            }
        }
    }
    found
}

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(&root).output();
    let listed = listed.ok().filter(|done| done.status.success()).map(|done| done.stdout).unwrap_or_default();
    let names = String::from_utf8(listed).expect("names");
    let files: Vec<PathBuf> =
        names.lines().filter(|name| *name != "CHANGELOG.md").map(|name| root.join(name)).collect();
    if !files.is_empty() {
        return files;
    }
    // An archive without git.
    let docs = std::fs::read_dir(root.join("docs")).expect("documents").flatten().map(|entry| entry.path());
    docs.filter(|path| path.extension().is_some_and(|ext| ext == "md")).chain([root.join("README.md")]).collect()
}

/// What the parser says of these lines: the line's index, its kind, its error.
fn rejected(lines: &[Shown]) -> Vec<(usize, String, String)> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_orbit"))
        .args(["generate", "check"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("orbit runs");
    let mut input = child.stdin.take().expect("a pipe");
    let text: String = lines.iter().map(|shown| serde_json::to_string(&shown.words).expect("JSON") + "\n").collect();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("its output");
    writer.join().expect("a thread").expect("it reads all");
    let objects = String::from_utf8(output.stdout).expect("text");
    let objects = objects.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let field = |object: &Value, name: &str| object[name].as_str().unwrap_or_default().to_owned();
    objects.map(|o| (o["line"].as_u64().expect("a line") as usize - 1, field(&o, "kind"), field(&o, "error"))).collect()
}

#[test]
fn every_command_line_is_accepted() {
    let mut lines = Vec::new();
    for file in documents() {
        lines.extend(shown(&file, &std::fs::read_to_string(&file).expect("a document")));
    }
    let examples = lines.iter().filter(|shown| !shown.is_inline).count();
    assert!(examples > 30 && lines.len() > 100, "{examples} examples, {} in all: the documents are read", lines.len());
    let incomplete = ["MissingRequiredArgument", "MissingSubcommand", "DisplayHelpOnMissingArgumentOrSubcommand"];
    let wrong: Vec<String> = rejected(&lines)
        .into_iter()
        .filter(|(at, kind, error)| {
            let lacks = incomplete.contains(&kind.as_str()) || error.contains("but none was supplied");
            let has_no_value = ["InvalidValue", "ValueValidation"].contains(&kind.as_str())
                && lines[*at].words.iter().any(|word| stands_for_a_value(word));
            !(has_no_value || (lines[*at].is_inline && lacks))
        })
        .map(|(at, kind, error)| format!("{}: {:?}: {kind}: {error}", lines[at].place, lines[at].words))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_option_that_there_is_not_is_found() {
    let text = "text\n```\n$ orbit watch --no-such-option -- ls   # a remark\norbit keep: ls: crash 1\n```\n`orbit why --nor-this 1`\n";
    let lines = shown(Path::new("x.md"), text);
    assert_eq!(lines.iter().map(|shown| shown.words.len()).collect::<Vec<_>>(), [5, 4]);
    let found = rejected(&lines);
    assert_eq!(
        found.iter().map(|(at, kind, _)| (*at, kind.as_str())).collect::<Vec<_>>(),
        [(0, "UnknownArgument"), (1, "UnknownArgument")]
    );
}
