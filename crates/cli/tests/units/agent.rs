//! The agent by its shipped unit: with three capabilities as a user of its own, it finds the
//! service of another user that hangs, has systemd start it again, and stops at its budget.

use crate::guard_common::{Dir, build, skipped};
use crate::{boot, orbit};
use std::path::Path;

#[test]
fn systemd_starts_a_hung_service_again_and_the_agent_stops_at_its_budget() {
    if skipped() {
        return;
    }
    let dir = Dir::new("units-agent-program");
    let hangs = build(&dir, "hangs.c");
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let Some(text) = boot("agent", &[orbit(), hangs.as_ref(), packaging.as_ref()]) else { return };
    for line in [
        "NRestarts=1\nId=victim.service\nActiveState=active\n",
        "NRestarts=0\nId=healthy.service\nActiveState=active\n",
        "NRestarts=0\nId=orbit-agent.service\nActiveState=active\n",
        // CAP_DAC_READ_SEARCH, CAP_KILL and CAP_SYS_PTRACE.
        "CapEff:\t0000000000080024\n",
        "NoNewPrivs:\t1\n",
        "Seccomp:\t2\n",
        "\nhangs 2\n",
        "the main process of its unit; its manager starts it again\n",
        "/run/orbit/agent.sock 660 orbit:orbit\n/run/orbit/active.json 640 orbit:orbit\n",
        "/var/lib/orbit/reports/ 700 orbit:orbit\n",
        "no restart: victim.service has had its 1 of this hour\n",
        "read again: 1 policies\nwhole\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in:\n{text}");
    }
}
