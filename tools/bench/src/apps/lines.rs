//! The size of a port, as section 5.8 of the paper counts changes: what the script `apps/lines`
//! counts.

use std::path::Path;
use std::process::Command;

/// Lines of `apps/NAME` that put objects into areas, make calls and take results: without the task
/// itself, which the paper does not count either, and without faults for tests. `None` where the
/// sources are not there.
pub fn lines(name: &str) -> Option<f64> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../apps/lines");
    let said = Command::new("sh").arg(script).arg(name).output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    text.lines().find(|line| line.starts_with(name))?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_lines_and_what_is_none_has_not() {
        assert!(lines("nginx").is_some_and(|lines| lines > 100.0));
        assert_eq!(lines("no-such-port"), None);
    }
}
