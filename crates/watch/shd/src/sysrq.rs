//! What can still be done when a CPU hangs: the kernel's sysrq commands, ready before they are
//! needed.

use crate::Error;
use std::{
    fs::File,
    io::{self, Write},
    str::FromStr,
};

/// What to do about a hang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// Tell it, and nothing else.
    #[default]
    Report,
    /// Crash the kernel: with kdump set up it leaves a dump; what follows is up to `kernel.panic`.
    Crash,
    /// Reboot at once: file systems are neither synced nor unmounted, since that could wait for the
    /// hung CPU for ever.
    Reboot,
}

impl Action {
    /// `report`, `crash` or `reboot`, as [`FromStr`] reads them.
    pub fn word(self) -> &'static str {
        match self {
            Action::Report => "report",
            Action::Crash => "crash",
            Action::Reboot => "reboot",
        }
    }
}

impl FromStr for Action {
    type Err = Error;

    fn from_str(text: &str) -> Result<Action, Error> {
        match text {
            "report" => Ok(Action::Report),
            "crash" => Ok(Action::Crash),
            "reboot" => Ok(Action::Reboot),
            _ => Err(Error(format!("no action {text:?}: report, crash or reboot"))),
        }
    }
}

/// An action whose files are open, so that carrying it out takes one write.
pub struct Sysrq {
    action: Action,
    trigger: Option<File>,
    log: Option<File>,
}

impl Sysrq {
    /// Opens `/proc/sysrq-trigger` (root) if the action needs it. The kernel's log is used where it
    /// may be written.
    pub fn new(action: Action) -> Result<Sysrq, Error> {
        let open = |path: &str| File::options().write(true).open(path);
        let trigger = match action {
            Action::Report => None,
            _ => Some(open("/proc/sysrq-trigger").map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => Error::of(
                    "opening /proc/sysrq-trigger (this kernel has no sysrq, CONFIG_MAGIC_SYSRQ: hangs can be \
                     reported only, --system=report)",
                    &e,
                ),
                _ => Error::of("opening /proc/sysrq-trigger (needs root)", &e),
            })?),
        };
        Ok(Sysrq { action, trigger, log: open("/dev/kmsg").ok() })
    }

    /// Leaves a line in the kernel's log, which works where terminals and disks may not.
    pub fn log(&self, line: &str) {
        if let Some(mut log) = self.log.as_ref() {
            // <2>: critical. One write is one record. There is no better place to report a failure.
            let _ = log.write_all(format!("<2>orbit: {line}\n").as_bytes());
        }
    }

    /// Carries it out. After crash or reboot it does not return, unless the kernel rejects it,
    /// which is the result.
    pub fn act(&self) -> std::io::Result<()> {
        let letter = match self.action {
            Action::Report => return Ok(()),
            Action::Crash => b"c",
            Action::Reboot => b"b",
        };
        match self.trigger.as_ref() {
            Some(mut trigger) => trigger.write_all(letter),
            None => Ok(()),
        }
    }
}
