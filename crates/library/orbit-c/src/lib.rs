//! The C face of orbit: what `include/orbit.h` declares, over the Rust library.
//!
//! The header is the document; here is how it is kept. Every function checks what it is given
//! before it acts: handles are looked up, never followed (`handle`); sizes, null pointers and flags
//! are checked (`given`); a failure becomes `-errno` and a sentence, a panic too (`failure`).
//! Nothing here prints or ends the process. `scripts/check-header.sh` holds the exported symbols
//! against the header.
//!
//! All functions are `unsafe` in Rust's sense where the header speaks of pointers: what it says of
//! them is the contract.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

mod area;
mod call;
mod failure;
mod future;
mod given;
mod handle;
mod orbits;
mod outcome;
mod process;
mod update;
