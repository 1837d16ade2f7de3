//! What the kernel says about itself: lines of `/dev/kmsg` that report a failure, with the time at
//! which they were heard.

use super::machine::now_ns;
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
};

/// Failures, as the kernel words them (Linux 6.1), and a name for each. The first that fits counts.
const WORDS: [(&str, &str); 12] = [
    ("NULL pointer dereference", "null"),
    ("unable to handle page fault", "paging"),
    ("general protection fault", "protection"),
    ("stack segment", "protection"),
    ("invalid opcode", "opcode"),
    ("divide error", "other"),
    ("int3:", "other"),
    ("soft lockup", "soft-lockup"),
    ("hard LOCKUP", "hard-lockup"),
    ("detected stall", "rcu-stall"),
    ("blocked for more than", "hung-task"),
    ("BUG:", "other"),
];

/// One of them.
pub struct Said {
    pub what: &'static str,
    pub heard_ns: u64,
}

/// Reads without waiting, from now on.
pub struct Kmsg(File);

impl Kmsg {
    pub fn new() -> Result<Kmsg, String> {
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
        let mut file = file.map_err(|e| format!("opening /dev/kmsg: {e}"))?;
        file.seek(SeekFrom::End(0)).map_err(|e| format!("reading /dev/kmsg: {e}"))?;
        Ok(Kmsg(file))
    }

    /// Failures reported since the last call.
    pub fn new_failures(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        let mut record = [0u8; 8192];
        loop {
            match self.0.read(&mut record) {
                Ok(0) => break,
                Ok(n) => {
                    let text = String::from_utf8_lossy(&record[..n]);
                    if let Some((_, what)) = WORDS.iter().find(|(words, _)| text.contains(words)) {
                        said.push(Said { what, heard_ns: now_ns() });
                    }
                }
                // Records were overwritten: what is left follows.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => break,
            }
        }
        said
    }
}
