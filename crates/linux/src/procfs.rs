//! Files of `/proc` as text, whatever bytes they hold.
//!
//! The kernel writes names there as they are: a program's name is cut after 15 bytes, in the middle of a character too, and
//! paths, sockets and devices may be named with any bytes. To refuse such a file would lose the numbers beside the name.

use std::fs;
use std::io;
use std::path::Path;

/// The whole file. What is no UTF-8 in it becomes U+FFFD; lines, spaces and numbers stay what they are.
///
/// # Errors
/// Those of reading it: `ENOENT`, or `ESRCH` where it ends meanwhile, for a process that is gone; `EACCES`.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cut_in_mid_character() {
        let text = std::thread::spawn(|| {
            crate::process::set_name(c"\xd0\xb0 x) \xff\xd0").expect("a name");
            text("/proc/thread-self/stat")
        });
        let text = text.join().expect("no panic").expect("stat");
        let (before, after) = text.rsplit_once(") ").expect("a name in brackets");
        assert!(before.ends_with("(а x) \u{fffd}\u{fffd}"), "{text}");
        assert!(after.starts_with("R ") && after.split_whitespace().count() > 40, "{text}");
    }

    #[test]
    fn a_file_that_is_not_there() {
        assert_eq!(text("/proc/self/nothing").map_err(|e| e.kind()), Err(io::ErrorKind::NotFound));
    }
}
