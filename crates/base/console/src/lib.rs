//! What the subcommands of `orbit` share: failures, tables and colours ([`out`]), files of events
//! ([`events`]), what the command inherited ([`inherited`]), harmless text ([`harmless`]), times
//! ([`time`]), and the sockets where it is asked ([`control`]).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod control;
pub mod events;
pub mod harmless;
pub mod inherited;
pub mod out;
pub mod time;
