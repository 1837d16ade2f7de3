//! What this crate sees of other processes: tests that share one process, since each starts
//! programs of its own.

#[path = "../common/mod.rs"]
mod common;

mod hostile_target;
mod rings_found;
mod rings_no_false_alarm;
mod stacks_of_c;
mod stacks_of_python;
mod stacks_when_it_is_hard;
mod state_recurs;
mod stops_cut_no_call_short;
mod stops_end_no_call;
