//! The modules that the `orbit` command has within it, by name.

use crate::checkpoint::{Recovery, Tac};
use crate::hangs::{self, Detector, Settings};
use orbit_rmk::modules::{Silence, Switches};
use orbit_rmk::{Core, Installed, Module, ModuleOptions, Result};
use orbit_shd::module::{Orders, Watch};

/// A module that can be named on the command line.
pub struct Builtin {
    /// Its name there.
    pub name: &'static str,
    /// One sentence: what it reports.
    pub about: &'static str,
    /// Installs it with its default settings.
    pub install: fn(&Core) -> Result<Installed>,
}

/// All of them.
pub const ALL: [Builtin; 6] = [
    Builtin {
        name: Detector::NAME,
        about: "reports when, where and why a guarded program hangs (`orbit watch` can act on it too)",
        install: |core| core.install::<Detector>(hangs::options(&Settings::default())),
    },
    Builtin {
        name: Watch::NAME,
        about: "reports a CPU that no longer schedules; needs root (`orbit watch --system` can act on it too)",
        install: |core| core.install::<Watch>(orbit_shd::module::options(&Orders::default())),
    },
    Builtin {
        name: Tac::NAME,
        about: "takes a checkpoint of the guarded programs each second (with `recovery`; `orbit keep` has a log as \
            well)",
        install: |core| core.install::<Tac>(ModuleOptions::default()),
    },
    Builtin {
        name: Recovery::NAME,
        about: "puts a guarded program that a signal would kill back to a checkpoint of `tac`",
        install: |core| core.install::<Recovery>(ModuleOptions::default()),
    },
    Builtin {
        name: Silence::NAME,
        about: "reports when the guarded programs make no system call for a second, and when they do again",
        install: |core| core.install::<Silence>(ModuleOptions::default()),
    },
    Builtin {
        name: Switches::NAME,
        about: "reports each second the context switches from and to threads of the guarded programs",
        install: |core| core.install::<Switches>(ModuleOptions::default()),
    },
];

/// Returns the module of this name.
///
/// # Errors
/// A sentence that lists the names.
pub fn find(name: &str) -> std::result::Result<&'static Builtin, String> {
    ALL.iter().find(|builtin| builtin.name == name).ok_or_else(|| {
        let names = ALL.map(|builtin| builtin.name).join(", ");
        format!("there is no module \"{name}\"; there are {names}")
    })
}
