//! The managers that come with the crate.

pub mod cpu;
