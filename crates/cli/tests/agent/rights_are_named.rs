//! An agent of an ordinary user that lacks a right shows what it cannot watch, and names the right.

use crate::guard_common::{Dir, skipped, until};
use crate::running::{Agent, start, well};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn the_missing_capability_is_named() {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !is_root || Command::new("setpriv").arg("--version").output().is_err() {
        println!("SKIP: needs root and setpriv");
        return;
    }
    if skipped() {
        return;
    }
    for (own, named) in [
        ("+sys_ptrace", "the agent lacks CAP_DAC_READ_SEARCH"),
        ("+dac_read_search", "the agent lacks CAP_SYS_PTRACE:"),
        ("", "the agent lacks CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
    ] {
        let dir = Dir::new(&format!("agent-rights{}", own.replace('+', "-")));
        std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o777)).expect("set");
        let bin = well(&dir, "oa-rights");
        let _child = start(&bin, "1000", None);
        let mut setpriv = Command::new("setpriv");
        let (inherited, ambient, bounding) = (format!("-all,{own}"), format!("-all,{own}"), format!("-all,{own}"));
        let trimmed = |text: &str| text.trim_end_matches(',').to_owned();
        setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
        setpriv.arg(format!("--inh-caps={}", trimmed(&inherited)));
        setpriv.arg(format!("--ambient-caps={}", trimmed(&ambient)));
        setpriv.arg(format!("--bounding-set={}", trimmed(&bounding)));
        setpriv.arg(env!("CARGO_BIN_EXE_orbit"));
        let config = "[[policy]]\nname = \"p\"\nmatch = { command = \"oa-rights\" }\n";
        let agent = Agent::start_by(&dir, config, setpriv);
        let why = until("a reason", || agent.status()["unwatched"][0]["why"].as_str().map(str::to_owned));
        assert!(why.starts_with(named), "{own}: {why}");
        assert_eq!(agent.status()["services"].as_array().map(Vec::len), Some(0));
    }
}
