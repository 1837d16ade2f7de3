//! What the subcommands of `orbit` share: failures, tables and colours ([`out`]), files of events
//! ([`events`]), and what the command inherited ([`inherited`]), harmless text ([`harmless`]) and
//! times ([`time`]).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod events;
pub mod harmless;
pub mod inherited;
pub mod out;
pub mod time;
