//! Threads that speak with others: a page's readers, a collector, whoever asks at the socket.
//!
//! Promises: such a thread has no capability from before its work begins, and gains none; nor do
//! threads that it starts. Where that cannot be, there is no such thread: an agent that cannot give
//! capabilities up serves and sends nothing.

use orbit_linux::capabilities;
use std::io;
use std::sync::mpsc::sync_channel;

/// Starts a thread of this name and waits until it has given up its capabilities.
///
/// # Errors
/// It cannot be made, or cannot give them up; then it does nothing.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (to, from) = sync_channel(1);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let given_up = capabilities::give_up();
        let is_plain = given_up.is_ok();
        // The one that started it waits for this.
        let _ = to.send(given_up);
        if is_plain {
            work();
        }
    })?;
    let given_up = from.recv().map_err(|_| io::Error::other("its thread failed"))?;
    given_up.map_err(|e| io::Error::new(e.kind(), format!("its thread cannot give up its capabilities: {e}")))
}

/// The same for work in a box.
///
/// # Errors
/// As for [`spawn`].
pub fn spawn_boxed(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    spawn(name, work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_linux::seccomp;
    use orbit_linux::status::Status;

    #[test]
    fn work_begins_without_capabilities() {
        let (to, from) = sync_channel(1);
        spawn("plain", move || to.send(Status::own()).expect("a reader")).expect("a thread");
        let status = from.recv().expect("an answer").expect("a file");
        assert_eq!(["CapEff", "NoNewPrivs"].map(|name| status.field(name)), [Some("0000000000000000"), Some("1")]);
    }

    #[test]
    fn what_cannot_give_them_up_does_not_begin() {
        // A filter stays with its process: a child has it.
        const CHILD: &str = "ORBIT_TEST_PLAIN_CHILD";
        if std::env::var_os(CHILD).is_some() {
            seccomp::install_without(&["capset"]).expect("a filter");
            let begun = spawn("plain", || println!("begun"));
            assert!(begun.is_err_and(|e| e.to_string().contains("cannot give up its capabilities")));
            return;
        }
        let name = "plain::tests::what_cannot_give_them_up_does_not_begin";
        let own = std::env::current_exe().expect("a path");
        let ran = std::process::Command::new(own)
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .expect("itself");
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success() && text.contains("1 passed") && !text.contains("begun"), "{text}");
    }
}
