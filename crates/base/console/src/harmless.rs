//! Text that others chose, for people to read.

use std::fmt;

/// Text that others chose, on one line and without characters that a terminal obeys or does not
/// show.
pub struct Harmless<T>(pub T);

impl<T: fmt::Display> fmt::Display for Harmless<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Rust's escapes, but for those that only its own strings need.
        const KEPT: [char; 3] = ['"', '\'', '\\'];
        text.split_inclusive(KEPT).try_for_each(|part| {
            let plain = part.trim_end_matches(KEPT);
            write!(self.0, "{}{}", plain.escape_debug(), &part[plain.len()..])
        })
    }
}
