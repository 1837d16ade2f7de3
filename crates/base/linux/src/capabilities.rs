//! Capabilities of the calling thread, given up for good.
//!
//! Promises: after [`give_up`] the calling thread has no capability and gains none, by exec of
//! what file ever; threads and processes that it makes inherit that. Other threads of the process
//! keep theirs, and share its memory: what a thread without capabilities writes there they read.

use crate::{check, check_int};
use std::io;

/// `_LINUX_CAPABILITY_VERSION_3`, and the calling thread.
const HEADER: [u32; 2] = [0x2008_0522, 0];
/// Words of effective, permitted and inheritable capabilities, twice.
const WORDS: usize = 6;

/// Takes every capability from the calling thread, ambient ones among them, and sets
/// `no_new_privs`. What the kernel answers afterwards is read back.
///
/// # Errors
/// `EPERM` or `ENOSYS` where a filter forbids `capset`, `capget` or `prctl`; `PermissionDenied` if
/// the thread has a capability afterwards. The thread may have some then.
pub fn give_up() -> io::Result<()> {
    // SAFETY: integers only.
    check_int(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    let none = [0u32; WORDS];
    // SAFETY: version 3 reads a header of two words and data of six, which these are. Ambient
    // capabilities are permitted and inheritable ones, so none is left of them.
    check(unsafe { libc::syscall(libc::SYS_capset, HEADER.as_ptr(), none.as_ptr()) })?;
    if own()? != none {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "capset left the thread capabilities"));
    }
    Ok(())
}

fn own() -> io::Result<[u32; WORDS]> {
    // The kernel writes its version back into a header that it does not know.
    let mut header = HEADER;
    let mut words = [0u32; WORDS];
    // SAFETY: version 3 takes a header of two words and writes six, which these are.
    check(unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), words.as_mut_ptr()) })?;
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    const SETS: [&str; 4] = ["CapEff", "CapPrm", "CapInh", "CapAmb"];

    fn of_calling_thread() -> Vec<Option<String>> {
        let status = Status::own().expect("a file");
        SETS.iter().chain(&["NoNewPrivs"]).map(|name| status.field(name).map(str::to_owned)).collect()
    }

    #[test]
    fn the_calling_thread_loses_all_and_others_keep_theirs() {
        let before = of_calling_thread();
        let none = std::thread::spawn(|| {
            give_up().expect("given up");
            let own = of_calling_thread();
            assert_eq!(std::thread::spawn(of_calling_thread).join().expect("a thread"), own, "inherited");
            own
        });
        let zero = Some("0000000000000000".to_owned());
        let expected = [zero.clone(), zero.clone(), zero.clone(), zero, Some("1".to_owned())];
        assert_eq!(none.join().expect("a thread"), expected);
        assert_eq!(of_calling_thread(), before);
    }

    #[test]
    fn what_it_runs_gains_none() {
        let ran = std::thread::spawn(|| {
            give_up().expect("given up");
            std::process::Command::new("cat").arg("/proc/self/status").output().expect("cat")
        });
        let status = Status::parse(String::from_utf8(ran.join().expect("a thread").stdout).expect("text"));
        for name in ["CapEff", "CapPrm"] {
            assert_eq!(status.field(name), Some("0000000000000000"), "{name}");
        }
    }
}
