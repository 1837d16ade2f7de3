//! Errors of the core and the pins: each names the module, the pin and the way out.

use crate::event::Kind;
use std::{fmt, io};

/// Result of everything here that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something was not done.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The pin cannot work here.
    PinMissing {
        /// The pin.
        pin: String,
        /// The module that asked for it.
        module: String,
        /// What is missing, and what to install or allow.
        why: String,
    },
    /// The module issued a command or subscribed to a pin that it does not use.
    PinNotUsed {
        /// The pin.
        pin: String,
        /// The module.
        module: String,
    },
    /// The pin does not raise events of this kind (here).
    NoSuchEvent {
        /// The pin.
        pin: String,
        /// The module that asked.
        module: String,
        /// What it asked for.
        kind: Kind,
        /// Why not, and the way out.
        why: String,
    },
    /// The pin could not do what a command asked.
    Command {
        /// The pin.
        pin: String,
        /// The module that asked.
        module: String,
        /// What failed.
        source: PinError,
    },
    /// There is no subscription of this number that belongs to the module.
    NoSuchSubscription {
        /// The module.
        module: String,
        /// The number.
        id: u64,
    },
    /// A module of this name is installed already, or none is.
    Module {
        /// The module.
        module: String,
        /// What is wrong.
        why: String,
    },
    /// The system denied something that the core itself needs.
    System {
        /// What was asked of it.
        what: String,
        /// Its answer.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::PinMissing { pin, module, why } => {
                write!(f, "module \"{module}\" needs pin {pin}, which cannot work here: {why}")
            }
            Error::PinNotUsed { pin, module } => {
                write!(f, "module \"{module}\" does not use pin {pin}: call use_pin(\"{pin}\") first")
            }
            Error::NoSuchEvent { pin, module, kind, why } => {
                write!(f, "module \"{module}\": pin {pin} raises no {kind} events: {why}")
            }
            Error::Command { pin, module, source } => write!(f, "module \"{module}\", pin {pin}: {source}"),
            Error::NoSuchSubscription { module, id } => write!(f, "module \"{module}\" has no subscription {id}"),
            Error::Module { module, why } => write!(f, "module \"{module}\": {why}"),
            Error::System { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Command { source, .. } => Some(source),
            Error::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Why a pin did not do something; the core adds which pin and for which module.
#[derive(Debug)]
#[non_exhaustive]
pub enum PinError {
    /// The command belongs to another pin.
    NotMine,
    /// The request cannot be met: what, which value, which limit, and the way out.
    Refused(String),
    /// The system denied it.
    System {
        /// What was asked of it.
        what: String,
        /// Its answer.
        source: io::Error,
    },
}

impl PinError {
    /// The system's last error, for `what`.
    pub fn last(what: impl Into<String>) -> PinError {
        PinError::System { what: what.into(), source: io::Error::last_os_error() }
    }

    /// An error of the system, for `what`.
    pub fn of(what: impl Into<String>, source: io::Error) -> PinError {
        PinError::System { what: what.into(), source }
    }
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PinError::NotMine => write!(f, "the command belongs to another pin"),
            PinError::Refused(why) => write!(f, "{why}"),
            PinError::System { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for PinError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PinError::System { source, .. } => Some(source),
            _ => None,
        }
    }
}
