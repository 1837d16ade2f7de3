//! Small modules, each an example with a page of its own.

mod silence;
mod switches;

pub use silence::Silence;
pub use switches::Switches;
