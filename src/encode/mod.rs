//! Text -> ids.

pub mod normalize;
pub mod wordpiece;
