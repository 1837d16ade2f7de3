//! A sketch of the change: each allocation point's line with the allocator of an area in place of
//! the program's.

use crate::report::{Place, Report};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

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

/// A patch in unified form, without context (`git apply --unidiff-zero`), for the points of a
/// report whose lines call the C library's allocator. The others are named as comments before it.
/// `read` gives a file's text.
pub fn sketch(report: &Report, read: impl Fn(&str) -> Option<String>) -> String {
    let mut lines: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    let places = report.sites.iter().map(|site| &site.at).chain(report.likely.iter().map(|likely| &likely.at));
    let (mut by_hand, mut patch) = (String::new(), String::new());
    for place in places {
        match (&place.file, place.line) {
            (Some(file), Some(line)) => {
                lines.entry(file).or_default().insert(line);
            }
            _ => note(&mut by_hand, place),
        }
    }
    for (file, lines) in lines {
        let text = read(file).unwrap_or_default();
        let mut has_header = false;
        for number in lines {
            let line = text.lines().nth(number as usize - 1).unwrap_or_default();
            let Some(new) = changed(line) else {
                note(&mut by_hand, &Place { function: file.to_owned(), file: None, line: Some(number) });
                continue;
            };
            if !has_header {
                has_header = true;
                let name = file.trim_start_matches('/');
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
