//! placeholder until the normalizers are merged
use crate::error::Result;
/// A
pub struct Normalizer;
impl Normalizer {
    /// N
    pub fn new(_: &[Vec<String>]) -> Result<Normalizer> { Ok(Normalizer) }
    /// A
    pub fn apply(&self, _: &str, _: &mut String) -> bool { false }
}
