//! Hangs every CPU at once and never comes back: the host observes what then shows it
//! (signs of life, the console).

use super::{
    Failed, hangs, line,
    machine::{hang, set, sleep_ms},
};
use serde_json::json;

/// `threshold` is `kernel.watchdog_thresh`; with `panic` a lockup that the kernel finds itself is
/// its end.
pub fn run(kind: &str, threshold: usize, panic: bool) -> Result<bool, Failed> {
    let panic = usize::from(panic);
    let settings = json!({
        "watchdog_thresh": set("watchdog_thresh", threshold),
        "soft_watchdog": set("soft_watchdog", 1),
        "softlockup_panic": set("softlockup_panic", panic),
        "nmi_watchdog": set("nmi_watchdog", 1),
        "hardlockup_panic": set("hardlockup_panic", panic),
    });
    let (_shd, _heard) = hangs::detect()?;
    sleep_ms(500);
    line::say(&json!({"every": kind, "settings": settings}));
    hang(&format!("{kind}-all"), 0, 60_000)?;
    // Beyond what the module keeps a CPU for.
    sleep_ms(70_000);
    Ok(true)
}
