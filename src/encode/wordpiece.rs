//! placeholder until WordPiece is merged
/// S
#[derive(Default)]
pub struct Scratch;
