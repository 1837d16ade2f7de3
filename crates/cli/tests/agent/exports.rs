//! What leaves the agent: messages to the journal, and a page that promtool reads.

use crate::guard_common::{Dir, skipped, until};
use crate::running::{Agent, program, start};
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn a_hang_is_a_message_of_its_kind_and_the_page_is_sound() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-exports");
    let bin = program(&dir, "oa-exports");
    let socket = dir.0.join("journal");
    let journal = UnixDatagram::bind(&socket).expect("a socket");
    journal.set_read_timeout(Some(Duration::from_millis(100))).expect("set");
    let config = format!(
        "[export.journal]\nenabled = true\nsocket = {socket:?}\n[export.prometheus]\nlisten = \"127.0.0.1:0\"\n\
         [[policy]]\nname = \"p\"\nmatch = {{ command = \"oa-exports\" }}\n"
    );
    let agent = Agent::start(&dir, &config);
    let _child = start(&bin, "ring2", None);
    let message = until("a message", || {
        let mut room = vec![0; 1 << 17];
        let n = journal.recv(&mut room).ok()?;
        let text = String::from_utf8_lossy(&room[..n]).into_owned();
        text.contains("hangs (blocked, certain)").then_some(text)
    });
    for field in ["MESSAGE_ID=5d0c1f6c0b6d4e0f9a3f6f7f0f0a6b11\n", "PRIORITY=3\n", "ORBIT_POLICY=p\n", "OBJECT_PID="] {
        assert!(message.contains(field), "{field}: {message}");
    }
    assert_eq!(agent.figure("orbit_export_failures_total"), 0.0);
    let open = agent.page("application/openmetrics-text; version=1.0.0");
    assert!(open.ends_with("# EOF\n") && open.contains("# TYPE orbit_hangs counter\n"), "{open}");
    let page = agent.page("text/plain");
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        println!("SKIP: needs promtool (Debian's prometheus)");
        return;
    };
    promtool.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("written");
    let done = promtool.wait_with_output().expect("a child");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.is_empty(), "{said}\n{page}");
    drop(journal);
    std::fs::remove_file(socket).expect("removed");
    agent.hang_up();
    until("a failure to be counted", || {
        (agent.figure("orbit_export_failures_total{to=\"journal\"}") > 0.0).then_some(())
    });
    until("stderr in its place", || agent.log().contains("read again: 1 policies").then_some(()));
}
