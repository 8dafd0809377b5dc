//! Document -> pretokens: where a text may be cut before merges are learnt.
//!
//! In: a document (valid UTF-8) and a [`Split`]. Out: its pretokens in order, as byte slices of the document.
//! However it was cut, the pretokens one after another are the document: no byte is lost, added or moved.
//! The definition is the regex itself, in `reference`; the scanners in `fast` and `block` must equal it on
//! every valid UTF-8 text, and the tests here and in `tests/test_splits.py` hold them to it.
//!
//! ```text
//! pattern    the named patterns, `Split`, the choice between the two below
//! reference  the regex, and the rule for what it does not match
//! fast       hand-written scanners, one character at a time
//! block      the same, 64 bytes of ASCII at a time
//! classes    letter, number, white space, ... of every code point, asked of the regex engine
//! ```

mod block;
mod classes;
mod fast;
mod pattern;
mod reference;
#[cfg(test)]
mod tests;

pub(crate) use block::{BLOCK, Block};
pub(crate) use fast::{Scanner, Text};
pub(crate) use pattern::Visitor;
pub use pattern::{Split, reference_for_each};
