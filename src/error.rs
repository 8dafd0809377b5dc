//! What can go wrong in the core, in words a user can act on.
//!
//! `py` turns each kind into the exception of the same name in `piecemill.errors`.

use std::fmt;

/// The result of everything in the core that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure: which room it belongs to, and a message that names the place, the value and the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// A document or file could not be read (`SourceError`).
    Source(String),
    /// A split pattern could not be compiled or applied (`PretokenizerError`).
    Split(String),
    /// An option has a value that cannot work (`PlanError`).
    Plan(String),
    /// Training could not go on (`TrainingError`).
    Training(String),
    /// A vocabulary or a text cannot be encoded (`TokenizerError`).
    Tokenizer(String),
    /// The caller requested a stop; nothing was written (`KeyboardInterrupt`).
    Stopped,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Source(message)
            | Error::Split(message)
            | Error::Plan(message)
            | Error::Training(message)
            | Error::Tokenizer(message) => f.write_str(message),
            Error::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for Error {}
