//! Rules.
#[derive(Clone, Debug, Default)]
pub struct Rules {}
impl Rules {
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }
    pub(crate) fn compile_into(&self, _: &mut [crate::shared::Rule]) -> u32 {
        0
    }
}
