//! The `orbit` command: one module a subcommand; this file only reads the arguments and hands over.
//!
//! Exit status: 0 all well, 1 something is missing or went wrong (said on stderr), 2 arguments that make no sense.

fn main() {}
