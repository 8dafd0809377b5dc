//! Actions: sequences of items, each a set of features.

pub mod encode;
