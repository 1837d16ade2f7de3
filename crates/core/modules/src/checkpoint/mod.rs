//! Checkpoints and crash recovery as modules (the paper's Table 1): what `orbit-keep` can do to a
//! running program, as operations of the pins P_MEM and P_SIG (its part `pins`), and the modules
//! [`Tac`] and [`Recovery`], which decide.
//!
//! The pins of `orbit-pins` cannot have these operations themselves: keep stands above them. So the
//! two pins are taken from there and extended here.

mod pins;
mod programs;
mod recovery;
mod tac;

pub use pins::all;
pub use recovery::Recovery;
pub use tac::Tac;
