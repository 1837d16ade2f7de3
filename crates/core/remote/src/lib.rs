//! Pins of other nodes (the RMK paper's section 3.3): a module here uses operations and events of
//! pins of a core on another machine.
//!
//! | file | what it owns |
//! |---|---|
//! | [`files`] | the node's certificate and key, and whom it trusts |
//! | [`rights`] | what a peer's certificate lets it do: a pure judge |
//! | `framed` | frames by TLS over a socket that never blocks |
//! | `wire` | what the frames hold |
//! | [`server`] | a core's pins, for peers |
//! | [`link`] | the connection to one node: calls with a limit, heartbeats, subscriptions |
//! | [`pin`] | a node's pins as pins of the core here, `P_NET@db1` |
//! | [`heartbeat`] | a module that says which nodes are heard |
//! | [`follow`] | who a thread waits for on another node |
//!
//! Promises: a peer without a certificate of the named authority is not spoken with; it uses what
//! its certificate names, and nothing else; a call ends within its limit; a lost link is an event,
//! and calls fail at once while it is lost. Bytes of a peer are parsed by threads that the caller
//! makes ([`Spawn`]), so that they need have no rights.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![forbid(unsafe_code)]

pub mod files;
pub mod follow;
mod framed;
pub mod heartbeat;
pub mod link;
pub mod pin;
pub mod rights;
pub mod server;
mod wire;

/// Starts a thread of this name that parses what a peer sends.
///
/// # Errors
/// It cannot be made; then the work is not begun.
pub type Spawn = fn(&str, Box<dyn FnOnce() + Send>) -> std::io::Result<()>;
