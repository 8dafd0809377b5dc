//! Piecemill's core: the loops that Python cannot do fast.
//!
//! ```text
//! sources: files ─▶ documents
//! documents (bytes + ends) ─▶ pretoken: spans ─▶ count: distinct pretokens ─▶ bpe: merges
//! documents (bytes + ends) ─▶ encode: ids + ends
//! documents ─▶ dedup: later copies; runs: sorted on disk, for count and dedup
//! sequences of items (ids + ends), features of items ─▶ actions: merges
//! ```
//!
//! Everything that crosses a border is a flat buffer and where each item ends. Nothing here prints or knows
//! Python; `py` is the only module that does, and it decides nothing.

pub mod actions;
pub mod arrays;
pub mod bpe;
pub mod count;
pub mod dedup;
pub mod encode;
pub mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod gather;
pub mod pretoken;
pub mod progress;
#[cfg(feature = "python")]
mod py;
#[cfg(test)]
mod random;
pub mod runs;
pub mod sources;

pub use error::{Error, Result};

/// Locks even if another thread panicked: what locks guard here is whole at any time.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
