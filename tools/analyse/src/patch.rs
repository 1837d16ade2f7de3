//! A sketch of the change: each allocation point's line with the allocator of an area in place of
//! the program's.

use crate::report::{Place, Report, plain_path};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Calls, and what takes their place; all get the area as the first argument.
const CALLS: [(&str, &str); 5] = [
    ("malloc", "orbit_alloc"),
    ("calloc", "orbit_calloc"),
    ("realloc", "orbit_realloc"),
    ("aligned_alloc", "orbit_aligned_alloc"),
    ("memalign", "orbit_aligned_alloc"),
];

/// The line with the area's call, if it has one of those that are known.
fn changed(line: &str) -> Option<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for (call, ours) in CALLS {
        for (at, _) in line.match_indices(call) {
            let (before, after) = (&line[..at], &line[at + call.len()..]);
            let Some(arguments) = after.trim_start().strip_prefix('(').filter(|_| !before.ends_with(is_word)) else {
                continue;
            };
            return Some(format!("{before}{ours}(area, {}", arguments.trim_start()));
        }
    }
    None
}

/// The places that a report names.
fn places(report: &Report) -> impl Iterator<Item = &Place> {
    report.sites.iter().map(|site| &site.at).chain(report.likely.iter().map(|likely| &likely.at))
}

/// The absolute path of a file that a report names, without `.` and `..`.
fn absolute(file: &str) -> PathBuf {
    let whole = std::path::absolute(file).unwrap_or_else(|_| file.into());
    Path::new("/").join(plain_path(&whole))
}

/// The directory to which a patch is relative: the innermost working tree of git that has a file of
/// the report; without one the current directory, if all of the files are below it, or else the
/// innermost directory that has them all.
pub fn top(report: &Report) -> PathBuf {
    let files: Vec<PathBuf> = places(report).filter_map(|place| place.file.as_deref()).map(absolute).collect();
    let of_git = files.iter().flat_map(|file| file.ancestors()).find(|directory| directory.join(".git").exists());
    if let Some(top) = of_git {
        return top.to_owned();
    }
    let has_all = |directory: &Path| files.iter().all(|file| file.starts_with(directory));
    let current = std::env::current_dir().ok().filter(|current| has_all(current));
    let common = || files.first()?.ancestors().skip(1).find(|directory| has_all(directory)).map(Path::to_owned);
    current.or_else(common).unwrap_or_else(|| "/".into())
}

/// A patch in unified form, without context, for the points of a report whose lines call the C
/// library's allocator, with names relative to `top` (`git apply --unidiff-zero` there). The others
/// are named as comments before it. `read` gives a file's text.
pub fn sketch(report: &Report, top: &Path, read: impl Fn(&Path) -> Option<String>) -> String {
    let mut lines: BTreeMap<PathBuf, BTreeSet<u32>> = BTreeMap::new();
    let (mut by_hand, mut patch) = (String::new(), String::new());
    for place in places(report) {
        match (&place.file, place.line) {
            (Some(file), Some(line)) => {
                lines.entry(absolute(file)).or_default().insert(line);
            }
            _ => note(&mut by_hand, place),
        }
    }
    for (file, lines) in lines {
        let below = file.strip_prefix(top);
        let name = below.as_ref().map_or(file.as_path(), |below| below).display();
        let text = read(&file).filter(|_| below.is_ok()).unwrap_or_default();
        let mut has_header = false;
        for number in lines {
            let line = text.lines().nth(number as usize - 1).unwrap_or_default();
            let Some(new) = changed(line) else {
                note(&mut by_hand, &Place { function: name.to_string(), file: None, line: Some(number) });
                continue;
            };
            if !has_header {
                has_header = true;
                let _ = writeln!(patch, "--- a/{name}\n+++ b/{name}");
            }
            let _ = writeln!(patch, "@@ -{number} +{number} @@\n-{line}\n+{new}");
        }
    }
    if by_hand.is_empty() && patch.is_empty() {
        by_hand.push_str("# no allocation point was found\n");
    }
    by_hand + &patch
}

fn note(to: &mut String, place: &Place) {
    let line = place.line.map(|line| format!(":{line}")).unwrap_or_default();
    let _ = writeln!(
        to,
        "# {}{line}: not a call of malloc, calloc, realloc or memalign: change it manually",
        place.function
    );
}

#[cfg(test)]
mod tests {
    use super::changed;

    #[test]
    fn calls_of_the_c_library_get_the_area() {
        assert_eq!(changed("  p = malloc(size);").as_deref(), Some("  p = orbit_alloc(area, size);"));
        assert_eq!(changed("p = (T *)calloc( 1, n);").as_deref(), Some("p = (T *)orbit_calloc(area, 1, n);"));
        assert_eq!(changed("q = realloc(q, 2);").as_deref(), Some("q = orbit_realloc(area, q, 2);"));
        assert_eq!(changed("p = zmalloc(size);"), None);
        assert_eq!(changed("p = new T;"), None);
    }
}
