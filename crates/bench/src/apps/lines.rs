//! The size of a port, as section 5.8 of the paper counts changes: lines that are neither empty nor
//! comments.

use crate::stats::{Samples, Summary};
use std::path::Path;

/// Lines of the C and C++ sources in `apps/NAME/extension`; `None` where they are not there.
pub fn lines_of_port(name: &str) -> Option<Summary> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../apps").join(name).join("extension");
    let mut total = 0;
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        if ["c", "cc", "h"].iter().any(|kind| entry.path().extension().is_some_and(|is| is == *kind)) {
            total += lines_of_code(&std::fs::read_to_string(entry.path()).ok()?);
        }
    }
    let mut lines = Samples::default();
    lines.add_figure(total as f64);
    lines.summary()
}

fn lines_of_code(text: &str) -> usize {
    let mut in_comment = false;
    let mut count = 0;
    for line in text.lines().map(str::trim) {
        let begins = line.starts_with("/*");
        if !in_comment && !begins && !line.is_empty() && !line.starts_with("//") {
            count += 1;
        }
        in_comment = (in_comment || begins) && !line.contains("*/");
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_empty_lines_do_not_count() {
        assert_eq!(lines_of_code("/* a\n * b\n */\n\nint x; /* c */\n// d\nint y;\n/* e */\n"), 2);
    }
}
