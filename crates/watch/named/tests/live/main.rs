//! Sections by name in living programs, in the process of the test and in a module. One binary, a
//! module for each behaviour.

mod common;

mod as_a_module;
mod found;
mod idle;
mod learnt;
mod left_unseen;
mod patched;
mod unknown_exits;
mod without_rights;
