//! Document -> pretokens: where a text may be cut before merges are learnt.
//!
//! In: a document (valid UTF-8) and a [`Split`]. Out: its pretokens in order, as byte slices of the document.
//! However it was cut, the pretokens one after another are the document: no byte is lost, added or moved.
//! The definition is the regex itself, or a sequence of them, in `reference`; the scanners in `fast` and `block` must
//! equal it on every valid UTF-8 text, and the tests here and in `tests/test_pretokenizers.py` hold them to it.
//!
//! ```text
//! table      the named splits: names, patterns, scanners, properties
//! split      `Split`: a named one, a regex, or a sequence
//! reference  the regex, and the rule for what it does not match
//! own        a regex of the user's own, without backtracking where it needs none
//! fast       hand-written scanners, one character at a time
//! block      the same, 64 bytes at a time; wide: for characters beyond ASCII too
//! classes    letter, number, white space, ... of every code point, taken from the regex engine
//! ```

pub(crate) mod block;
pub(crate) mod classes;
pub(crate) mod fast;
mod own;
mod reference;
pub(crate) mod split;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod wide;

pub use classes::{Classes, classes};
pub use split::Split;
pub use table::{Named, TABLE};
