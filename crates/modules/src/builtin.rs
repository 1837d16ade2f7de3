//! The modules that the `orbit` command has within it, by name.

use orbit_ahd::module::Detector;
use orbit_rmk::modules::{Silence, Switches};
use orbit_rmk::{Core, Installed, Module, ModuleOptions, Result};
use orbit_shd::module::{Orders, Watch};

/// A module that can be named on the command line.
pub struct Builtin {
    /// Its name there.
    pub name: &'static str,
    /// One sentence: what it tells.
    pub about: &'static str,
    /// Installs it with its default settings.
    pub install: fn(&Core) -> Result<Installed>,
}

/// All of them.
pub const ALL: [Builtin; 4] = [
    Builtin {
        name: Detector::NAME,
        about: "tells when, where and why a guarded program hangs (`orbit watch` acts on it too)",
        install: |core| core.install::<Detector>(orbit_ahd::module::options(&orbit_ahd::Config::default())),
    },
    Builtin {
        name: Watch::NAME,
        about: "tells when a CPU no longer schedules; needs root (`orbit watch --system` acts on it too)",
        install: |core| core.install::<Watch>(orbit_shd::module::options(&Orders::default())),
    },
    Builtin {
        name: Silence::NAME,
        about: "tells when the guarded programs make no system call for a second, and when they do again",
        install: |core| core.install::<Silence>(ModuleOptions::default()),
    },
    Builtin {
        name: Switches::NAME,
        about: "tells each second how often threads of the guarded programs, and those that gave way to them, stopped running",
        install: |core| core.install::<Switches>(ModuleOptions::default()),
    },
];

/// The one of this name; else a sentence that names those there are.
pub fn find(name: &str) -> std::result::Result<&'static Builtin, String> {
    ALL.iter().find(|builtin| builtin.name == name).ok_or_else(|| {
        let names = ALL.map(|builtin| builtin.name).join(", ");
        format!("there is no module \"{name}\"; there are {names}")
    })
}
